"""Inducing points: the few rows that stand for all in a Gaussian process.

Blocked randomly pivoted Cholesky (Chen et al. 2023): rows are drawn by what is left of their
variance, so places far from those chosen come first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

JITTER = 1e-4
JITTER_STEPS = 5
PIVOT_BLOCK = 64


def cholesky(core: NDArray[np.float64], jitter: float) -> NDArray[np.float64]:
    """Lower factor of a covariance known to float32 only: jitter grows until it is positive."""
    eye = np.eye(len(core))
    for power in range(JITTER_STEPS):
        try:
            return np.asarray(np.linalg.cholesky(core + jitter * 10.0**power * eye))
        except np.linalg.LinAlgError:
            continue
    raise np.linalg.LinAlgError("the covariance is not positive definite")


def pivoted_cholesky(
    columns_of: Callable[[NDArray[np.int64]], NDArray[np.float32]],
    n: int,
    variance: float,
    m: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Choose inducing points among n rows.

    Args:
        columns_of: covariance of the rows at an index (k,) with all rows, (k, n).
        n: number of rows.
        variance: prior variance of every row.
        m: most points.
        rng: draws them.

    Returns:
        The chosen rows, (k,) with k ≤ m, and F (k, n) with K ≈ FᵀF; F[:, chosen]ᵀ is the lower
        Cholesky factor of the chosen rows' covariance.
    """
    left = np.full(n, variance)
    floor = JITTER * variance
    factor = np.zeros((m, n))
    chosen: list[int] = []
    while len(chosen) < m:
        weight = np.where(left > floor, left, 0.0)
        weight[chosen] = 0.0
        size = min(PIVOT_BLOCK, m - len(chosen), int(np.count_nonzero(weight)))
        if size == 0:
            break
        block = np.sort(rng.choice(n, size, replace=False, p=weight / weight.sum()))
        at = len(chosen)
        columns = columns_of(block).astype(np.float64)
        columns -= factor[:at, block].T @ factor[:at]
        core = columns[:, block]
        core = (core + core.T) / 2.0
        lower = cholesky(core, floor)
        part = np.linalg.solve(lower, columns)
        part[:, block] = lower.T
        factor[at : at + size] = part
        left -= (part**2).sum(axis=0)
        chosen.extend(int(i) for i in block)
    return np.asarray(chosen, dtype=np.int64), factor[: len(chosen)].astype(np.float32)
