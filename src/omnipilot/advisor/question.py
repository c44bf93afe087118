"""What is asked of the advisor, and what it answers."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from omnipilot.advisor.turning import contenders, price_turning_points, value_turning_points
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from omnipilot.advisor.outlook import ClusterReport
    from omnipilot.advisor.site_runs import SiteRuns
    from omnipilot.advisor.turning import TurningPoint
    from omnipilot.costmodel.predict import Evidence
    from omnipilot.decide.economics import DecisionWeights, Economics
    from omnipilot.domain import Arm, ModelArch, Recommendation, ServingRequest
    from omnipilot.store.evidence import MetricEvidence


@dataclass(frozen=True, slots=True)
class Question:
    """A serving request with the operator's wishes for the decision.

    Empty ``gpus`` or ``precisions`` mean all that the site has and the checkpoint allows.
    ``allow_fetch`` lets the config of an unknown model be fetched from the hub. ``profile`` is an
    operating point; ``weights`` (by utility term) and ``value_per_token_usd``
    override it. ``electricity_usd_per_kwh``, ``wait_cost_usd_per_h`` and ``slo_penalty_usd_per_h``
    override the site's settings.

    ``live`` asks Slurm how the cluster is, ``state_file`` takes a saved state instead; ``now_s`` is
    the time then (Unix seconds). ``ask_starts`` lets Slurm be asked when the best arms would start.
    ``given`` holds the wait (hours) and the chance to come up by arm label, of an advice that is
    asked again: only those arms are then ranked.
    """

    request: ServingRequest
    model_config: Path | None = None
    allow_fetch: bool = False
    gpus: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    profile: str | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    value_per_token_usd: float | None = None
    live: bool = False
    state_file: Path | None = None
    now_s: float = 0.0
    ask_starts: bool = True
    electricity_usd_per_kwh: float | None = None
    wait_cost_usd_per_h: float | None = None
    slo_penalty_usd_per_h: float | None = None
    given: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch in words; None and "" mean the engine's or the model's own default."""

    model_id: str
    gpu: str
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    precision: str = ""
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    engine: str = "vllm"
    engine_version: str = ""
    gpus_per_node: int | None = None
    enforce_eager: bool = False
    model_config: Path | None = None
    allow_fetch: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommendation with what it rests on.

    ``prices_usd_per_gpu_h`` and ``gpus_per_node`` are by GPU kind; ``assumptions`` are sentences;
    ``site_runs`` are what the site itself has measured of the model; ``cluster`` is what was known
    of the cluster.
    """

    recommendation: Recommendation
    model: ModelArch
    economics: Economics
    weights: DecisionWeights
    prices_usd_per_gpu_h: Mapping[str, float]
    gpus_per_node: Mapping[str, int]
    assumptions: tuple[str, ...]
    site_runs: tuple[SiteRuns, ...] = ()
    cluster: ClusterReport | None = None

    @property
    def turning_points(self) -> tuple[TurningPoint, ...]:
        """The values at which another of the ranked arms would win."""
        arms = contenders(self.recommendation.ranked)
        value, hours = self.economics.value_per_token_usd, self.economics.duration_h
        return (
            *value_turning_points(arms, value, self.weights),
            *price_turning_points(arms, self.prices_usd_per_gpu_h, hours, self.weights),
        )


@dataclass(frozen=True, slots=True)
class LoadChange:
    """Who wins under another load; ``label`` says the load in words."""

    label: str
    winner: Arm | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Advice with its grounds.

    ``evidence`` are the measured cells nearest to the best arm, nearest first; ``loads`` tell who
    wins at other loads; ``freshness`` is what the site knows of the best arm's GPU kind, by age.
    """

    advice: Advice
    evidence: tuple[Evidence, ...]
    loads: tuple[LoadChange, ...]
    freshness: tuple[MetricEvidence, ...] = ()
