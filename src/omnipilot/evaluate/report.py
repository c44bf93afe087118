"""The report: one self-contained HTML page, and a CSV file of every table."""

from __future__ import annotations

import csv
import math
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import OmniPilotError, StateError, UnknownNameError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.decision_tables import TABLES
from omnipilot.evaluate.figures import FIGURES
from omnipilot.evaluate.tables import COUNT, NUMBER, SHARE, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from omnipilot.evaluate.figures import FigureEntry
    from omnipilot.evaluate.material import Material
    from omnipilot.evaluate.tables import Cell, Table, TableEntry

PAGE: Final = "report.html"
NAMES: Final[tuple[str, ...]] = (*(t.name for t in TABLES), *(f.name for f in FIGURES))
_WIDE: Final = frozenset({"coverage-of-axes", "decision-space", "launches"})
_WHOLE: Final = 1e6


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A table of the report; ``reason`` says why there is none."""

    entry: TableEntry
    table: Table | None
    reason: str


@dataclass(frozen=True, slots=True)
class MadeFigure:
    """A figure of the report; ``reason`` says why there is none."""

    entry: FigureEntry
    drawings: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """All parts that were asked for, in order."""

    title: str
    subtitle: str
    again: str
    simulated: bool
    material: Material
    tables: tuple[MadeTable, ...]
    figures: tuple[MadeFigure, ...]


def check_names(names: Sequence[str]) -> None:
    """Refuse a part that does not exist.

    Raises:
        UnknownNameError: listing those that do.
    """
    for name in names:
        if name not in NAMES:
            raise UnknownNameError(
                f"a report has no part '{name}': say one of {', '.join(dict.fromkeys(NAMES))}"
            )


def make_report(
    material: Material,
    *,
    title: str,
    subtitle: str,
    again: str,
    simulated: bool = False,
    only: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Build every part; one that cannot be had carries its reason.

    Args:
        material: rows and answers.
        title: of the page.
        subtitle: below it.
        again: command that makes the report again, without ``--only``.
        simulated: say on the page that nothing was measured.
        only: names of tables and figures; all where empty.
        progress: told in words what is being done.
    """
    check_names(only)
    tables, figures = [], []
    for table in (t for t in TABLES if not only or t.name in only):
        progress(f"table {table.name}")
        try:
            tables.append(MadeTable(table, table.build(material), ""))
        except OmniPilotError as error:
            tables.append(MadeTable(table, None, str(error)))
    for figure in (f for f in FIGURES if not only or f.name in only):
        progress(f"figure {figure.name}")
        try:
            figures.append(MadeFigure(figure, tuple(figure.build(material)), ""))
        except OmniPilotError as error:
            figures.append(MadeFigure(figure, (), str(error)))
    return Report(title, subtitle, again, simulated, material, tuple(tables), tuple(figures))


def write_report(report: Report, out: Path) -> list[Path]:
    """Write the page and a CSV file of every table.

    Raises:
        StateError: the folder cannot be written.
    """
    written = [out / PAGE]
    try:
        out.mkdir(parents=True, exist_ok=True)
        written[0].write_text(render(report), encoding="utf-8")
        for made in report.tables:
            if made.table is not None:
                path = out / f"{made.entry.name}.csv"
                with path.open("w", encoding="utf-8", newline="") as file:
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerow([name for name, _ in made.table.columns])
                    writer.writerows([_csv_cell(c) for c in row] for row in made.table.rows)
                written.append(path)
    except OSError as error:
        raise StateError(f"{out} cannot be written: {error.strerror or error}") from error
    return written


def _csv_cell(cell: Cell) -> Cell:
    if isinstance(cell, float):
        return f"{cell:.7g}" if math.isfinite(cell) else ""
    return "" if cell is None else cell


def written_as(cell: Cell, kind: str) -> str:
    """A cell for a reader; a dash stands for a missing number.

    >>> [written_as(v, k) for v, k in ((0.953, "share"), (1234, "count"), (0.01234, "number"))]
    ['95.3 %', '1,234', '0.0123']
    """
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "–"
    if isinstance(cell, str):
        return cell
    if kind == SHARE:
        return f"{cell:.1%}".replace("%", " %")
    if kind == COUNT:
        return f"{cell:,.0f}"
    if kind == NUMBER:
        return f"{cell:,.0f}" if abs(cell) >= _WHOLE else f"{cell:.3g}"
    return str(cell)


def command_of(report: Report, entry: TableEntry | FigureEntry) -> str:
    """Give the command that makes the numbers of one part again."""
    alone = f"{report.again} --only {entry.name}"
    shorter = entry.command.replace("{rows}", report.material.words)
    shorter = shorter.replace("{advice}", report.material.site.command)
    if not shorter or ("{rows}" in entry.command and not report.material.words):
        return alone
    return f"{shorter}\n{alone}"


def render(report: Report) -> str:
    """Give the page: it loads nothing, runs nothing and follows the reader's light or dark."""
    style = resources.files("omnipilot.evaluate").joinpath("report_style.css").read_text("utf-8")
    parts = [*_figures(report), *(_table(report, made) for made in report.tables)]
    contents = [(f"figure-{m.entry.name}", m.entry.title) for m in report.figures]
    contents += [(f"table-{m.entry.name}", m.entry.title) for m in report.tables]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in contents)
    banner = (
        '<p class="banner">Simulated: no figure on this page is a measurement.</p>'
        if report.simulated
        else ""
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>\n{style}</style></head>\n<body>"
        f"<h1>{escape(report.title)}</h1><p class='soft'>{escape(report.subtitle)}</p>{banner}"
        f"{_cards(report)}<nav aria-label='Contents'>{links}"
        f'<a href="#commands">Commands</a></nav>\n{"".join(parts)}'
        f"{_commands(report)}</body></html>\n"
    )


def _cards(report: Report) -> str:
    """The figures that matter most, where they were computed."""
    found = next((m for m in report.tables if m.entry.name == "policies" and m.table), None)
    if found is None:
        return ""
    d = report.material.decisions
    low, high = d["top1_ci"]
    rows = (
        ("decisions", f"{d['cells']:,}", f"{d['arms']:,} measured arms"),
        ("right choices", f"{d['top1']:.1%}", f"95 % interval {low:.1%} to {high:.1%}"),
        ("relative regret", f"{d['regret_relative']:.4f}",
         f"up to {d['regret_ci'][1]:.4f} in 95 % of draws"),
        ("regret of revenue", f"{d['regret_revenue_frac']:.4f}",
         f"at {d['value_per_token_usd']:g} USD a token"),
    )  # fmt: skip
    cards = "".join(
        f'<div class="card"><span class="soft">{escape(name)}</span><b>{escape(value)}</b>'
        f'<a class="soft" href="#command-policies">{escape(note)}</a></div>'
        for name, value, note in rows
    )
    return f'<div class="cards">{cards}</div>'


def _head(entry: TableEntry | FigureEntry, *, file: bool = False) -> str:
    paper = f'<span class="soft">paper: {escape(entry.paper)}</span>' if entry.paper else ""
    link = f'<a href="#command-{entry.name}">command</a>'
    rows = f'<a href="{entry.name}.csv">CSV</a>' if file else ""
    return f'<div class="head"><h3>{escape(entry.title)}</h3>{paper}{link}{rows}</div>'


def _figures(report: Report) -> Iterable[str]:
    if not report.figures:
        return []
    shown = []
    for made in report.figures:
        entry = made.entry
        wide = " wide" if entry.name in _WIDE and made.drawings else ""
        body = (
            f'<div class="drawings">{"".join(made.drawings)}</div>'
            f"<figcaption>{escape(entry.caption)}</figcaption>"
            if made.drawings
            else f'<p class="note">Not here: {escape(made.reason)}</p>'
        )
        request = report.material.site.request if entry.command == "{advice}" else ""
        note = f'<p class="note">{escape(request)}</p>' if request and made.drawings else ""
        shown.append(
            f'<section class="part{wide}" id="figure-{entry.name}"><figure>'
            f"{_head(entry)}{note}{body}</figure></section>\n"
        )
    return [f'<h2>Figures</h2>\n<div class="figures">{"".join(shown)}</div>\n<h2>Tables</h2>\n']


def _table(report: Report, made: MadeTable) -> str:
    del report
    entry, table = made.entry, made.table
    head = _head(entry, file=table is not None)
    if table is None or not table.rows:
        reason = made.reason or "no row"
        body = f'<p class="note">Not here: {escape(reason)}</p>'
    else:
        used = [
            i for i, (_, kind) in enumerate(table.columns)
            if kind != TEXT or i == 0 or any(row[i] for row in table.rows)
        ]  # fmt: skip
        names = "".join(_cell("th", *table.columns[i]) for i in used)
        rows = "".join(
            "<tr>"
            + "".join(
                _cell("td", written_as(row[i], table.columns[i][1]), table.columns[i][1])
                for i in used
            )
            + "</tr>\n"
            for row in table.rows
        )
        body = (
            f'<div class="scroll"><table><thead><tr>{names}</tr></thead>\n'
            f"<tbody>{rows}</tbody></table></div>"
        )
        body += f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'<section id="table-{entry.name}">{head}{body}</section>\n'


def _cell(tag: str, text: str, kind: str) -> str:
    return f"<{tag}{'' if kind == TEXT else ' class=n'}>{escape(text)}</{tag}>"


def _commands(report: Report) -> str:
    entries: dict[str, TableEntry | FigureEntry] = {m.entry.name: m.entry for m in report.tables}
    entries |= {m.entry.name: m.entry for m in report.figures}
    rows = "".join(
        f'<section id="command-{name}"><h3>{escape(entry.title)}</h3>'
        f"<pre>{escape(command_of(report, entry))}</pre></section>\n"
        for name, entry in entries.items()
    )
    return (
        f'<h2 id="commands">Commands</h2><p class="soft">The whole page:</p>'
        f"<pre>{escape(report.again)}</pre>\n{rows}"
    )
