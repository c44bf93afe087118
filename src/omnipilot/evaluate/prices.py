"""The price table of decision backtests: fixed, so that figures stay comparable over years."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# USD per GPU and hour by canonical kind: on-demand prices of 2025 at specialised clouds, rounded.
# Variants of one part (form, memory) that the table of the evaluation does not tell apart share it.
_BY_PART: Final[tuple[tuple[float, tuple[str, ...]], ...]] = (
    (0.35, ("t4-16",)),
    (0.6, ("a10-24", "a10g-24")),
    (0.8, ("v100-16", "v100-32", "v100-16-pcie", "v100-32-pcie")),
    (1.0, ("l40s-48",)),
    (1.2, ("mi250-128", "mi250x-128")),
    (1.5, ("a100-40", "a100-40-pcie")),
    (1.8, ("a100-80", "a100-80-pcie")),
    (3.0, ("h100-80", "h100-80-pcie", "h100-94-nvl")),
    (3.0, ("mi300x-192",)),
    (3.3, ("gh200-96", "gh200-144")),
    (3.8, ("h200-141", "h200-141-nvl")),
    (5.5, ("b200-180",)),
    (6.5, ("b300-288",)),
)
PRICES_USD_PER_GPU_H: Final[Mapping[str, float]] = MappingProxyType(
    {kind: price for price, kinds in _BY_PART for kind in kinds}
)
