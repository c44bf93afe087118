"""``omnipilot demo``: a simulated site to try everything on."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option
from omnipilot.cli.threads import single_threaded_algebra

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omnipilot.cli.demo_steps import StepResult
    from omnipilot.simulate.site import SiteReport

_DAY_S: Final = 86400.0
_EVERY_S: Final = 0.2
_QUIET_S: Final = 10.0
_CELLS: Final = 24


@click.command()
@click.option(
    "--home", type=click.Path(file_okay=False, path_type=Path), default=Path("omnipilot-demo"),
    show_default=True, help="Folder of the simulated site; it must not hold rows yet.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True,
    help="What the site is drawn from; the same seed gives the same site on one day.",
)  # fmt: skip
@click.option(
    "--jobs", "n_jobs", type=click.IntRange(1000, 5_000_000), default=500_000, show_default=True,
    help="Jobs of the simulated cluster; fewer are quicker.",
)  # fmt: skip
@format_option("table", "json")
def demo(home: Path, seed: int, n_jobs: int, form: str) -> int:
    """Build a simulated site and run the whole pipeline on it.

    Nothing is measured: a simulated engine and a simulated queue make the rows, and all of them say
    so. The folder stays, with the answer of every step in its folder demo.

    \b
    Example:
      omnipilot demo
      omnipilot demo --home /tmp/site --seed 7 --jobs 50000
    """
    single_threaded_algebra()
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.cli.demo_steps import STEPS, run_step  # noqa: PLC0415 - same
    from omnipilot.simulate.site import build_site  # noqa: PLC0415 - NumPy takes 0.1 s

    begin_s = time.monotonic()
    now_s = time.time() // _DAY_S * _DAY_S
    with _progress() as tell:
        site = build_site(home, seed, now_s=now_s, n_jobs=n_jobs, on_progress=tell)
    output.progress("reading launches and waits out of the cluster's jobs")
    Advisor.open(home).digest(now_s, anew=True)
    built_s = time.monotonic() - begin_s
    output.progress(f"simulated site built in {built_s:.0f} s")
    results = []
    for number, step in enumerate(STEPS, start=1):
        output.progress(f"step {number} of {len(STEPS)}: {step.title}")
        results.append(run_step(step, home))
    if form == "json":
        _emit_data(site, built_s, results)
    else:
        _emit(site, built_s, results)
    return exits.OK if all(r.answered for r in results) else exits.ERROR


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr: on a terminal it moves, elsewhere a line is printed now and then."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    is_terminal = sys.stderr.isatty()
    last_s, last = 0.0, ""

    def tell(doing: str, done: int, total: int) -> None:
        nonlocal last_s, last
        now_s = time.monotonic()
        if doing == last and now_s - last_s < (_EVERY_S if is_terminal else _QUIET_S):
            return
        last_s, last = now_s, doing
        share = done / total if total else 1.0
        if is_terminal:
            bar = ("#" * round(share * _CELLS)).ljust(_CELLS, "-")
            text = f"\r[{bar}] {share:4.0%} {doing}: {done:,} of {total:,}\x1b[K"
            click.echo(text, err=True, nl=False)
        else:
            output.progress(f"{doing}: {done:,} of {total:,}")

    try:
        yield tell
    finally:
        if is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


def _shown_command(result: StepResult, home: Path) -> str:
    words = ["omnipilot", *result.step.words(home)]
    return " ".join(f"'{word}'" if " " in word else word for word in words)


def _emit(site: SiteReport, built_s: float, results: list[StepResult]) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    click.secho("Simulated: no figure below is a measurement.", bold=True)
    click.echo(
        f"{site.home}: {sum(site.rows.values()):,} rows ({site.runs} runs, {site.failed} of them "
        f"failed) and {site.jobs:,} cluster jobs in {built_s:.0f} s"
    )
    for result in results:
        output.emit_heading(f"{result.step.title} ({result.seconds:.1f} s)")
        output.emit_lines([_shown_command(result, site.home)])
        if result.answered:
            told = [line for line in result.text.splitlines() if line.strip()]
            output.emit_lines(told[: result.step.lines], indent="    ")
        else:
            output.emit_lines([f"failed: {result.error}"], indent="    ")
    output.emit_heading("Yours to play with")
    output.emit_lines(
        [
            f"All of it: {site.home}/demo/*.txt. What this folder is: {site.home}/SIMULATED.md.",
            f"Any command takes --home {site.home}; remove the folder when you are done.",
        ]
    )


def _emit_data(site: SiteReport, built_s: float, results: list[StepResult]) -> None:
    from omnipilot.cli.output import emit_json  # noqa: PLC0415 - keeps --help quick

    emit_json(
        {
            "simulated": True,
            "home": str(site.home),
            "rows": site.rows,
            "runs": site.runs,
            "failed": site.failed,
            "jobs": site.jobs,
            "engine_s": site.engine_s,
            "seconds": built_s,
            "steps": [
                {
                    "name": r.step.name,
                    "command": _shown_command(r, site.home),
                    "exit_code": r.exit_code,
                    "seconds": r.seconds,
                    "error": r.error or None,
                }
                for r in results
            ],
        }
    )
