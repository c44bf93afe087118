"""``omnipilot collect sacct``: ended jobs out of Slurm's accounting, live or from files."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from omnipilot.cli.collect_report import emit_report, exit_code
from omnipilot.cli.options import NOT_NEGATIVE, POSITIVE, format_option, home_option

_AGO: Final = re.compile(r"([0-9]{1,5})([hdw])", re.ASCII)
_UNIT_S: Final = {"h": 3600, "d": 86_400, "w": 604_800}


class When(click.ParamType[int]):
    """A time: ``2026-01-31``, ``2026-01-31T08:00`` (local, or with an offset), or ``7d`` ago."""

    name = "time"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - the type that click passes
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        """Give Unix seconds."""
        if isinstance(value, int):
            return value
        ago = _AGO.fullmatch(value)
        if ago:
            return int(time.time()) - int(ago[1]) * _UNIT_S[ago[2]]
        try:
            seconds = int(datetime.fromisoformat(value).astimezone().timestamp())
        except (ValueError, OverflowError):
            self.fail(
                f"'{value}' is no time such as 2026-01-31, 2026-01-31T08:00 or 7d", param, ctx
            )
        if seconds < 1:
            self.fail(f"'{value}' lies before 1970", param, ctx)
        return seconds


@click.command()
@click.argument("files", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--since",
    type=When(),
    help="Jobs that ended from here on; where the last harvest left off if left out.",
)
@click.option("--until", type=When(), help="Jobs that ended up to here; now if left out.")
@click.option(
    "--cluster",
    default="",
    metavar="NAME",
    help="Ask for this cluster; of files, take its jobs only.",
)
@click.option("--again", is_flag=True, help="Ask again for times that are harvested already.")
@click.option(
    "--overlap-h",
    type=NOT_NEGATIVE,
    default=24.0,
    show_default=True,
    help="Hours before the last harvest's end that are asked for again.",
)
@click.option(
    "--silence-s",
    type=POSITIVE,
    default=600.0,
    show_default=True,
    help="Longest wait for sacct's next output.",
)
@click.option(
    "--timezone",
    metavar="NAME",
    help="Where times in FILES without an offset were printed, such as Europe/Berlin; UTC.",
)
@home_option
@format_option("table", "json", "csv")
def sacct(
    files: tuple[Path, ...],
    since: int | None,
    until: int | None,
    cluster: str,
    again: bool,
    overlap_h: float,
    silence_s: float,
    timezone: str | None,
    home: Path | None,
    form: str,
) -> int:
    """Take in ended jobs of Slurm's accounting: from sacct itself, or from FILES that it printed.

    Without FILES this machine's sacct is asked, for the time since the last harvest. What is
    harvested already is counted once however often it is read, so the command can be repeated, or
    killed and started again. Users and accounts are stored as keyed hashes, job names as a class.

    \b
    Example:
      omnipilot collect sacct --since 2026-01-01
      omnipilot collect sacct
      omnipilot collect sacct --cluster della --since 30d --format json
      omnipilot collect sacct 2025.txt.gz --timezone America/New_York
    """  # fmt: skip
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.harvest import Sacct, collect_files, harvest_slurm  # noqa: PLC0415
    from omnipilot.cli.progress_bar import progress_bar  # noqa: PLC0415 - keeps --help quick

    wanted = Sacct(
        since_s=since or 0,
        until_s=until or 0,
        cluster=cluster,
        again=again,
        overlap_s=int(overlap_h * 3600),
        zone=_zone(timezone),
        silence_s=silence_s,
    )
    advisor = Advisor.open(home)
    folder = advisor.home
    now_s = time.time()
    with progress_bar() as tell:
        if files:
            report = collect_files(
                folder, "sacct", files, now_s=now_s, wanted=wanted, on_progress=tell
            )
        else:
            report = harvest_slurm(folder, wanted, now_s=now_s, on_progress=tell)
    emit_report(report, form)
    if report.accepted:
        advisor.digest(now_s, anew=True)  # so that an advice need not read all the jobs
    return exit_code(report)


def _zone(name: str | None) -> Any:  # noqa: ANN401 - zoneinfo is imported where needed
    if name is None:
        return None
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - only this option needs it

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise click.BadParameter(
            f"'{name}' is no time zone such as Europe/Berlin", param_hint="--timezone"
        ) from None
