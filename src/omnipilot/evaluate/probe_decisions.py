"""What probes are worth: hide a model or GPU kind, probe, decide, look at what was measured.

Each hidden group (a model or GPU kind in one source) is asked of a cost model that never saw it.

Decisions: every workload cell is a request of its own. Before it is decided K of its hidden arms
are measured: none, K random ones, the K that the gate chooses (one after another, looking ahead to
the last), or only as many of these as the gate says pay. The arm that is then taken is compared
with the best one as measured.

Errors: K rows of the whole group are revealed, at random or those that take most off the
expected errors, and the other rows are predicted as a site's own rows condition them, without the
floors of the gate's beliefs.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.decide.floors import with_floors
from omnipilot.decide.gate import GateSettings, plan_probes
from omnipilot.decide.probes import Load, expense, load_menu
from omnipilot.decide.stakes import Quantity, Stakes
from omnipilot.domain.errors import UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.decision_cells import Forecast, build_cells, throughput_targets
from omnipilot.evaluate.decisions import (
    OperatingPoint,
    best_of,
    choose,
    expected_utility_usd_per_h,
    measured_utility_usd_per_h,
    outcomes,
)
from omnipilot.evaluate.hidden_group import MOST_CANDIDATES, HiddenGroup
from omnipilot.evaluate.holdout import fold_models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from omnipilot.decide.gate import ProbePlan
    from omnipilot.evaluate.decision_cells import DecisionCell
    from omnipilot.evaluate.holdout import Fold, Holdout
    from omnipilot.learn.dataset import Dataset

    FloatArray = NDArray[np.float64]

SPLITS: Final = ("model", "gpu")
DEFAULT_HOURS: Final = 24.0
RANDOM_DRAWS: Final = 20
_LOOK_AHEAD: Final = 3
WHOLE_BENCHMARK: Final = "full-cell"
NO_PROBE, RANDOM, CHOSEN, AS_IT_PAYS = "no_probe", "random", "chosen", "as_it_pays"
POLICIES: Final = (NO_PROBE, RANDOM, CHOSEN, AS_IT_PAYS)
_NOT_WORTH_USD: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms probes are judged.

    ``point`` values a token, a decision holds for ``hours``, ``prices`` are USD per GPU and hour by
    kind; random probes are drawn ``random_draws`` times.
    """

    point: OperatingPoint
    prices: Mapping[str, float]
    hours: float = DEFAULT_HOURS
    random_draws: int = RANDOM_DRAWS


@dataclass(frozen=True, slots=True)
class GroupResult:
    """One hidden group; figures by policy.

    ``regret_usd_per_h``, ``revenue_frac``, ``utility_usd`` (over the hours), and ``cost_usd`` and
    number of ``probes`` have one entry a decision (n,). ``ape`` holds the errors of the hidden rows
    after 0, 1, … probes of the group (probes + 1, n_hidden), NaN where a row was revealed. Random
    ones are means over draws. ``cells`` names the workload cell of each hidden row; ``probed`` what
    was revealed.
    """

    name: str
    decisions: int
    regret_usd_per_h: Mapping[str, FloatArray]
    revenue_frac: Mapping[str, FloatArray]
    utility_usd: Mapping[str, FloatArray]
    cost_usd: Mapping[str, FloatArray]
    probes: Mapping[str, FloatArray]
    ape: Mapping[str, FloatArray]
    cells: NDArray[np.str_]
    probed: tuple[str, ...]


def judge_groups(
    dataset: Dataset,
    question: Holdout,
    probes: int,
    terms: Terms,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[GroupResult]:
    """Measure what probes do to the decisions of every hidden group.

    Args:
        dataset: the rows.
        question: filter and split ("model" or "gpu"); its target is chosen here.
        probes: K, revealed for each hidden group; groups of no more rows are left out.
        terms: value of a token, hours, prices.
        cache: folder of fitted folds.
        progress: told in words what is being done.

    Raises:
        UsageError: another split, or no decision in which a hidden group takes part.
    """
    if question.split not in SPLITS:
        raise UsageError(f"probes are judged on --split {' or '.join(SPLITS)}")
    question = replace(question, target=throughput_targets(dataset, question)[0])
    rng = np.random.default_rng(question.seed)
    results = []
    for fold in fold_models(dataset, question, cache, progress):
        floored = replace(fold, model=with_floors(fold.model))
        for group, cautious in zip(
            _groups(dataset, question, fold), _groups(dataset, question, floored), strict=True
        ):
            judge = _Judge(dataset, question, group, cautious, terms)
            if len(judge.candidates) > probes:
                results.append(judge.result(probes, rng))
                progress(f"{group.name}: {results[-1].decisions} decisions")
    if not any(r.decisions for r in results):
        raise UsageError("no hidden group takes part in a decision between two priced arms")
    return results


def _groups(dataset: Dataset, question: Holdout, fold: Fold) -> Iterator[HiddenGroup]:
    """Hidden groups of a fold with the rows of the decisions that they take part in."""
    data = dataset.data
    tested = question.mask(data)
    held = np.zeros(data.frame.n, dtype=bool)
    held[fold.test] = True
    labels = data.groups(question.novelty)
    sources = data.frame.category("source")
    mine = np.flatnonzero(held & tested)
    names = np.char.add(np.char.add(sources[mine], " · "), labels[mine])
    engines = data.frame.category("engine")
    where = np.char.add(np.char.add(sources, engines), data.cells.astype(str))
    for name in np.unique(names):
        rows = mine[names == name]
        # Arms of other groups that the same fold hides are not known here.
        known = np.flatnonzero(tested & ~held & np.isin(where, where[rows]))
        every = np.concatenate([rows, known])
        hidden = np.arange(len(every)) < len(rows)
        yield HiddenGroup.ask(str(name), dataset, question, fold.model, every, hidden)


class _Judge:
    """One hidden group under every policy.

    ``group`` holds the beliefs as answers are conditioned by them, ``cautious`` those of the gate.
    """

    def __init__(
        self,
        dataset: Dataset,
        question: Holdout,
        group: HiddenGroup,
        cautious: HiddenGroup,
        terms: Terms,
    ) -> None:
        self._dataset, self._group, self._terms = dataset, group, terms
        frame = dataset.data.frame
        kind = frame.category("gpu_kind")[group.rows]
        priced = np.array([str(k) in terms.prices for k in kind])
        self.candidates = np.flatnonzero(group.hidden & np.isfinite(group.y) & priced)
        full = np.full((frame.n, 5), np.nan)
        full[group.rows] = group.log
        forecast = Forecast(question.target, full, full[:, 1])
        cells = build_cells(dataset, question.split, forecast, terms.prices).cells
        position = {int(row): i for i, row in enumerate(group.rows)}
        allowed = set(group.rows[self.candidates].tolist())
        self._decisions = []
        for cell in cells:
            rows = [int(row) for arm in cell.rows for row in arm]
            menu = [int(arm[0]) for arm in cell.rows if int(arm[0]) in allowed]
            if len(cell.arms) > 1 and menu:
                own = cautious.take(np.array([position[row] for row in rows]))
                self._decisions.append(_Decision(cell, own, menu, terms))

    def result(self, probes: int, rng: np.random.Generator) -> GroupResult:
        """Decide without probes, with random ones and with the gate's; then predict the rest."""
        group = self._group
        revealed = self._most_telling(probes, rng)
        draws = [
            rng.choice(self.candidates, probes, replace=False).tolist()
            for _ in range(self._terms.random_draws)
        ]
        each = [decision.decide(probes, rng) for decision in self._decisions]
        table = {p: np.array([e[p] for e in each]).reshape(-1, 5).T for p in POLICIES}
        return GroupResult(
            name=group.name,
            decisions=len(each),
            regret_usd_per_h={p: t[0] for p, t in table.items()},
            revenue_frac={p: t[1] for p, t in table.items()},
            utility_usd={p: t[2] for p, t in table.items()},
            cost_usd={p: t[3] for p, t in table.items()},
            probes={p: t[4] for p, t in table.items()},
            ape={RANDOM: self._errors(draws, probes), CHOSEN: self._errors([revealed], probes)},
            cells=self._dataset.data.cells[group.rows[group.hidden]],
            probed=tuple(self._label(i) for i in revealed),
        )

    def _errors(self, sets: Sequence[Sequence[int]], probes: int) -> FloatArray:
        """Errors of the hidden rows after 0 … K probes, mean over draws (probes + 1, n_hidden)."""
        group = self._group
        rows = []
        for k in range(probes + 1):
            each = np.array([group.ape(group.after(s[:k])[0], s[:k])[group.hidden] for s in sets])
            known = np.isfinite(each)
            total = np.where(known, each, 0.0).sum(axis=0)
            count = known.sum(axis=0)
            rows.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
        return np.stack(rows)

    def _most_telling(self, probes: int, rng: np.random.Generator) -> list[int]:
        """Rows of the group that take most off its expected errors, one after another."""
        menu = self.candidates
        if len(menu) > MOST_CANDIDATES:
            menu = np.sort(rng.choice(menu, MOST_CANDIDATES, replace=False))
        revealed: list[int] = []
        for _ in range(probes):
            covariance = self._group.left(revealed)
            free = menu[~np.isin(menu, revealed)]
            revealed.append(self._group.most_telling(covariance, free))
        return revealed

    def _label(self, position: int) -> str:
        frame = self._group.frame
        return (
            f"{int(frame['n_gpus'][position])}x {frame.category('gpu_kind')[position]} "
            f"{frame.category('precision')[position]}, {frame['concurrency'][position]:g} at once, "
            f"{frame['prompt_tokens'][position]:.0f}+{frame['output_tokens'][position]:.0f} tokens"
        )


class _Decision:
    """One workload cell with hidden arms, decided under every policy.

    ``group`` holds the rows of the cell alone; ``menu`` has the first row of each hidden arm that
    may be probed.
    """

    def __init__(
        self, cell: DecisionCell, group: HiddenGroup, menu: Sequence[int], terms: Terms
    ) -> None:
        self._cell, self._group, self._terms = cell, group, terms
        position = {int(row): i for i, row in enumerate(group.rows)}
        self._arms = [np.array([position[int(r)] for r in rows]) for rows in cell.rows]
        # All rows of an arm are measured, and averaged, together.
        self._repeats = {int(at[0]): at.tolist() for at in self._arms}
        self._menu = np.array([position[row] for row in menu])
        self._costs = self._costs_usd()

    def decide(self, probes: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Regret, its revenue share, utility, cost and probes of the decision by policy (5,)."""
        menu = self._menu.tolist()
        count = min(probes, len(menu))
        sets = [list(s) for s in itertools.combinations(menu, count)]
        if len(sets) > self._terms.random_draws:
            at = rng.choice(len(sets), self._terms.random_draws, replace=False)
            sets = [sets[i] for i in at]
        return {
            NO_PROBE: self._outcome([]),
            RANDOM: np.mean([self._outcome(s) for s in sets], axis=0),
            CHOSEN: self._outcome(self._by_gate(count, all_of_them=True)),
            AS_IT_PAYS: self._outcome(self._by_gate(count, all_of_them=False)),
        }

    def _after(self, revealed: Sequence[int]) -> tuple[DecisionCell, FloatArray]:
        """The decision and the covariance of its rows once some arms are measured."""
        log, covariance = self._group.after([row for i in revealed for row in self._repeats[i]])
        factors = np.exp(log - self._group.log)
        factor = np.stack([factors[at].mean(axis=0) for at in self._arms])
        return replace(self._cell, predicted=self._cell.predicted * factor), covariance

    def _outcome(self, revealed: Sequence[int]) -> FloatArray:
        point, cell = self._terms.point, self._cell
        taken = choose(self._after(revealed)[0], point)
        out = outcomes([cell], [taken], point)
        earned = float(measured_utility_usd_per_h(cell, point)[taken])
        paid = self._costs[np.isin(self._menu, revealed)].sum()
        return np.array(
            [
                out.regret_usd_per_h[0], out.revenue_frac[0], self._terms.hours * earned, paid,
                float(len(revealed)),
            ]
        )  # fmt: skip

    def _costs_usd(self) -> FloatArray:
        """What a benchmark of each arm takes: cold start, set-up and the menu's whole benchmark."""
        group, frame = self._group, self._group.frame
        whole = next(p for p in load_menu() if p.name == WHOLE_BENCHMARK)
        kinds = frame.category("gpu_kind")
        costs = []
        for i in self._menu.tolist():
            load = Load(max(round(frame["concurrency"][i]), 1), 1, 1)
            rate, cold = float(group.request_per_s[i]), float(group.cold_start_s[i])
            n_gpus, price = int(frame["n_gpus"][i]), self._terms.prices[str(kinds[i])]
            costs.append(expense(whole.seconds(load, rate, cold), n_gpus, n_gpus, price).cost_usd)
        return np.array(costs)

    def _by_gate(self, probes: int, *, all_of_them: bool) -> list[int]:
        """Arms that the gate measures, one after another, each plan made with what was told.

        Where not ``all_of_them`` are wanted, it stops where no further one pays.
        """
        revealed: list[int] = []
        for k in range(probes):
            told, covariance = self._after(revealed)
            free = ~np.isin(self._menu, revealed)
            ahead = GateSettings(depth=min(_LOOK_AHEAD, probes - k), budget_node_h=np.inf)
            plan = plan_probes(self._stakes(told, covariance, free), ahead)
            if not plan.probes and not all_of_them:
                break
            found = _best(plan, self._menu[free])
            if found is None:  # nothing to gain: learn what there is to learn
                found = self._group.most_telling(covariance, self._menu[free])
            revealed.append(found)
        return revealed

    def _stakes(
        self, told: DecisionCell, covariance: FloatArray, free: NDArray[np.bool_]
    ) -> Stakes:
        point, hours = self._terms.point, self._terms.hours
        total = hours * expected_utility_usd_per_h(told, point)
        menu, arms = self._menu[free], np.array([at[0] for at in self._arms])
        quantity = Quantity(
            "throughput",
            np.diag(covariance)[arms].copy(),
            covariance[np.ix_(arms, menu)],
            covariance[np.ix_(menu, menu)],
            self._group.noise_sd[menu] ** 2,
            total + hours * told.n_gpus * told.price_usd_per_gpu_h,
        )
        n, m = len(arms), len(menu)
        of = {int(position): i for i, position in enumerate(arms)}
        return Stakes(
            (quantity,), total, np.zeros(n, dtype=np.int64), np.array([best_of(told, total)]),
            np.ones(n, dtype=bool), np.array([of[int(i)] for i in menu]), np.arange(m),
            self._costs[free], np.zeros(m),
        )  # fmt: skip


def _best(plan: ProbePlan, menu: NDArray[np.int64]) -> int | None:
    """The plan's first probe, or the best that does not pay; None where nothing is gained."""
    best = plan.probes[0] if plan.probes else plan.rejected
    if best is None or best.voi_usd <= _NOT_WORTH_USD:
        return None
    return int(menu[best.probe])
