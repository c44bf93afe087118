"""Whole decisions on measured rows: the arm that the utility picks against the measured best.

The utility is the one that ships (:func:`omnipilot.decide.utility.evaluate_utility`), on both
sides: of predictions with their intervals, and of measurements without any. Rows carry no wait, no
launch chance, no KV-cache occupancy and mostly no power, so those terms are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.decide.economics import ArmCosts, Economics
from omnipilot.decide.fallback import precision_rank
from omnipilot.decide.profiles import find_profile
from omnipilot.decide.sampling import SAMPLED_TARGETS
from omnipilot.decide.utility import evaluate_utility, realised_utility_usd_per_h
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.decision_cells import AGGREGATE, LATENCIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.evaluate.decision_cells import DecisionCell

    FloatArray = NDArray[np.float64]

TIE_FRAC: Final = 0.04  # replicates of one key differ by a median 4 % (COSTMODEL §5)
LEAST_UTILITY_USD_PER_H: Final = 0.1  # below this a relative regret says nothing
SLO_PENALTY_USD_PER_H: Final = 10.0  # the default of the setting of that name
_S_PER_H: Final = 3600.0
_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What a token is worth and which limits hold."""

    name: str
    value_per_token_usd: float
    ttft_limit_s: float | None = None
    tpot_limit_s: float | None = None

    @classmethod
    def of_profile(cls, name: str) -> OperatingPoint:
        """Point of a profile's value and limits; its weights are 1 here."""
        profile = find_profile(name)
        return cls(name, profile.value_per_token_usd, profile.ttft_limit_s, profile.tpot_limit_s)

    @property
    def has_limits(self) -> bool:
        """Whether latency counts."""
        return self.ttft_limit_s is not None or self.tpot_limit_s is not None

    @property
    def economics(self) -> Economics:
        """Prices and limits of the point, without the terms that rows carry nothing of."""
        return Economics(
            value_per_token_usd=self.value_per_token_usd,
            electricity_usd_per_kwh=0.0,
            slo_penalty_usd_per_h=SLO_PENALTY_USD_PER_H if self.has_limits else 0.0,
            kv_knee_frac=1.0,
            ttft_limit_s=self.ttft_limit_s,
            tpot_limit_s=self.tpot_limit_s,
        )


def expected_utility_usd_per_h(cell: DecisionCell, point: OperatingPoint) -> FloatArray:
    """Expected utility of each arm for one hour by the out-of-fold predictions (n_arms,)."""
    n = len(cell.arms)
    predictions = {name: np.zeros((n, 5)) for name in SAMPLED_TARGETS}
    predictions[AGGREGATE] = cell.predicted
    if point.has_limits:
        predictions |= cell.latency_predicted
    costs = ArmCosts(
        n_gpus=cell.n_gpus,
        price_usd_per_gpu_h=cell.price_usd_per_gpu_h,
        wait_h=np.zeros(n),
        launch_success=np.ones(n),
    )
    return evaluate_utility(predictions, costs, point.economics).total_usd


def certain_utility_usd_per_h(
    cell: DecisionCell,
    tokens_per_s: FloatArray,
    point: OperatingPoint,
    latency: Mapping[str, FloatArray],
) -> FloatArray:
    """The same utility of known quantities: what :func:`evaluate_utility` gives without a width.

    Args:
        cell: the arms and their prices.
        tokens_per_s: of each arm (n_arms,).
        point: the operating point.
        latency: TTFT and TPOT in seconds (n_arms,), looked at where the point has limits.
    """
    earned = realised_utility_usd_per_h(
        point.value_per_token_usd, tokens_per_s, cell.n_gpus, cell.price_usd_per_gpu_h
    )
    violated = np.zeros(len(cell.arms), dtype=bool)
    for name, limit in (("ttft_p50_s", point.ttft_limit_s), ("tpot_p50_s", point.tpot_limit_s)):
        if limit is not None:
            violated |= latency[name] > limit
    return earned - point.economics.slo_penalty_usd_per_h * violated


def measured_utility_usd_per_h(cell: DecisionCell, point: OperatingPoint) -> FloatArray:
    """What each arm earned in an hour as it was measured (n_arms,)."""
    return certain_utility_usd_per_h(cell, cell.measured, point, cell.latency)


def best_of(cell: DecisionCell, utility: FloatArray) -> int:
    """Index of the best arm; ties as the advice settles them (fewer GPUs, price, precision)."""

    def key(i: int) -> tuple[float, int, float, int, str]:
        arm = cell.arms[i]
        price = arm.tensor_parallel * float(cell.price_usd_per_gpu_h[i])
        rank = precision_rank(arm.precision)
        return (-float(utility[i]), arm.tensor_parallel, price, rank, arm.label)

    return min(range(len(cell.arms)), key=key)


def choose(cell: DecisionCell, point: OperatingPoint) -> int:
    """Arm that the advice takes from the out-of-fold predictions."""
    return best_of(cell, expected_utility_usd_per_h(cell, point))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcome of one policy on each of n cells; arrays (n,).

    ``hit`` whether the choice ties with the best; ``regret_usd_per_h`` the utility given up;
    ``relative`` the same over the best utility; ``revenue_frac`` over the best arm's revenue.
    """

    hit: NDArray[np.bool_]
    regret_usd_per_h: FloatArray
    relative: FloatArray
    revenue_frac: FloatArray

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Outcomes:
        """Outcomes on some of the cells."""
        return Outcomes(
            self.hit[index], self.regret_usd_per_h[index], self.relative[index],
            self.revenue_frac[index],
        )  # fmt: skip


def outcomes(
    cells: Sequence[DecisionCell], chosen: Sequence[int], point: OperatingPoint
) -> Outcomes:
    """Compare choices with the measured best of their cells.

    Args:
        cells: n cells with two arms or more.
        chosen: index of the chosen arm in each.
        point: the operating point.
    """
    rows = []
    for cell, taken in zip(cells, chosen, strict=True):
        utility = measured_utility_usd_per_h(cell, point)
        top = best_of(cell, utility)
        best, got = float(utility[top]), float(utility[taken])
        regret = best - got
        revenue = point.value_per_token_usd * _S_PER_H * float(cell.measured[top])
        rows.append(
            (
                regret <= TIE_FRAC * abs(best),
                regret,
                regret / max(abs(best), LEAST_UTILITY_USD_PER_H),
                regret / revenue if revenue > 0 else np.nan,
            )
        )
    table = np.asarray(rows, dtype=np.float64).reshape(len(rows), 4)
    return Outcomes(table[:, 0] > 0, table[:, 1], table[:, 2], table[:, 3])


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over cells; intervals are the 2.5 and 97.5 % points of a bootstrap over cells."""

    cells: int
    top1: float
    top1_ci: tuple[float, float]
    regret_usd_per_h: float
    regret_usd_per_h_ci: tuple[float, float]
    regret_relative: float
    regret_ci: tuple[float, float]
    regret_revenue_frac: float
    regret_revenue_frac_ci: tuple[float, float]


def score(found: Outcomes, rng: np.random.Generator) -> Scores:
    """Average outcomes over cells, with intervals.

    Args:
        found: outcomes on n ≥ 1 cells.
        rng: draws the bootstrap.
    """
    n = len(found.hit)
    drawn = rng.integers(n, size=(_RESAMPLES, n))

    def both(values: FloatArray) -> tuple[float, tuple[float, float]]:
        means = values[drawn].mean(axis=1)
        low, high = np.percentile(means, [2.5, 97.5])
        return float(values.mean()), (float(low), float(high))

    top1, top1_ci = both(found.hit.astype(np.float64))
    absolute, absolute_ci = both(found.regret_usd_per_h)
    relative, relative_ci = both(found.relative)
    revenue, revenue_ci = both(found.revenue_frac)
    return Scores(
        n, top1, top1_ci, absolute, absolute_ci, relative, relative_ci, revenue, revenue_ci
    )


def with_limits(cells: Sequence[DecisionCell]) -> list[DecisionCell]:
    """Cells whose every arm has a measured and a predicted TTFT and TPOT."""
    return [cell for cell in cells if all(name in cell.latency for name in LATENCIES)]


def precision_choices(cells: Sequence[DecisionCell]) -> list[DecisionCell]:
    """Decisions on precision alone: arms of a cell that share GPU kind and count."""
    found = []
    for cell in cells:
        hardware: dict[tuple[str, int], list[int]] = {}
        for i, arm in enumerate(cell.arms):
            hardware.setdefault((arm.gpu_kind, arm.tensor_parallel), []).append(i)
        found += [cell.take(arms) for arms in hardware.values() if len(arms) > 1]
    return found
