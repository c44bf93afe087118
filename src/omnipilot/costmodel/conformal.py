"""Conformalized quantile regression on held-out groups.

The conformity score of a row is how far its log label lies outside [q10, q90], in units of that
band's width; the offset is the finite-sample quantile of the scores of rows whose group (workload
cell, model, GPU kind, source) took no part in the fit. Romano et al. 2019 (CQR); the width-scaled
score is CQR-r of Sesia and Candès 2020; held-out-cell calibration is the paper's (Appendix C.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOMINAL_COVERAGE = 0.8
# Bands narrower than this (log units) are widened before scaling, so that one very sure region
# cannot dominate the scores.
MIN_WIDTH_LOG = 0.02


def repair_quantiles(q: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Sort each row's quantiles.

    Args:
        q: (..., 3) raw quantiles.

    Returns:
        The sorted quantiles and which rows crossed, (...).
    """
    crossed = (q[..., 1] < q[..., 0]) | (q[..., 2] < q[..., 1])
    return np.sort(q, axis=-1), np.asarray(crossed)


def conformity_scores(y: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Width-scaled CQR scores (n,): negative inside the band, positive outside.

    Args:
        y: log labels (n,).
        q: repaired log quantiles (n, 3).
    """
    width = np.maximum(q[:, 2] - q[:, 0], MIN_WIDTH_LOG)
    return np.asarray(np.maximum(q[:, 0] - y, y - q[:, 2]) / width)


def conformal_offset(scores: NDArray[np.float64], nominal: float = NOMINAL_COVERAGE) -> float:
    """Finite-sample (1 − alpha) quantile of the scores: the ceil((n + 1) nominal)-th smallest.

    With too few scores for the level the largest score is returned, which is the best that the
    rows can say; the number of rows is stored beside every offset.
    """
    n = len(scores)
    rank = min(int(np.ceil((n + 1) * nominal)), n)
    return float(np.sort(scores)[rank - 1])


def interval(
    q: NDArray[np.float64], offset: float | NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Conformal bounds (lower, upper) in log units; the median always lies inside.

    Args:
        q: repaired log quantiles (..., 3).
        offset: one offset, or one for each row (...).
    """
    low, middle, high = q[..., 0], q[..., 1], q[..., 2]
    beyond = offset * np.maximum(high - low, MIN_WIDTH_LOG)
    return np.minimum(low - beyond, middle), np.maximum(high + beyond, middle)
