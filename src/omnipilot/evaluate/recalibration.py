"""Ways to widen raw quantiles into intervals, judged on the same held-out cells (paper, C.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE
from omnipilot.costmodel.folds import group_folds
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from omnipilot.evaluate.holdout import HeldOut

    FloatArray = NDArray[np.float64]
    Ends = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True)
class Recalibration:
    """One way: ``interval`` gives log ends (n,), (n,) for held-out answers.

    It takes the answers with cells held out, the cell of each and, where ``needs_random_rows``,
    the same answers with intervals sized on rows left out one by one.
    """

    name: str
    meaning: str
    interval: Callable[[HeldOut, NDArray[np.str_], HeldOut | None], Ends]
    needs_random_rows: bool = False


def offset(held: HeldOut, rows: NDArray[np.int64] | None = None) -> float:
    """Additive offset in log space that covers the nominal share of some rows (CQR)."""
    at = np.arange(len(held.y)) if rows is None else rows
    score = np.sort(np.maximum(held.log[at, 0] - held.y[at], held.y[at] - held.log[at, 2]))
    rank = int(np.ceil((len(score) + 1) * NOMINAL_COVERAGE)) - 1
    return float(score[min(rank, len(score) - 1)])


def _widened(held: HeldOut, by: float | FloatArray) -> Ends:
    return held.log[:, 0] - by, held.log[:, 2] + by


def _random(held: HeldOut, _: NDArray[np.str_], random: HeldOut | None) -> Ends:
    sized = random or held
    return sized.log[:, 3], sized.log[:, 4]


def _nested(held: HeldOut, cells: NDArray[np.str_], _: HeldOut | None) -> Ends:
    """Offset of the other cells for each fifth of the cells: no cell calibrates itself."""
    fold = group_folds(cells, 5, np.random.default_rng(0))
    by = np.zeros(len(held.y))
    for k in range(int(fold.max()) + 1):
        by[fold == k] = offset(held, np.flatnonzero(fold != k))
    return _widened(held, by)


RECALIBRATIONS: Final[tuple[Recalibration, ...]] = (
    Recalibration("raw", "q10 to q90 as the trees give them", lambda h, _c, _r: _widened(h, 0.0)),
    Recalibration("random rows", "intervals sized on rows left out at random, one by one", _random,
                  needs_random_rows=True),
    Recalibration("grouped folds", "one offset from the same held-out cells",
                  lambda h, _c, _r: _widened(h, offset(h))),
    Recalibration("nested", "one offset from other held-out cells, five-fold", _nested),
    Recalibration("as shipped", "offsets fitted inside the training folds, by class",
                  lambda h, _c, _r: (h.log[:, 3], h.log[:, 4])),
)  # fmt: skip
