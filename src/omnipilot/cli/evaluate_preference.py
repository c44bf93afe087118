"""``omnipilot evaluate preference``: what a token is worth by an operator's stated choices."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import EXISTING_FILE, Names, format_option, home_option

if TYPE_CHECKING:
    from omnipilot.evaluate.decision_cells import DecisionCell
    from omnipilot.evaluate.preference import AtValue, Choice


@click.command()
@click.option(
    "--anchors", "file", type=EXISTING_FILE, required=True, metavar="FILE",
    help="CSV of stated choices: model, concurrency, context, gpu, n_gpus and, where wanted, "
    "precision, prompt_tokens, output_tokens.",
)  # fmt: skip
@click.option(
    "--data", "folder", type=click.Path(path_type=Path, exists=True),
    help="Measured rows: show what decisions at each value would have cost there too.",
)  # fmt: skip
@click.option(
    "--source", "sources", type=Names(), default="all", show_default=True,
    help="Decide on rows of these sources of --data.",
)  # fmt: skip
@click.option("--engine", default="", help="Decide on rows of this engine of --data.")
@click.option("--vendor", default="", help="Only GPUs of this vendor of --data.")
@home_option
@format_option("table", "json", "csv")
def preference(
    file: Path,
    folder: Path | None,
    sources: tuple[str, ...],
    engine: str,
    vendor: str,
    home: Path | None,
    form: str,
) -> int:
    """Find the values of a token under which stated choices are the best ones.

    Each line of the file is a choice that the site's operators hold to be right, such as one A100
    for a 7B model. The cluster's state is left out of it.

    \b
    Example:
      omnipilot evaluate preference --anchors anchors.csv --format json
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.preference import choice_of, read_anchors  # noqa: PLC0415 - same
    from omnipilot.evaluate.preference import (  # noqa: PLC0415 - same
        along,
        common_values,
        values_to_show,
    )

    advisor = Advisor.open(home)
    choices = [choice_of(advisor, a, time.time()) for a in read_anchors(advisor, file)]
    common = common_values(choices)
    cells = _measured(folder, sources, engine, vendor, advisor.home)
    rows = [
        (at, _decided(cells, at.value_per_token_usd))
        for at in along(choices, values_to_show(common))
    ]
    if form == "json":
        _emit_json(choices, common, rows)
    elif form == "csv":
        from omnipilot.cli.output import emit_csv  # noqa: PLC0415 - same

        emit_csv(
            ("value_per_token_usd", "explained", "regret_usd_per_h", "top1", "regret_relative"),
            [(at.value_per_token_usd, at.explained, at.regret_usd_per_h,
              decided.get("top1"), decided.get("regret_relative")) for at, decided in rows],
        )  # fmt: skip
    else:
        _emit_table(choices, common, rows)
    return exits.OK


def _measured(
    folder: Path | None, sources: tuple[str, ...], engine: str, vendor: str, home: Path
) -> tuple[DecisionCell, ...]:
    """Decisions on measured rows; none where no rows were named."""
    if folder is None:
        return ()
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.cli.threads import single_threaded_algebra  # noqa: PLC0415 - same

    single_threaded_algebra()
    from omnipilot.evaluate.decision_report import gather  # noqa: PLC0415 - same
    from omnipilot.evaluate.holdout import Holdout  # noqa: PLC0415 - same
    from omnipilot.evaluate.prices import PRICES_USD_PER_GPU_H  # noqa: PLC0415 - same
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same

    dataset = build_dataset(read_runs(folder), Catalog.load(home))
    question = Holdout(
        target="aggregate_tokens_per_s", split="cell", sources=sources, engine=engine,
        vendor=vendor,
    )  # fmt: skip
    return gather(
        dataset, question, PRICES_USD_PER_GPU_H, home, trees=False, progress=output.progress
    ).decisions


def _decided(cells: tuple[DecisionCell, ...], value: float) -> dict[str, float]:
    if not cells:
        return {}
    from omnipilot.evaluate.decisions import (  # noqa: PLC0415 - keeps --help quick
        OperatingPoint,
        choose,
        outcomes,
    )

    point = OperatingPoint("along", value)
    found = outcomes(cells, [choose(cell, point) for cell in cells], point)
    return {"top1": float(found.hit.mean()), "regret_relative": float(found.relative.mean())}


def _emit_json(
    choices: list[Choice],
    common: list[tuple[float, float]],
    rows: list[tuple[AtValue, dict[str, float]]],
) -> None:
    from omnipilot.cli.output import emit_json  # noqa: PLC0415 - keeps --help quick
    from omnipilot.evaluate.preference import consistent_values  # noqa: PLC0415 - same

    emit_json(
        {
            "consistent_usd_per_token": _intervals(common),
            "choices": [
                {
                    "choice": c.label,
                    "offered": bool(c.chosen.any()),
                    "consistent_usd_per_token": _intervals(consistent_values(c)),
                    "best_as_value_grows": _envelope(c),
                }
                for c in choices
            ],
            "along": [
                {
                    "value_per_token_usd": at.value_per_token_usd,
                    "explained": at.explained,
                    "accuracy": at.explained / len(choices),
                    "regret_usd_per_h": at.regret_usd_per_h,
                    **decided,
                }
                for at, decided in rows
            ],
        }
    )


def _intervals(found: list[tuple[float, float]]) -> list[list[float | None]]:
    """Intervals as JSON; null stands for no upper end."""
    return [[low, high if math.isfinite(high) else None] for low, high in found]


def _envelope(choice: Choice) -> list[dict[str, Any]]:
    from omnipilot.evaluate.preference import envelope  # noqa: PLC0415 - keeps --help quick

    return [
        {"from_usd_per_token": value, "arm": choice.arms[arm]} for value, arm in envelope(choice)
    ]


def _words(found: list[tuple[float, float]]) -> str:
    if not found:
        return "at no value"
    return ", ".join(
        f"{low:.3g} to {high:.3g} USD" if math.isfinite(high) else f"above {low:.3g} USD"
        for low, high in found
    )


def _winners(choice: Choice) -> str:
    from omnipilot.evaluate.preference import GRID_USD_PER_TOKEN  # noqa: PLC0415 - same

    steps = [e for e in _envelope(choice) if e["from_usd_per_token"] < GRID_USD_PER_TOKEN[-1]]
    return ", ".join(f"{e['arm']} from {e['from_usd_per_token']:.2g}" for e in steps)


def _emit_table(
    choices: list[Choice],
    common: list[tuple[float, float]],
    rows: list[tuple[AtValue, dict[str, float]]],
) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick
    from omnipilot.evaluate.preference import consistent_values  # noqa: PLC0415 - same

    click.echo(f"All {len(choices)} choices are the best: {_words(common)} a token")
    output.emit_table(
        [
            output.Column("choice"),
            output.Column("best at a token's value of"),
            output.Column("best arms as the value grows"),
        ],
        [[c.label, _words(consistent_values(c)), _winners(c)] for c in choices],
    )
    measured = any(decided for _, decided in rows)
    columns = [output.Column(name, number=True) for name in (
        "USD a token", "explained", "regret USD/h", *(("top-1", "relative") if measured else ()),
    )]  # fmt: skip
    table = []
    for at, decided in rows:
        line = [f"{at.value_per_token_usd:.3g}", f"{at.explained} of {len(choices)}",
                output.usd(at.regret_usd_per_h)]  # fmt: skip
        if measured:
            line += [f"{decided['top1']:.1%}", f"{decided['regret_relative']:.4f}"]
        table.append(line)
    output.emit_heading("along the value of a token")
    output.emit_table(columns, table)
