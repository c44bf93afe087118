"""What would change the answer: the values at which another arm wins, in closed form.

The expected utility of an arm is linear in the value of a token and in the price of its GPUs:
``U(v) = v·a − c``. Two lines cross once, so each turning point is a quotient.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.decide.economics import DecisionWeights
    from omnipilot.domain import Arm, RankedArm


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """A value of one quantity from which ``winner`` is the best arm instead of today's.

    ``quantity`` is "value_per_token_usd", or "price_usd_per_gpu_h" of ``gpu_kind``; ``now`` and
    ``at`` are in its unit. The winner takes over beyond ``at``, seen from ``now``.
    """

    quantity: str
    gpu_kind: str
    now: float
    at: float
    winner: Arm


@dataclass(frozen=True, slots=True)
class _Line:
    arm: RankedArm
    slope: float
    cost_usd: float


def _line(arm: RankedArm, value_per_token_usd: float, weights: DecisionWeights) -> _Line:
    terms = arm.utility
    earned = weights.serving_value * terms.serving_value_usd
    earned -= weights.kv_saturation * terms.kv_saturation_usd
    return _Line(arm, earned / value_per_token_usd, earned - terms.total_usd)


def contenders(ranked: Sequence[RankedArm]) -> list[RankedArm]:
    """Arms that compete with the winner on equal terms: as well supported, and not ahead of it.

    An arm that was not measured may be worth more on paper than where it is listed.
    """
    if not ranked:
        return []
    best = ranked[0]
    return [
        arm
        for arm in ranked
        if (arm.support.supported or not best.support.supported)
        and arm.utility.total_usd <= best.utility.total_usd
    ]


def value_turning_points(
    arms: Sequence[RankedArm], value_per_token_usd: float, weights: DecisionWeights
) -> tuple[TurningPoint, ...]:
    """Nearest values per token, below and above today's, at which another arm becomes the best.

    Args:
        arms: arms that compete on equal terms, the best one first.
        value_per_token_usd: today's value, above 0.
        weights: weights in force.

    Returns:
        At most two points: below first.
    """
    if len(arms) < 2 or value_per_token_usd <= 0:
        return ()
    best, *others = (_line(arm, value_per_token_usd, weights) for arm in arms)
    below: TurningPoint | None = None
    above: TurningPoint | None = None
    for other in others:
        steeper = other.slope - best.slope
        if steeper == 0:
            continue
        at = (other.cost_usd - best.cost_usd) / steeper
        # The best arm is ahead today, so a steeper line crosses above and a flatter one below;
        # at a tie rounding must not turn that round.
        at = max(at, value_per_token_usd) if steeper > 0 else min(at, value_per_token_usd)
        point = TurningPoint("value_per_token_usd", "", value_per_token_usd, at, other.arm.arm)
        if steeper > 0 and (above is None or at < above.at):
            above = point
        if steeper < 0 and at > 0 and (below is None or at > below.at):
            below = point
    return tuple(point for point in (below, above) if point is not None)


def price_turning_points(
    arms: Sequence[RankedArm],
    price_usd_per_gpu_h: Mapping[str, float],
    duration_h: float,
    weights: DecisionWeights,
    limit: int = 3,
) -> tuple[TurningPoint, ...]:
    """Prices at which another GPU kind's best arm takes over, nearest first.

    The failure term moves with the price too; it is neglected here because it is hundredths of the
    compute term.

    Args:
        arms: arms that compete on equal terms, the best one first.
        price_usd_per_gpu_h: today's price by GPU kind.
        duration_h: hours of the request.
        weights: weights in force.
        limit: most points to give.

    Returns:
        The price that the winner's kind would have to rise to, first, then those that other kinds
        would have to fall to.
    """
    if len(arms) < 2 or weights.compute <= 0:
        return ()
    best = arms[0]
    kind = best.arm.gpu_kind
    per_usd = weights.compute * duration_h
    points: list[tuple[float, TurningPoint]] = []
    rivals = [arm for arm in arms if arm.arm.gpu_kind != kind]
    if rivals:
        # The rise hits all arms of the winner's kind: the last of them to fall below counts.
        rise = max(_gap(a, rivals[0], per_usd * a.arm.tensor_parallel) for a in arms
                   if a.arm.gpu_kind == kind)  # fmt: skip
        now = price_usd_per_gpu_h[kind]
        point = TurningPoint("price_usd_per_gpu_h", kind, now, now + rise, rivals[0].arm)
        points.append((-math.inf, point))
    for other in dict.fromkeys(arm.arm.gpu_kind for arm in rivals):
        now = price_usd_per_gpu_h[other]
        fall, arm = min(
            ((_gap(best, a, per_usd * a.arm.tensor_parallel), a.arm) for a in rivals
             if a.arm.gpu_kind == other),
            key=lambda pair: pair[0],
        )  # fmt: skip
        if 0 <= fall < now:
            point = TurningPoint("price_usd_per_gpu_h", other, now, now - fall, arm)
            points.append((fall / now, point))
    points.sort(key=lambda pair: pair[0])
    return tuple(point for _, point in points[:limit])


def _gap(ahead: RankedArm, behind: RankedArm, per_unit: float) -> float:
    return (ahead.utility.total_usd - behind.utility.total_usd) / per_unit
