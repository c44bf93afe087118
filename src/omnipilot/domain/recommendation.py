"""What the advisor answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.domain.arm import Arm
    from omnipilot.domain.engine import EngineParameters
    from omnipilot.domain.feasibility import FitVerdict
    from omnipilot.domain.prediction import Confidence, SupportVerdict, TargetPrediction
    from omnipilot.domain.request import ServingRequest


@dataclass(frozen=True, slots=True)
class UtilityTerms:
    """Expected utility of one arm over the request's hours, in USD.

    ``serving_value_usd`` excludes the saturation factor s; costs are positive and subtracted.
    ``total_usd`` is the weighted sum; ``lower_usd``/``upper_usd`` its 10-90 % interval from joint
    sampling.
    """

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


@dataclass(frozen=True, slots=True)
class RankedArm:
    """One feasible arm with its predictions and utility.

    ``engine_parameters`` are what its launch says to the engine; None where nobody asked.
    """

    arm: Arm
    targets: dict[str, TargetPrediction]
    utility: UtilityTerms
    support: SupportVerdict
    confidence: Confidence
    fit: FitVerdict
    usd_per_h: float
    slo_violation_prob: float
    rationale: str
    engine_parameters: EngineParameters | None = None


@dataclass(frozen=True, slots=True)
class InfeasibleArm:
    """One arm that cannot start, with why."""

    arm: Arm
    reason_code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Abstention:
    """The model does not know; ``fallback`` is the rule's arm, or None where nothing fits.

    ``probe`` says which short measurement would let it know, "" where none would.
    """

    reason: str
    violations: tuple[str, ...]
    fallback_rule: str
    fallback: Arm | None
    probe: str = ""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Ranked arms, best first, or an abstention with a rule-based fallback."""

    request: ServingRequest
    model_version: str
    ranked: tuple[RankedArm, ...]
    infeasible: tuple[InfeasibleArm, ...]
    abstention: Abstention | None
