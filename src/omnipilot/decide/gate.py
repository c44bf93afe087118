"""The gate: which probes to make before a decision, and why to stop.

Probes are chosen in sets of up to the look-ahead's depth, because one alone may not pay where two
do (the value of information is not concave; Frazier and Powell 2010, "Paradoxes in learning and the
marginal value of information"). The set whose value less its cost is greatest is planned; its first
probe is made, and the plan is made anew with what it told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from omnipilot.decide.voi import (
    DEFAULT_SAMPLES,
    Belief,
    contenders,
    gains_usd,
    material,
    promises_usd,
    value_usd,
    win_probability,
)
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from omnipilot.decide.stakes import Stakes

    FloatArray = npt.NDArray[np.float64]
    IntArray = npt.NDArray[np.int64]

StopReason = Literal[
    "negative_net_value", "below_epsilon", "budget", "menu_exhausted", "depth_reached"
]
_BEAM: Final = 4  # sets that are carried to the next depth
_SHORTLIST: Final = 32  # probes that are looked at after the first
_ARMS: Final = 24  # contenders that are looked at
_FINALISTS: Final = 4  # sets whose value is computed again with more draws
_SLACK: Final = 1e-9  # of rounding in sums of node-hours


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How the gate looks ahead and when it stops (PAPER, Value of information).

    ``samples`` draws for the search, ``final_samples`` for what is reported; a gain below
    ``epsilon_usd`` is not worth the trouble. ``arms`` leading ones of a decision are probed: what
    an arm far behind would tell of them rests on the covariance alone, which is the least certain
    part of the model, while the leading arms' own rows say it for themselves.
    """

    depth: int = 3
    budget_node_h: float = 0.2
    epsilon_usd: float = 0.05
    arms: int = 6
    samples: int = DEFAULT_SAMPLES
    final_samples: int = 512


@dataclass(frozen=True, slots=True)
class PlannedProbe:
    """One probe: index into the menu, and what it is worth together with those planned after it.

    ``voi_usd`` is the value that it adds with the planned probes after it, less their cost; so
    ``net_usd`` above 0 means that going on with this probe pays.
    """

    probe: int
    voi_usd: float
    cost_usd: float
    node_h: float

    @property
    def net_usd(self) -> float:
        """What making it gains after paying for it."""
        return self.voi_usd - self.cost_usd


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What the gate decides.

    ``probes`` to make, in order; ``stop`` why no more; ``rejected`` the best probe that was not
    taken, with its value after those planned, None where there was none. ``gain_usd`` is the
    expected gain of all planned ones before their cost; ``wins`` (n_arms,) the probability that
    each arm is the one taken afterwards.
    """

    probes: tuple[PlannedProbe, ...]
    stop: StopReason
    rejected: PlannedProbe | None
    gain_usd: float
    wins: FloatArray

    @property
    def cost_usd(self) -> float:
        """Cost of all planned probes."""
        return sum(p.cost_usd for p in self.probes)


@dataclass(frozen=True, slots=True)
class _Set:
    """A set of probes: those of a belief and one more, with its value and its cost."""

    before: Belief
    last: int
    value_usd: float
    cost_usd: float
    promise_usd: float

    @property
    def net_usd(self) -> float:
        return self.value_usd - self.cost_usd

    @property
    def probes(self) -> tuple[int, ...]:
        return (*self.before.probes, self.last)


def plan_probes(stakes: Stakes, settings: GateSettings | None = None) -> ProbePlan:
    """Choose the probes that pay, looking ahead; deterministic.

    Args:
        stakes: the decision and its menu.
        settings: depth, budget, threshold and draws.

    Returns:
        The plan; empty where nothing pays.
    """
    settings = settings or GateSettings()
    menu = stakes.leading(settings.arms)
    asked = stakes.with_menu(menu)
    arms = contenders(asked, settings.depth, _ARMS)
    plan = _plan(material(asked.among(arms)), settings)
    wins = np.zeros(len(stakes.total_usd))
    wins[arms] = plan.wins
    rejected = plan.rejected

    def named(planned: PlannedProbe) -> PlannedProbe:
        return replace(planned, probe=int(menu[planned.probe]))

    return replace(
        plan,
        probes=tuple(named(p) for p in plan.probes),
        rejected=None if rejected is None else named(rejected),
        wins=wins,
    )


def _plan(stakes: Stakes, settings: GateSettings) -> ProbePlan:
    found = _search(stakes, settings)
    finalists = sorted(found, key=lambda s: -s.net_usd)[:_FINALISTS]
    values = {s.probes: value_usd(stakes, s.probes, settings.final_samples) for s in finalists}
    best: _Set | None = None
    for one in finalists:
        net = values[one.probes] - one.cost_usd
        pays = net > 0 and values[one.probes] >= settings.epsilon_usd
        if pays and (best is None or net > values[best.probes] - best.cost_usd):
            best = one
    chosen = () if best is None else _ordered(stakes, best.probes, settings)
    plan = _report(stakes, chosen, settings)
    while plan.probes:
        # In the order in which they are made the draws may say that one does not pay.
        least = min(plan.probes, key=lambda p: p.net_usd)
        if least.net_usd > 0 and plan.gain_usd >= settings.epsilon_usd:
            break
        chosen = tuple(p for p in chosen if p != least.probe)
        plan = _report(stakes, chosen, settings)
    return plan


def _search(stakes: Stakes, settings: GateSettings) -> list[_Set]:
    """All sets that were looked at, by depth."""
    seen: list[_Set] = []
    bases = [(Belief.empty(stakes), 0.0)]
    for _ in range(settings.depth):
        grown: dict[frozenset[int], _Set] = {}
        for belief, value in bases:
            for one in _extensions(stakes, belief, value, settings):
                known = grown.setdefault(frozenset(one.probes), one)
                if one.value_usd > known.value_usd:
                    grown[frozenset(one.probes)] = one
        sets = list(grown.values())
        seen += sets
        net = np.array([s.net_usd for s in sets])
        promise = np.array([s.promise_usd - s.cost_usd for s in sets])
        carried = [sets[i] for i in _top(net, promise, _BEAM).tolist()]
        bases = [(s.before.after(stakes, s.last), s.value_usd) for s in carried]
    return seen


def _extensions(
    stakes: Stakes, belief: Belief, value_usd: float, settings: GateSettings
) -> list[_Set]:
    """A belief's probes with each further one that the budget reaches and that promises most."""
    probes = _affordable(stakes, belief.probes, settings)
    if not len(probes):
        return []
    promise = promises_usd(stakes, belief, probes)
    keep = _top(promise - stakes.cost_usd[probes], promise, _SHORTLIST)
    probes, promise = probes[keep], promise[keep]
    # More to know is never worth less; the draws of another dimension may say so.
    gains = np.maximum(gains_usd(stakes, belief, probes, settings.samples), value_usd)
    spent = float(stakes.cost_usd[list(belief.probes)].sum())
    costs = spent + stakes.cost_usd[probes]
    found = zip(probes.tolist(), gains.tolist(), costs.tolist(), promise.tolist(), strict=True)
    return [_Set(belief, *one) for one in found]


def _top(first: FloatArray, second: FloatArray, most: int) -> IntArray:
    """Indices of the best by either of two scores, half each, without repetition."""
    if len(first) <= most:
        return np.arange(len(first), dtype=np.int64)
    half = most // 2
    taken = np.argsort(-first, kind="stable")[:half].tolist()
    best = np.argsort(-second, kind="stable")[:most].tolist()
    rest = [i for i in best if i not in set(taken)]
    return np.array([*taken, *rest[: most - half]], dtype=np.int64)


def _affordable(stakes: Stakes, probes: Sequence[int], settings: GateSettings) -> IntArray:
    """Probes not made yet that the budget still reaches."""
    spent = float(stakes.node_h[list(probes)].sum()) if probes else 0.0
    fits = spent + stakes.node_h <= settings.budget_node_h + _SLACK
    fits[list(probes)] = False
    return np.flatnonzero(fits)


def _ordered(stakes: Stakes, probes: tuple[int, ...], settings: GateSettings) -> tuple[int, ...]:
    """The set in the order in which it is made: what gains most alone comes first."""
    if len(probes) < 2:
        return probes
    alone = {p: value_usd(stakes, (p,), settings.final_samples) for p in probes}
    return tuple(sorted(probes, key=lambda p: (-(alone[p] - float(stakes.cost_usd[p])), p)))


def _report(stakes: Stakes, chosen: tuple[int, ...], settings: GateSettings) -> ProbePlan:
    draws = settings.final_samples
    values = [value_usd(stakes, chosen[:i], draws) for i in range(len(chosen) + 1)]
    # More to know is never worth less; the draws of another dimension may say so.
    values = np.maximum.accumulate(values).tolist()
    planned: list[PlannedProbe] = []
    later_usd = 0.0
    for i in reversed(range(len(chosen))):
        cost = float(stakes.cost_usd[chosen[i]])
        voi = values[i + 1] - values[i] + later_usd
        planned.insert(0, PlannedProbe(chosen[i], voi, cost, float(stakes.node_h[chosen[i]])))
        later_usd = max(voi - cost, 0.0)
    stop, rejected = _stop(stakes, chosen, values[-1], settings)
    return ProbePlan(
        tuple(planned), stop, rejected, values[-1], win_probability(stakes, chosen, draws)
    )


def _stop(
    stakes: Stakes, chosen: tuple[int, ...], value: float, settings: GateSettings
) -> tuple[StopReason, PlannedProbe | None]:
    """Why the plan ends where it does, with the best probe that it leaves out."""
    left = stakes.n_probes - len(chosen)
    if not left:
        return "menu_exhausted", None
    if len(chosen) >= settings.depth:
        return "depth_reached", None
    probes = _affordable(stakes, chosen, settings)
    if not len(probes):
        return "budget", None
    belief = Belief.empty(stakes)
    for probe in chosen:
        belief = belief.after(stakes, probe)
    promise = promises_usd(stakes, belief, probes)
    keep = probes[_top(promise - stakes.cost_usd[probes], promise, _SHORTLIST)]
    gains = gains_usd(stakes, belief, keep, settings.samples) - value
    best = int(keep[np.argmax(np.maximum(gains, 0.0) - stakes.cost_usd[keep])])
    if not np.any(gains > 0):
        best = int(probes[np.argmax(promise - stakes.cost_usd[probes])])
    gain = max(value_usd(stakes, (*chosen, best), settings.final_samples) - value, 0.0)
    rejected = PlannedProbe(best, gain, float(stakes.cost_usd[best]), float(stakes.node_h[best]))
    return ("below_epsilon" if gain < settings.epsilon_usd else "negative_net_value"), rejected
