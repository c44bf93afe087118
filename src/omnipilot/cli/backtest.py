"""``omnipilot backtest``: would the advice have been right on this site's own runs?"""

from __future__ import annotations

from pathlib import Path

import click

from omnipilot.cli import exits
from omnipilot.cli.options import NOT_NEGATIVE, format_option, home_option
from omnipilot.cli.threads import single_threaded_algebra


@click.command()
@click.option(
    "--data", "others", type=click.Path(path_type=Path, exists=True),
    help="Further measured rows to learn from; only the site's own are decided on.",
)  # fmt: skip
@click.option(
    "--split", type=click.Choice(("cell", "model", "family")), default="cell", show_default=True,
    help="What is held out: workload cells, or whole models or families.",
)  # fmt: skip
@click.option(
    "--value-per-token", type=NOT_NEGATIVE, metavar="USD",
    help="What one token is worth in the figures at the top; the site's setting if left out.",
)  # fmt: skip
@click.option(
    "--slo", is_flag=True,
    help="Decide under limits of TTFT and TPOT too; predicts two further targets.",
)  # fmt: skip
@click.option(
    "--trees/--no-trees", default=True, show_default=True,
    help="Fit the baseline of boosted trees without physics.",
)  # fmt: skip
@home_option
@format_option("table", "json", "csv")
def backtest(
    others: Path | None,
    split: str,
    value_per_token: float | None,
    slo: bool,
    trees: bool,
    home: Path | None,
    form: str,
) -> int:
    """Compare past advice on the site's own runs with what they measured.

    Every workload that the site measured on two arms or more is decided on by a cost model that
    never saw it, at the site's prices. Takes some minutes and needs the extra 'fit'; what was
    predicted is kept for the next time.

    \b
    Example:
      omnipilot backtest --home ~/omnipilot --format json
    """
    single_threaded_algebra()
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.site_dataset import site_prices, site_rows  # noqa: PLC0415 - same
    from omnipilot.cli import output  # noqa: PLC0415 - same
    from omnipilot.cli.evaluate_decision import emit_decisions  # noqa: PLC0415 - same
    from omnipilot.evaluate.decision_report import document, gather  # noqa: PLC0415 - same
    from omnipilot.evaluate.holdout import Holdout  # noqa: PLC0415 - same

    advisor = Advisor.open(home)
    rows = site_rows(advisor, others)
    output.progress(f"{rows.own:,} runs of the site, {rows.dataset.data.frame.n:,} to learn from")
    question = Holdout(target="aggregate_tokens_per_s", split=split, sources=rows.sources)
    evidence = gather(
        rows.dataset, question, site_prices(advisor), advisor.home, limits=slo, trees=trees,
        progress=output.progress,
    )  # fmt: skip
    value = advisor.settings.value_usd_per_token if value_per_token is None else value_per_token
    emit_decisions(document(evidence, question, value), form)
    return exits.OK
