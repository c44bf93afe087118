"""``omnipilot data``: measured runs into the site's store, and what it holds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omnipilot.cli import exits
from omnipilot.cli.data_rows import join, list_, telemetry
from omnipilot.cli.options import format_option, home_option

if TYPE_CHECKING:
    from omnipilot.store import ImportReport, StoreStats


@click.group(no_args_is_help=False)
def data() -> None:
    """Import measured runs and show what is stored.

    \b
    Example:
      omnipilot data import my_runs.csv.gz
      omnipilot data stats --format json
      omnipilot data list --kind hardware_probe
    """


for command in (list_, telemetry, join):
    data.add_command(command)


@data.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@home_option
@format_option("table", "json", "csv")
def import_(file: Path, home: Path | None, form: str) -> int:
    """Take measured runs into the store.

    FILE is a CSV file of the normalised columns, plain or gzip-compressed. Rows that are stored
    already are counted as duplicates; a row that cannot be read is refused with its line and the
    reason, and the others are kept. Columns that are not known are left aside and named, and so
    are GPUs, models and precisions that the catalogue does not know: their rows are kept. A file
    that is no such CSV leaves the store as it was.

    \b
    Example:
      omnipilot data import my_runs.csv.gz
      omnipilot data import my_runs.csv --home /srv/omnipilot --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli.collect_report import emit_unknown_names  # noqa: PLC0415 - same
    from omnipilot.cli.output import progress  # noqa: PLC0415 - same
    from omnipilot.collect import unread_columns  # noqa: PLC0415 - same

    report = Advisor.open(home).import_runs(
        file,
        now_s=time.time(),
        on_progress=lambda n: progress(f"{n:,} rows read") if n % 100_000 == 0 else None,
    )
    unread = unread_columns(file)
    if unread:
        progress(f"columns not read: {', '.join(unread)}")
    emit_unknown_names(report.unknown_names)
    _emit_report(report, unread, form)
    if report.rejected and not report.accepted + report.duplicate:
        progress(f"error: no row of {file} could be read")
        return exits.USAGE
    return exits.OK


def _emit_report(report: ImportReport, unread: tuple[str, ...], form: str) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    if form == "json":
        output.emit_json(
            {
                "accepted": report.accepted,
                "duplicate": report.duplicate,
                "rejected": report.rejected,
                "by_reason": report.by_reason,
                "unread_columns": unread,
                "unknown_names": report.unknown_names,
                "rejections": [{"line": r.line, "reason": r.reason} for r in report.rejections],
            }
        )
        return
    if form == "csv":
        output.emit_csv(("line", "reason"), [(r.line, r.reason) for r in report.rejections])
        return
    click.echo(
        f"{report.accepted:,} accepted, {report.duplicate:,} duplicate, "
        f"{report.rejected:,} rejected of {report.total:,} rows"
    )
    if report.rejections:
        output.emit_heading("Rejected")
        output.emit_lines(f"line {r.line}: {r.reason}" for r in report.rejections)
        if report.rejected > len(report.rejections):
            reasons = ", ".join(f"{reason} {n:,}" for reason, n in report.by_reason.items())
            output.emit_lines([f"and more; all by reason: {reasons}"])


@data.command()
@home_option
@format_option("table", "json", "csv")
def stats(home: Path | None, form: str) -> int:
    """Show what the store holds.

    \b
    Example:
      omnipilot data stats
      omnipilot data stats --home /srv/omnipilot --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick

    _emit_stats(Advisor.open(home).data_stats(), form)
    return exits.OK


@data.command()
@home_option
@format_option("table", "json")
def compact(home: Path | None, form: str) -> int:
    """Copy the cluster's jobs to Parquet beside their log, so that counting them is quick.

    Only what the log got since the last time is copied. The log stays as it is, and the copy can
    be deleted: without it the log is counted.

    \b
    Example:
      omnipilot data compact
      omnipilot data compact --home /srv/omnipilot --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.store import CLUSTER_LOG_NAME, Store  # noqa: PLC0415 - same
    from omnipilot.store.compacted import compact as copy  # noqa: PLC0415 - same
    from omnipilot.store.query import write_parquet  # noqa: PLC0415 - same

    store = Store.open(Advisor.open(home).home, log_name=CLUSTER_LOG_NAME)
    report = copy(
        store, write_parquet, on_progress=lambda frac: output.progress(f"{frac:.0%} of the log")
    )
    if form == "json":
        output.emit_json(report)
        return exits.OK
    click.echo(
        f"{report.rows:,} jobs copied; {report.total_rows:,} in {report.parts} Parquet files of "
        f"{report.parquet_bytes / 2**20:,.1f} MiB for {report.log_bytes / 2**20:,.1f} MiB of log"
    )
    for what, n in report.skipped.items():
        click.echo(f"left in the log: {n:,} lines, {what}")
    return exits.OK


_GROUPS = ("kind", "source", "engine", "model", "gpu", "status")
_SHOWN_PER_GROUP = 8


def _emit_stats(found: StoreStats, form: str) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    counts = {group: getattr(found, f"by_{group}") for group in _GROUPS} | {"label": found.labels}
    if form == "json":
        output.emit_json(found)
        return
    if form == "csv":
        output.emit_csv(
            ("group", "name", "rows"),
            [(group, name, n) for group, names in counts.items() for name, n in names.items()],
        )
        return
    click.echo(f"{found.rows:,} rows, {found.size_bytes / 2**20:.1f} MiB")
    if not found.rows:
        click.echo("The store is empty: omnipilot data import FILE takes rows in.")
        return
    columns = (output.Column("group"), output.Column("names"), output.Column("rows, most first"))
    output.emit_table(
        columns,
        [(group, f"{len(names):,}", _most(names)) for group, names in counts.items()],
    )
    for what, names in (
        ("lines that are no rows", found.skipped),
        ("rows of kinds that this version does not know", found.unknown_kinds),
    ):
        if names:
            output.emit_lines([f"{what}: {_most(names)}"], indent="")


def _most(names: dict[str, int]) -> str:
    shown = [f"{name or '(none)'} {n:,}" for name, n in list(names.items())[:_SHOWN_PER_GROUP]]
    rest = len(names) - _SHOWN_PER_GROUP
    return ", ".join([*shown, *([f"and {rest} more"] if rest > 0 else [])])
