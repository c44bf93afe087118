"""``omnipilot evaluate``: measure the pipeline that ships on held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import click

from omnipilot.cli import exits
from omnipilot.cli.groups import CommandEntry, TableGroup
from omnipilot.cli.options import Names, format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra
from omnipilot.domain.targets import TARGET_NAMES

SPLITS = ("cell", "model", "family", "gpu", "source")


SUB_COMMANDS: Final[dict[str, CommandEntry]] = {
    "decision": CommandEntry(
        "evaluate_decision", "decision",
        "Compare the arm that we would take with the measured best one.",
    ),
    "probes": CommandEntry(
        "evaluate_probes", "probes",
        "Hide a model or GPU kind, probe, decide, and look at what was measured.",
    ),
    "preference": CommandEntry(
        "evaluate_preference", "preference",
        "Find the values of a token under which stated choices are the best ones.",
    ),
    "all": CommandEntry(
        "evaluate_all", "everything",
        "Ask every question of the evaluation page and write the page.",
    ),
    "longitudinal": CommandEntry(
        "evaluate_longitudinal", "longitudinal",
        "Replay measured rows month by month: does learning on make predictions better?",
    ),
    "pilot": CommandEntry(
        "evaluate_pilot", "pilot",
        "Score recommendations for LLMs never measured by the method of LLM-Pilot.",
    ),
}  # fmt: skip


class EvaluateGroup(TableGroup):
    """Evaluations of other kinds than one target's errors."""

    table = SUB_COMMANDS


@click.group(cls=EvaluateGroup, invoke_without_command=True, subcommand_metavar="[COMMAND]")
@click.option(
    "--data", "folder", type=click.Path(path_type=Path, exists=True),
    help="Folder (or CSV file) of measured rows in the normalised columns.",
)  # fmt: skip
@click.option(
    "--source", "sources", type=Names(), default="all", show_default=True,
    help="Test only rows of these sources, separated by commas; training uses all of them.",
)  # fmt: skip
@click.option("--target", type=click.Choice(TARGET_NAMES), help="What to predict.")
@click.option(
    "--split", type=click.Choice(SPLITS), default="cell", show_default=True,
    help="What is held out: workload cells, or whole models, families, GPU kinds or sources.",
)  # fmt: skip
@click.option("--engine", default="", help="Test only rows of this engine.")
@click.option("--vendor", default="", help="Test only rows of this GPU vendor, such as nvidia.")
@click.option(
    "--probes", type=click.IntRange(0, 1000), default=0, show_default=True, metavar="K",
    help="Reveal up to K rows of each held-out group, and predict the rest after each.",
)  # fmt: skip
@click.option(
    "--probe-policy", type=click.Choice(("random", "variance")), default="variance",
    show_default=True, help="Which rows are revealed: any, or those that tell most.",
)  # fmt: skip
@home_option
@format_option("table", "json")
@click.pass_context
def evaluate(
    ctx: click.Context,
    folder: Path | None,
    sources: tuple[str, ...],
    target: str | None,
    split: str,
    engine: str,
    vendor: str,
    probes: int,
    probe_policy: Literal["random", "variance"],
    home: Path | None,
    form: str,
) -> int:
    """Measure the cost model on rows it has not seen.

    Each fold fits the whole shipped pipeline without the held-out groups and predicts them. mape,
    median_ape and coverage are fractions. Fitted folds are kept in the site's folder (cache/folds)
    and used again while rows and code are the same; a first run takes minutes a fold.

    \b
    Example:
      omnipilot evaluate --data ../shared/data --source llm_inference_bench --engine vllm \\
        --target aggregate_tokens_per_s --split cell --format json
      omnipilot evaluate --data ../shared/data --target output_tokens_per_s --split source \\
        --probes 10 --probe-policy variance
    """
    if ctx.invoked_subcommand is not None:
        return exits.OK
    if folder is None or target is None:
        missing = "--data" if folder is None else "--target"
        raise click.UsageError(f"Missing option '{missing}'.", ctx)
    single_threaded_algebra()
    from omnipilot.catalog import Catalog  # noqa: PLC0415 - keeps --help quick
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.evaluate.heldout_report import report  # noqa: PLC0415 - same
    from omnipilot.evaluate.holdout import FOLDS_FOLDER, Holdout, hold_out  # noqa: PLC0415 - same
    from omnipilot.evaluate.probing import check_split, probe_curve  # noqa: PLC0415 - same
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - same
    from omnipilot.settings import default_home  # noqa: PLC0415 - same

    question = Holdout(target=target, split=split, sources=sources, engine=engine, vendor=vendor)
    if probes:
        check_split(question)
    site = home or default_home()
    cache = site / FOLDS_FOLDER
    dataset = build_dataset(read_runs(folder), Catalog.load(site))
    output.progress(
        f"{dataset.data.frame.n:,} rows to learn from, {dataset.excluded.total:,} left out"
    )
    held = hold_out(dataset, question, output.progress, cache)
    figures = report(dataset, question, held)
    if probes:
        figures["probes"] = probe_curve(
            dataset, question, probes, probe_policy, cache, output.progress
        )
    if form == "json":
        output.emit_json(figures)
    else:
        _emit_table(figures)
    return exits.OK


def _emit_table(figures: dict[str, Any]) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    click.echo(
        f"{figures['target']}, {figures['split']} held out in {figures['folds']} folds: "
        f"{figures['row_set']}"
    )
    columns = [output.Column("rows"), *(
        output.Column(name, number=True)
        for name in ("n", "MAPE", "median APE", "R² log", "coverage", "log width")
    )]  # fmt: skip

    def cells(name: str, e: dict[str, Any]) -> list[str]:
        return [
            name, f"{e['n']:,}", f"{e['mape']:.1%}", f"{e['median_ape']:.1%}",
            f"{e['r2_log']:.4f}" if e["r2_log"] == e["r2_log"] else "-",
            f"{e['coverage']:.1%}", f"{e['mean_log_width']:.2f}",
        ]  # fmt: skip

    rows = [cells("all tested", figures)]
    if "all_rows" in figures:
        rows.append(cells("whole source", figures["all_rows"]))
    rows += [cells(f"confidence {k}", e) for k, e in figures["confidence"].items()]
    rows += [cells(k, e) for k, e in figures["per_group"].items()]
    output.emit_table(columns, rows)
    excluded = ", ".join(f"{v:,} {k.replace('_', ' ')}" for k, v in figures["excluded"].items())
    if "probes" in figures:
        output.emit_heading(f"after rows revealed by policy {figures['probes']['policy']}")
        output.emit_table(
            columns,
            [cells(f"{e['probes']} rows", e) for e in figures["probes"]["by_probes"]],
        )
    click.echo(f"physics prior alone: MAPE {figures['prior_alone']['mape']:.1%}")
    click.echo(f"left out: {excluded}")
