"""Measured rows as a training set: resolved, screened, counted."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.collect import collect_csv, find_tables
from omnipilot.costmodel.fit import TrainingSet, screen
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.errors import BadInputError, UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import InferenceRun
from omnipilot.domain.targets import TARGET_NAMES
from omnipilot.learn.contradiction import contradictory
from omnipilot.store import cell_of, is_usable, label_matrix

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from omnipilot.catalog import Catalog
    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.scenario import Scenario


# GPU counts that a source writes squared, by source and GPU name: its n_gpus is tensor-parallel
# times expert- or attention-parallel degree, which are the same GPUs. All 66 runs that
# inferencex_silicon has under two counts on 8-GPU nodes have n and n².
SQUARED_GPUS: Final[dict[tuple[str, str], dict[int, int]]] = {
    ("inferencex_silicon", gpu): {16: 4, 64: 8} for gpu in ("H100", "H200", "B200", "B300")
}
# Rows so noted ran prefill and decode in separate engines: none of them is an arm of one engine.
SEVERAL_ENGINES = "disaggregated"


@dataclass(frozen=True, slots=True)
class Excluded:
    """Rows left out of a training set, by reason."""

    not_ok: int = 0
    duplicate: int = 0
    unresolved: int = 0
    rejected: int = 0
    physically_impossible: int = 0
    no_label: int = 0
    several_engines: int = 0
    contradictory: int = 0

    @property
    def total(self) -> int:
        """All rows left out."""
        return sum(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """Rows by reason, of those that there are."""
        return {reason: n for reason, n in asdict(self).items() if n}


class NoUsableRowError(BadInputError):
    """Every row was left out; ``excluded`` counts why."""

    def __init__(self, excluded: Excluded) -> None:
        self.excluded = excluded
        super().__init__("no usable measured row: nothing to learn from")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A training set, the runs behind its rows (same order) and what was left out."""

    data: TrainingSet
    runs: tuple[InferenceRun, ...]
    excluded: Excluded
    screened_by_source: dict[str, int]


def read_runs(folder: Path) -> list[InferenceRun | Rejection]:
    """Read every normalised table of a data folder, in file order.

    A table of several sources has only the columns that they share: the rows of a source that has
    a table of its own beside it, ``SOURCE/normalised.csv``, are read from there.

    Raises:
        BadInputError: the folder holds no table.
    """
    tables = find_tables(folder)
    own = {
        t.parent.name: t for end in ("csv", "csv.gz") for t in folder.glob(f"*/normalised.{end}")
    }
    if not set(tables).isdisjoint(own.values()):
        own = {}  # no stack of them: they are read as they are
    items: list[InferenceRun | Rejection] = []
    read: set[str] = set()
    for item in chain.from_iterable(map(collect_csv, tables)):
        source = item.source if isinstance(item, InferenceRun) else ""
        if source not in own:
            items.append(item)
        elif source not in read:
            read.add(source)
            items += collect_csv(own[source])
    return items


def _setting(run: InferenceRun, scenario: Scenario) -> str:
    """What was run, with the model by its structure: R1 and V3 are one architecture."""
    m = scenario.model
    structure = (m.architecture, m.n_layers, m.hidden_size, m.total_params, m.active_params)
    return f"{replace(run, labels={}, model='', notes='', engine_settings='')}{structure}"


def as_meant(run: InferenceRun) -> InferenceRun:
    """The run with its GPU count as its source means it; the run itself where that is what it says.

    See ``SQUARED_GPUS``.
    """
    squared = SQUARED_GPUS.get((run.source, run.gpu), {})
    return replace(run, n_gpus=squared[run.n_gpus]) if run.n_gpus in squared else run


def build_dataset(items: Iterable[InferenceRun | Rejection], catalog: Catalog) -> Dataset:
    """Resolve and screen measured rows, with GPU counts as their source means them.

    Left out and counted: failed runs, names without a catalogue entry, rows without any label,
    repeats (an earlier row of the same setting has these labels, be it under another name of the
    same architecture), deployments of several engines, rows whose output rate is physically
    impossible (COSTMODEL §2), and rows whose numbers contradict each other.

    Raises:
        NoUsableRowError: no usable row is left.
    """
    builder = ScenarioBuilder(catalog)
    runs: list[InferenceRun] = []
    scenarios: list[Scenario] = []
    seen: dict[str, list[dict[str, float]]] = {}
    counts = dict.fromkeys(
        ("not_ok", "duplicate", "unresolved", "rejected", "no_label", "several_engines"), 0
    )
    for item in items:
        if not isinstance(item, InferenceRun):
            counts["rejected"] += 1
            continue
        if not is_usable(item):
            counts["not_ok"] += 1
            continue
        if not item.labels:
            counts["no_label"] += 1
            continue
        item = as_meant(item)  # noqa: PLW2901 - the same run
        if SEVERAL_ENGINES in item.notes:
            counts["several_engines"] += 1
            continue
        try:
            scenario = builder.scenario(item)
        except UsageError:
            counts["unresolved"] += 1
            continue
        told = seen.setdefault(_setting(item, scenario), [])
        if any(item.labels.items() <= labels.items() for labels in told):
            counts["duplicate"] += 1
            continue
        told.append(item.labels)
        scenarios.append(scenario)
        runs.append(item)
    if not runs:
        raise NoUsableRowError(Excluded(**counts))
    frame = build_frame(scenarios)
    table = label_matrix(runs)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.where(table > 0, table, np.nan))
    labels = {name: logs[:, j] for j, name in enumerate(TARGET_NAMES)}
    cells = np.asarray(
        [cell_of(run, s.model.base_id) for run, s in zip(runs, scenarios, strict=True)]
    )
    impossible = screen(frame, labels)
    sources = frame.category("source")
    by_source = {
        str(s): int(np.count_nonzero(impossible & (sources == s)))
        for s in np.unique(sources[impossible])
    }
    contradicting = contradictory(frame, labels) & ~impossible
    keep = np.flatnonzero(~impossible & ~contradicting)
    data = TrainingSet(frame=frame, labels=labels, cells=cells, weight=np.ones(frame.n)).take(keep)
    excluded = Excluded(
        physically_impossible=int(impossible.sum()),
        contradictory=int(contradicting.sum()),
        **counts,
    )
    return Dataset(data, tuple(runs[i] for i in keep), excluded, by_source)
