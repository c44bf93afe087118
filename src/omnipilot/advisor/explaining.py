"""The use case "explain": the advice with its grounds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.advisor.advising import advise
from omnipilot.advisor.arm_sheet import scenario_of
from omnipilot.advisor.question import Explanation, LoadChange
from omnipilot.domain import UsageError
from omnipilot.store.evidence import one_reading, site_evidence

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.question import Advice, Question
    from omnipilot.costmodel.predict import Evidence
    from omnipilot.store.evidence import MetricEvidence

EVIDENCE_CELLS: Final = 5
LOAD_FACTORS: Final = (0.25, 0.5, 2.0, 4.0)


def explain(advisor: Advisor, question: Question) -> Explanation:
    """Answer one question with its grounds; see :meth:`omnipilot.advisor.Advisor.explain`."""
    advice = advise(advisor, question)
    ranked = advice.recommendation.ranked
    evidence: tuple[Evidence, ...] = ()
    fresh: tuple[MetricEvidence, ...] = ()
    if ranked:
        request = advice.recommendation.request
        scenario = scenario_of(advisor, ranked[0].arm, request, advice.model)
        evidence = tuple(advisor.model.evidence(scenario, k=EVIDENCE_CELLS))
        fresh = tuple(_freshness(advisor, advice, ranked[0].arm.gpu_kind, question.now_s))
    return Explanation(advice, evidence, tuple(_loads(advisor, question)), fresh)


def _freshness(
    advisor: Advisor, advice: Advice, gpu_kind: str, now_s: float
) -> list[MetricEvidence]:
    """Weigh what the site knows of a GPU kind by its age; nothing where the time is not told."""
    if not now_s:
        return []
    windows_s = advisor.settings.freshness_s
    found = []
    cluster = advice.cluster
    if cluster is not None and cluster.origin != "none":
        free, _ = cluster.gpus.get(gpu_kind, (0, 0))
        readings = {
            "gpus_free": (float(free), "GPUs free"),
            "queue": (float(cluster.pending_gpus), "GPUs waited for"),
        }
        for metric, (value, unit) in readings.items():
            window_s = windows_s[metric]
            found.append(one_reading(metric, value, unit, age_s=cluster.age_s, window_s=window_s))

    def is_kind(name: str) -> bool:
        try:
            return advisor.catalog.gpu(name).kind == gpu_kind
        except UsageError:
            return False

    return found + site_evidence(advisor.home, now_s=now_s, freshness_s=windows_s, is_kind=is_kind)


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
