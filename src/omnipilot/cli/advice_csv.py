"""Advice as CSV: one line an arm that starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnipilot.advisor.answer_data import POINTS, arm_data
from omnipilot.domain.targets import TARGET_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnipilot.domain import Recommendation

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
