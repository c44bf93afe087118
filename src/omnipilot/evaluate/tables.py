"""The tables of a report, each one entry of :data:`TABLES`; their numbers go to CSV as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE
from omnipilot.costmodel.features import FEATURES, ONE_HOT
from omnipilot.costmodel.heads import HEAD_OF_TARGET, MIN_LABELLED_ROWS
from omnipilot.costmodel.novelty import NOVELTY
from omnipilot.decide.launch_rates import SENSITIVITY_STRENGTHS, shrinkage_sensitivity
from omnipilot.decide.priors import LaunchCounts
from omnipilot.domain.errors import OmniPilotError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.targets import TARGETS
from omnipilot.evaluate.ablations import ABLATIONS
from omnipilot.evaluate.holdout import CLASS_OF_SPLIT, ROWS
from omnipilot.evaluate.material import THROUGHPUTS, NotComputedError
from omnipilot.evaluate.metrics import errors
from omnipilot.evaluate.recalibration import RECALIBRATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from omnipilot.evaluate.holdout import HeldOut
    from omnipilot.evaluate.material import Material

Cell = str | float | int | None
# How a column is written: text as it is, counts, shares in percent, other numbers.
TEXT, COUNT, SHARE, NUMBER = "text", "count", "share", "number"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns (name, how it is written); ``note`` is said below."""

    columns: tuple[tuple[str, str], ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One table: ``paper`` names its counterpart there, ``command`` a shorter way to its numbers.

    ``{rows}`` in the command stands for the options that name the rows.
    """

    name: str
    title: str
    paper: str
    build: Callable[[Material], Table]
    command: str = ""


_ERROR_COLUMNS: Final = (
    ("rows", COUNT), ("MAPE", SHARE), ("median APE", SHARE), ("R² log", NUMBER),
    ("coverage", SHARE), ("log width", NUMBER),
)  # fmt: skip


def _error_cells(held: HeldOut, keep: np.ndarray[Any, Any] | None = None) -> list[Cell]:
    rows = np.arange(len(held.y)) if keep is None else np.flatnonzero(keep)
    e = errors(held.y[rows], held.log[rows])
    return [e.n, e.mape, e.median_ape, e.r2_log, e.coverage, e.mean_log_width]


def _missing(name: str, reason: str) -> list[Cell]:
    return [name, *[None] * len(_ERROR_COLUMNS), reason]


def _tried(rows: Iterable[tuple[str, Callable[[], HeldOut | None]]]) -> list[list[Cell]]:
    """One row of errors each; a row that cannot be had carries its reason."""
    out = []
    for name, ask in rows:
        try:
            held = ask()
        except OmniPilotError as error:
            out.append(_missing(name, str(error)))
            continue
        if held is not None:
            out.append([name, *_error_cells(held), ""])
    return out


def target_errors(m: Material) -> Table:
    """Errors of every target with the workload cells held out."""
    answers: list[tuple[str, Callable[[], HeldOut | None]]] = [
        (t, lambda t=t: m.as_target(m.cells, m.throughput, t))  # type: ignore[misc]
        for t in THROUGHPUTS
    ]
    labelled = m.dataset.data.labels
    answers += [
        (t, lambda t=t: m.held(t))  # type: ignore[misc]
        for t in HEAD_OF_TARGET
        if t not in THROUGHPUTS and np.isfinite(labelled[t]).sum() >= MIN_LABELLED_ROWS
    ]
    return Table(
        (("target", TEXT), *_ERROR_COLUMNS, ("why missing", TEXT)),
        _tried(answers),
        "Each fold fits the whole pipeline without the held-out workload cells.",
    )


def novelty_errors(m: Material) -> Table:
    """Throughput errors where cells, models, families, GPU kinds or sources are new."""
    rows = _tried(
        (split, lambda split=split: m.held(m.throughput, split))  # type: ignore[misc]
        for split in CLASS_OF_SPLIT
    )
    return Table((("held out", TEXT), *_ERROR_COLUMNS, ("why missing", TEXT)), rows)


def family_errors(m: Material) -> Table:
    """Throughput errors of each family that was left out, and whether it was flagged."""
    held = m.held(m.throughput, "family")
    families = m.dataset.data.frame.category("family")[held.index]
    rows = []
    for family in np.unique(families):
        mine = families == family
        low = float(np.mean(held.confidence[mine] == "low"))
        rows.append([str(family), *_error_cells(held, mine), low])
    return Table((("family", TEXT), *_ERROR_COLUMNS, ("flagged low", SHARE)), rows)


def confidence_errors(m: Material) -> Table:
    """Throughput errors under each confidence label."""
    rows: list[list[Cell]] = []
    for split in CLASS_OF_SPLIT:
        try:
            held = m.cells if split == "cell" else m.held(m.throughput, split)
        except OmniPilotError:
            continue
        for label in ("high", "medium", "low"):
            mine = held.confidence == label
            if mine.any():
                rows.append([split, label, *_error_cells(held, mine)])
    return Table((("held out", TEXT), ("label", TEXT), *_ERROR_COLUMNS), rows)


def coverage(m: Material) -> Table:
    """Coverage of raw quantiles and of intervals calibrated in several ways."""
    grouped = m.cells
    cells = m.dataset.data.cells[grouped.index]
    try:
        random = m.held(m.throughput, calibrated_on=ROWS)
    except NotComputedError:
        random = None
    rows: list[list[Cell]] = []
    for way in RECALIBRATIONS:
        if way.needs_random_rows and random is None:
            rows.append([way.name, None, None, way.meaning])
            continue
        low, high = way.interval(grouped, cells, random)
        inside = (grouped.y >= low) & (grouped.y <= high)
        rows.append([way.name, float(inside.mean()), float((high - low).mean()), way.meaning])
    return Table(
        (("interval", TEXT), ("coverage", SHARE), ("log width", NUMBER), ("what it is", TEXT)),
        rows,
        f"Nominal {NOMINAL_COVERAGE:.0%}, judged on held-out workload cells.",
    )


def ablations(m: Material) -> Table:
    """Throughput errors when one thing is hidden from the whole pipeline."""
    answers: list[tuple[str, Callable[[], HeldOut | None]]] = [("nothing hidden", lambda: m.cells)]
    answers += [
        (a.meaning, lambda a=a: m.held(m.throughput, "cell", a.hide(m.dataset)))  # type: ignore[misc]
        for a in ABLATIONS
    ]
    rows = _tried(answers)
    alone = np.repeat(m.cells.prior[:, None], 5, axis=1)
    e = errors(m.cells.y, alone)
    rows.append(
        ["the learned residual: physics alone", e.n, e.mape, e.median_ape, e.r2_log, None, None, ""]
    )
    return Table((("hidden", TEXT), *_ERROR_COLUMNS, ("why missing", TEXT)), rows)


def label_counts(m: Material) -> Table:
    """Labelled rows of every target and what answers it."""
    rows: list[list[Cell]] = []
    for target in TARGETS:
        n = int(np.isfinite(m.dataset.data.labels[target.name]).sum())
        head = HEAD_OF_TARGET.get(target.name)
        fitted = head is not None and n >= MIN_LABELLED_ROWS
        answer = f"learned, head {head.name}" if fitted and head is not None else "prior alone"
        rows.append([target.name, target.unit, n, answer])
    note = f"A target is learned from {MIN_LABELLED_ROWS} labelled rows up."
    columns = (("target", TEXT), ("unit", TEXT), ("labelled rows", COUNT), ("answered by", TEXT))
    return Table(columns, rows, note)


def withheld_features(m: Material) -> Table:
    """Features that a spread must not see, by class of what is new."""
    del m
    rows: list[list[Cell]] = [
        [f"new {c.name}" if c.category else "seen", ", ".join(c.withheld)] for c in NOVELTY
    ]
    heads = {head.name: head for head in HEAD_OF_TARGET.values() if head.withheld}
    rows += [[f"head {name}", ", ".join(head.withheld)] for name, head in heads.items()]
    note = f"Of {len(FEATURES)} numeric features and {len(ONE_HOT)} one-hot categories."
    return Table((("where", TEXT), ("withheld", TEXT)), rows, note)


def models(m: Material) -> Table:
    """Models of the tested rows."""
    frame = m.dataset.data.frame
    tested = m.cells.index
    names = frame.category("model")[tested]
    rows: list[list[Cell]] = []
    for name in np.unique(names):
        mine = tested[names == name]
        arms = {
            (frame.codes["gpu_kind"][i], frame["n_gpus"][i], frame.codes["precision"][i])
            for i in mine
        }
        rows.append(
            [str(name), str(frame.category("family")[mine[0]]),
             float(frame["params"][mine[0]] / 1e9), len(mine),
             len(np.unique(m.dataset.data.cells[mine])), len(arms)]
        )  # fmt: skip
    columns = (("model", TEXT), ("family", TEXT), ("parameters, 1e9", NUMBER), ("rows", COUNT),
               ("cells", COUNT), ("arms", COUNT))  # fmt: skip
    return Table(columns, rows)


def shrinkage(m: Material) -> Table:
    """Launch success by configuration under weaker and stronger shrinkage."""
    if not m.site.launches:
        raise NotComputedError("no launches on record: collect the cluster's jobs")
    counts = {
        name: LaunchCounts(min(good, tried), tried)
        for name, (good, tried) in m.site.launches.items()
    }
    rates = shrinkage_sensitivity(counts)
    rows: list[list[Cell]] = [
        [name, counts[name].attempts, counts[name].successes / counts[name].attempts, *rates[name]]
        for name in counts
    ]
    columns = (("configuration", TEXT), ("launches", NUMBER), ("as counted", SHARE),
               *((f"strength {s:g}", SHARE) for s in SENSITIVITY_STRENGTHS))  # fmt: skip
    return Table(columns, rows, "Strength: how many launches the pooled rate is worth.")
