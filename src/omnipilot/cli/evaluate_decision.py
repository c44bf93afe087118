"""``omnipilot evaluate decision``: whole decisions on measured rows, against baselines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import NOT_NEGATIVE, Names, format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra

if TYPE_CHECKING:
    from collections.abc import Mapping

SPLITS = ("cell", "model", "family")


@click.command()
@click.option(
    "--data", "folder", required=True, type=click.Path(path_type=Path, exists=True),
    help="Folder (or CSV file) of measured rows in the normalised columns.",
)  # fmt: skip
@click.option(
    "--source", "sources", type=Names(), default="all", show_default=True,
    help="Decide on rows of these sources, separated by commas; training uses all of them.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(SPLITS), default="cell", show_default=True,
    help="What is held out: workload cells, or whole models or families.",
)  # fmt: skip
@click.option("--engine", default="", help="Decide on rows of this engine only.")
@click.option("--vendor", default="", help="Only GPUs of this vendor, such as nvidia.")
@click.option(
    "--value-per-token", type=NOT_NEGATIVE, metavar="USD", default=2e-7, show_default=True,
    help="What one token is worth in the figures at the top.",
)  # fmt: skip
@click.option(
    "--slo", is_flag=True,
    help="Decide under limits of TTFT and TPOT too; predicts two further targets.",
)  # fmt: skip
@click.option(
    "--trees/--no-trees", default=True, show_default=True,
    help="Fit the baseline of boosted trees without physics.",
)  # fmt: skip
@click.option(
    "--aiconfigurator", metavar="PYTHON", default="", envvar="OMNIPILOT_AICONFIGURATOR",
    help="Beside NVIDIA's AIConfigurator, by a Python that has it; this one's if it has it.",
)  # fmt: skip
@home_option
@format_option("table", "json", "csv")
def decision(
    folder: Path,
    sources: tuple[str, ...],
    split: str,
    engine: str,
    vendor: str,
    value_per_token: float,
    slo: bool,
    trees: bool,
    aiconfigurator: str,
    home: Path | None,
    form: str,
) -> int:
    """Compare the arm that we would take with the measured best one.

    Every workload cell with two measured arms or more is one decision, taken from predictions of a
    cost model that never saw the held-out group. top1 and the relative figures are fractions; a
    choice within 4 % of the best arm's utility counts as right.

    \b
    Example:
      omnipilot evaluate decision --data ../shared/data --source inferencex_silicon --engine vllm \\
        --split cell --value-per-token 2e-7 --format json
    """
    single_threaded_algebra()
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.evaluate.aiconfigurator import find_python  # noqa: PLC0415 - same
    from omnipilot.evaluate.decision_report import document, gather  # noqa: PLC0415 - same
    from omnipilot.evaluate.holdout import Holdout  # noqa: PLC0415 - same
    from omnipilot.evaluate.prices import PRICES_USD_PER_GPU_H  # noqa: PLC0415 - same
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    site = home or default_home()
    catalog = Catalog.load(site)
    python = find_python(aiconfigurator)
    dataset = build_dataset(read_runs(folder), catalog)
    output.progress(f"{dataset.data.frame.n:,} rows, {dataset.excluded.total:,} left out")
    question = Holdout(
        target="aggregate_tokens_per_s", split=split, sources=sources, engine=engine,
        vendor=vendor,
    )  # fmt: skip
    evidence = gather(
        dataset, question, PRICES_USD_PER_GPU_H, site, limits=slo, trees=trees,
        peer=(python, catalog) if python else None, progress=output.progress,
    )  # fmt: skip
    emit_decisions(document(evidence, question, value_per_token), form)
    return exits.OK


def emit_decisions(figures: dict[str, Any], form: str) -> None:
    """Print the document of a decision backtest."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    if form == "json":
        output.emit_json(figures)
        return
    points = list(_points(figures))
    if form == "csv":
        output.emit_csv(
            ("point", "policy", "cells", "top1", "regret_usd_per_h", "regret_relative",
             "regret_revenue_frac"),
            [(point, policy, f["cells"], f["top1"], f["regret_usd_per_h"], f["regret_relative"],
              f["regret_revenue_frac"]) for point, policy, f in points],
        )  # fmt: skip
        return
    low, high = figures["top1_ci"]
    click.echo(
        f"{figures['cells']} decisions among {figures['arms']} measured arms, "
        f"{figures['split']} held out: top-1 {figures['top1']:.1%} [{low:.1%}, {high:.1%}]"
    )
    if figures["rows_without_price"]:
        click.echo(f"left out: {figures['rows_without_price']} rows on GPU kinds without a price")
    columns = [output.Column("point"), output.Column("policy"), *(
        output.Column(name, number=True)
        for name in ("cells", "top-1", "USD/h", "relative", "of revenue")
    )]  # fmt: skip
    output.emit_table(columns, [[point, policy, *_cells(f)] for point, policy, f in _shown(points)])
    for title, key in (("per model", "per_model"), ("per size", "per_band")):
        output.emit_heading(title)
        output.emit_table(
            [output.Column(title), *columns[2:]],
            [[name, *_cells(f)] for name, f in figures[key].items()],
        )


def _points(figures: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(point, policy, figures) of every policy at every point of the document."""
    named = {f"v = {value} USD": at for value, at in figures["values"].items()}
    asked = f"v = {figures['value_per_token_usd']:g} USD"
    named = {asked: figures, **named, **figures["operating_points"]}
    if figures["precision"] is not None:
        named["precision alone"] = figures["precision"]
    rows = []
    for point, at in named.items():
        if at is not None:
            rows.append((point, "omnipilot", at))
            rows += [(point, policy, f) for policy, f in at["baselines"].items()]
            for peer, f in at.get("peers", {}).items():
                if f is not None:
                    rows.append((point, f"{peer}, where it answers", f))
                    rows.append((point, "omnipilot, on the same", f["same_decisions"]["omnipilot"]))
    return rows


def _shown(
    points: list[tuple[str, str, dict[str, Any]]],
) -> list[tuple[str, str, dict[str, Any]]]:
    """All policies at the first point and at the last, ours and the best rival at the others."""
    names = list(dict.fromkeys(point for point, _, _ in points))
    rows = []
    for name in names:
        ours, *rivals = [row for row in points if row[0] == name]
        if name not in {names[0], names[-1]} and rivals:
            rivals = [min(rivals, key=lambda row: row[2]["regret_relative"])]
        rows += [ours, *rivals]
    return rows


def _cells(f: Mapping[str, Any]) -> list[str]:
    return [
        f"{f['cells']:,}", f"{f['top1']:.1%}", f"{f['regret_usd_per_h']:.3f}",
        f"{f['regret_relative']:.4f}", f"{f['regret_revenue_frac']:.4f}",
    ]  # fmt: skip
