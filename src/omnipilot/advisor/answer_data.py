"""Answers as data: what JSON holds of them, the same from the command line and the service.

The values are what both encoders know: dataclasses stand for objects, tuples for arrays
(:func:`plain`, and msgspec in the service).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from omnipilot.advisor.outlook import ArmOutlook, ClusterReport
    from omnipilot.advisor.question import Advice, Explanation
    from omnipilot.domain import Arm, RankedArm, Recommendation, TargetPrediction
    from omnipilot.domain.engine import EngineParameters

__all__ = [
    "POINTS", "advice_data", "arm_data", "cluster_data", "explanation_data", "plain",
    "recommendation_data",
]  # fmt: skip

POINTS: Final = ("q10", "q50", "q90", "lower", "upper")
_WHOLE: Final = 1e7


def plain(value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Turn an answer into what JSON can hold.

    Dataclasses become objects with their fields as keys, tuples lists; a number that is not finite
    becomes null, floats keep seven significant digits and all digits before the point (Unix
    seconds have ten).
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.7g}") if abs(value) < _WHOLE else round(value, 3)
    return value


def arm_data(arm: Arm) -> dict[str, Any]:
    """The four words that name an arm."""
    return {
        "gpu_kind": arm.gpu_kind,
        "tensor_parallel": arm.tensor_parallel,
        "precision": arm.precision,
        "engine": arm.engine,
    }


def target_data(target: TargetPrediction) -> dict[str, Any]:
    """Quantiles and interval of one target, its unit and where it comes from."""
    return {
        "q10": target.q10,
        "q50": target.q50,
        "q90": target.q90,
        "lower": target.lower,
        "upper": target.upper,
        "unit": target.unit,
        "source": target.source,
    }


def engine_data(parameters: EngineParameters | None) -> dict[str, Any] | None:
    """What a launch says to the engine; None where it was not asked."""
    if parameters is None:
        return None
    return {
        **{name: getattr(parameters, name) for name in parameters.__slots__},
        "environment": dict(parameters.environment),
    }


def ranked_data(ranked: RankedArm) -> dict[str, Any]:
    """One arm that starts."""
    return {
        "arm": arm_data(ranked.arm),
        "targets": {name: target_data(target) for name, target in ranked.targets.items()},
        "utility": ranked.utility,
        "confidence": ranked.confidence,
        "engine_parameters": engine_data(ranked.engine_parameters),
        "support": {
            "supported": ranked.support.supported,
            "violations": ranked.support.violations,
        },
        "usd_per_h": ranked.usd_per_h,
        "slo_violation_prob": ranked.slo_violation_prob,
        "rationale": ranked.rationale,
    }


def advice_data(advice: Advice) -> dict[str, Any]:
    """The recommendation with what it assumes and the site has measured; the cluster if known."""
    cluster: dict[str, Any] = {}
    if advice.cluster is not None and (advice.cluster.origin != "none" or advice.cluster.notes):
        cluster["cluster"] = cluster_data(advice.cluster)
    return {
        **recommendation_data(advice.recommendation),
        "site_runs": advice.site_runs,
        "assumptions": list(advice.assumptions),
        **cluster,
    }


def recommendation_data(recommendation: Recommendation) -> dict[str, Any]:
    """The whole recommendation."""
    abstention = recommendation.abstention
    return {
        "request": recommendation.request,
        "model_version": recommendation.model_version,
        "ranked": [ranked_data(arm) for arm in recommendation.ranked],
        "infeasible": [
            {"arm": arm_data(i.arm), "reason_code": i.reason_code, "reason": i.reason}
            for i in recommendation.infeasible
        ],
        "abstention": None
        if abstention is None
        else {
            "reason": abstention.reason,
            "violations": list(abstention.violations),
            "fallback_rule": abstention.fallback_rule,
            "fallback": arm_data(abstention.fallback) if abstention.fallback else None,
            "probe": abstention.probe,
        },
    }


def explanation_data(explanation: Explanation) -> dict[str, Any]:
    """The advice with its grounds."""
    advice = explanation.advice
    return {
        **advice_data(advice),
        "economics": advice.economics,
        "weights": advice.weights,
        "grounds": [
            {
                "arm": arm_data(arm.arm),
                "rationale": arm.rationale,
                "usd_per_h": arm.usd_per_h,
                "slo_violation_prob": arm.slo_violation_prob,
                "fit": arm.fit,
                "support": arm.support,
            }
            for arm in advice.recommendation.ranked
        ],
        "evidence": explanation.evidence,
        "turning_points": [
            {
                "quantity": p.quantity,
                "gpu_kind": p.gpu_kind,
                "now": p.now,
                "at": p.at,
                "winner": arm_data(p.winner),
            }
            for p in advice.turning_points
        ],
        "loads": [
            {
                "load": change.label,
                "winner": arm_data(change.winner) if change.winner else None,
            }
            for change in explanation.loads
        ],
        "freshness": explanation.freshness,
    }


def cluster_data(report: ClusterReport) -> dict[str, Any]:
    """The same as data."""
    return {
        "origin": report.origin,
        "age_s": report.age_s,
        "version": report.version,
        "gpus": {
            kind: {"free": free, "total": total} for kind, (free, total) in report.gpus.items()
        },
        "closed": report.closed,
        "faulty": report.faulty,
        "pending_gpus": report.pending_gpus,
        "notes": list(report.notes),
        "arms": [_arm_outlook_data(arm, outlook) for arm, outlook in report.arms.items()],
    }


def _arm_outlook_data(arm: Arm, outlook: ArmOutlook) -> dict[str, Any]:
    place, wait = outlook.place, outlook.wait
    return {
        "gpu_kind": arm.gpu_kind,
        "tensor_parallel": arm.tensor_parallel,
        "precision": arm.precision,
        "partition": place.partition if place else None,
        "gres": place.gres if place else None,
        "free_now": place.free_now if place else None,
        "avoid_nodes": dict(place.avoid) if place else {},
        "wait_h": {
            "expected": wait.expected_h,
            "lower": wait.lower_h,
            "median": wait.median_h,
            "upper": wait.upper_h,
            "note": wait.note,
        },
        "launch_success": {
            "probability": outlook.chance.probability,
            "note": outlook.chance.note,
        },
    }
