"""Fitting the whole cost model: prior, residual layers, spreads, offsets and envelope.

The same function trains the shipped bundle, a site's bundle and every fold of an evaluation.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np

from omnipilot.costmodel.deviation import Deviation
from omnipilot.costmodel.envelope import Envelope
from omnipilot.costmodel.fitted import ANY_SOURCE, FittedHead, FittedModel
from omnipilot.costmodel.folds import group_folds
from omnipilot.costmodel.heads import HEADS, MIN_LABELLED_ROWS, Head, lead_labels
from omnipilot.costmodel.hyperparameters import Hyperparameters, tune, tune_sources
from omnipilot.costmodel.informed import NewKinds, calibrate_informed
from omnipilot.costmodel.kernel import KernelPlaces
from omnipilot.costmodel.new_kind import CATEGORY
from omnipilot.costmodel.novelty import CLASS_NAMES, NOVELTY, SEEN
from omnipilot.costmodel.physics import throughput_ceiling
from omnipilot.costmodel.physics_fit import PhysicsParameters, fit_physics
from omnipilot.costmodel.residual import GaussianLayer
from omnipilot.costmodel.spread import MIN_SOURCE_ROWS, fit_spread
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.novelty import NoveltyClass

# Log prior and residual layer of n rows (n,), held out together with their group.
Parts = tuple["NDArray[np.float64]", "NDArray[np.float64]"]
N_GLOBAL = 600
N_SOURCE = 2400
HELD_OUT_N_SOURCE = 1600  # finer inducing points help rows with near neighbours, which these lack
FOLDS = {"source": 9}  # every public source alone; the other classes in five folds
DEFAULT_FOLDS = 5
REFIT_ITERATIONS = 4
LAYER_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SHARE_GROUPS = 5  # held-out groups from which a source says itself how much of the layer to believe
# A row this far above the ceiling is physically impossible (COSTMODEL §2).
CEILING_MARGIN_LOG = float(np.log(1.3))


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Rows to learn from.

    ``labels`` maps every target to the natural log of its label (n,), NaN where missing; ``cells``
    names each row's workload cell (n,); ``weight`` (n,).
    """

    frame: Frame
    labels: dict[str, NDArray[np.float64]]
    cells: NDArray[np.str_]
    weight: NDArray[np.float64]

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> TrainingSet:
        """Rows selected by ``index``."""
        return TrainingSet(
            frame=self.frame.take(index),
            labels={k: v[index] for k, v in self.labels.items()},
            cells=self.cells[index],
            weight=self.weight[index],
        )

    def groups(self, novelty: NoveltyClass) -> NDArray[np.str_]:
        """Group of each row in a novelty class: its cell, model, family, GPU kind or source."""
        return self.frame.category(novelty.category) if novelty.category else self.cells


class Kept(Protocol):
    """Where folds of a fit are kept, so that one that is cut takes up where it stopped."""

    def load(self, name: str) -> Mapping[str, NDArray[np.float64]] | None:
        """What :meth:`save` was given under this name, or None."""
        ...

    def save(self, name: str, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Keep one fold's arrays."""
        ...


def screen(frame: Frame, labels: Mapping[str, NDArray[np.float64]]) -> NDArray[np.bool_]:
    """Rows whose output rate is physically impossible, (n,)."""
    output = lead_labels(frame, labels)["output_tokens_per_s"]
    with np.errstate(invalid="ignore"):
        return np.asarray(output > throughput_ceiling(frame) + CEILING_MARGIN_LOG)


def fit_cost_model(
    data: TrainingSet,
    *,
    heads: Sequence[Head] = HEADS,
    classes: Sequence[str] = CLASS_NAMES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    kept: Kept | None = None,
    workers: int = 1,
) -> FittedModel:
    """Fit the cost model.

    Args:
        data: screened rows with status ok.
        heads: the heads to fit; a head with fewer than 15 labelled rows is left to the prior.
        classes: novelty classes to calibrate.
        seed: the same rows and seed give the same model, bit for bit, on one kind of processor.
        progress: told in words what is being done.
        kept: folds of the same fit that was cut; nothing is kept where None.
        workers: folds, or subsets of the rows, that are worked on at once, in threads; their
            number changes no result.
    """
    labels = lead_labels(data.frame, data.labels)
    progress("physics prior")
    physics = fit_physics(data.frame, labels, data.weight)
    fitted: dict[str, FittedHead] = {}
    seen: dict[str, Parts] = {}
    tuned: dict[str, Hyperparameters] = {}
    used = [h for h in heads if np.isfinite(labels[h.lead]).sum() >= MIN_LABELLED_ROWS]
    for head in used:
        progress(f"residual layer: {head.name}")
        rows = np.flatnonzero(np.isfinite(labels[head.lead]))
        frame = data.frame.take(rows)
        prior = physics.evaluate(frame)
        residual = labels[head.lead][rows] - prior.log[head.lead]
        rng = np.random.default_rng([seed, HEADS.index(head)])
        shared = tune(frame, prior, residual, rng, workers=workers)
        tuned[head.name] = tune_sources(shared, frame, prior, residual)
        layer, left_out = GaussianLayer.fit_left_out(
            frame, prior, residual, data.weight[rows], tuned[head.name], data.cells[rows],
            n_global=N_GLOBAL, n_source=N_SOURCE, rng=rng,
        )  # fmt: skip
        tuned[head.name] = layer.hyper
        fitted[head.name] = FittedHead(head, layer, {}, {}, {}, len(rows))
        if len(np.unique(data.cells[rows])) > 1:
            seen[head.name] = _spread_out(data.frame.n, rows, prior.log[head.lead], left_out)
    for novelty in NOVELTY:
        if novelty.name not in classes:
            continue
        # A few cells more or less do not move a few hundred shrunk parameters nor the choice of
        # inducing points: cells are left out in closed form.
        parts = seen if novelty.name == SEEN else _held_out_parts(
            data, labels, used, novelty, physics, tuned, seed, progress, kept, workers
        )  # fmt: skip
        for head in used:
            if head.name not in parts:
                continue
            held_prior, layer_part = parts[head.name]
            rows = np.flatnonzero(np.isfinite(labels[head.lead]) & np.isfinite(held_prior))
            if len(rows) < MIN_LABELLED_ROWS:
                continue
            beyond = labels[head.lead][rows] - held_prior[rows]
            frame = data.frame.take(rows)
            groups = data.groups(novelty)[rows]
            home = fitted[head.name]
            home.shares[novelty.name] = {ANY_SOURCE: 0.0}
            if novelty.layered:
                home.shares[novelty.name] = layer_shares(
                    beyond, layer_part[rows], frame.category("source"), groups
                )
            error = beyond - home.share(novelty.name, frame) * layer_part[rows]
            at = physics.evaluate(frame)
            home.spreads[novelty.name] = fit_spread(
                frame, at, error, groups,
                novelty.withheld + head.withheld, by_source=novelty.name == SEEN, seed=seed,
            )  # fmt: skip
            rng = np.random.default_rng(seed)
            deviation = Deviation.fit(frame, at, error, novelty.category, rng, workers)
            home.deviations[novelty.name] = calibrate_informed(
                deviation, home.spreads[novelty.name], frame, at, error,
                _sites(frame, novelty), rng,
                NewKinds(physics, head.lead) if novelty.category == CATEGORY else None,
            )  # fmt: skip
    # A head whose spread could not be calibrated in any class is left to the prior.
    fitted = {name: head for name, head in fitted.items() if head.spreads}
    return FittedModel(physics=physics, heads=fitted, envelope=Envelope.from_frame(data.frame))


def _held_out_parts(
    data: TrainingSet,
    labels: Mapping[str, NDArray[np.float64]],
    heads: Sequence[Head],
    novelty: NoveltyClass,
    physics: PhysicsParameters,
    tuned: Mapping[str, Hyperparameters],
    seed: int,
    progress: Callable[[str], None],
    kept: Kept | None,
    workers: int,
) -> dict[str, Parts]:
    """Log prior and residual layer of every row (n,) each, from fits without its group.

    NaN where the head has no label.
    """
    n = data.frame.n
    folds = FOLDS.get(novelty.name, DEFAULT_FOLDS)
    fold = group_folds(data.groups(novelty), folds, np.random.default_rng(seed))
    parts = {head.name: (np.full(n, np.nan), np.full(n, np.nan)) for head in heads}
    folds = int(fold.max()) + 1

    def held_out(k: int) -> tuple[Mapping[str, NDArray[np.float64]], bool]:
        found = kept.load(f"{novelty.name}-{k}") if kept else None
        if found is not None:
            return found, True
        told = tuned if novelty.layered else {}
        done = _held_out_fold(data, labels, heads, fold == k, physics, told, [seed, k])
        if kept:
            kept.save(f"{novelty.name}-{k}", done)
        return done, False

    pool = ThreadPoolExecutor(workers)
    try:
        found = pool.map(held_out, range(folds if folds > 1 else 0))
        for k in range(folds if folds > 1 else 0):
            step = f"calibration: unseen {novelty.category}, fold {k + 1} of {folds}"
            progress(step)
            done, was_kept = next(found)
            if was_kept:
                progress(f"{step} (kept)")
            for head in heads:
                rows = np.flatnonzero((fold == k) & np.isfinite(labels[head.lead]))
                for array, part in zip(parts[head.name], ("prior", "layer"), strict=True):
                    if f"{head.name}-{part}" in done:
                        array[rows] = done[f"{head.name}-{part}"]
    finally:
        pool.shutdown(cancel_futures=True)
    return parts


def _held_out_fold(
    data: TrainingSet,
    labels: Mapping[str, NDArray[np.float64]],
    heads: Sequence[Head],
    test: NDArray[np.bool_],
    physics: PhysicsParameters,
    tuned: Mapping[str, Hyperparameters],
    seed: Sequence[int],
) -> dict[str, NDArray[np.float64]]:
    """Log prior and residual layer of the labelled test rows, by a fit on the others.

    Named "HEAD-prior" and "HEAD-layer"; a head with too few rows has neither. The layer of a head
    that is not among the ``tuned`` ones says nothing.
    """
    done: dict[str, NDArray[np.float64]] = {}
    train = ~test
    # Whole models, GPU kinds and sources move the prior; a few steps from the full fit find
    # where to.
    refit = fit_physics(
        data.frame.take(train), {t: v[train] for t, v in labels.items()},
        data.weight[train], physics, iterations=REFIT_ITERATIONS,
    )  # fmt: skip
    for head in heads:
        known = np.isfinite(labels[head.lead])
        a, b = np.flatnonzero(train & known), np.flatnonzero(test & known)
        if len(a) < MIN_LABELLED_ROWS or len(b) == 0:
            continue
        frame, frame_test = data.frame.take(a), data.frame.take(b)
        prior_test = refit.evaluate(frame_test)
        done[f"{head.name}-prior"] = prior_test.log[head.lead]
        done[f"{head.name}-layer"] = np.zeros(len(b))
        if head.name not in tuned:
            continue
        prior = refit.evaluate(frame)
        layer = GaussianLayer.fit(
            frame, prior, labels[head.lead][a] - prior.log[head.lead], data.weight[a],
            tuned[head.name], n_global=N_GLOBAL, n_source=HELD_OUT_N_SOURCE,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        places = KernelPlaces.from_frame(frame_test, prior_test)
        done[f"{head.name}-layer"] = layer.predict(frame_test, places, similarity=False)[0]
    return done


def _spread_out(n: int, rows: NDArray[np.int64], *parts: NDArray[np.float64]) -> Parts:
    """Two arrays over some rows as arrays over all n, NaN elsewhere."""
    prior, layer = np.full(n, np.nan), np.full(n, np.nan)
    prior[rows], layer[rows] = parts
    return prior, layer


def _sites(frame: Frame, novelty: NoveltyClass) -> NDArray[np.str_]:
    """The simulated site of each row: its source, with its model or what the class holds out."""
    if novelty.category == "source":
        return frame.category("source")
    inner = frame.category(novelty.category or "model")
    return np.char.add(np.char.add(frame.category("source"), "|"), inner).astype(np.str_)


def layer_shares(
    beyond: NDArray[np.float64],
    layer: NDArray[np.float64],
    source: NDArray[np.str_],
    groups: NDArray[np.str_],
) -> dict[str, float]:
    """How much of the layer's answer to believe in a class: the share with the least mean error.

    Args:
        beyond: log label − log prior of held-out rows (n,).
        layer: what the residual layer said of them (n,).
        source: their source (n,).
        groups: the group that was held out with each row (n,).

    Returns:
        The share of each source with rows (``MIN_SOURCE_ROWS``) and groups (``SHARE_GROUPS``)
        enough to tell, and under "" that of any other.
    """

    def best(rows: NDArray[np.bool_]) -> float:
        losses = [np.abs(beyond[rows] - share * layer[rows]).mean() for share in LAYER_SHARES]
        return LAYER_SHARES[int(np.argmin(losses))]

    shares = {ANY_SOURCE: best(np.ones(len(beyond), dtype=bool))}
    for name in np.unique(source):
        mine = source == name
        if (
            np.count_nonzero(mine) >= MIN_SOURCE_ROWS
            and len(np.unique(groups[mine])) >= SHARE_GROUPS
        ):
            shares[str(name)] = best(mine)
    return shares
