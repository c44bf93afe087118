"""The spread of one head in one novelty class: quantile trees on held-out errors, then CQR.

The centre of a prediction comes from the prior and the Gaussian layer. Its errors on rows whose
group was held out feed the paper's quantile gradient boosting (q10, q50, q90), and the conformal
offset is sized on groups that the trees did not see either.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.conformal import (
    conformal_offset,
    conformity_scores,
    interval,
    repair_quantiles,
)
from omnipilot.costmodel.features import FeatureSpace
from omnipilot.costmodel.folds import FEW_GROUPS, group_folds
from omnipilot.costmodel.quantiles import QUANTILE_LOSS, Forest, fit_forest
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics

# (fewest groups, trees, depth, folds). The trees may only be as fine as there are independent
# groups to learn from, or their band is right on average and wrong for every new group. Trees of
# fewer rows are worse, and their offsets too wide for those of all: many folds; but where each
# fold would be a group or two, trees that know all others say too little of a stranger.
CAPACITY = ((100, 80, 4, 20), (30, 40, 3, 10), (FEW_GROUPS, 20, 2, 10), (0, 20, 2, 3))
LEARNING_RATE = 0.08
MIN_SOURCE_ROWS = 100


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of the centre's error, and the offsets that make their band cover.

    ``offset`` is in units of the band's width; ``source_offsets`` refine it where a source has
    rows enough. ``crossing_rate`` is the share of raw quantile triples out of order,
    ``nested_coverage`` the coverage of offsets sized on disjoint groups, ``mape`` and
    ``median_ape`` the held-out errors of the median (fractions).
    """

    space: FeatureSpace
    forest: Forest
    offset: float
    source_offsets: dict[str, float]
    n_rows: int
    n_groups: int
    crossing_rate: float
    nested_coverage: float
    mape: float
    median_ape: float

    def quantiles(
        self, frame: Frame, physics: Physics
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Repaired, centred error quantiles (n, 3) in log units and which rows crossed (n,)."""
        return _centred(self.forest.predict(self.space.matrix(frame, physics)))

    def offsets(self, frame: Frame) -> NDArray[np.float64]:
        """Offset of each row (n,)."""
        levels = frame.levels["source"]
        table = np.asarray([self.source_offsets.get(level, self.offset) for level in levels])
        return np.asarray(table[frame.codes["source"]])


@dataclass(frozen=True, slots=True)
class Spreads:
    """Several spreads that are asked about the same rows, their trees joined.

    ``space`` holds the features that any of them splits on, ``ends`` where the trees of each end,
    ``bias`` (n_spreads, 1, 3) what theirs sum up from.
    """

    spreads: tuple[Spread, ...]
    space: FeatureSpace
    forest: Forest
    ends: tuple[int, ...]
    bias: NDArray[np.float64]

    @classmethod
    def of(cls, spreads: tuple[Spread, ...]) -> Spreads:
        """Join the trees."""
        names = [spread.space.names for spread in spreads]
        used = {
            name[i]
            for name, s in zip(names, spreads, strict=True)
            for i in s.forest.features.ravel().tolist()
        }
        space = FeatureSpace.joined([spread.space for spread in spreads], used)
        place = {name: i for i, name in enumerate(space.names)}
        forest = Forest.joined(
            [spread.forest for spread in spreads],
            [np.asarray([place.get(n, 0) for n in own], dtype=np.int32) for own in names],
        )
        ends = tuple(accumulate(len(spread.forest.features) for spread in spreads))
        bias = np.stack([spread.forest.bias for spread in spreads])[:, None, :]
        return cls(spreads, space, forest, ends, bias)

    def quantiles(
        self, frame: Frame, physics: Physics, numeric: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """What :meth:`Spread.quantiles` of each says, (n_spreads, n, 3) and (n_spreads, n)."""
        x = self.space.matrix(frame, physics, numeric)
        return _centred(self.bias + self.forest.sums(x, self.ends))

    def offsets(self, frame: Frame) -> NDArray[np.float64]:
        """Offset of each row in each spread (n_spreads, n); not to be written in."""
        return frame.fixed(
            self, lambda: np.stack([spread.offsets(frame) for spread in self.spreads]), "offsets"
        )


def _centred(raw: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Repair the quantiles and move their median to the centre.

    The trees say how far the truth may lie; where it lies is the ensemble's to say. (Their median
    made unseen models, GPU kinds and sources worse in nested folds.)
    """
    q, crossed = repair_quantiles(raw)
    return q - q[..., 1:2], crossed


def fit_spread(
    frame: Frame,
    physics: Physics,
    error: NDArray[np.float64],
    groups: NDArray[np.str_],
    withheld: tuple[str, ...],
    *,
    by_source: bool,
    seed: int,
) -> Spread:
    """Fit trees and offsets on held-out errors.

    Args:
        frame: n rows whose group was held out when their centre was predicted.
        physics: the prior of those rows.
        error: log label − centre (n,).
        groups: the group that was held out with each row (n,).
        withheld: categories and numeric features that the trees must not see.
        by_source: whether each large source gets its own offset.
        seed: makes the fit repeatable.
    """
    space = FeatureSpace.from_frame(frame, withheld)
    x = np.ascontiguousarray(space.matrix(frame, physics))
    n_sources = len(np.unique(frame.codes["source"]))
    weight = np.ones(frame.n)
    n_groups = len(np.unique(groups))
    trees, depth, n_folds = next(found for fewest, *found in CAPACITY if n_groups >= fewest)
    fold = group_folds(groups, n_folds, np.random.default_rng(seed))

    def forest(rows: NDArray[np.bool_]) -> Forest:
        return fit_forest(
            x[rows], error[rows], weight[rows], loss=QUANTILE_LOSS, trees=trees, depth=depth,
            learning_rate=LEARNING_RATE, seed=seed,
        )  # fmt: skip

    everything = np.ones(frame.n, dtype=bool)
    if fold.max() == 0:
        fitted = forest(everything)
        raw = fitted.predict(x)
    else:
        raw = np.empty((frame.n, 3))
        for k in range(int(fold.max()) + 1):
            raw[fold == k] = forest(fold != k).predict(x[fold == k])
        fitted = forest(everything)
    q, crossed = _centred(raw)
    scores = conformity_scores(error, q)
    covered = np.zeros(frame.n, dtype=bool)
    for k in range(int(fold.max()) + 1):
        test = fold == k
        rest = ~test if (~test).any() else test
        lower, upper = interval(q[test], conformal_offset(scores[rest]))
        covered[test] = (error[test] >= lower) & (error[test] <= upper)
    ape = np.abs(np.expm1(-error))
    sources = frame.category("source")
    source_offsets = {}
    if by_source and n_sources > 1:
        for source in np.unique(sources):
            mine = sources == source
            if np.count_nonzero(mine) >= MIN_SOURCE_ROWS:
                source_offsets[str(source)] = conformal_offset(scores[mine])
    return Spread(
        space=space,
        forest=fitted,
        offset=conformal_offset(scores),
        source_offsets=source_offsets,
        n_rows=frame.n,
        n_groups=n_groups,
        crossing_rate=float(np.mean(crossed)),
        nested_coverage=float(np.mean(covered)),
        mape=float(ape.mean()),
        median_ape=float(np.median(ape)),
    )
