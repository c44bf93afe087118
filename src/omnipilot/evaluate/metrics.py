"""Error and coverage of predictions; every share is a fraction (0.05 = 5 %)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of n predictions.

    ``mape`` and ``median_ape`` are mean and median of |predicted / measured − 1|; ``r2_log`` is
    the explained share of the variance of the log label; ``coverage`` the share of labels inside
    the interval; ``mean_log_width`` the mean of log(upper / lower).
    """

    n: int
    mape: float
    median_ape: float
    r2_log: float
    coverage: float
    mean_log_width: float


def errors(y: NDArray[np.float64], log: NDArray[np.float64]) -> Errors:
    """Compare log labels with log predictions.

    Args:
        y: log labels (n,), n ≥ 1.
        log: log q10, q50, q90, lower, upper (n, 5).

    Example:
        >>> y = np.log(np.array([100.0, 200.0]))
        >>> log = np.log(np.array([[90.0, 110.0, 120.0, 80.0, 130.0]] * 2))
        >>> e = errors(y, log)
        >>> round(e.mape, 3), e.coverage
        (0.275, 0.5)
    """
    ape = np.abs(np.expm1(log[:, 1] - y))
    spread = float(np.sum((y - y.mean()) ** 2))
    r2 = 1.0 - float(np.sum((y - log[:, 1]) ** 2)) / spread if spread > 0 else float("nan")
    inside = (y >= log[:, 3]) & (y <= log[:, 4])
    return Errors(
        n=len(y),
        mape=float(ape.mean()),
        median_ape=float(np.median(ape)),
        r2_log=r2,
        coverage=float(inside.mean()),
        mean_log_width=float(np.mean(log[:, 4] - log[:, 3])),
    )


def constant_width(y: NDArray[np.float64], log: NDArray[np.float64]) -> float:
    """Log width of the constant band around the medians that covers as many rows.

    Args:
        y: log labels (n,).
        log: log q10, q50, q90, lower, upper (n, 5).
    """
    inside = (y >= log[:, 3]) & (y <= log[:, 4])
    return float(2.0 * np.quantile(np.abs(y - log[:, 1]), inside.mean()))
