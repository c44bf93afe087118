"""``omnipilot fit``: learn from the site's rows, or fit a new base model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import Weight, format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra

if TYPE_CHECKING:
    from omnipilot.advisor.learning_data import FitReport

_RETIRABLE = ("engine_minor", "cuda", "driver")


@click.command()
@click.option(
    "--data", "folder", type=click.Path(path_type=Path, exists=True),
    help="Fit a new base model on this folder (or CSV file) of measured rows; takes ten minutes.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False),
    help="Write the base model to this folder and leave the site alone; needs --data.",
)  # fmt: skip
@click.option(
    "--base", "base_name", default="", metavar="VERSION",
    help="Base model of the site's: a version, or 'shipped'; the present one's if left out.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would happen; write nothing.")
@click.option(
    "--retire", type=Weight(), multiple=True,
    help="Weight of rows of an older engine_minor, cuda or driver, from 1 to 0, instead of the "
    "setting; repeatable.",
)  # fmt: skip
@click.option(
    "--accept", is_flag=True, help="Learn from rows too that are held back as implausible."
)
@click.option(
    "--widths-only", is_flag=True,
    help="Adapt the widths of the intervals to the new rows and fit nothing.",
)  # fmt: skip
@home_option
@format_option("table", "json")
def fit(
    folder: Path | None,
    out: Path | None,
    base_name: str,
    dry_run: bool,
    retire: tuple[tuple[str, float], ...],
    accept: bool,
    widths_only: bool,
    home: Path | None,
    form: str,
) -> int:
    """Learn from the site's own rows, or fit a new base model.

    Conditions the base model on the runs of the site's store in seconds, judges the candidate
    against the model that answers, and promotes it where every criterion of the gate holds. With
    --data the base model itself is fitted anew first. The same rows give the same model, bit for
    bit.

    \b
    Example:
      omnipilot fit
      omnipilot fit --dry-run --retire engine_minor=0
      omnipilot fit --data ../shared/data --out my-base
    """
    single_threaded_algebra()
    for name, value in retire:
        if name not in _RETIRABLE or value > 1.0:
            raise click.UsageError(
                f"--retire {name}={value:g}: say one of {', '.join(_RETIRABLE)} and a weight from "
                "0 to 1"
            )
    if out is not None and folder is None:
        raise click.UsageError("--out is for a base model: say which rows with --data")
    if folder is not None and (dry_run or base_name):
        raise click.UsageError("--data fits a base model: leave --dry-run and --base out")
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.learning import FitOptions, fit_site  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same

    started_s = time.monotonic()
    advisor = Advisor.open(home)

    def tell(text: str) -> None:
        output.progress(f"{time.monotonic() - started_s:4.0f} s  {text}")

    if folder is not None:
        from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same

        dataset = build_dataset(read_runs(folder), advisor.catalog)
        tell(f"{dataset.data.frame.n:,} rows to learn from, {dataset.excluded.total:,} left out")
        if out is not None:
            return _to_folder(dataset, out, advisor.home, tell, form)
        from omnipilot.advisor.learning_base import fit_base  # noqa: PLC0415 - same

        base_name = fit_base(advisor, dataset, tell)
    options = FitOptions(dict(retire), accept, widths_only, base_name, dry_run)
    report = fit_site(advisor, options, now_s=time.time(), progress=tell)
    if form == "json":
        output.emit_json(report.data())
    else:
        _emit(report)
    return exits.OK


def _to_folder(dataset: Any, out: Path, home: Path, tell: Any, form: str) -> int:  # noqa: ANN401
    """Fit a base model into a folder of the user's."""
    from omnipilot.advisor.learning_base import kept_folds  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.learn.registry import BUNDLES_FOLDER  # noqa: PLC0415 - same
    from omnipilot.learn.train import train_bundle  # noqa: PLC0415 - same

    if out.absolute().parent == (home / BUNDLES_FOLDER).absolute():
        raise click.UsageError(
            f"{out.parent} is kept by the ledger: leave --out out, and the model becomes a "
            "candidate of the site"
        )
    version, card = train_bundle(dataset, out, tell, kept_folds(home, dataset))
    if form == "json":
        output.emit_json({"version": version, "out": str(out), "card": card})
        return exits.OK
    click.echo(f"cost model {version} of {card['rows']:,} rows in {out}")
    output.emit_table(
        [
            output.Column("head"), output.Column("held out"), output.Column("rows", number=True),
            output.Column("MAPE", number=True), output.Column("median APE", number=True),
            output.Column("coverage", number=True),
        ],
        [
            [name, label, f"{e['rows']:,}", f"{e['mape']:.1%}", f"{e['median_ape']:.1%}",
             f"{e['nested_coverage']:.1%}"]
            for name, classes in card["held_out"].items() for label, e in classes.items()
        ],
    )  # fmt: skip
    return exits.OK


def _headline(report: FitReport) -> str:
    if report.unchanged:
        return f"Nothing to change: cost model {report.incumbent} keeps answering."
    if report.dry_run:
        would = "would be promoted" if report.verdict.promoted else "would be rejected"
        return f"Dry run: a candidate {would}. Nothing was written."
    done = "promoted: it answers now" if report.promoted else "rejected"
    stays = "" if report.promoted else f"; {report.incumbent} keeps answering"
    return f"Candidate {report.version} {done}{stays}."


def _emit(report: FitReport) -> None:
    from omnipilot.advisor.learning_data import (  # noqa: PLC0415 - keeps --help quick
        alarm_note,
        excluded_words,
    )
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.cli.learning_tables import (  # noqa: PLC0415 - same
        emit_criteria,
        emit_stacks,
        emit_streams,
    )
    from omnipilot.learn.drift import EXCHANGED  # noqa: PLC0415 - same

    click.echo(_headline(report))
    parts = [f"{report.rows:,} runs of the site"]
    parts += excluded_words(report.excluded)
    parts += [
        f"{n:,} {words}"
        for n, words in (
            (report.retired, "retired"),
            (report.held_back, "held back as implausible"),
            (report.withheld, "withheld by an operator"),
            (report.learned, "left out because the base model has learned their source"),
        )
        if n
    ]
    click.echo(f"{', '.join(parts)}; base model {report.base}.")
    click.echo(report.verdict.reason[:1].upper() + report.verdict.reason[1:] + ".")
    emit_criteria(report.verdict.criteria)
    emit_stacks(report.stacks)
    if report.screened:
        output.emit_heading("Held back: no site is expected to measure this (--accept learns it)")
        emit_streams(report.screened)
    alarms = [s for s in report.drift if s.alarm]
    if alarms:
        output.emit_heading("Drift: new rows that the model before did not expect")
        emit_streams(alarms)
        output.emit_lines(alarm_note(s) for s in alarms if s.kind == EXCHANGED)
