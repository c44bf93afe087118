"""``omnipilot doctor``: what works on this site."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from omnipilot.cli import exits
from omnipilot.cli.options import POSITIVE, format_option, home_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.option("--prometheus", metavar="URL", default="",
              help="Check this Prometheus server, such as http://host:9090.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=POSITIVE, default=10.0, show_default=True,
              help="Longest wait for one program or server, in seconds.")  # fmt: skip
@home_option
@format_option("table", "json")
def doctor(home: Path | None, prometheus: str, timeout_s: float, form: str) -> int:
    """Check Slurm, stores, the model and prices.

    Looks at what the advice rests on. Each check stands alone and ends in a word: ok, warning,
    failed or skipped, with what to do. Exit code 1 means that one failed.

    \b
    Example:
      omnipilot doctor
      omnipilot doctor --prometheus http://monitor:9090 --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.doctor import Surroundings, examine  # noqa: PLC0415 - same
    from omnipilot.cli.output import emit_json, emit_lines  # noqa: PLC0415 - same

    around = Surroundings(time.time(), timeout_s, prometheus)
    results = []
    for result in examine(Advisor.open(home), around):
        results.append(result)
        if form == "table":
            todo = f" To do: {result.advice}." if result.advice else ""
            emit_lines([f"{result.state:<8}{result.name}: {result.found}.{todo}"], indent="")
    if form == "json":
        emit_json({"checks": results})
    return exits.ERROR if any(r.state == "failed" for r in results) else exits.OK
