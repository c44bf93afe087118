"""What is known before a launch: will it come up, and how long will it wait in the queue?

Launch success is a beta-binomial: each configuration is shrunk toward the pooled rate, as strongly
as the configurations resemble one another. Counts may be fractions (old launches weigh less).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from omnipilot.domain import UsageError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

DEFAULT_SUCCESS: Final = 0.95  # PAPER, Launch success: without data
DEFAULT_STRENGTH: Final = 20.0  # the default is worth 20 launches, one of them failed
_MIN_STRENGTH: Final = 1.0
_MAX_STRENGTH: Final = 1000.0
WAIT_PRIOR_JOBS: Final = 5.0  # the default wait is worth this many jobs


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """Launches of one configuration; fractions where old ones are down-weighted.

    Raises:
        UsageError: counts that are negative, not finite, or more successes than attempts.
    """

    successes: float
    attempts: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.attempts) and 0 <= self.successes <= self.attempts):
            raise UsageError(
                f"{self.successes:g} successes of {self.attempts:g} launches is impossible"
            )


NO_LAUNCHES: Final = LaunchCounts(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class LaunchSuccess:
    """Posterior Beta(alpha, beta) of the probability that a launch comes up."""

    alpha: float
    beta: float
    attempts: float
    note: str

    @property
    def mean(self) -> float:
        """Expected probability, used by the failure term."""
        return self.alpha / (self.alpha + self.beta)

    def interval(self, level: float = 0.8) -> tuple[float, float]:
        """Central credible interval of the probability."""
        tail = (1.0 - level) / 2.0
        return (
            beta_quantile(tail, self.alpha, self.beta),
            beta_quantile(1.0 - tail, self.alpha, self.beta),
        )


@dataclass(frozen=True, slots=True)
class LaunchPrior:
    """Beta prior by its mean and its strength in launches."""

    mean: float = DEFAULT_SUCCESS
    strength: float = DEFAULT_STRENGTH
    note: str = "no launches recorded: default"

    def posterior(self, counts: LaunchCounts = NO_LAUNCHES) -> LaunchSuccess:
        """Posterior of one configuration.

        >>> LaunchPrior(mean=0.5, strength=10.0).posterior(LaunchCounts(7, 10)).mean
        0.6
        """
        note = self.note if not counts.attempts else f"{counts.attempts:g} launches of this arm"
        return LaunchSuccess(
            alpha=self.mean * self.strength + counts.successes,
            beta=(1.0 - self.mean) * self.strength + counts.attempts - counts.successes,
            attempts=counts.attempts,
            note=note,
        )


def pooled_prior(
    counts: Iterable[LaunchCounts],
    default_mean: float = DEFAULT_SUCCESS,
    default_strength: float = DEFAULT_STRENGTH,
) -> LaunchPrior:
    """Prior shared by all configurations, estimated from their counts.

    The mean is the pooled rate, itself shrunk toward ``default_mean``. The strength comes from the
    spread of the rates by Kleinman's moment estimator (1973, JASA 68:46): rates that differ by
    chance alone give a strong prior, rates that differ in earnest a weak one.

    Args:
        counts: launches of each configuration.
        default_mean: success rate without data.
        default_strength: launches that the default is worth; also the strength where fewer than
            two configurations, or no spread to estimate, are there.

    Returns:
        The prior; the default one where nothing was launched.
    """
    groups = [c for c in counts if c.attempts > 0]
    total = sum(c.attempts for c in groups)
    if not groups:
        return LaunchPrior(default_mean, default_strength)
    successes = sum(c.successes for c in groups)
    mean = (default_mean * default_strength + successes) / (default_strength + total)
    return LaunchPrior(
        mean=mean,
        strength=_strength(groups, successes / total, default_strength),
        note=f"pooled rate of {total:g} launches",
    )


def _strength(groups: Sequence[LaunchCounts], rate: float, default: float) -> float:
    total = sum(c.attempts for c in groups)
    spare = total - sum(c.attempts**2 for c in groups) / total - (len(groups) - 1)
    variance = rate * (1.0 - rate)
    if len(groups) < 2 or spare <= 0 or variance <= 0:
        return default
    spread = sum(c.attempts * (c.successes / c.attempts - rate) ** 2 for c in groups)
    overdispersion = (spread - variance * (len(groups) - 1)) / (variance * spare)
    if overdispersion <= 0:
        return _MAX_STRENGTH
    return min(max(1.0 / overdispersion - 1.0, _MIN_STRENGTH), _MAX_STRENGTH)


@dataclass(frozen=True, slots=True)
class QueueWait:
    """Expected hours between submission and start, with what it rests on."""

    expected_h: float
    n_jobs: int
    note: str


def queue_wait(
    waits_h: Sequence[float], default_h: float = 0.0, prior_jobs: float = WAIT_PRIOR_JOBS
) -> QueueWait:
    """Expected queue wait: the mean of observed waits, shrunk toward the default.

    >>> queue_wait([2.0] * 5, default_h=1.0).expected_h
    1.5

    Args:
        waits_h: observed waits of jobs that asked for the same GPUs, hours.
        default_h: wait without data.
        prior_jobs: jobs that the default is worth.

    Returns:
        The wait; its note says where it is only the default.

    Raises:
        UsageError: a wait that is negative or not finite.
    """
    for wait in (*waits_h, default_h):
        if not (math.isfinite(wait) and wait >= 0):
            raise UsageError(f"a queue wait must be at least 0 hours, got {wait}")
    n = len(waits_h)
    if n == 0:
        return QueueWait(default_h, 0, f"no waits recorded: {default_h:g} h assumed")
    expected = (prior_jobs * default_h + math.fsum(waits_h)) / (prior_jobs + n)
    return QueueWait(expected, n, f"mean of {n} waits, shrunk toward {default_h:g} h")


def beta_quantile(probability: float, alpha: float, beta: float) -> float:
    """Quantile of Beta(alpha, beta) by bisection of its distribution function, to 1e-9."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        if beta_cdf(middle, alpha, beta) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def beta_cdf(x: float, alpha: float, beta: float) -> float:
    """Regularised incomplete beta function I_x(alpha, beta).

    >>> round(beta_cdf(0.25, 1.0, 1.0), 12)
    0.25
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = (
        math.lgamma(alpha + beta)
        - math.lgamma(alpha)
        - math.lgamma(beta)
        + alpha * math.log(x)
        + beta * math.log1p(-x)
    )
    if x < (alpha + 1.0) / (alpha + beta + 2.0):
        return math.exp(log_front) / alpha * _beta_fraction(x, alpha, beta)
    return 1.0 - math.exp(log_front) / beta * _beta_fraction(1.0 - x, beta, alpha)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Continued fraction of the incomplete beta function (DLMF 8.17.22), modified Lentz."""
    steps: tuple[Callable[[int], float], ...] = (
        lambda m: m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
        lambda m: -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
    )
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    fraction = d
    for m in range(1, 1000):
        for step in steps:
            coefficient = step(m)
            d = 1.0 / _away_from_zero(1.0 + coefficient * d)
            c = _away_from_zero(1.0 + coefficient / c)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-13:
            break
    return fraction


def _away_from_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
