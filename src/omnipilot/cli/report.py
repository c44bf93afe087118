"""``omnipilot report``: every table and figure on one page."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omnipilot.cli import exits
from omnipilot.cli.options import NOT_NEGATIVE, Names, format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra

if TYPE_CHECKING:
    from omnipilot.evaluate.report import Report


@click.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder of report.html and of a CSV file for every table.",
)  # fmt: skip
@click.option(
    "--data", "folder", type=click.Path(path_type=Path, exists=True),
    help="Measured rows; the site's own if left out.",
)  # fmt: skip
@click.option(
    "--source", "sources", type=Names(), default="all", show_default=True,
    help="Test rows of these sources of --data; training uses all of them.",
)  # fmt: skip
@click.option("--engine", default="", help="Test rows of this engine only.")
@click.option("--vendor", default="", help="Test rows on GPUs of this vendor only.")
@click.option(
    "--value-per-token", type=NOT_NEGATIVE, metavar="USD",
    help="What one token is worth; 2e-7 for --data, the site's setting else.",
)  # fmt: skip
@click.option(
    "--effort", type=click.Choice(("kept", "usual", "all")), default="usual", show_default=True,
    help="What may be computed: nothing that takes minutes and is not kept, what decisions need, "
    "or everything.",
)  # fmt: skip
@click.option("--only", type=Names(), default=None, help="Only these tables and figures.")
@home_option
@format_option("table", "json")
def report(
    out: Path,
    folder: Path | None,
    sources: tuple[str, ...],
    engine: str,
    vendor: str,
    value_per_token: float | None,
    effort: str,
    only: tuple[str, ...] | None,
    home: Path | None,
    form: str,
) -> int:
    """Write every table and figure to one page that works offline.

    The page needs no network and no other file; each table is a CSV file beside it, and every
    number has the command that makes it again. A part that cannot be had says why.

    \b
    Example:
      omnipilot report --home ~/omnipilot --out report
      omnipilot report --data ../shared/data --source mlenergy_v3 --out report --effort all
    """
    single_threaded_algebra()
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.report_facts import report_facts  # noqa: PLC0415 - same
    from omnipilot.advisor.site_dataset import site_prices, site_rows  # noqa: PLC0415 - same
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.evaluate.holdout import Holdout  # noqa: PLC0415 - same
    from omnipilot.evaluate.material import Material  # noqa: PLC0415 - same
    from omnipilot.evaluate.prices import PRICES_USD_PER_GPU_H  # noqa: PLC0415 - same
    from omnipilot.evaluate.report import (  # noqa: PLC0415 - same
        check_names,
        make_report,
        write_report,
    )
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same

    check_names(only or ())
    advisor = Advisor.open(home)
    if folder is None:
        rows = site_rows(advisor)
        dataset, sources, prices = rows.dataset, rows.sources, site_prices(advisor)
        value = advisor.settings.value_usd_per_token
    else:
        dataset = build_dataset(read_runs(folder), Catalog.load(advisor.home))
        prices, value = PRICES_USD_PER_GPU_H, 2e-7
    value = value if value_per_token is None else value_per_token
    words = _filter_words(folder, sources, engine, vendor)
    again = _joined("omnipilot", "report", words, _site_words(home), "--out", shlex.quote(str(out)),
                    "--effort", effort, "--value-per-token", f"{value:g}")  # fmt: skip
    material = Material(
        dataset=dataset,
        question=Holdout(
            target="aggregate_tokens_per_s", split="cell", sources=sources, engine=engine,
            vendor=vendor,
        ),
        prices=prices,
        value_per_token_usd=value,
        home=advisor.home,
        effort=effort,
        site=report_facts(advisor, dataset, time.time()),
        words=words,
        say=output.progress,
    )  # fmt: skip
    made = make_report(
        material,
        title="OmniPilot report" if folder is not None else "OmniPilot report of this site",
        subtitle=f"{dataset.data.frame.n:,} measured rows of {', '.join(sources)}; "
        f"{dataset.excluded.total:,} left out",
        again=again,
        simulated=folder is None and (advisor.home / "SIMULATED.md").exists(),
        only=only or (),
        progress=output.progress,
    )
    files = write_report(made, out)
    _emit(made, files, form)
    return exits.OK


def _joined(*words: str) -> str:
    return " ".join(word for word in words if word)


def _site_words(home: Path | None) -> str:
    return f"--home {shlex.quote(str(home))}" if home is not None else ""


def _filter_words(folder: Path | None, sources: tuple[str, ...], engine: str, vendor: str) -> str:
    """The options that name the rows; "" where they are the site's own."""
    if folder is None:
        return ""
    chosen = (("--source", ",".join(sources)), ("--engine", engine), ("--vendor", vendor))
    words = [f"{option} {shlex.quote(text)}" for option, text in chosen if text not in ("", "all")]
    return _joined(f"--data {shlex.quote(str(folder))}", *words)


def _emit(made: Report, files: list[Path], form: str) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    parts = [("table", m.entry.name, m.reason) for m in made.tables]
    parts += [("figure", m.entry.name, m.reason) for m in made.figures]
    if form == "json":
        output.emit_json(
            {
                "page": str(files[0]),
                "files": [str(path) for path in files],
                "simulated": made.simulated,
                "parts": [
                    {"kind": kind, "name": name, "why_missing": reason or None}
                    for kind, name, reason in parts
                ],
            }
        )
        return
    click.echo(f"{files[0]} and {len(files) - 1} CSV files")
    missing = [(kind, name, reason) for kind, name, reason in parts if reason]
    if missing:
        output.emit_heading("not in the report")
        output.emit_table(
            [output.Column("part"), output.Column("name"), output.Column("why")],
            [list(row) for row in missing],
        )
