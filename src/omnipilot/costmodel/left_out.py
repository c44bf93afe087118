"""What a linear smoother says of rows without their group, in closed form.

With ŷ = S y the errors of a group's rows without it are (I − S_gg)⁻¹ (y_g − ŷ_g): one solve for all
groups instead of a fit for each (Cook and Weisberg 1982; Rasmussen and Williams 2006, §5.4.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


def left_out_means(
    shared: NDArray[np.float32],
    factors: Mapping[str, NDArray[np.float32]],
    members: Mapping[str, NDArray[np.int64]],
    precision: FloatArray,
    residual: FloatArray,
    error: FloatArray,
    groups: NDArray[np.str_],
) -> FloatArray:
    """Posterior means of the rows, each without its group, at the precision given (n,).

    Args:
        shared: factor F of the block that all rows share (m, n); coefficients have unit priors.
        factors: of each own block (m_s, n_s); own blocks meet in the shared one only.
        members: rows of each own block (n_s,).
        precision: inverse noise variance of the rows (n,).
        residual: what was fitted (n,).
        error: residual − posterior mean with all rows (n,).
        groups: group of each row (n,).
    """
    from scipy.linalg import solve_triangular  # noqa: PLC0415 - training only

    def whiten(square: FloatArray, columns: FloatArray) -> FloatArray:
        lower = np.linalg.cholesky(square)
        return np.asarray(solve_triangular(lower, columns, lower=True, check_finite=False))

    gram = np.eye(len(shared)) + (shared * precision) @ shared.T
    between = shared.astype(np.float64)
    within: list[FloatArray] = []
    block = np.full(len(residual), -1)
    place = np.zeros(len(residual), dtype=np.int64)
    for i, (name, rows) in enumerate(members.items()):
        own, w = factors[name].astype(np.float64), precision[rows]
        white = whiten(np.eye(len(own)) + (own * w) @ own.T, own)
        cross = (white * w) @ shared[:, rows].T
        gram -= cross.T @ cross
        between[:, rows] -= cross.T @ white
        within.append(white)
        block[rows], place[rows] = i, np.arange(len(rows))
    between = whiten(gram, between)
    out = np.empty(len(residual))
    order = np.argsort(groups, kind="stable")
    starts = np.unique(groups[order], return_index=True)[1]
    for rows in np.split(order, starts[1:]):
        covariance = between[:, rows].T @ between[:, rows]
        for i in np.unique(block[rows][block[rows] >= 0]):
            at = np.flatnonzero(block[rows] == i)
            own = within[i][:, place[rows[at]]]
            covariance[np.ix_(at, at)] += own.T @ own
        kept = np.eye(len(rows)) - covariance * precision[rows]
        out[rows] = residual[rows] - np.linalg.solve(kept, error[rows])
    return out
