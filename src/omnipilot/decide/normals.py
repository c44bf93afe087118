"""Fixed base samples of standard normals, and the normal distribution over arrays."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

_SQRT_2: Final = float(np.sqrt(2.0))
_SQRT_2PI: Final = float(np.sqrt(2.0 * np.pi))
# Abramowitz and Stegun 1964, 7.1.26: |error| of erf at most 1.5e-7.
_ERF: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_P: Final = 0.3275911
_FARTHEST: Final = 8.0  # beyond this many standard deviations a probability is 0 or 1


@lru_cache(maxsize=16)
def base_normals(n_dims: int, n_samples: int) -> FloatArray:
    """Standard normals that are the same in every process: stratified in each dimension.

    A Kronecker sequence of powers of the generalised golden ratio (Roberts 2018) gives the ranks;
    chance correlations are divided out and the margins put back on the strata by rank (Iman and
    Conover 1982).

    Args:
        n_dims: number of independent normals.
        n_samples: draws of each, more than ``n_dims``.

    Returns:
        Read-only array (n_dims, n_samples), each row with mean 0.

    Raises:
        ValueError: too few samples for that many dimensions.
    """
    if n_samples <= n_dims:
        raise ValueError(f"{n_dims} dimensions need more than {n_samples} samples")
    normal = NormalDist()
    strata = np.array([normal.inv_cdf((i + 0.5) / n_samples) for i in range(n_samples)])
    ratio = _golden(n_dims)
    steps = ratio ** -np.arange(1.0, n_dims + 1.0)
    points = np.mod(0.5 + steps[:, None] * np.arange(1.0, n_samples + 1.0), 1.0)
    grid = strata[ranks(points)]
    own = np.linalg.cholesky(np.corrcoef(grid).reshape(n_dims, n_dims))
    found: FloatArray = strata[ranks(np.linalg.solve(own, grid))]
    found.setflags(write=False)
    return found


def _golden(n_dims: int) -> float:
    """Positive root of x^(d+1) = x + 1, by fixed-point iteration."""
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (n_dims + 1.0))
    return root


def ranks(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.intp]:
    """Rank of each value along the second axis, 0 the smallest; ties in their order."""
    return np.argsort(np.argsort(values, axis=1, kind="stable"), axis=1, kind="stable")


def density(z: FloatArray) -> FloatArray:
    """Density of the standard normal, any shape.

    >>> density(np.zeros(1)).round(6).tolist()
    [0.398942]
    """
    return np.asarray(np.exp(-0.5 * z**2) / _SQRT_2PI)


def cumulative(z: FloatArray) -> FloatArray:
    """Distribution function of the standard normal, any shape; errors below 1e-7.

    >>> cumulative(np.array([-1.0, 0.0, 1.0])).round(6).tolist()
    [0.158655, 0.5, 0.841345]
    """
    x = np.abs(z) / _SQRT_2
    t = 1.0 / (1.0 + _ERF_P * x)
    series = np.zeros_like(t)
    for factor in reversed(_ERF):
        series = (series + factor) * t
    tail = 0.5 * series * np.exp(-(x**2))
    return np.where(z == 0, 0.5, np.where(z < 0, tail, 1.0 - tail))


def quantile(probability: FloatArray) -> FloatArray:
    """Inverse of the distribution function (n,), within ±8.

    >>> quantile(np.array([0.0, 0.5, 0.9])).round(4).tolist()
    [-8.0, 0.0, 1.2816]
    """
    normal = NormalDist()
    least = normal.cdf(-_FARTHEST)
    return np.array(
        [
            -_FARTHEST if p <= least else _FARTHEST if p >= 1.0 - least else normal.inv_cdf(p)
            for p in probability.tolist()
        ]
    )
