"""``omnipilot evaluate probes``: whether probes are worth their price, on measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from omnipilot.cli import exits
from omnipilot.cli.options import NOT_NEGATIVE, POSITIVE, Names, format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra


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
    "--split", type=click.Choice(("model", "gpu")), default="model", show_default=True,
    help="What is hidden: whole models or GPU kinds.",
)  # fmt: skip
@click.option("--engine", default="", help="Decide on rows of this engine only.")
@click.option("--vendor", default="", help="Only GPUs of this vendor, such as nvidia.")
@click.option(
    "--probes", type=click.IntRange(1, 50), default=2, show_default=True, metavar="K",
    help="Hidden arms that are measured before each decision.",
)  # fmt: skip
@click.option(
    "--value-per-token", type=NOT_NEGATIVE, metavar="USD", default=1e-6, show_default=True,
    help="What one token is worth.",
)  # fmt: skip
@click.option(
    "--hours", type=POSITIVE, default=24.0, show_default=True,
    help="How long a decision holds, for the utility that probes are paid from.",
)  # fmt: skip
@home_option
@format_option("table", "json")
def probes(
    folder: Path,
    sources: tuple[str, ...],
    split: str,
    engine: str,
    vendor: str,
    probes: int,
    value_per_token: float,
    hours: float,
    home: Path | None,
    form: str,
) -> int:
    """Hide a model or GPU kind, probe, decide, and look at what was measured.

    Each group is asked of a cost model that never saw it. Before a workload cell is decided, K of
    its hidden arms are measured: none, random ones, or those that the gate chooses. Regrets are
    shares of the best arm's revenue, net utilities USD a decision with the probes paid.

    \b
    Example:
      omnipilot evaluate probes --data ../shared/data --source inferencex_silicon --engine vllm \\
        --split model --probes 2 --format json
    """
    single_threaded_algebra()
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.evaluate.decisions import OperatingPoint  # noqa: PLC0415 - same
    from omnipilot.evaluate.holdout import FOLDS_FOLDER, Holdout  # noqa: PLC0415 - same
    from omnipilot.evaluate.prices import PRICES_USD_PER_GPU_H  # noqa: PLC0415 - same
    from omnipilot.evaluate.probe_decisions import Terms, judge_groups  # noqa: PLC0415 - same
    from omnipilot.evaluate.probe_report import probe_document  # noqa: PLC0415 - same
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    site = home or default_home()
    dataset = build_dataset(read_runs(folder), Catalog.load(site))
    output.progress(f"{dataset.data.frame.n:,} rows, {dataset.excluded.total:,} left out")
    question = Holdout("output_tokens_per_s", split, sources, engine, vendor)
    terms = Terms(OperatingPoint("asked", value_per_token), PRICES_USD_PER_GPU_H, hours)
    results = judge_groups(dataset, question, probes, terms, site / FOLDS_FOLDER, output.progress)
    figures = probe_document(results, question, probes, terms)
    if form == "json":
        output.emit_json(figures)
    else:
        _emit_table(figures)
    return exits.OK


def _emit_table(figures: dict[str, Any]) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    k = figures["probes"]
    click.echo(
        f"{figures['cells']} decisions of {figures['groups']} hidden groups ({figures['split']}s), "
        f"{k} probes each"
    )
    made = figures["probes_as_it_pays"]
    names = {
        "no_probe": "no probe", "random": f"{k} random", "chosen": f"{k} chosen by the gate",
        "as_it_pays": f"{made:.1f} that the gate says pay",
    }  # fmt: skip
    output.emit_table(
        [output.Column("policy"), *(
            output.Column(name, number=True) for name in ("regret", "interval", "net USD")
        )],
        [
            [
                words, f"{figures[f'regret_{p}']:.4f}",
                "{:.4f} to {:.4f}".format(*figures[f"regret_{p}_ci"]),
                f"{figures[f'net_utility_{p}']:,.2f}",
            ]
            for p, words in names.items()
        ],
    )  # fmt: skip
    for key, words in (("of_no_probe", "no probe"), ("of_random", "random probes")):
        cut = figures["reduction"][key]
        if cut is not None:
            low, high = cut["ci"]
            click.echo(f"the gate's probes cut the regret of {words} by {cut['frac']:.0%} "
                       f"[{low:.0%}, {high:.0%}]")  # fmt: skip
    hours = figures["pays_from_hours"]
    click.echo(
        f"they cost {figures['probe_cost_usd']:.2f} USD a decision and "
        + (f"pay from {hours:.2g} h on" if hours is not None else "do not pay")
    )
    mape = figures["mape_by_probes"]
    click.echo(
        f"errors of the hidden rows: MAPE {mape['chosen'][0]['mape']:.1%}, "
        f"{mape['chosen'][-1]['mape']:.1%} once {k} telling rows of a group are known, "
        f"{mape['random'][-1]['mape']:.1%} with random ones"
    )
    output.emit_table(
        [output.Column("hidden"), *(
            output.Column(name, number=True)
            for name in ("decisions", "no probe", "random", "chosen", "MAPE before", "after")
        )],
        [
            [
                name, f"{g['decisions']:,}",
                *(f"{g['regret'][p]:.4f}" if g["decisions"] else "-"
                  for p in ("no_probe", "random", "chosen")),
                f"{g['mape']['chosen'][0]:.1%}", f"{g['mape']['chosen'][-1]:.1%}",
            ]
            for name, g in figures["per_group"].items()
        ],
    )  # fmt: skip
