"""``omnipilot explain``: the grounds of the advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from omnipilot.cli import exits
from omnipilot.cli.advise import question_of
from omnipilot.cli.options import format_option, request_options

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor import Advisor, Explanation


@click.command()
@request_options
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True,
              help="Arms whose terms are shown.")  # fmt: skip
@click.option(
    "--replay",
    "name",
    default="",
    metavar="ID",
    help="Show a recommendation again, from the cost model and the settings of then.",
)
@format_option("table", "json")
def explain(
    home: Path | None,
    top: int,
    name: str,
    form: str,
    **options: Any,  # noqa: ANN401
) -> int:
    """Show why the advice is what it is.

    Takes the options of advise. Shows the utility term by term, the measured runs nearest to the
    best arm, what is outside what was measured, the memory arithmetic, and what would change the
    answer: values of a token, prices and loads at which another arm wins.

    \b
    Example:
      omnipilot explain --model Qwen/Qwen2.5-7B-Instruct --concurrency 200 --context 4096
      omnipilot explain --replay 3f9a1c2b4d5e
    """
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick

    advisor = Advisor.open(home)
    if name:
        return _replay(advisor, name, top, form)
    for option in ("concurrency", "context_tokens"):
        if options[option] is None:
            raise click.UsageError(f"Missing option '--{option.removesuffix('_tokens')}'.")
    explanation = advisor.explain(question_of(**options))
    if form == "json":
        from omnipilot.advisor.answer_data import explanation_data  # noqa: PLC0415 - keeps quick
        from omnipilot.cli.output import emit_json  # noqa: PLC0415 - same

        emit_json(explanation_data(explanation))
    else:
        _emit(explanation, top)
    abstained = explanation.advice.recommendation.abstention is not None
    return exits.ABSTAINED if abstained else exits.OK


# A replay needs neither; without one they are asked for above.
for _param in explain.params:
    if _param.name in {"concurrency", "context_tokens"}:
        _param.required = False


def _replay(advisor: Advisor, name: str, top: int, form: str) -> int:
    from omnipilot.advisor.decisions import replay  # noqa: PLC0415 - only a replay needs it

    found = replay(advisor, name)
    explanation = found.advisor.explain(found.question)
    differences = found.differences(explanation.advice)
    if form == "json":
        from omnipilot.advisor.answer_data import explanation_data  # noqa: PLC0415 - keeps quick
        from omnipilot.cli.output import emit_json  # noqa: PLC0415 - same

        emit_json(
            {
                **explanation_data(explanation),
                "replay": {"id": name, "at_s": found.at_s, "same": not differences,
                           "differences": differences, "changed": found.changed},
            }
        )  # fmt: skip
    else:
        _emit(explanation, top)
        click.echo(
            f"Replay of {name} by cost model {found.model_version}: "
            + ("the numbers on record." if not differences else "not the numbers on record.")
        )
        for line in (*found.changed, *differences[:top]):
            click.echo(f"  {line}")
    abstained = explanation.advice.recommendation.abstention is not None
    return exits.ABSTAINED if abstained else exits.OK


def _emit(explanation: Explanation, top: int) -> None:
    from omnipilot.advisor.words import fit_lines, support_lines  # noqa: PLC0415 - only this form
    from omnipilot.cli import advice_table as table  # noqa: PLC0415 - same
    from omnipilot.cli.freshness_table import emit_freshness  # noqa: PLC0415 - same
    from omnipilot.cli.output import emit_heading, emit_lines  # noqa: PLC0415 - same

    advice = explanation.advice
    ranked = advice.recommendation.ranked
    table.emit_answer(advice)
    if ranked:
        _emit_terms(explanation, top)
        emit_heading(f"Will {ranked[0].arm.label} start?")
        emit_lines(fit_lines(ranked[0].fit))
        emit_heading(f"How well is {ranked[0].arm.label} known?")
        emit_lines(support_lines(ranked[0]))
        _emit_evidence(explanation)
        emit_freshness(explanation.freshness)
        table.emit_cluster(advice, top)
        emit_heading("At other loads")
        emit_lines(
            f"{change.label}: {change.winner.label if change.winner else 'nothing starts'}"
            for change in explanation.loads
        )
    table.emit_infeasible(advice.recommendation.infeasible)
    table.emit_basis(advice)


def _emit_terms(explanation: Explanation, top: int) -> None:
    from omnipilot.advisor.words import number, usd  # noqa: PLC0415 - only this form renders
    from omnipilot.cli.output import (  # noqa: PLC0415 - same
        Column,
        emit_heading,
        emit_lines,
        emit_table,
    )
    from omnipilot.decide.utility import TERMS  # noqa: PLC0415 - same

    advice = explanation.advice
    emit_heading(f"Utility in USD over {advice.economics.duration_h:g} h")
    columns = (
        Column("arm", narrow=True),
        *(Column(_heading(t.name, t.sign), number=True) for t in TERMS),
        Column("=total", number=True),
        Column("80 % interval", number=True),
    )
    emit_table(
        columns,
        [
            (
                arm.arm.label,
                *(usd(getattr(arm.utility, term.field)) for term in TERMS),
                usd(arm.utility.total_usd),
                f"{number(arm.utility.lower_usd, 2)} to {number(arm.utility.upper_usd, 2)}",
            )
            for arm in advice.recommendation.ranked[:top]
        ],
    )
    emit_lines(
        f"{term.name}, weight {getattr(advice.weights, term.name):g}: {term.meaning}. "
        f"{term.formula}"
        for term in TERMS
    )


def _heading(term: str, sign: float) -> str:
    words = term.replace("_", "\n")
    return f"{'+' if sign > 0 else '−'}{words}"


def _emit_evidence(explanation: Explanation) -> None:
    from omnipilot.advisor.words import number  # noqa: PLC0415 - only this form renders
    from omnipilot.cli.output import Column, emit_heading, emit_table  # noqa: PLC0415 - same

    emit_heading("Nearest measured cells")
    if not explanation.evidence:
        click.echo("  none")
        return
    columns = (
        Column("source", narrow=True), Column("model"), Column("arm", narrow=True),
        Column("rows", number=True), Column("concurrency", number=True),
        Column("context", number=True), Column("distance", number=True),
    )  # fmt: skip
    emit_table(
        columns,
        [
            (
                e.source, e.model, f"{e.n_gpus}x {e.gpu} {e.precision}", f"{e.rows:,}",
                _range(e.concurrency_range), _range(e.context_range), number(e.distance, 2),
            )
            for e in explanation.evidence
        ],
    )  # fmt: skip


def _range(pair: tuple[float, float]) -> str:
    low, high = pair
    return f"{low:,.0f}" if low == high else f"{low:,.0f} - {high:,.0f}"
