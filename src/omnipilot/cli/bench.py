"""``omnipilot bench``: a grid of benchmarks, and the rows of finished runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option


@click.group(no_args_is_help=False)
def bench() -> None:
    """Plan and run a grid of benchmarks, and take its rows in.

    \b
    Example:
      omnipilot bench ingest
    """


@bench.command()
@click.argument("places", nargs=-1, type=click.Path(exists=True, path_type=Path))
@home_option
@format_option("table", "json", "csv")
def ingest(places: tuple[Path, ...], home: Path | None, form: str) -> int:
    """Take the rows of finished launches and benchmarks into the store.

    PLACES are folders of runs, or folders that hold such; without any, all launches of the site
    that ended since the last time. A row that is stored already counts as a duplicate, so that
    doing it twice does no harm.

    \b
    Example:
      omnipilot bench ingest
      omnipilot bench ingest ~/grids/h100.runs --format json
    """
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick
    from omnipilot.launch.emit import is_done, outcome_of  # noqa: PLC0415 - same
    from omnipilot.launch.ingest import (  # noqa: PLC0415 - same
        TAKEN_NAME,
        find_runs,
        ingest_run,
        launches_folder,
    )
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    home = home or default_home()
    own = launches_folder(home)
    folders = list(find_runs(places or ([own] if own.is_dir() and any(own.iterdir()) else [])))
    rows: list[dict[str, Any]] = []
    for folder in folders:
        if not places and (folder / TAKEN_NAME).exists():
            continue
        if not is_done(folder) and not places:
            continue
        report = ingest_run(home, folder, now_s=time.time())
        rows.append({
            "run": folder.name, "outcome": outcome_of(folder) or "not ended",
            "accepted": report.accepted, "duplicate": report.duplicate,
            "rejected": report.rejected, "reasons": [r.reason for r in report.rejections],
        })  # fmt: skip
    if form == "json":
        output.emit_json({"runs": rows})
    elif form == "csv":
        names = ("run", "outcome", "accepted", "duplicate", "rejected")
        output.emit_csv(names, [[row[name] for name in names] for row in rows])
    elif not rows:
        click.echo("No run has ended since the last time.")
    else:
        for row in rows:
            click.echo(
                f"{row['run']}: {row['outcome']}; {row['accepted']} rows taken in, "
                f"{row['duplicate']} there already"
            )
            output.emit_lines(str(reason) for reason in row["reasons"])
    return exits.OK
