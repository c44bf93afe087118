"""Answers on stdout: strict JSON, CSV or a table; progress on stderr."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from omnipilot.advisor.answer_data import plain
from omnipilot.advisor.words import moment, number, seconds, usd
from omnipilot.cli.visible import cell as text_cell
from omnipilot.cli.visible import escaped, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "WIDTH_WITHOUT_TERMINAL", "Column", "choose", "emit_csv", "emit_heading", "emit_json",
    "emit_lines", "emit_table", "moment", "number", "plain", "progress", "seconds", "usd",
]  # fmt: skip

WIDTH_WITHOUT_TERMINAL = 110
_GAP = "  "


class Column(NamedTuple):
    """One column of a table: numbers stand right, ``narrow`` text is never broken."""

    heading: str
    number: bool = False
    narrow: bool = False


def emit_json(value: object) -> None:
    """Print an answer as one JSON document."""
    text = json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    click.echo(escaped(text))


def emit_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as CSV; a missing value is an empty field, floats keep seven digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([_csv_cell(cell) for cell in row])
    click.echo(buffer.getvalue(), nl=False)


def _csv_cell(cell: object) -> object:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return f"{cell:.7g}" if math.isfinite(cell) else ""
    return text_cell(cell) if isinstance(cell, str) else cell


def emit_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows as an aligned table, wrapped to the terminal's width."""
    shown = [tuple(map(visible, row)) for row in rows]
    if not _emit_plain(columns, shown):
        _emit_wrapped(columns, shown)


def _emit_plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> bool:
    """Print a table that needs no wrapping; False, and nothing is printed, where it does."""
    lines = [[column.heading for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > _width():
        return False
    if not all(cell.isascii() and "\n" not in cell for line in lines for cell in line):
        return False  # some characters are wider than others
    for at, line in enumerate(lines):
        cells = [
            cell.rstrip().rjust(width) if column.number else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ]
        click.secho(_GAP.join(cells).rstrip(), bold=at == 0)
    return True


def _emit_wrapped(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - 0.1 s that most tables do not pay
    from rich.table import Table  # noqa: PLC0415 - same
    from rich.text import Text  # noqa: PLC0415 - same

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for column in columns:
        table.add_column(
            Text(column.heading), justify="right" if column.number else "left",
            no_wrap=column.number or column.narrow, overflow="fold",
        )  # fmt: skip
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(file=sys.stdout, width=_width(), highlight=False, markup=False)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def emit_heading(text: str) -> None:
    """Print a section's heading after an empty line."""
    click.echo()
    click.secho(visible(text), bold=True)


def emit_lines(lines: Iterable[str], indent: str = "  ", *, bold: bool = False) -> None:
    """Print sentences, one a paragraph, wrapped to the terminal with a hanging indent."""
    width = _width()
    for line in lines:
        text = click.wrap_text(
            visible(line), width=width, initial_indent=indent, subsequent_indent=f"{indent}  "
        )
        click.secho(text, bold=bold)


def _width() -> int:
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return WIDTH_WITHOUT_TERMINAL
    return shutil.get_terminal_size().columns


def progress(message: str) -> None:
    """Tell on stderr what is going on."""
    click.echo(f"omnipilot: {visible(message)}", err=True)


def choose(form: str, table: Callable[[], None], **others: Callable[[], None]) -> None:
    """Run the renderer of the asked form: ``table``, ``json`` or ``csv``."""
    {"table": table, **others}[form]()
