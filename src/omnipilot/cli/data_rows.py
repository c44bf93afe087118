"""``omnipilot data list``, ``data telemetry`` and ``data join``: stored rows one by one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.domain import LabelledRun
    from omnipilot.store import StoredRow

__all__ = ["join", "list_", "telemetry"]

# What tells rows of a kind apart, by the names of their fields; the first that are there are shown.
_SHOWN: Final = (
    "model", "job_id", "host", "probe", "event", "code", "cause", "state", "gpu", "n_gpus",
    "precision", "concurrency", "status", "severity",
)  # fmt: skip
_SHOWN_LABELS: Final = 3


@click.command("list")
@click.option("--kind", default="", metavar="KIND", help="Rows of this kind only.")
@click.option("--cluster", is_flag=True, help="Of the cluster-wide log.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True,
              help="How many, newest first.")  # fmt: skip
@home_option
@format_option("table", "json", "csv")
def list_(kind: str, home: Path | None, form: str, limit: int, *, cluster: bool) -> int:
    """List the newest stored rows with their hashes.

    \b
    Example:
      omnipilot data list
      omnipilot data list --kind hardware_probe --format json
      omnipilot data list --cluster --limit 5
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.telemetry import HASH_CHARACTERS, list_rows  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same

    rows = list_rows(Advisor.open(home).home, kind=kind, cluster=cluster, most=limit)
    if form == "json":
        output.emit_json(rows)
        return exits.OK
    cells = [
        (
            stored.content_hash[:HASH_CHARACTERS],
            stored.row.kind,
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(stored.ingested_at_s)),
            _told(stored),
            _labels(stored),
        )
        for stored in rows
    ]
    header = ("hash", "kind", "taken in (UTC)", "row", "labels")
    if form == "csv":
        output.emit_csv(header, cells)
    elif rows:
        narrow = {"hash", "kind"}
        output.emit_table([output.Column(h, narrow=h in narrow) for h in header], cells)
    else:
        click.echo(f"No row{f' of kind {kind}' if kind else ''} is stored.")
    return exits.OK


def _told(stored: StoredRow) -> str:
    told = ((name, getattr(stored.row, name, "")) for name in _SHOWN)
    return ", ".join(f"{value:g} {name}" if isinstance(value, float) else
                     (f"{name} {value}" if isinstance(value, int) or name == "job_id" else value)
                     for name, value in told if value)  # fmt: skip


def _labels(stored: StoredRow) -> str:
    labels: dict[str, float] = getattr(stored.row, "labels", {})
    shown = [f"{name} {value:.4g}" for name, value in list(labels.items())[:_SHOWN_LABELS]]
    rest = len(labels) - _SHOWN_LABELS
    return ", ".join([*shown, *([f"and {rest} more"] if rest > 0 else [])])


@click.command()
@click.option("--job", default="", metavar="ID", help="Only this job.")
@home_option
@format_option("table", "json", "csv")
def telemetry(job: str, home: Path | None, form: str) -> int:
    """Show stored GPU telemetry: averages while serving beside those of whole jobs.

    \b
    Example:
      omnipilot data telemetry
      omnipilot data telemetry --job 4711 --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.telemetry import gpu_windows  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.cli.telemetry_table import emit_windows, emit_windows_csv  # noqa: PLC0415 - same

    rows = gpu_windows(Advisor.open(home).home, job)
    if form == "json":
        output.emit_json(rows)
    elif form == "csv":
        emit_windows_csv(rows)
    elif rows:
        emit_windows(rows)
    else:
        click.echo("No telemetry is stored: omnipilot collect dcgm takes it in.")
    return exits.OK


@click.command()
@click.argument("run")
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="HASH",
    help="Another row of the run, such as its start or its serving window; repeatable.",
)
@click.option(
    "--job",
    default="",
    metavar="ID",
    help="Its job: telemetry and accounting of that number are taken.",
)
@click.option("--cluster", default="", metavar="NAME", help="The job's cluster.")
@click.option(
    "--serve-start",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="When it began to serve, Unix seconds; the telemetry's window if left out.",
)
@click.option("--serve-end", type=float, default=0.0, metavar="SECONDS", help="When it stopped.")
@home_option
@format_option("table", "json", "csv")  # fmt: skip
def join(run: str, others: tuple[str, ...], home: Path | None, form: str, **when: Any) -> int:  # noqa: ANN401
    """Join a run with its log, metrics, telemetry and job into one labelled row.

    RUN is the hash of a stored run, or its first digits, as omnipilot data list shows it. A start
    and a serving window that were taken in together with it are found by that, telemetry and
    accounting by --job. What does not belong to the run is left out with the reason; each label
    keeps where it is from and how much it counts by its age.

    \b
    Example:
      omnipilot data join 3f9a2c41d0b7 --job 4711
      omnipilot data join 3f9a2c41d0b7 --job 4711 --with 88ad01c2ffe4 --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.telemetry import join as join_rows  # noqa: PLC0415 - same
    from omnipilot.store.join import RunTime  # noqa: PLC0415 - same

    served = RunTime(when["job"], when["cluster"], when["serve_start"], when["serve_end"])
    row = join_rows(Advisor.open(home), run, others, served, now_s=time.time())
    _emit_joined(row, form)
    return exits.OK


def _emit_joined(row: LabelledRun, form: str) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    cells = [
        (label, f"{value:.6g}", row.label_sources[label], f"{row.label_weights[label]:.2f}")
        for label, value in row.labels.items()
    ]
    if form == "json":
        output.emit_json(row)
    elif form == "csv":
        output.emit_csv(("label", "value", "source", "weight"), cells)
    else:
        click.echo(
            f"{row.model} on {row.n_gpus}x {row.gpu} {row.precision}"
            + (f", job {row.job_id}" if row.job_id else "")
        )
        columns = (
            output.Column("label"), output.Column("value", number=True), output.Column("from"),
            output.Column("weight", number=True),
        )  # fmt: skip
        output.emit_table(columns, cells)
        if row.left_out:
            output.emit_heading("Left out")
            output.emit_lines(row.left_out)
