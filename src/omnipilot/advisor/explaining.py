"""The use case "explain": the advice with its grounds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.advisor.advising import advise, scenario_of
from omnipilot.advisor.question import Explanation, LoadChange

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.question import Question
    from omnipilot.costmodel.predict import Evidence

EVIDENCE_CELLS: Final = 5
LOAD_FACTORS: Final = (0.25, 0.5, 2.0, 4.0)


def explain(advisor: Advisor, question: Question) -> Explanation:
    """Answer one question with its grounds; see :meth:`omnipilot.advisor.Advisor.explain`."""
    advice = advise(advisor, question)
    ranked = advice.recommendation.ranked
    evidence: tuple[Evidence, ...] = ()
    if ranked:
        request = advice.recommendation.request
        scenario = scenario_of(advisor, ranked[0].arm, request, advice.model)
        evidence = tuple(advisor.model.evidence(scenario, k=EVIDENCE_CELLS))
    return Explanation(advice, evidence, tuple(_loads(advisor, question)))


def _loads(advisor: Advisor, question: Question) -> list[LoadChange]:
    """Who wins at other concurrencies, everything else as asked."""
    changes = []
    for factor in LOAD_FACTORS:
        concurrency = max(1, round(question.request.concurrency * factor))
        request = replace(question.request, concurrency=concurrency)
        other = replace(question, request=request, ask_starts=False)
        ranked = advise(advisor, other).recommendation.ranked
        label = f"{concurrency:,} concurrent requests"
        changes.append(LoadChange(label, ranked[0].arm if ranked else None))
    return changes
