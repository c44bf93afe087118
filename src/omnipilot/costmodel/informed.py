"""Calibrating answers that local rows have narrowed, on simulated sites.

Every held-out group stands for a site, model or GPU kind that the model has never seen: a few of
its rows are revealed at random, the rest are predicted, and the conformal offsets of the narrowed
bands are sized on them. Groups with many rows weigh no more than others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.conformal import conformal_offset, conformity_scores
from omnipilot.costmodel.deviation import LEFT_EDGES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.deviation import Deviation
    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics
    from omnipilot.costmodel.spread import Spread

REVEALED = (1, 2, 3, 5, 10)
MOST_GROUPS = 60
MOST_ROWS = 60
FEWEST_SCORES = 40


def calibrate_informed(
    deviation: Deviation,
    spread: Spread,
    frame: Frame,
    physics: Physics,
    error: NDArray[np.float64],
    groups: NDArray[np.str_],
    rng: np.random.Generator,
) -> Deviation:
    """Give a deviation its offsets.

    Args:
        deviation: learned on the same errors.
        spread: band of the class before any local row.
        frame: n rows whose group was held out.
        physics: their prior.
        error: log label − centre (n,).
        groups: simulated site of each row (n,); groups of one source only.
        rng: picks groups and revealed rows.

    Returns:
        The deviation with one offset a bin of ``LEFT_EDGES``; a bin with too few scores takes the
        offset of all.
    """
    scores: list[NDArray[np.float64]] = []
    lefts: list[NDArray[np.float64]] = []
    names = np.unique(groups)
    for name in rng.permutation(names)[:MOST_GROUPS]:
        mine = np.flatnonzero(groups == name)
        if len(mine) > MOST_ROWS:
            mine = rng.choice(mine, MOST_ROWS, replace=False)
        mine = rng.permutation(mine)
        for k in REVEALED:
            if len(mine) < 2 * k or len(mine) < k + 2:
                break
            seen, rest = mine[:k], mine[k:]
            local = deviation.condition(frame.take(seen), physics.take(seen), error[seen])
            part, at = frame.take(rest), physics.take(rest)
            mean, left = local.shift(part, at)
            q = spread.quantiles(part, at)[0] * deviation.narrowing(left)[:, None]
            scores.append(conformity_scores(error[rest] - mean, q))
            lefts.append(left)
    if not scores:
        return replace(deviation, offsets=(spread.offset,) * (len(LEFT_EDGES) + 1))
    score, left = np.concatenate(scores), np.concatenate(lefts)
    everything = conformal_offset(score)
    bins = np.searchsorted(LEFT_EDGES, left)
    offsets = [
        conformal_offset(score[bins == i]) if np.sum(bins == i) >= FEWEST_SCORES else everything
        for i in range(len(LEFT_EDGES) + 1)
    ]
    return replace(deviation, offsets=tuple(offsets))
