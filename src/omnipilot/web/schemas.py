"""What answers look like, for the OpenAPI document; tests hold every answer against it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "AdviceAnswer", "CatalogAnswer", "ClusterAnswer", "DriftAnswer", "EvaluateAnswer",
    "ExplainAnswer", "FitsAnswer", "IngestAnswer", "LedgerAnswer", "ModelsAnswer", "PredictAnswer",
    "PriorAnswer", "ProbeAnswer", "ProblemAnswer", "ReadyAnswer", "StoreAnswer",
]  # fmt: skip


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ProblemAnswer(BaseModel):
    """A refusal (RFC 9457)."""

    model_config = ConfigDict(extra="allow")
    type: str = Field(description="Kind of the problem, a URI that does not change.")
    title: str
    status: int
    detail: str = Field(description="What happened and what to do.")
    request_id: str
    errors: list[dict[str, Any]] | None = None
    candidates: list[str] | None = None


class ArmAnswer(_Answer):
    """One configuration."""

    gpu_kind: str
    tensor_parallel: int
    precision: str
    engine: str


class TargetAnswer(_Answer):
    """Quantiles and the calibrated interval of one predicted quantity."""

    q10: float | None
    q50: float | None
    q90: float | None
    lower: float | None
    upper: float | None
    unit: str
    source: Literal["model", "prior"]


class UtilityAnswer(_Answer):
    """Terms of the utility over the request's hours; costs are positive and subtracted."""

    serving_value_usd: float
    compute_usd: float
    queue_usd: float
    failure_usd: float
    slo_usd: float
    kv_saturation_usd: float
    carbon_usd: float
    total_usd: float
    lower_usd: float
    upper_usd: float


class FlagAnswer(_Answer):
    """Why a launch has one argument or variable."""

    flag: str
    why: str
    source: str


class EngineAnswer(_Answer):
    """What a launch says to the engine."""

    max_model_len: int
    memory_utilization_frac: float
    max_num_seqs: int
    kv_dtype: str
    arguments: list[str]
    environment: dict[str, str]
    unset: list[str]
    needs: str
    reasons: list[FlagAnswer]


class SupportAnswer(_Answer):
    """Whether an arm lies inside what was measured."""

    supported: bool
    violations: list[str]


class RankedAnswer(_Answer):
    """One arm that starts."""

    arm: ArmAnswer
    targets: dict[str, TargetAnswer]
    utility: UtilityAnswer
    confidence: Literal["high", "medium", "low"]
    engine_parameters: EngineAnswer | None
    support: SupportAnswer
    usd_per_h: float
    slo_violation_prob: float
    rationale: str


class InfeasibleAnswer(_Answer):
    """One arm that cannot start."""

    arm: ArmAnswer
    reason_code: str
    reason: str


class AbstentionAnswer(_Answer):
    """Why there is no recommendation, what the rule takes instead, what would let it know."""

    reason: str
    violations: list[str]
    fallback_rule: str
    fallback: ArmAnswer | None
    probe: str


class SloAnswer(_Answer):
    """Limits."""

    ttft_p50_s: float | None
    tpot_p50_s: float | None


class RequestAnswer(_Answer):
    """The request as it was understood."""

    model_id: str
    concurrency: int
    context_tokens: int
    prompt_tokens: int
    output_tokens: int
    duration_h: float
    slo: SloAnswer
    engine: str
    engine_version: str


class AdviceAnswer(_Answer):
    """Arms, best first, or an abstention with the rule's arm."""

    request: RequestAnswer
    model_version: str
    ranked: list[RankedAnswer]
    infeasible: list[InfeasibleAnswer]
    abstention: AbstentionAnswer | None
    site_runs: list[dict[str, Any]]
    assumptions: list[str]
    cluster: dict[str, Any] | None = None


class ExplainAnswer(AdviceAnswer):
    """Advice with its grounds."""

    economics: dict[str, float | None]
    weights: dict[str, float]
    grounds: list[dict[str, Any]]
    evidence: list[dict[str, Any]]
    turning_points: list[dict[str, Any]]
    loads: list[dict[str, Any]]
    freshness: list[dict[str, Any]]


class PlannedProbeAnswer(_Answer):
    """One probe: what it is expected to add to the decision, and what it costs."""

    probe: str
    arm: ArmAnswer
    voi_usd: float
    cost_usd: float
    net_usd: float
    node_hours: float


class DecisionAnswer(_Answer):
    """What is taken without a probe."""

    arm: ArmAnswer
    utility_usd: float
    rule: str


class LikelyAnswer(_Answer):
    """An arm that may be taken once the probes have told."""

    arm: ArmAnswer
    probability: float


class AfterAnswer(_Answer):
    """What is expected once the probes have told."""

    utility_usd: float
    net_utility_usd: float
    arms: list[LikelyAnswer]


class ProbeAnswer(_Answer):
    """Probes that pay, in order, then the best one that does not."""

    probes: list[PlannedProbeAnswer]
    stop_reason: str
    decision_before: DecisionAnswer
    decision_after_expected: AfterAnswer


class FitsAnswer(_Answer):
    """Whether a launch starts, with the arithmetic."""

    verdict: Literal["fits", "oom", "unsupported", "unknown"]
    reason_code: str
    reason: str
    weights_gib_per_gpu: float | None
    activation_gib: float | None
    graph_gib: float | None
    kv_gib_per_gpu: float | None
    kv_cache_tokens: int | None
    max_model_len_possible: int | None
    max_concurrency: float | None
    assumptions: list[str]


class PredictedRow(_Answer):
    """The answer to one row; numbers are null where there is none."""

    row: int
    verdict: Literal["fits", "oom", "unsupported", "unknown"]
    supported: bool
    confidence: Literal["high", "medium", "low"]
    reason: str
    targets: dict[str, dict[str, float | None]]


class PredictAnswer(_Answer):
    """One answer a row, in order."""

    model_version: str
    rows: list[PredictedRow]


class ModelAnswer(_Answer):
    """One cost model."""

    version: str
    kind: Literal["site", "base", "shipped"]
    answers: bool = Field(description="Whether it is the one that answers.")
    base: str
    rows: int
    site_rows: int
    fitted_s: float | None
    promoted_s: float | None
    verdict: str = Field(description="Of the gate; empty where it was never judged.")
    mape: float | None
    coverage: float | None


class LedgerEntryAnswer(_Answer):
    """One line of the ledger; `facts` depend on the event."""

    n: int
    event: str
    at_s: float
    version: str
    facts: dict[str, Any]
    digest: str


class LedgerAnswer(_Answer):
    """The ledger, oldest entry first."""

    entries: list[LedgerEntryAnswer]


class DriftAnswer(_Answer):
    """New rows against what was predicted of them."""

    version: str
    new_rows: int
    alarms: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    false_alarm_rate: float
    engines: dict[str, str]
    notes: list[str]


class ModelsAnswer(_Answer):
    """The cost models; the one that answers first."""

    models: list[ModelAnswer]


class EvaluateAnswer(_Answer):
    """Held-out errors of the cost model that answers, from its own card."""

    model_version: str
    card: dict[str, Any]


class CatalogAnswer(_Answer):
    """Names that questions may use."""

    gpus: list[dict[str, Any]]
    models: list[str]
    precisions: list[str]
    profiles: list[dict[str, str]]
    terms: list[dict[str, str]]


class PriorAnswer(_Answer):
    """What the cluster's history says."""

    definition: dict[str, Any]
    level: float
    pooled_rate: float
    strength: float
    strengths: list[float]
    configurations: list[dict[str, Any]]
    wait_quantiles: list[float]
    waits: list[dict[str, Any]]
    jobs: int
    untyped: int
    without_gpus: int
    outcomes: list[dict[str, Any]]


class ClusterAnswer(_Answer):
    """The cluster as it was read last."""

    origin: str
    age_s: float
    version: str
    gpus: dict[str, dict[str, int]]
    closed: dict[str, str]
    faulty: dict[str, str]
    pending_gpus: int
    notes: list[str]
    arms: list[dict[str, Any]]


class UnknownNameAnswer(_Answer):
    """A name of rows that were kept, which the catalogue cannot resolve."""

    column: str
    name: str
    rows: int
    close: list[str]
    ambiguous: bool


class IngestAnswer(_Answer):
    """What became of the rows of a body."""

    accepted: int
    duplicate: int
    rejected: int
    by_reason: dict[str, int]
    unread_columns: list[str]
    unknown_names: list[UnknownNameAnswer]
    rejections: list[dict[str, Any]]


class StoreAnswer(BaseModel):
    """What the site's store holds."""

    model_config = ConfigDict(extra="allow")
    rows: int
    by_kind: dict[str, int]


class ReadyAnswer(_Answer):
    """Whether the service can answer, and with what."""

    status: Literal["ready"]
    model_version: str
    origin: Literal["site", "base"]
    loaded_s: float
