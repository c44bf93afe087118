"""The exact worth of one Gaussian observation, for two shapes of utility.

With one observation every posterior mean is a function of one standard normal z: the innovation.
Where utilities are linear in the Gaussian they are lines ``m + s·z`` and the expected maximum is a
sum over the upper envelope (Frazier, Powell and Dayanik 2009, "The knowledge-gradient policy for
correlated normal beliefs"). Where they are a worth times a lognormal less a cost they are
``a·exp(s·z − s²/2) − c``; between the points where the best arm changes, each integral is again in
closed form (as in Black and Scholes's option).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.decide.normals import cumulative, density

if TYPE_CHECKING:
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

_REACH: Final = 9.0  # beyond this the normal's weight is below 1e-18
_GRID: Final = 4096  # an arm that leads in an interval narrower than 0.0044 is passed over
_BISECTIONS: Final = 48
_FAR: Final = 1e300
_SQRT_2: Final = math.sqrt(2.0)


def pair_gain(behind_usd: FloatArray, sd_usd: FloatArray) -> FloatArray:
    """Expected gain of being able to change to a rival whose lead is normal; any shape.

    ``sd·φ(behind/sd) − behind·Φ(−behind/sd)``: the closed form for two arms.

    Args:
        behind_usd: how far the rival's mean is behind the best arm's.
        sd_usd: standard deviation of what an observation moves the difference by.

    Example:
        >>> pair_gain(np.array([0.0, 1.0]), np.array([1.0, 0.0])).round(6).tolist()
        [0.398942, 0.0]
    """
    safe = np.maximum(sd_usd, 1e-300)
    z = np.clip(behind_usd / safe, -40.0, 40.0)
    gain = sd_usd * density(z) - behind_usd * cumulative(-z)
    return np.where(sd_usd > 0, np.maximum(gain, 0.0), np.maximum(-behind_usd, 0.0))


def knowledge_gradient(mean_usd: FloatArray, loading_usd: FloatArray) -> float:
    """Expected best mean after one observation less the best mean now, exact.

    Args:
        mean_usd: posterior means (n,).
        loading_usd: what one standard deviation of the innovation moves each mean by (n,).

    Example:
        >>> round(knowledge_gradient(np.array([1.0, 1.0]), np.array([0.0, 1.0])), 6)
        0.398942
    """
    # Lines by slope; of equal slopes only the highest can lead.
    order = np.lexsort((-mean_usd, loading_usd))
    mean, slope = mean_usd[order], loading_usd[order]
    first = np.r_[True, np.diff(slope) > 0]
    mean, slope = mean[first].tolist(), slope[first].tolist()
    leaders, starts = [0], [-math.inf]
    for i in range(1, len(slope)):
        while True:
            j = leaders[-1]
            # Lines as good as parallel cross beyond the largest float: nowhere that matters.
            cross = max(-_FAR, min((mean[j] - mean[i]) / (slope[i] - slope[j]), _FAR))
            if cross > starts[-1]:
                break
            leaders.pop()
            starts.pop()
        leaders.append(i)
        starts.append(cross)
    # E[max] − max is a sum over crossings of slope differences times f(z) = φ(z) − |z|Φ(−|z|).
    z = np.minimum(np.abs(np.asarray(starts[1:])), 40.0)
    steps = np.diff([slope[j] for j in leaders])
    return float(np.sum(steps * (density(z) - z * _upper(z)))) if len(z) else 0.0


def lognormal_gain(worth_usd: FloatArray, cost_usd: FloatArray, loading: FloatArray) -> float:
    """The same for utilities ``worth × lognormal − cost``, each lognormal with mean 1.

    Args:
        worth_usd: expected worth now (n,), at least 0.
        cost_usd: what it costs whatever is observed (n,).
        loading: what one standard deviation of the innovation moves the log of the worth by (n,).

    Example:
        >>> gain = lognormal_gain(np.array([1.0, 1.0]), np.zeros(2), np.array([0.0, 0.5]))
        >>> round(gain, 6)  # 2Φ(s/2) − 1: an option at the money
        0.197413
    """
    now = worth_usd - cost_usd
    best = int(np.argmax(now))

    def at(z: FloatArray, arms: npt.NDArray[np.intp]) -> FloatArray:
        s = loading[arms]
        return np.asarray(worth_usd[arms] * np.exp(s * z - 0.5 * s**2) - cost_usd[arms])

    grid = np.linspace(-_REACH, _REACH, _GRID)
    every = np.arange(len(now))
    lead = np.argmax(np.stack([at(grid, np.full(_GRID, i)) for i in every]), axis=0)
    change = np.flatnonzero(np.diff(lead))
    low, high = grid[change].copy(), grid[change + 1].copy()
    left, right = lead[change], lead[change + 1]
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        still = at(middle, left) >= at(middle, right)
        low, high = np.where(still, middle, low), np.where(still, high, middle)
    ends = np.r_[-math.inf, 0.5 * (low + high), math.inf]
    total = 0.0
    for i, arm in enumerate(np.r_[left, lead[-1:]].tolist()):
        if arm != best:
            total += _piece(worth_usd[arm], cost_usd[arm], loading[arm], ends[i], ends[i + 1])
            total -= _piece(worth_usd[best], cost_usd[best], loading[best], ends[i], ends[i + 1])
    return max(float(total), 0.0)


def _piece(worth: float, cost: float, s: float, low: float, high: float) -> float:
    """Integral of ``worth·exp(s·z − s²/2) − cost`` over the normal between two points."""
    return worth * _between(low - s, high - s) - cost * _between(low, high)


def _between(low: float, high: float) -> float:
    """Probability of an interval, computed in the tail where it lies."""
    if low > 0:
        low, high = -high, -low
    return 0.5 * (math.erfc(-high / _SQRT_2) - math.erfc(-low / _SQRT_2))


def _upper(z: FloatArray) -> FloatArray:
    return np.array([0.5 * math.erfc(x / _SQRT_2) for x in z.tolist()])
