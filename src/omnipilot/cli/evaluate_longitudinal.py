"""``omnipilot evaluate longitudinal``: a source's rows replayed in the order of their dates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.catalog import Catalog
    from omnipilot.costmodel.fitted import FittedModel


@click.command()
@click.option(
    "--data", "folder", required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of data sets.",
)  # fmt: skip
@click.option(
    "--source", default="inferencex_silicon", show_default=True,
    help="Data set to replay; its table has a column 'measured' with dates.",
)  # fmt: skip
@click.option(
    "--base", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
    help="Bundle of a base model fitted without the source; fitted and kept if left out.",
)  # fmt: skip
@home_option
@format_option("table", "json")
def longitudinal(folder: Path, source: str, base: Path | None, home: Path | None, form: str) -> int:
    """Replay measured rows month by month: does learning on make predictions better?

    Each month is predicted by the model in force and then learned from, through screen and gate.
    Beside it stand never updating and always updating, and what becomes of a month whose rows were
    falsified. The base model has never seen the source; without --base it is fitted once and kept
    among the folds of the site (some minutes).

    \b
    Example:
      omnipilot evaluate longitudinal --data ../shared/data --source inferencex_silicon \\
        --format json
    """
    single_threaded_algebra()
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.evaluate.longitudinal import read_timeline, replay  # noqa: PLC0415 - same
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    site = home or default_home()
    catalog = Catalog.load(site)
    timeline = read_timeline(folder, source, catalog)
    output.progress(
        f"{len(timeline.period):,} dated rows in {len(timeline.names)} periods, "
        f"{timeline.undated:,} undated rows left out"
    )
    if base is not None:
        from omnipilot.costmodel.bundle import load_bundle  # noqa: PLC0415 - same

        model, card, version = load_bundle(base)
        if source in model.envelope.novelty["source"]:
            output.progress(
                f"the base model {version} was fitted on rows of {source} too: these figures are "
                "not to be cited"
            )
    else:
        model, card = _base(folder, source, catalog, site, output.progress), {}
    figures = replay(timeline, model, catalog, output.progress)
    figures["source"] = source
    figures["base_rows"] = card.get("rows")
    figures["base_knows_source"] = source in model.envelope.novelty["source"]
    if form == "json":
        output.emit_json(figures)
    else:
        _emit(figures)
    return exits.OK


def _base(
    folder: Path, source: str, catalog: Catalog, site: Path, say: Callable[[str], None]
) -> FittedModel:
    """The fold of ``omnipilot evaluate --split source`` that leaves the source out."""
    from omnipilot.evaluate.holdout import (  # noqa: PLC0415 - keeps --help quick
        FOLDS_FOLDER,
        Holdout,
        fold_models,
    )
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same

    dataset = build_dataset(read_runs(folder), catalog)
    question = Holdout(target="output_tokens_per_s", split="source", sources=(source,))
    return next(fold_models(dataset, question, site / FOLDS_FOLDER, say)).model


def _emit(figures: dict[str, Any]) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    click.echo(
        f"Mean error of the next month: {figures['mape_gated']:.1%} gated, "
        f"{figures['mape_never']:.1%} never updating, {figures['mape_always']:.1%} always updating"
    )
    click.echo(
        f"80 % intervals held {figures['coverage_gated']:.1%}; {figures['promotions']} promotions, "
        f"{figures['rejections']} rejections, {figures['alarms']} months with alarms, "
        f"{figures['held_rows']:,} rows held back"
    )
    click.echo(
        f"Falsified months: {figures['falsified_noticed']} of {figures['falsified_months']} "
        f"noticed, {figures['falsified_kept_out']} kept out whole"
    )
    columns = [output.Column("period", narrow=True), *(
        output.Column(name, number=True)
        for name in ("rows", "gated", "never", "always", "coverage", "held")
    ), output.Column("verdict")]  # fmt: skip
    output.emit_table(
        columns,
        [
            [
                p["period"], f"{p['rows']:,}", f"{p['mape_gated']:.1%}", f"{p['mape_never']:.1%}",
                f"{p['mape_always']:.1%}", f"{p['coverage_gated']:.1%}", f"{p['held_rows']:,}",
                p["reason"],
            ]
            for p in figures["per_period"]
        ],
    )  # fmt: skip
