"""The utility of an arm in USD: an ordered table of terms over joint draws.

The terms are those of the OmniPilot paper ("Utility") and a carbon price. Costs are positive and
subtracted; see ``docs/utility.md``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from omnipilot.decide.economics import DecisionWeights
from omnipilot.decide.sampling import DEFAULT_SAMPLES, sample_log_target, sample_log_targets
from omnipilot.domain import UtilityTerms
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from omnipilot.decide.economics import ArmCosts, Economics

    FloatArray = npt.NDArray[np.float64]

Number = TypeVar("Number", float, "npt.NDArray[np.float64]")

_S_PER_H: Final = 3600.0
_W_PER_KW: Final = 1000.0
# Below the logarithm of the knee by this much, a share is below the knee whatever is rounded.
_NEAR_KNEE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Draws:
    """What the terms are computed from; arrays (n_arms, n_samples), or (n_arms, 1) if certain."""

    economics: Economics
    gross_value_usd: FloatArray
    saturation_factor: FloatArray
    compute_usd_per_h: FloatArray
    energy_kwh_per_h: FloatArray
    cold_start_h: FloatArray
    wait_h: FloatArray
    failure_prob: FloatArray
    violated: FloatArray

    def take(self, arms: Sequence[int]) -> Draws:
        """The draws of some arms."""
        economics, *arrays = (getattr(self, name) for name in self.__slots__)
        return Draws(economics, *(array[arms] for array in arrays))


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the utility; ``sign`` is +1 for value and -1 for a cost."""

    name: str
    sign: float
    formula: str
    meaning: str
    sample: Callable[[Draws], FloatArray]

    @property
    def field(self) -> str:
        """Name of the term in :class:`omnipilot.domain.UtilityTerms`."""
        return f"{self.name}_usd"


def _failure_usd(d: Draws) -> FloatArray:
    lost_h, wait_cost_usd_per_h = d.economics.lost_setup_h, d.economics.wait_cost_usd_per_h
    held_h = d.cold_start_h + lost_h if lost_h else d.cold_start_h
    usd = held_h * d.compute_usd_per_h
    if wait_cost_usd_per_h:
        usd += (held_h + d.wait_h) * wait_cost_usd_per_h
    usd *= d.failure_prob
    return usd


def _times(values: FloatArray, factor: float) -> FloatArray:
    """A product; certain, and so one column, where the factor is 0."""
    if factor == 1.0:
        return values
    return values * factor if factor else np.zeros((len(values), 1))


TERMS: Final[tuple[Term, ...]] = (
    Term("serving_value", +1.0, "v × 3600 × H × T",
         "what the served tokens are worth",
         lambda d: d.gross_value_usd),
    Term("kv_saturation", -1.0, "v × 3600 × H × T × (1 − s)",
         "tokens lost to preemption once the KV cache is nearly full",
         lambda d: d.gross_value_usd * (1.0 - d.saturation_factor)),
    Term("compute", -1.0, "H × (n × price + kW × PUE × electricity)",
         "price of the GPUs and of their electricity",
         lambda d: _times(d.compute_usd_per_h, d.economics.duration_h)),
    Term("queue", -1.0, "W × wait cost",
         "expected hours in the queue before the launch",
         lambda d: d.wait_h * d.economics.wait_cost_usd_per_h),
    Term("failure", -1.0, "(1 − p) × ((C + L) × compute rate + (C + L + W) × wait cost)",
         "the expected restart: GPUs held for nothing and users waiting again",
         _failure_usd),
    Term("slo", -1.0, "P(violation) × penalty × H",
         "probability that median TTFT or TPOT is over its limit, times the penalty",
         lambda d: _times(
             d.violated, d.economics.slo_penalty_usd_per_h * d.economics.duration_h)),
    Term("carbon", -1.0, "H × kW × PUE × kg/kWh × carbon price",
         "price of the emissions of the electricity",
         lambda d: _times(d.energy_kwh_per_h, d.economics.carbon_kg_per_kwh
                          * d.economics.carbon_usd_per_kg * d.economics.duration_h)),
)  # fmt: skip
TERM_NAMES: Final[tuple[str, ...]] = tuple(t.name for t in TERMS)
_SAMPLES: Final = tuple((term.field, term.sample) for term in TERMS)


@dataclass(frozen=True, slots=True)
class UtilityTable:
    """Utilities of all arms; arrays have shape (n_arms,) where not said otherwise.

    The total and its draws (n_arms, n_samples) are weighted, the terms are not: their expectations
    are worked out of ``drawn`` for the arms that are asked about.
    """

    drawn: Draws
    total_usd: FloatArray
    draws_usd: FloatArray

    @property
    def usd_per_h(self) -> FloatArray:
        """Expected price of an hour, electricity included."""
        economics = self.drawn.economics
        spent_usd = _times(self.drawn.compute_usd_per_h, economics.duration_h)
        return np.asarray(spent_usd.mean(axis=1) / economics.duration_h)

    @property
    def slo_violation_prob(self) -> FloatArray:
        """Probability that a limit is missed."""
        return self.violation_prob(slice(None))

    def violation_prob(self, arms: slice | Sequence[int]) -> FloatArray:
        """Probability of some arms that a limit is missed."""
        return _means(self.drawn.violated[arms])

    @property
    def lower_usd(self) -> FloatArray:
        """10 % point of each total."""
        return self.interval()[0]

    @property
    def upper_usd(self) -> FloatArray:
        """90 % point of each total."""
        return self.interval()[1]

    def interval(
        self, arms: slice | Sequence[int] | npt.NDArray[np.bool_] = slice(None)
    ) -> tuple[FloatArray, FloatArray]:
        """10 and 90 % points of the totals of some arms; sorting their draws is what takes time."""
        return _interval(self.draws_usd[arms])

    def terms(self, index: int) -> UtilityTerms:
        """Terms of the arm at ``index``."""
        return self.terms_of([index])[0]

    def terms_of(self, arms: Sequence[int]) -> list[UtilityTerms]:
        """Terms of some arms, worked out together."""
        lower, upper = self.interval(arms)
        drawn = self.drawn.take(arms)
        columns = {name: _means(sample(drawn)).tolist() for name, sample in _SAMPLES}
        columns |= {"total_usd": self.total_usd[arms].tolist()}
        columns |= {"lower_usd": lower.tolist(), "upper_usd": upper.tolist()}
        rows = zip(*(columns[field] for field in UtilityTerms.__slots__), strict=True)
        return [UtilityTerms(*values) for values in rows]


def saturation_factor(
    kv_peak_frac: FloatArray, knee_frac: float = 0.85, floor: float = 0.5
) -> FloatArray:
    """Share of the throughput kept at a KV-cache occupancy.

    >>> saturation_factor(np.array([0.5, 0.85, 0.925, 1.0])).round(3).tolist()
    [1.0, 1.0, 0.75, 0.5]

    Args:
        kv_peak_frac: peak occupancy, any shape.
        knee_frac: occupancy up to which nothing is lost; 1.0 turns the penalty off.
        floor: factor at occupancy 1.0; linear between.

    Returns:
        Factors in [floor, 1], same shape.
    """
    if knee_frac >= 1.0:
        return np.ones_like(kv_peak_frac)
    over = np.clip((kv_peak_frac - knee_frac) / (1.0 - knee_frac), 0.0, 1.0)
    return 1.0 - (1.0 - floor) * over


def _kept(log_kv_peak_frac: FloatArray, economics: Economics) -> FloatArray:
    """:func:`saturation_factor` of the logarithms (n_arms, n_samples)."""
    # Draws with a roomy cache need no exponential.
    knee = np.log(economics.kv_knee_frac) if economics.kv_knee_frac > 0 else -np.inf
    logs = log_kv_peak_frac.ravel()
    full = np.flatnonzero(logs > knee - _NEAR_KNEE)
    kept = np.ones(logs.shape)
    kept[full] = saturation_factor(
        np.exp(logs.take(full)), economics.kv_knee_frac, economics.kv_floor
    )
    return kept.reshape(log_kv_peak_frac.shape)


@lru_cache(maxsize=16)
def _cold_start_h(predictions: bytes, n_samples: int) -> FloatArray:
    """Draws of the cold start, read-only (n_arms, n_samples).

    Args:
        predictions: float64 (n_arms, 5). A load seldom changes them, so they are met again.
        n_samples: number of draws.
    """
    hours = _exp(sample_log_target("cold_start_s", np.frombuffer(predictions), n_samples))
    hours /= _S_PER_H
    hours.setflags(write=False)
    return hours


def _means(draws: FloatArray) -> FloatArray:
    """Expectation of each arm (n_arms,): ``draws.mean(axis=1)`` without its looks at the type."""
    return np.asarray(np.add.reduce(draws, axis=1) / draws.shape[1])


def _limits(economics: Economics) -> dict[str, float]:
    """Limits in force, by the target that they bound."""
    said = {"ttft_p50_s": economics.ttft_limit_s, "tpot_p50_s": economics.tpot_limit_s}
    return {name: limit for name, limit in said.items() if limit is not None}


def _violated(log_draws: Mapping[str, FloatArray], economics: Economics, n_arms: int) -> FloatArray:
    over = [log_draws[name] > np.log(limit) for name, limit in _limits(economics).items()]
    if not over:
        return np.zeros((n_arms, 1))
    return np.asarray(np.any(over, axis=0), dtype=np.float64)


def _exp(logs: FloatArray) -> FloatArray:
    """The exponentials, in the place of the logarithms: a draw is read once."""
    return np.exp(logs, out=logs)


def _draw(
    predictions: Mapping[str, FloatArray], costs: ArmCosts, economics: Economics, n_samples: int
) -> Draws:
    limits = _limits(economics)
    drawn = {"power_mean_w", "aggregate_tokens_per_s", "kv_cache_peak_frac", *limits}
    logs = sample_log_targets(predictions, n_samples, drawn)
    capex_usd_per_h = costs.n_gpus * costs.price_usd_per_gpu_h
    energy_kwh_per_h = _exp(logs["power_mean_w"])
    energy_kwh_per_h *= economics.pue / _W_PER_KW
    gross_value_usd = _exp(logs["aggregate_tokens_per_s"])
    gross_value_usd *= economics.value_per_token_usd * _S_PER_H * economics.duration_h
    return Draws(
        economics=economics,
        gross_value_usd=gross_value_usd,
        saturation_factor=_kept(logs["kv_cache_peak_frac"], economics),
        compute_usd_per_h=capex_usd_per_h[:, None]
        + energy_kwh_per_h * economics.electricity_usd_per_kwh,
        energy_kwh_per_h=energy_kwh_per_h,
        cold_start_h=_cold_start_h(predictions["cold_start_s"].tobytes(), n_samples),
        wait_h=costs.wait_h[:, None],
        failure_prob=(1.0 - costs.launch_success)[:, None],
        violated=_violated(logs, economics, len(costs.n_gpus)),
    )


def _interval(samples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """10 and 90 % points of the draws of each arm (Hazen's positions, as the strata lie)."""
    n = samples.shape[1]
    positions = [min(max(level * n - 0.5, 0.0), n - 1.0) for level in (0.1, 0.9)]
    starts = [min(int(position), n - 2) for position in positions]
    ordered = np.sort(samples, axis=1)  # quicker than a partition at four places
    low, high = (
        ordered[:, i] + (ordered[:, i + 1] - ordered[:, i]) * (position - i)
        for i, position in zip(starts, positions, strict=True)
    )
    return low, high


def evaluate_utility(
    predictions: Mapping[str, FloatArray],
    costs: ArmCosts,
    economics: Economics,
    weights: DecisionWeights | None = None,
    n_samples: int = DEFAULT_SAMPLES,
) -> UtilityTable:
    """Expected utility of every arm with its interval, from joint draws; deterministic.

    Args:
        predictions: for each sampled target an array (n_arms, 5) of q10, q50, q90, lower, upper.
        costs: what differs between arms, arrays (n_arms,).
        economics: prices and limits of the request.
        weights: weight of each term; all 1 by default.
        n_samples: number of joint draws, at least 2.

    Returns:
        Terms (unweighted), the weighted total and its 10-90 % interval.

    Raises:
        ValueError: missing, badly shaped or non-finite predictions.
    """
    drawn = _draw(predictions, costs, economics, n_samples)
    weights = weights or DecisionWeights()
    total = np.zeros(drawn.gross_value_usd.shape)
    for term in TERMS:
        samples = term.sample(drawn)
        factor = term.sign * getattr(weights, term.name)
        if samples.shape[1] == 1 and not samples.any():
            continue
        if factor == -1.0:
            total -= samples
        else:
            total += _times(samples, factor)
    return UtilityTable(drawn=drawn, total_usd=_means(total), draws_usd=total)


def realised_utility_usd_per_h(
    value_per_token_usd: float, tokens_per_s: Number, n_gpus: Number, price_usd_per_gpu_h: Number
) -> Number:
    """What a measured run earned in an hour: tokens' worth less the price of its GPUs.

    >>> round(realised_utility_usd_per_h(1e-6, 1000.0, 2.0, 1.5), 9)
    0.6

    Args:
        value_per_token_usd: USD per token.
        tokens_per_s: measured tokens per second (aggregate; output where that is absent).
        n_gpus: GPUs of the deployment.
        price_usd_per_gpu_h: price of one GPU for an hour.

    Returns:
        USD per hour.
    """
    return value_per_token_usd * _S_PER_H * tokens_per_s - n_gpus * price_usd_per_gpu_h
