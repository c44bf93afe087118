"""``omnipilot collect dcgm``: GPU telemetry, from a Prometheus server or what one recorded."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from omnipilot.cli import exits
from omnipilot.cli.collect_sacct import When
from omnipilot.cli.options import POSITIVE, format_option, home_option
from omnipilot.domain.errors import BadInputError, UsageError

if TYPE_CHECKING:
    from omnipilot.advisor.telemetry import TelemetryReport
    from omnipilot.collect.dcgm import Window
    from omnipilot.collect.prometheus_server import PrometheusServer

__all__ = ["Instant", "dcgm"]

_EPOCH: Final = re.compile(r"[0-9]{9,11}", re.ASCII)
_TOKEN_BYTES: Final = 16_384
_FILE: Final = click.Path(dir_okay=False, path_type=Path)


class Instant(When):
    """A time as :class:`When` reads it, or Unix seconds."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - the type that click passes
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Give Unix seconds."""
        if isinstance(value, str) and _EPOCH.fullmatch(value):
            return int(value)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("files", nargs=-1, type=_FILE)
@click.option(
    "--prometheus",
    metavar="URL",
    default="",
    help="Ask this server, such as http://host:9090, for --since to --until.",
)
@click.option("--since", type=Instant(), help="Begin of the time to ask for.")
@click.option("--until", type=Instant(), help="Its end; now if left out.")
@click.option(
    "--step",
    type=POSITIVE,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between readings: the server's scrape interval.",
)
@click.option(
    "--timeout",
    type=POSITIVE,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for one answer.",
)
@click.option("--token-file", type=_FILE, help="File with the bearer token that the server wants.")
@click.option("--job", default="", metavar="ID", help="Only this job.")
@click.option("--serve-start", type=Instant(), help="When the job's server got ready.")
@click.option("--serve-end", type=Instant(), help="When it stopped serving.")
@click.option(
    "--windows", type=_FILE, help="CSV of job_id,serve_start_s,serve_end_s, for many jobs."
)
@click.option("--cluster", default="", metavar="NAME", help="Name of the cluster.")
@click.option(
    "--job-label",
    default="hpc_job",
    show_default=True,
    metavar="LABEL",
    help="Label of the series that names the job.",
)
@home_option
@format_option("table", "json", "csv")
def dcgm(files: tuple[Path, ...], home: Path | None, form: str, **options: Any) -> int:  # noqa: ANN401
    """Take in GPU telemetry of dcgm-exporter and show serving beside whole jobs.

    FILES are recorded answers of a Prometheus server (query_range or query), or pages of
    dcgm-exporter. Each job's power, SM, tensor and memory activity and memory in use are averaged
    over its serving window and, beside that, over all of its readings: loading weights and idling
    pull the latter down. XIDs, ECC errors and failed row remaps become rows of GPU health.

    \b
    Example:
      omnipilot collect dcgm dump.json --job 4711 --serve-start 1769846400 --serve-end 1769850000
      omnipilot collect dcgm --prometheus http://prometheus:9090 --since 1d --windows served.csv
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.telemetry import Time, collect_telemetry  # noqa: PLC0415 - same
    from omnipilot.collect.dcgm import Telemetry  # noqa: PLC0415 - same

    now_s = time.time()
    asked = None
    if options["prometheus"]:
        if options["since"] is None:
            raise UsageError("say from when to ask, as in --since 1d")
        asked = Time(options["since"], options["until"] or now_s, options["step"])
    elif not files:
        raise UsageError("give a recorded file, or --prometheus URL with --since")
    report = collect_telemetry(
        Advisor.open(home).home,
        files,
        Telemetry(_windows(options), options["cluster"], options["job_label"]),
        now_s=now_s,
        server=_server(options) if asked else None,
        time=asked,
        jobs=(options["job"],) if options["job"] else (),
    )
    _emit(report, form)
    return exits.USAGE if report.stored.rejected and not report.rows else exits.OK


def _windows(options: dict[str, Any]) -> dict[str, Window]:
    from omnipilot.advisor.telemetry import read_windows  # noqa: PLC0415 - keeps --help quick
    from omnipilot.collect.dcgm import Window  # noqa: PLC0415 - same

    windows = read_windows(options["windows"]) if options["windows"] else {}
    start_s, end_s = options["serve_start"], options["serve_end"]
    if start_s is None and end_s is None:
        return windows
    if not options["job"] or start_s is None or end_s is None:
        raise UsageError("a serving window needs --job, --serve-start and --serve-end")
    return windows | {options["job"]: Window(float(start_s), float(end_s))}


def _server(options: dict[str, Any]) -> PrometheusServer:
    from omnipilot.collect.prometheus_server import PrometheusServer  # noqa: PLC0415 - ssl

    token = ""
    if options["token_file"]:
        try:
            with options["token_file"].open("rb") as stream:
                token = stream.read(_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"cannot read the token: {error}") from error
    return PrometheusServer(options["prometheus"], options["timeout"], token=token)


def _emit(report: TelemetryReport, form: str) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli.telemetry_table import emit_windows, emit_windows_csv  # noqa: PLC0415 - same
    from omnipilot.domain import GpuHealth, GpuSnapshot, GpuWindow  # noqa: PLC0415 - same

    windows = [row for row in report.rows if isinstance(row, GpuWindow)]
    health = [row for row in report.rows if isinstance(row, GpuHealth)]
    snapshots = [row for row in report.rows if isinstance(row, GpuSnapshot)]
    stored = report.stored
    if form == "json":
        output.emit_json(
            {
                "accepted": stored.accepted,
                "duplicate": stored.duplicate,
                "rejected": stored.rejected,
                "by_reason": stored.by_reason,
                "rejections": [r.reason for r in stored.rejections],
                "jobs": windows,
                "health": health,
                "snapshots": snapshots,
            }
        )
        return
    if form == "csv":
        emit_windows_csv(windows)
        return
    if windows:
        emit_windows(windows)
    if health:
        output.emit_heading("GPU health")
        output.emit_lines(
            f"{row.host} {row.gpu_uuid}: {row.event}{f' {row.code}' if row.code else ''}, "
            f"{row.severity}{f', job {row.job_id}' if row.job_id else ''}"
            for row in health
        )
    for row in snapshots:
        click.echo(
            f"{row.gpu or 'GPUs of no told kind'}: {row.n_gpus} in {row.n_hosts} nodes, "
            f"{row.n_busy} with a job, {row.n_faulty} faulty"
        )
    click.echo(
        f"{stored.accepted:,} new, {stored.duplicate:,} stored already, {stored.rejected:,} refused"
    )
    output.emit_lines(f"{r.reason}" for r in stored.rejections)
