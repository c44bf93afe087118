"""What the tools answer: short enough for an agent to read, with the numbers that decide."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from omnipilot.advisor.words import (
    THROUGHPUT,
    cluster_lines,
    headline,
    loss_sentence,
    turning_sentence,
)

if TYPE_CHECKING:
    from omnipilot.advisor import Advice, Advisor, Question
    from omnipilot.advisor.outlook import ClusterReport
    from omnipilot.domain import FitVerdict, RankedArm, TargetPrediction

__all__ = [
    "AdviceAnswer", "ArmAnswer", "ClusterAnswer", "ExplainAnswer", "FitAnswer", "Interval",
    "LaunchAnswer", "ProbeAnswer", "ScriptAnswer", "advice_answer", "cluster_answer",
    "explain_answer", "fit_answer", "probe_answer",
]  # fmt: skip


class Interval(BaseModel):
    """A median with its 80 % interval."""

    median: float
    low: float
    high: float
    unit: str
    measured: bool = Field(description="False where the physics prior alone answers.")


class ArmAnswer(BaseModel):
    """One configuration that starts."""

    arm: str = Field(description="GPU:TP:PRECISION, as the tools script and launch take it.")
    gpu_kind: str
    tensor_parallel: int
    precision: str
    tokens_per_s: Interval
    ttft_s: Interval
    tpot_s: Interval
    usd_per_h: float
    utility_usd: float = Field(description="Over the request's hours.")
    slo_violation_prob: float
    confidence: str
    supported: bool = Field(description="Whether it lies inside what was measured.")
    why: str


class AdviceAnswer(BaseModel):
    """The advice: what to take, or that the model does not know."""

    headline: str
    recommended: bool = Field(description="False where the model abstains or nothing starts.")
    abstention: str = Field(description="Why there is no recommendation; empty where there is.")
    violations: list[str] = Field(description="Axes that are outside what was measured.")
    fallback: str = Field(description="Arm that the rule takes instead; empty for none.")
    probe: str = Field(description="The short measurement that would settle it; empty for none.")
    ranked: list[ArmAnswer]
    n_ranked: int
    cannot_start: dict[str, int] = Field(description="Arms that do not start, by reason.")
    assumptions: list[str]
    model_version: str


class ExplainAnswer(AdviceAnswer):
    """The advice with its grounds."""

    utility_terms: dict[str, float] = Field(description="Of the best arm, USD over the hours.")
    would_change: list[str] = Field(description="Values at which another arm wins.")
    other_loads: dict[str, str] = Field(description="Winner at other loads.")
    evidence: list[str] = Field(description="Nearest measured cells.")


class PlannedProbe(BaseModel):
    """One probe, with what it is expected to add and to cost."""

    probe: str
    arm: str
    value_usd: float
    cost_usd: float
    node_hours: float


class ProbeAnswer(BaseModel):
    """Whether a measurement is worth making first, and which."""

    needed: bool
    reason: str = Field(description="Why the plan stops where it does.")
    probes: list[PlannedProbe] = Field(description="Those that pay, in order.")
    arm_without: str = Field(description="Arm that is taken without a probe.")
    utility_usd_without: float
    utility_usd_with: float = Field(description="Expected, the probes' cost taken off.")


class FitAnswer(BaseModel):
    """Whether one configuration starts; sizes in GiB of one GPU."""

    verdict: str = Field(description="fits, oom, unsupported or unknown.")
    reason_code: str
    reason: str = Field(description="The number that decides, and what would make it start.")
    weights_gib_per_gpu: float | None
    kv_gib_per_gpu: float | None
    kv_cache_tokens: int | None
    max_model_len_possible: int | None
    max_concurrency: float | None
    assumptions: tuple[str, ...]


class ClusterAnswer(BaseModel):
    """The cluster now."""

    known: bool
    age_s: float
    free_gpus: dict[str, int]
    total_gpus: dict[str, int]
    pending_gpus: int
    nodes_kept_out: dict[str, str]
    summary: list[str]


class ScriptAnswer(BaseModel):
    """A job script; nothing was written or submitted."""

    arm: str
    script: str
    notes: list[str]


class LaunchAnswer(BaseModel):
    """A submitted job."""

    job_id: str
    run_id: str
    arm: str
    notes: list[str]


def _interval(target: TargetPrediction) -> Interval:
    return Interval(
        median=target.q50, low=target.lower, high=target.upper, unit=target.unit,
        measured=target.source == "model",
    )  # fmt: skip


def _arm(ranked: RankedArm) -> ArmAnswer:
    return ArmAnswer(
        arm=ranked.arm.key,
        gpu_kind=ranked.arm.gpu_kind,
        tensor_parallel=ranked.arm.tensor_parallel,
        precision=ranked.arm.precision,
        tokens_per_s=_interval(ranked.targets[THROUGHPUT]),
        ttft_s=_interval(ranked.targets["ttft_p50_s"]),
        tpot_s=_interval(ranked.targets["tpot_p50_s"]),
        usd_per_h=ranked.usd_per_h,
        utility_usd=ranked.utility.total_usd,
        slo_violation_prob=ranked.slo_violation_prob,
        confidence=ranked.confidence,
        supported=ranked.support.supported,
        why=ranked.rationale,
    )


def _fields(advice: Advice, top: int) -> dict[str, Any]:
    recommendation = advice.recommendation
    abstention = recommendation.abstention
    fallback = abstention.fallback if abstention else None
    return {
        "headline": " ".join(filter(None, (headline(advice), loss_sentence(advice)))),
        "recommended": abstention is None,
        "abstention": abstention.reason if abstention else "",
        "violations": list(abstention.violations) if abstention else [],
        "fallback": fallback.key if fallback else "",
        "probe": abstention.probe if abstention else "",
        "ranked": [_arm(ranked) for ranked in recommendation.ranked[:top]],
        "n_ranked": len(recommendation.ranked),
        "cannot_start": dict(Counter(i.reason_code for i in recommendation.infeasible)),
        "assumptions": list(advice.assumptions),
        "model_version": recommendation.model_version,
    }


def advice_answer(advice: Advice, top: int) -> AdviceAnswer:
    """The advice for an agent; ``top`` arms in full."""
    return AdviceAnswer(**_fields(advice, top))


def explain_answer(explanation: Any, top: int) -> ExplainAnswer:  # noqa: ANN401 - an Explanation
    """The advice with its grounds for an agent."""
    advice = explanation.advice
    ranked = advice.recommendation.ranked
    terms: dict[str, float] = {}
    if ranked:
        utility = ranked[0].utility
        terms = {name: getattr(utility, name) for name in type(utility).__dataclass_fields__}
    return ExplainAnswer(
        **_fields(advice, top),
        utility_terms=terms,
        would_change=[turning_sentence(point) for point in advice.turning_points],
        other_loads={
            change.label: change.winner.label if change.winner else "nothing starts"
            for change in explanation.loads
        },
        evidence=[
            f"{e.source}: {e.model} on {e.n_gpus}x {e.gpu} {e.precision}, {e.rows} rows, "
            f"distance {e.distance:.1f}"
            for e in explanation.evidence
        ],
    )


def probe_answer(advisor: Advisor, question: Question) -> ProbeAnswer:
    """Which measurements pay before the decision.

    Raises:
        UsageError: as for advice; no arm starts.
    """
    from omnipilot.advisor.probing import probe, stop_words  # noqa: PLC0415 - seldom asked

    report = probe(advisor, question)
    plan = report.plan
    now_usd = float(report.situation.stakes.total_usd[report.situation.stakes.taken[0]])
    return ProbeAnswer(
        needed=bool(plan.probes),
        reason=stop_words(report),
        probes=[
            PlannedProbe(
                probe=report.option(p).probe.name, arm=report.arm(p).key,
                value_usd=p.voi_usd, cost_usd=p.cost_usd, node_hours=p.node_h,
            )
            for p in plan.probes
        ],
        arm_without=report.now.key,
        utility_usd_without=now_usd,
        utility_usd_with=now_usd + plan.gain_usd - plan.cost_usd,
    )  # fmt: skip


def fit_answer(fit: FitVerdict) -> FitAnswer:
    """A verdict for an agent."""
    return FitAnswer(**{name: getattr(fit, name) for name in FitAnswer.model_fields})


def cluster_answer(report: ClusterReport) -> ClusterAnswer:
    """The cluster for an agent."""
    return ClusterAnswer(
        known=report.origin != "none",
        age_s=report.age_s,
        free_gpus={kind: free for kind, (free, _) in report.gpus.items()},
        total_gpus={kind: total for kind, (_, total) in report.gpus.items()},
        pending_gpus=report.pending_gpus,
        nodes_kept_out={**report.faulty, **report.closed},
        summary=cluster_lines(report),
    )
