"""Revealed preference: the values of a token under which an operator's choices are the best.

The expected utility of an arm for an hour is linear in the value of a token, ``U(v) = v·slope −
cost``. The best arm as v grows is the upper envelope of these lines; an operator's choice is
consistent with the values at which the envelope is a line of the chosen arm.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

Interval = tuple[float, float]
GRID_USD_PER_TOKEN: Final[tuple[float, ...]] = tuple(
    float(f"{v:.3g}") for v in np.geomspace(1e-8, 1e-5, 13)
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One stated choice among the arms of a request.

    ``slope`` is what an arm earns in an hour per USD of a token's value, ``cost_usd_per_h`` what
    it costs; ``chosen`` marks the arms that the operator's words mean; all (n_arms,). ``arms``
    are their labels.
    """

    label: str
    arms: tuple[str, ...]
    slope: FloatArray
    cost_usd_per_h: FloatArray
    chosen: NDArray[np.bool_]

    def utility_usd_per_h(self, value_per_token_usd: float) -> FloatArray:
        """Utility of every arm at a value (n_arms,)."""
        return value_per_token_usd * self.slope - self.cost_usd_per_h

    def regret_usd_per_h(self, value_per_token_usd: float) -> float:
        """What the choice gives up at a value against the best arm; infinite if not offered."""
        if not self.chosen.any():
            return math.inf
        utility = self.utility_usd_per_h(value_per_token_usd)
        return float(utility.max() - utility[self.chosen].max())


def envelope(choice: Choice) -> list[tuple[float, int]]:
    """Upper envelope of the lines of a choice, from value 0 up.

    Returns:
        (value from which, index of the best arm), ascending; equal arms count as the steeper one.
    """
    slope, cost = choice.slope, choice.cost_usd_per_h
    at = max(range(len(slope)), key=lambda i: (-cost[i], slope[i]))
    steps = [(0.0, at)]
    while True:
        steeper = np.flatnonzero(slope > slope[at])
        if len(steeper) == 0:
            return steps
        crossing = (cost[steeper] - cost[at]) / (slope[steeper] - slope[at])
        value = float(crossing.min())
        tied = steeper[crossing <= value * (1 + 1e-12)]
        at = int(tied[np.argmax(slope[tied])])
        steps.append((max(value, steps[-1][0]), at))


def consistent_values(choice: Choice) -> list[Interval]:
    """Values of a token at which the chosen arm is the best: disjoint intervals, ascending."""
    steps = envelope(choice)
    found: list[Interval] = []
    for i, (begin, arm) in enumerate(steps):
        end = steps[i + 1][0] if i + 1 < len(steps) else math.inf
        if not choice.chosen[arm] or end <= begin:
            continue
        if found and found[-1][1] >= begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


def common_values(choices: Sequence[Choice]) -> list[Interval]:
    """Values at which every choice is the best; empty where the choices contradict one another."""
    common: list[Interval] = [(0.0, math.inf)]
    for choice in choices:
        mine = consistent_values(choice)
        common = [
            (max(a, c), min(b, d)) for a, b in common for c, d in mine if max(a, c) < min(b, d)
        ]
    return common


@dataclass(frozen=True, slots=True)
class AtValue:
    """How well one value explains the choices: how many, and what the choices give up (mean)."""

    value_per_token_usd: float
    explained: int
    regret_usd_per_h: float


def along(choices: Sequence[Choice], values: Sequence[float]) -> list[AtValue]:
    """Accuracy and regret of the stated choices at several values of a token."""
    rows = []
    for value in values:
        regrets = [choice.regret_usd_per_h(value) for choice in choices]
        # The best arm and the chosen one may be the same line: equality up to rounding.
        scale = [max(1.0, float(np.abs(c.utility_usd_per_h(value)).max())) for c in choices]
        right = sum(r <= 1e-9 * s for r, s in zip(regrets, scale, strict=True))
        rows.append(AtValue(value, right, float(np.mean(regrets))))
    return rows


def values_to_show(common: Sequence[Interval]) -> list[float]:
    """The customary grid, and the ends and the middle of the consistent intervals."""
    extra: list[float] = []
    for low, high in common:
        ends = [v for v in (low, high) if 0.0 < v < math.inf]
        extra += ends
        if len(ends) == 2:
            extra.append(math.sqrt(low * high))
    return sorted({*GRID_USD_PER_TOKEN, *(float(f"{v:.4g}") for v in extra)})
