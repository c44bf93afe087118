"""Advice as data: the keys of the JSON form and the columns of the CSV form."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from omnipilot.domain.targets import TARGET_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnipilot.advisor import Advice
    from omnipilot.domain import Arm, RankedArm, Recommendation, TargetPrediction
    from omnipilot.domain.engine import EngineParameters

POINTS = ("q10", "q50", "q90", "lower", "upper")


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
        **{point: getattr(target, point) for point in POINTS},
        "unit": target.unit,
        "source": target.source,
    }


def engine_data(parameters: EngineParameters | None) -> dict[str, Any] | None:
    """What a launch says to the engine; None where it was not asked."""
    if parameters is None:
        return None
    return {
        **dataclasses.asdict(parameters),
        "environment": dict(parameters.environment),
    }


def ranked_data(ranked: RankedArm) -> dict[str, Any]:
    """One arm that starts."""
    return {
        "arm": arm_data(ranked.arm),
        "targets": {name: target_data(target) for name, target in ranked.targets.items()},
        "utility": dataclasses.asdict(ranked.utility),
        "confidence": ranked.confidence,
        "engine_parameters": engine_data(ranked.engine_parameters),
        "support": {
            "supported": ranked.support.supported,
            "violations": list(ranked.support.violations),
        },
    }


def advice_data(advice: Advice) -> dict[str, Any]:
    """The recommendation with what the site itself has measured, and the cluster if it is known."""
    cluster: dict[str, Any] = {}
    if advice.cluster is not None and (advice.cluster.origin != "none" or advice.cluster.notes):
        from omnipilot.cli.cluster_text import cluster_data  # noqa: PLC0415 - only if known

        cluster["cluster"] = cluster_data(advice.cluster)
    return {
        **recommendation_data(advice.recommendation),
        "site_runs": [dataclasses.asdict(group) for group in advice.site_runs],
        **cluster,
    }


def recommendation_data(recommendation: Recommendation) -> dict[str, Any]:
    """The whole recommendation."""
    abstention = recommendation.abstention
    return {
        "request": dataclasses.asdict(recommendation.request),
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


CSV_HEADER = (
    "place", "gpu_kind", "tensor_parallel", "precision", "engine", "confidence", "supported",
    "usd_per_h", "utility_usd", "utility_lower_usd", "utility_upper_usd",
    *(f"{name}_{point}" for name in TARGET_NAMES for point in POINTS), "rationale",
)  # fmt: skip


def csv_rows(recommendation: Recommendation) -> Iterator[tuple[object, ...]]:
    """One row an arm that starts, best first, under ``CSV_HEADER``."""
    for place, ranked in enumerate(recommendation.ranked, start=1):
        yield (
            place,
            *arm_data(ranked.arm).values(),
            ranked.confidence,
            ranked.support.supported,
            ranked.usd_per_h,
            ranked.utility.total_usd,
            ranked.utility.lower_usd,
            ranked.utility.upper_usd,
            *(getattr(ranked.targets[n], p) for n in TARGET_NAMES for p in POINTS),
            ranked.rationale,
        )
