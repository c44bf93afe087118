"""A bar on stderr: on a terminal it moves, elsewhere a line is printed now and then."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omnipilot.advisor.harvest import Progress

__all__ = ["progress_bar"]

_EVERY_S: Final = 0.2
_QUIET_S: Final = 10.0
_CELLS: Final = 24


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Show how far a harvest is; nothing is left on a terminal afterwards."""
    is_terminal = sys.stderr.isatty()
    begin_s = last_s = time.monotonic()
    before = 0  # records of the parts that are done
    last = -1

    def tell(at: Progress) -> None:
        nonlocal last_s, before, last
        if at.records < last:
            before += last
        last = at.records
        now_s = time.monotonic()
        if now_s - last_s < (_EVERY_S if is_terminal else _QUIET_S):
            return
        last_s = now_s
        records = before + at.records
        rate = f"{records / (now_s - begin_s):,.0f}/s"
        text = f"{at.doing}: {records:,} records, {rate}"
        if is_terminal:
            full = round(at.done_frac * _CELLS)
            bar = "#" * full + "-" * (_CELLS - full)
            click.echo(f"\r[{bar}] {at.done_frac:4.0%} {text}\x1b[K", err=True, nl=False)
        else:
            click.echo(f"omnipilot: {at.done_frac:.0%}, {text}", err=True)

    try:
        yield tell
    finally:
        if is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
