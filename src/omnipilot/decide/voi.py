"""What a measurement is worth before it is made: better decisions, in USD.

The errors of all arms are jointly Gaussian in log space, so an observation of one arm moves the
MEANS of all of them: by their covariance with it, times one standard normal that is not known yet.
The value of information is how much better the best arm is expected to be once it is known. A gate
that only narrows the intervals and leaves the means (as the paper's did) finds zero whatever it
asks, because the best arm never changes; see docs/probes.md.

The expected worth of an arm is a martingale of what will be observed: ``worth·exp(s·z − s²/2)``
with the worth of today's advice, so the decision before is exactly that of the advice. Its limits
enter by the probability of missing them. The joint effect of several probes is the same with more
normals. Nothing here is drawn at random: the base samples are fixed, so answers repeat bit for bit.
For one quantity and one observation :mod:`omnipilot.decide.knowledge_gradient` is exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.decide.knowledge_gradient import lognormal_gain, pair_gain
from omnipilot.decide.normals import base_normals, cumulative, density, quantile
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from omnipilot.decide.stakes import Stakes

    FloatArray = npt.NDArray[np.float64]
    IntArray = npt.NDArray[np.int64]

DEFAULT_SAMPLES: Final = 32  # PAPER, Value of information
_DIMENSIONS: Final = 12  # normals that are drawn at the least: three steps of four quantities
_TINY: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Belief:
    """What some probes will have told, before they are made.

    ``probes`` in order; for each quantity ``arms`` (t, n) and ``places`` (t, n_places) hold what
    one standard deviation of each of the t innovations moves the logs by.
    """

    probes: tuple[int, ...]
    arms: tuple[FloatArray, ...]
    places: tuple[FloatArray, ...]

    @classmethod
    def empty(cls, stakes: Stakes) -> Belief:
        """Nothing was measured."""
        n = len(stakes.total_usd)
        return cls(
            (),
            tuple(np.zeros((0, n)) for _ in stakes.quantities),
            tuple(np.zeros((0, len(q.places))) for q in stakes.quantities),
        )

    def loadings(self, stakes: Stakes, probes: IntArray) -> list[FloatArray]:
        """What each of some further probes would move the logs of all arms by: (n, c) each."""
        found = []
        for q, arms, places in zip(stakes.quantities, self.arms, self.places, strict=True):
            at = stakes.place[probes]
            known = places[:, at]
            total = np.diag(q.places)[at] - np.sum(known**2, axis=0) + q.noise_var[probes]
            covariance = q.cross[:, at] - arms.T @ known
            found.append(covariance / np.sqrt(np.maximum(total, _TINY)))
        return found

    def after(self, stakes: Stakes, probe: int) -> Belief:
        """The belief with one more probe."""
        one = np.array([probe], dtype=np.int64)
        own = self.loadings(stakes, one)
        places = []
        for q, known in zip(stakes.quantities, self.places, strict=True):
            at = int(stakes.place[probe])
            column = q.places[at] - known[:, at] @ known
            total = q.places[at, at] - np.sum(known[:, at] ** 2) + q.noise_var[probe]
            places.append(np.vstack((known, column / np.sqrt(max(total, _TINY)))))
        arms = [np.vstack((a, o.T)) for a, o in zip(self.arms, own, strict=True)]
        return Belief((*self.probes, probe), tuple(arms), tuple(places))


def gains_usd(
    stakes: Stakes, belief: Belief, probes: IntArray, samples: int = DEFAULT_SAMPLES
) -> FloatArray:
    """Value of information of a belief's probes and one further one, for each of c further ones.

    Each is the mean over fixed draws of (best utility − utility of the arm taken now), so it is
    never negative, and exactly 0 where no draw changes the choice.

    Args:
        stakes: the decision.
        belief: of the probes before.
        probes: the further ones (c,).
        samples: draws.

    Returns:
        USD (c,), before any cost.
    """
    earned = _earned(stakes, belief, probes, samples)
    may = stakes.takes(belief.probes, probes)
    best = stakes.best_of(np.where(may[:, :, None], earned, -np.inf))
    return np.asarray((best - earned[stakes.taken]).mean(axis=2).sum(axis=0))


def _earned(stakes: Stakes, belief: Belief, probes: IntArray, samples: int) -> FloatArray:
    """Expected utility of each arm in each draw of what the probes tell (n, c, n_draws)."""
    steps = len(belief.probes) + 1
    own = belief.loadings(stakes, probes)
    # The same draws whatever the number of steps, so that sets of probes compare like for like.
    n_dims = max(steps * len(own), _DIMENSIONS)
    z = base_normals(n_dims, max(samples, n_dims + 1))[: steps * len(own)]
    z = z.reshape(steps, len(own), -1)
    earned = np.repeat(stakes.total_usd[:, None], len(probes), axis=1)[:, :, None]
    kept: FloatArray | None = None
    for h, q in enumerate(stakes.quantities):
        before, move = belief.arms[h], own[h]
        path = before.T @ z[:-1, h]
        exponent = move[:, :, None] * z[-1, h]
        exponent += path[:, None, :]
        if np.any(q.worth_usd):
            worth = np.exp(exponent)
            worth *= (q.worth_usd[:, None] / worth.mean(axis=2))[:, :, None]
            earned = earned + (worth - q.worth_usd[:, None, None])
        if q.missed is not None:
            known = np.sum(before**2, axis=0)[:, None] + move**2
            left = np.sqrt(np.maximum(q.variance[:, None] - known, _TINY))
            margin = quantile(q.missed) * np.sqrt(np.maximum(q.variance, _TINY))
            met = 1.0 - cumulative((margin[:, None, None] + exponent) / left[:, :, None])
            if q.loss_usd is not None:
                gained = met - met.mean(axis=2, keepdims=True)
                earned = earned + q.loss_usd[:, None, None] * gained
            else:
                kept = met if kept is None else kept * met
    if kept is not None:
        earned = earned + stakes.penalty_usd * (kept - kept.mean(axis=2, keepdims=True))
    return np.broadcast_to(earned, (*earned.shape[:2], z.shape[2]))


def promises_usd(stakes: Stakes, belief: Belief, probes: IntArray) -> FloatArray:
    """A quick guess of the same, never 0 where there is anything to learn (c,).

    The best single rival of each decision by the closed form for two arms, with utilities taken as
    linear in the logs. It tells probes apart where no fixed draw changes the choice, so that a
    probe that pays only together with a second one is found.
    """
    return np.asarray(stakes.best_of(_pair_gains(stakes, belief, probes)).sum(axis=0))


def contenders(stakes: Stakes, steps: int, most: int) -> IntArray:
    """The arms taken now and those that some probes are likeliest to put in their place, in order.

    Args:
        stakes: the decision.
        steps: probes that may be made one after another.
        most: arms of each decision that are kept at most.
    """
    every = np.arange(stakes.n_probes, dtype=np.int64)
    gain = _pair_gains(stakes, Belief.empty(stakes), every, repeats=steps).max(axis=1, initial=0.0)
    gain[stakes.taken] = np.inf
    order = np.lexsort((-gain, stakes.decision))
    starts = np.searchsorted(stakes.decision, stakes.decision[order])
    first = np.arange(len(order)) - starts < most
    return np.sort(order[first & (gain[order] > 0)])


def material(stakes: Stakes, share: float = 0.005) -> Stakes:
    """The decision without quantities that move no utility by this share of what the largest does.

    Args:
        stakes: the decision.
        share: of the largest standard deviation in USD that any quantity gives any arm.
    """
    moved = [
        float(np.abs(slope * np.sqrt(q.variance)).max(initial=0.0))
        for q, slope in zip(stakes.quantities, _slopes(stakes), strict=True)
    ]
    least = share * max(moved, default=0.0)
    kept = [q for q, m in zip(stakes.quantities, moved, strict=True) if m >= least]
    return replace(stakes, quantities=tuple(kept))


def _pair_gains(stakes: Stakes, belief: Belief, probes: IntArray, repeats: int = 1) -> FloatArray:
    """Gain of being able to change to each arm alone after each probe (n, c)."""
    own = belief.loadings(stakes, probes)
    spread = np.zeros((len(stakes.total_usd), len(probes)))
    for before, move, slope in zip(belief.arms, own, _slopes(stakes), strict=True):
        told = slope[:, None] * move
        spread += repeats * (told - told[stakes.reference]) ** 2
        told = slope[:, None] * before.T
        spread += np.sum((told - told[stakes.reference]) ** 2, axis=1)[:, None]
    behind = stakes.total_usd[stakes.reference] - stakes.total_usd
    gain = pair_gain(np.broadcast_to(behind[:, None], spread.shape), np.sqrt(spread))
    gain[stakes.taken] = 0.0
    return np.where(stakes.takes(belief.probes, probes), gain, 0.0)


def _slopes(stakes: Stakes) -> list[FloatArray]:
    """USD that a unit of each quantity's log is worth to each arm, to first order (n,) each."""
    found = []
    for q in stakes.quantities:
        slope = q.worth_usd.copy()
        if q.missed is not None:
            sd = np.sqrt(np.maximum(q.variance, _TINY))
            loss = stakes.penalty_usd if q.loss_usd is None else q.loss_usd
            slope -= loss * density(quantile(q.missed)) / sd
        found.append(slope)
    return found


def value_usd(stakes: Stakes, probes: Sequence[int], samples: int = DEFAULT_SAMPLES) -> float:
    """Value of information of some probes together: exact for one probe of one lognormal quantity.

    Args:
        stakes: the decision.
        probes: which; none is worth nothing.
        samples: draws where there is no exact form.
    """
    if not probes:
        return 0.0
    belief, last = _but_last(stakes, probes)
    exact = _exact_usd(stakes, belief, last) if len(probes) == 1 else None
    return float(gains_usd(stakes, belief, last, samples)[0]) if exact is None else exact


def _but_last(stakes: Stakes, probes: Sequence[int]) -> tuple[Belief, IntArray]:
    belief = Belief.empty(stakes)
    for probe in probes[:-1]:
        belief = belief.after(stakes, probe)
    return belief, np.array([probes[-1]], dtype=np.int64)


def _exact_usd(stakes: Stakes, belief: Belief, probe: IntArray) -> float | None:
    """The closed form; None where more than one quantity moves, or a limit does."""
    moved = [
        (q, move[:, 0])
        for q, move in zip(stakes.quantities, belief.loadings(stakes, probe), strict=True)
        if np.any(move)
    ]
    if len(moved) > 1 or any(q.is_limit for q, _ in moved):
        return None
    may = stakes.takes((), probe)[:, 0]
    total, gained = stakes.total_usd, 0.0
    for d, taken in enumerate(stakes.taken.tolist()):
        arms = np.flatnonzero(may & (stakes.decision == d))
        gained += float(total[arms].max() - total[taken])
        for quantity, move in moved:
            worth = quantity.worth_usd[arms]
            gained += lognormal_gain(worth, worth - total[arms], move[arms])
    return gained


def win_probability(
    stakes: Stakes, probes: Sequence[int], samples: int = DEFAULT_SAMPLES
) -> FloatArray:
    """Probability that each arm is the one that its decision takes after some probes (n,)."""
    wins = np.zeros(len(stakes.total_usd))
    if not probes:
        wins[stakes.taken] = 1.0
        return wins
    belief, last = _but_last(stakes, probes)
    earned = _earned(stakes, belief, last, samples)[:, 0].copy()
    may = stakes.takes(belief.probes, last)[:, 0]
    earned[~may] = -np.inf
    # The arm that is taken now keeps its place where nothing is better.
    best = stakes.best_of(earned)
    keeps = earned[stakes.taken] >= best
    won = (earned == best[stakes.decision]) & ~keeps[stakes.decision]
    won[stakes.taken] = keeps
    return np.asarray(won.mean(axis=1))
