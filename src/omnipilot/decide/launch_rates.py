"""Launch rates of all configurations, shrunk toward what they share, and how much that matters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from omnipilot.decide.priors import NO_LAUNCHES, pooled_prior
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.decide.priors import LaunchCounts, LaunchPrior

__all__ = ["SENSITIVITY_STRENGTHS", "LaunchRate", "launch_rates", "shrinkage_sensitivity"]

Key = TypeVar("Key")

DEFAULT_LEVEL: Final = 0.8
# From "believe each configuration's own launches" to "believe the pooled rate".
SENSITIVITY_STRENGTHS: Final = (1.0, 5.0, 20.0, 100.0, 1000.0)


@dataclass(frozen=True, slots=True)
class LaunchRate:
    """One configuration's chance to come up.

    Args:
        raw: share of its launches that came up; None without launches.
        shrunk: the same, shrunk toward the pooled rate.
        low: lower end of the central credible interval.
        high: upper end.
    """

    raw: float | None
    shrunk: float
    low: float
    high: float


def launch_rates(
    counts: Mapping[Key, LaunchCounts],
    *,
    level: float = DEFAULT_LEVEL,
    prior: LaunchPrior | None = None,
) -> dict[Key, LaunchRate]:
    """Shrink the rate of every configuration toward the pooled one.

    Args:
        counts: launches by configuration; one without launches gets the pooled rate.
        level: probability that the interval holds.
        prior: what is shrunk toward; estimated from the counts where not given.

    Returns:
        The rates in the order of ``counts``.

    Example:
        >>> from omnipilot.decide.priors import LaunchCounts
        >>> rates = launch_rates({"H100x1": LaunchCounts(72, 100), "H100x4": LaunchCounts(19, 50)})
        >>> {key: round(rate.shrunk, 2) for key, rate in rates.items()}
        {'H100x1': 0.72, 'H100x4': 0.4}
    """
    prior = prior or pooled_prior(counts.values())
    rates = {}
    for key, launched in counts.items():
        posterior = prior.posterior(launched)
        low, high = posterior.interval(level)
        raw = launched.successes / launched.attempts if launched.attempts else None
        rates[key] = LaunchRate(raw, posterior.mean, low, high)
    return rates


def shrinkage_sensitivity(
    counts: Mapping[Key, LaunchCounts],
    strengths: Sequence[float] = SENSITIVITY_STRENGTHS,
) -> dict[Key, tuple[float, ...]]:
    """Show what each configuration's rate would be under weaker and stronger shrinkage.

    Args:
        counts: launches by configuration.
        strengths: launches that the pooled rate is worth.

    Returns:
        Shrunk rates in the order of ``strengths``, (n_strengths,) for each configuration.

    Example:
        >>> from omnipilot.decide.priors import LaunchCounts
        >>> table = shrinkage_sensitivity({"a": LaunchCounts(9, 10), "b": LaunchCounts(0, 0)})
        >>> [round(rate, 2) for rate in table["a"]]
        [0.9, 0.91, 0.92, 0.93, 0.93]
    """
    pooled = pooled_prior(counts.values())
    return {
        key: tuple(
            replace(pooled, strength=strength).posterior(launched or NO_LAUNCHES).mean
            for strength in strengths
        )
        for key, launched in counts.items()
    }
