"""What a run is worth before it is made: predictive variance for a node-hour."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from omnipilot.domain.prediction import TargetPrediction

__all__ = ["information_per_node_h", "order_by_information"]

_Z80: Final = 1.2815515655446004  # half-width of a central 80 % interval in standard deviations
_LEAST_NODE_H: Final = 1e-4


def information_per_node_h(target: TargetPrediction, node_h: float) -> float:
    """Variance of the logarithm that a run's interval stands for, for each node-hour it takes.

    Args:
        target: the decision target, with its 80 % interval.
        node_h: predicted node-hours of the run.

    Example:
        >>> from omnipilot.domain import TargetPrediction
        >>> wide = TargetPrediction(1, 10, 100, 1, 100, "tok/s", "model")
        >>> narrow = TargetPrediction(9, 10, 11, 9, 11, "tok/s", "model")
        >>> information_per_node_h(wide, 0.5) > information_per_node_h(narrow, 0.5)
        True
    """
    low, high = max(target.lower, 1e-12), max(target.upper, 1e-12)
    sd_log = max(math.log(high / low), 0.0) / (2 * _Z80)
    return sd_log**2 / max(node_h, _LEAST_NODE_H)


def order_by_information(values: Sequence[float], groups: Sequence[Hashable]) -> list[int]:
    """Order runs by information, each run of a group counting less the more of it are ahead.

    Two runs of one arm tell much of the same: the k-th of a group counts 1/k of its own.

    Args:
        values: information of each run, (n,).
        groups: which runs tell much of the same, (n,).

    Returns:
        Indices, best first; ties in the given order.

    Example:
        >>> order_by_information([9.0, 8.0, 5.0], ["a", "a", "b"])
        [0, 2, 1]
    """
    taken: dict[Hashable, int] = {}
    heap = [(-value, i, 0) for i, value in enumerate(values)]
    heapq.heapify(heap)
    order = []
    while heap:
        _, i, seen = heapq.heappop(heap)
        ahead = taken.get(groups[i], 0)
        if ahead != seen:
            heapq.heappush(heap, (-values[i] / (1 + ahead), i, ahead))
            continue
        taken[groups[i]] = ahead + 1
        order.append(i)
    return order
