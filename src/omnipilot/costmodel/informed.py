"""Calibrating answers that local rows have narrowed, on simulated sites.

Every held-out group stands for a site, model or GPU kind that the model has never seen: a few of
its rows are revealed at random, the rest are predicted, and the conformal offsets of the narrowed
bands are sized on them. Groups with many rows weigh no more than others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel import new_kind
from omnipilot.costmodel.conformal import conformal_offset, conformity_scores
from omnipilot.costmodel.deviation import LEFT_EDGES
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from omnipilot.costmodel.deviation import Deviation
    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics
    from omnipilot.costmodel.physics_fit import PhysicsParameters
    from omnipilot.costmodel.spread import Spread

REVEALED = (1, 2, 3, 5, 10)
MOST_GROUPS = 60
MOST_ROWS = 60
FEWEST_SCORES = 40


@dataclass(frozen=True, slots=True)
class NewKinds:
    """What tells how far the rows of a new GPU kind move its parameters, for one target.

    ``parameters`` of the fit with all kinds: those of a simulated site's kind are left out.
    """

    parameters: PhysicsParameters
    target: str

    def moved(
        self,
        deviation: Deviation,
        frame: Frame,
        physics: Physics,
        error: NDArray[np.float64],
        k: int,
    ) -> NDArray[np.float64]:
        """What the prior of n rows of one kind changes by once the first k are known, (n,).

        Args:
            deviation: covariance of the errors.
            frame: rows of one GPU kind.
            physics: their prior.
            error: log label − centre (n,).
            k: rows that are known.
        """
        kind = str(frame.category(new_kind.CATEGORY)[0])
        others = set(self.parameters.offsets[new_kind.CATEGORY]) - {kind}
        before = new_kind.known_kinds(self.parameters, others)
        seen = np.arange(k)
        told = new_kind.KindErrors(
            frame.take(seen), self.target, error[seen],
            deviation.joint(frame.take(seen), physics.take(seen)), np.full(k, deviation.noise_sd),
        )  # fmt: skip
        after = new_kind.with_kind(before, kind, new_kind.fit_kind(before, [told]))
        now, then = (p.evaluate(frame).log[self.target] for p in (after, before))
        return np.asarray(now - then)


@dataclass(frozen=True, slots=True)
class _Sites:
    """Simulated sites: rows (n,) of each in the order in which they are revealed, and ``error``."""

    frame: Frame
    physics: Physics
    error: NDArray[np.float64]
    rows: tuple[NDArray[np.int64], ...]
    new_kinds: NewKinds | None

    def revealed(
        self, deviation: Deviation
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
        """For each site and each number of known rows what is left to be wrong about the others.

        Yields:
            The rows that are not known (m,), their errors (m,) and the share of their variance
            (m,).
        """
        for mine in self.rows:
            for k in REVEALED:
                if len(mine) < 2 * k or len(mine) < k + 2:
                    break
                seen, rest, told = mine[:k], mine[k:], self.error[mine]
                if self.new_kinds is not None:
                    part, at = self.frame.take(mine), self.physics.take(mine)
                    told = told - self.new_kinds.moved(deviation, part, at, told, k)
                local = deviation.condition(
                    self.frame.take(seen), self.physics.take(seen), told[:k]
                )
                mean, left = local.shift(self.frame.take(rest), self.physics.take(rest))
                yield rest, told[k:] - mean, left


def calibrate_informed(
    deviation: Deviation,
    spread: Spread,
    frame: Frame,
    physics: Physics,
    error: NDArray[np.float64],
    groups: NDArray[np.str_],
    rng: np.random.Generator,
    new_kinds: NewKinds | None = None,
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
        new_kinds: given where every group is of a GPU kind whose parameters its rows tell.

    Returns:
        The deviation with one offset a bin of ``LEFT_EDGES``; a bin with too few scores takes the
        offset of all.
    """
    rows = []
    for name in rng.permutation(np.unique(groups))[:MOST_GROUPS]:
        mine = np.flatnonzero(groups == name)
        if len(mine) > MOST_ROWS:
            mine = rng.choice(mine, MOST_ROWS, replace=False)
        rows.append(rng.permutation(mine))
    sites = _Sites(frame, physics, error, tuple(rows), new_kinds)
    scores: list[NDArray[np.float64]] = []
    lefts: list[NDArray[np.float64]] = []
    for rest, wrong, left in sites.revealed(deviation):
        q = spread.quantiles(frame.take(rest), physics.take(rest))[0]
        scores.append(conformity_scores(wrong, q * deviation.narrowing(left)[:, None]))
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
