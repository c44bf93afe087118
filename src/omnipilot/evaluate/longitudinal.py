"""A source's rows replayed in the order they were measured: does learning on make advice better?

Month by month the model in force predicts rows that it has not seen, then takes one turn of
learning on them (:func:`omnipilot.learn.cycle.turn`), the turn that a site's refit takes. Beside it
stand never updating (the base model throughout) and always updating (no screen, no gate). A month
whose rows were falsified shows what the screen, the gate and the drift watch do about it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.collect import collect_csv
from omnipilot.collect.lines import Limits
from omnipilot.collect.records import Record, read_records
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import InferenceRun
from omnipilot.learn.cycle import Incumbent, turn
from omnipilot.learn.dataset import as_meant, build_dataset
from omnipilot.learn.exchanged import relabeller
from omnipilot.learn.gate import figures
from omnipilot.learn.local_fit import DECISION_HEAD, Answered, Recipe, answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from omnipilot.catalog import Catalog
    from omnipilot.costmodel.fit import TrainingSet
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.domain.scenario import Scenario
    from omnipilot.learn.cycle import Turn
    from omnipilot.learn.dataset import Dataset

    Say = Callable[[str], None]

__all__ = ["MONTH_ROWS", "Timeline", "read_timeline", "replay"]

MONTH_ROWS: Final = 50
DATE_COLUMN: Final = "measured"
SCALED_BY: Final = 3.0
KEPT_OUT_FRAC: Final = 0.95
_MONTH_CHARS: Final = 7


@dataclass(frozen=True, slots=True)
class Told:
    """Rows as somebody tells them: as arrays, and as the scenarios behind them."""

    data: TrainingSet
    scenarios: tuple[Scenario, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Dated rows of one source.

    ``period`` is the index into ``names`` of each row (n,), oldest first; ``undated`` rows were
    left out.
    """

    dataset: Dataset
    period: NDArray[np.int64]
    names: tuple[str, ...]
    undated: int

    def told(self, catalog: Catalog) -> Told:
        """The rows as they were measured."""
        builder = ScenarioBuilder(catalog)
        scenarios = tuple(builder.scenario(run) for run in self.dataset.runs)
        return Told(self.dataset.data, scenarios)


def read_timeline(folder: Path, source: str, catalog: Catalog) -> Timeline:
    """Read the dated rows of a source.

    Months of fewer than ``MONTH_ROWS`` rows join the next one, a short last month the one before.

    Raises:
        BadInputError: the source has no table, or its table no dates.
    """
    path = folder / source / "normalised.csv"
    if not path.is_file():
        raise BadInputError(f"no such table: {path}")
    records = read_records(path, Limits())
    header = next(records, None)
    names = [n.strip() for n in header.fields] if isinstance(header, Record) else []
    if DATE_COLUMN not in names:
        raise BadInputError(
            f"{path} has no column '{DATE_COLUMN}': its rows cannot be put in order"
        )
    at = names.index(DATE_COLUMN)
    dated: dict[int, str] = {}
    runs: list[InferenceRun] = []
    undated = 0
    for record, item in zip(records, collect_csv(path), strict=True):
        if not isinstance(item, InferenceRun) or not isinstance(record, Record):
            continue
        month = record.fields[at].strip()[:_MONTH_CHARS]
        if not month:
            undated += 1
            continue
        run = as_meant(item)  # a dataset keeps such a run, by which its month is found again
        dated[id(run)] = month
        runs.append(run)
    dataset = build_dataset(runs, catalog)
    months = np.asarray([dated[id(run)] for run in dataset.runs])
    order = np.argsort(months, kind="stable")
    dataset = replace(
        dataset, data=dataset.data.take(order), runs=tuple(dataset.runs[i] for i in order)
    )
    period, merged = merge_months(months[order])
    return Timeline(dataset, period, merged, undated)


def merge_months(months: NDArray[np.str_]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Join short months.

    Args:
        months: of each row, in order (n,).

    Returns:
        Period of each row (n,) and the periods' names.

    Example:
        >>> merge_months(np.array(["2026-01"] * 20 + ["2026-02"] * 40))[1]
        ('2026-01 to 2026-02',)
    """
    names, counts = np.unique(months, return_counts=True)
    groups: list[list[str]] = [[]]
    filled = 0
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        if filled >= MONTH_ROWS:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += count
    if filled < MONTH_ROWS and len(groups) > 1:
        last = groups.pop()
        groups[-1] += last
    of = {name: i for i, group in enumerate(groups) for name in group}
    period = np.asarray([of[m] for m in months.tolist()], dtype=np.int64)
    return period, tuple(g[0] if len(g) == 1 else f"{g[0]} to {g[-1]}" for g in groups)


def replay(
    timeline: Timeline, base: FittedModel, catalog: Catalog, progress: Say = lambda _: None
) -> dict[str, Any]:
    """Replay a timeline; the document of ``omnipilot evaluate longitudinal``.

    Args:
        timeline: the dated rows.
        base: a model fitted without the source.
        catalog: facts, for falsified months.
        progress: told in words what is being done.
    """
    true = timeline.told(catalog)
    data = true.data
    n = data.frame.n
    never = answer(base, data)[DECISION_HEAD]
    incumbent = Incumbent(Recipe(base, np.zeros(n)), np.zeros(n, dtype=bool), 0, first=True)
    gated, always = Answered.empty(n), Answered.empty(n)
    periods: list[dict[str, Any]] = []
    for t, name in enumerate(timeline.names):
        progress(f"{name}: predicting, then learning")
        upto, rows = timeline.period <= t, np.flatnonzero(timeline.period == t)
        past = np.where(timeline.period < t, 1.0, 0.0)
        _put(gated, incumbent.recipe, data, rows)
        _put(always, Recipe(base, past), data, rows)
        before = incumbent
        took = _turn(true, incumbent, base, upto)
        incumbent = _next(incumbent, took, upto)
        periods.append(
            {
                "period": name,
                "rows": len(rows),
                **{
                    f"{key}_{who}": value
                    for who, a in (("gated", gated), ("never", never), ("always", always))
                    for key, value in _figures(a.take(rows)).items()
                },
                **_said(took),
                "falsified": {
                    kind: _falsified(timeline, false, before, base, t)
                    for kind, false in falsified(true, timeline.period == t, catalog).items()
                },
            }
        )
    later = periods[1:] or periods
    return {
        "mape_gated": _mean(later, "mape_gated"),
        "mape_never": _mean(later, "mape_never"),
        "mape_always": _mean(later, "mape_always"),
        "coverage_gated": figures(gated).coverage,
        "coverage_never": figures(never).coverage,
        "coverage_always": figures(always).coverage,
        "promotions": sum(p["promoted"] for p in periods),
        "rejections": sum(not p["promoted"] for p in periods),
        "alarms": sum(bool(p["alarms"]) for p in periods),
        "held_rows": periods[-1]["held_rows"] if periods else 0,
        "falsified_months": sum(len(p["falsified"]) for p in periods),
        "falsified_noticed": sum(
            f["noticed_by"] != [] for p in periods for f in p["falsified"].values()
        ),
        "falsified_kept_out": sum(f["kept_out"] for p in periods for f in p["falsified"].values()),
        "rows": n,
        "undated_rows": timeline.undated,
        "per_period": periods,
    }


def _turn(told: Told, incumbent: Incumbent, base: FittedModel, upto: NDArray[np.bool_]) -> Turn:
    """One turn of learning on the rows so far."""
    at = np.flatnonzero(upto)
    part = Incumbent(
        incumbent.recipe.take(at), incumbent.seen[at], incumbent.rows, incumbent.first,
    )  # fmt: skip
    return turn(
        told.data.take(at), part, base, np.ones(len(at)), rng=np.random.default_rng(0),
        relabel=relabeller(lambda i: told.scenarios[at[i]]),
    )  # fmt: skip


def _next(incumbent: Incumbent, took: Turn, upto: NDArray[np.bool_]) -> Incumbent:
    """Who answers after a turn."""
    if not took.verdict.promoted:
        return incumbent
    at = np.flatnonzero(upto)
    weight, seen = np.zeros(len(upto)), np.zeros(len(upto), dtype=bool)
    weight[at], seen[at] = took.recipe.weight, ~took.held
    return Incumbent(
        replace(took.recipe, weight=weight), seen, int(np.count_nonzero(weight)), first=False,
    )  # fmt: skip


def _put(into: Answered, recipe: Recipe, data: TrainingSet, rows: NDArray[np.int64]) -> None:
    found = answer(recipe.model(data), data.take(rows))[DECISION_HEAD]
    into.y[rows], into.log[rows] = found.y, found.log
    into.prior[rows], into.informed[rows] = found.prior, found.informed


def _figures(answered: Answered) -> dict[str, float]:
    found = figures(answered)
    return {"mape": found.mape, "coverage": found.coverage, "log_width": found.log_width}


def _mean(periods: Sequence[dict[str, Any]], key: str) -> float:
    return float(np.nanmean([p[key] for p in periods]))


def _said(took: Turn) -> dict[str, Any]:
    """What a turn said, for the document."""
    return {
        "promoted": took.verdict.promoted,
        "reason": took.verdict.reason,
        "criteria": took.verdict.criteria,
        "held_rows": int(took.held.sum()),
        "held_for": [f"{s.kind} {s.level}".strip() for s in took.screened],
        "alarms": [
            {"head": s.head, "kind": s.kind, "level": s.level, "ratio": s.ratio,
             "outside": s.above + s.below, "again": s.again}
            for s in took.alarms
        ],
        "scale": took.recipe.scales.get(DECISION_HEAD),
        "width": took.recipe.widths.get(DECISION_HEAD),
    }  # fmt: skip


def _falsified(
    timeline: Timeline, told: Told, incumbent: Incumbent, base: FittedModel, t: int
) -> dict[str, Any]:
    """What one turn does about a month of false rows, and what they would have cost."""
    upto, new = timeline.period <= t, timeline.period == t
    took = _turn(told, incumbent, base, upto)
    held = took.held[new[upto]]
    noticed = [
        name
        for name, so in (
            ("screen", bool(held.any())),
            ("gate", not took.verdict.promoted),
            ("drift watch", bool(took.alarms)),
        )
        if so
    ]
    return {
        "noticed_by": noticed,
        "kept_out": float(held.mean()) >= KEPT_OUT_FRAC or not took.verdict.promoted,
        "held_rows": int(held.sum()),
        "reason": took.verdict.reason,
    }


def falsified(true: Told, rows: NDArray[np.bool_], catalog: Catalog) -> dict[str, Told]:
    """Some rows (n,) told falsely: their speeds, their GPU kinds, both."""
    exchanged = swapped(true, rows, catalog)
    return {
        "scaled": scaled(true, rows), "swapped": exchanged, "both": scaled(exchanged, rows),
    }  # fmt: skip


def scaled(told: Told, rows: NDArray[np.bool_]) -> Told:
    """Some rows (n,) told ``SCALED_BY`` times as fast as they were."""
    labels = {}
    for name, label in told.data.labels.items():
        sign = 1.0 if name.endswith("per_s") else -1.0 if name.endswith("_s") else 0.0
        labels[name] = np.where(rows, label + sign * np.log(SCALED_BY), label)
    return replace(told, data=replace(told.data, labels=labels))


def swapped(told: Told, rows: NDArray[np.bool_], catalog: Catalog) -> Told:
    """Some rows (n,) with their GPU kinds exchanged, slower ones for faster ones."""
    frame = told.data.frame
    bandwidth = {
        str(kind): float(frame["bandwidth"][frame.category("gpu_kind") == kind][0])
        for kind in np.unique(frame.category("gpu_kind"))
    }
    kinds = sorted(bandwidth, key=lambda kind: (bandwidth[kind], kind))
    slow, fast = kinds[: len(kinds) // 2], kinds[len(kinds) // 2 :]
    other = {kind: fast[i] for i, kind in enumerate(slow)}
    other |= {kind: slow[i % len(slow)] for i, kind in enumerate(fast) if slow}
    scenarios = list(told.scenarios)
    for i in np.flatnonzero(rows).tolist():
        kind = other.get(scenarios[i].gpu.kind)
        if kind is not None:
            scenarios[i] = replace(scenarios[i], gpu=catalog.gpu(kind))
    return Told(replace(told.data, frame=build_frame(scenarios)), tuple(scenarios))
