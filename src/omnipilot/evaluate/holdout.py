"""Held-out evaluation of the pipeline that ships: fit without a group, predict it.

Every fold fits the whole cost model (prior, hyper-parameters, residual layer, spread, offsets) on
the rows of all sources without the test groups; nothing about a test row enters its fit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE
from omnipilot.costmodel.fit import fit_cost_model
from omnipilot.costmodel.folds import group_folds
from omnipilot.costmodel.heads import HEAD_OF_TARGET
from omnipilot.costmodel.novelty import NOVELTY, SEEN
from omnipilot.domain.errors import UsageError
from omnipilot.evaluate.metrics import errors
from omnipilot.evaluate.rowsets import row_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from omnipilot.costmodel.fit import TrainingSet
    from omnipilot.learn.dataset import Dataset

CLASS_OF_SPLIT = {"cell": SEEN, "model": "model", "family": "family", "gpu": "gpu",
                  "source": "source"}  # fmt: skip
FOLDS = {"cell": 5, "model": 5, "family": 5, "gpu": 8, "source": 9}
ALL = "all"


@dataclass(frozen=True, slots=True)
class Holdout:
    """Which rows are tested: sources ("all" for every one), engine and vendor, and the split."""

    target: str
    split: str
    sources: tuple[str, ...] = (ALL,)
    engine: str = ""
    vendor: str = ""
    seed: int = 0

    def mask(self, data: TrainingSet) -> NDArray[np.bool_]:
        """Rows of the test filter that carry the target's label (n,).

        Raises:
            UsageError: a source, engine or vendor that no row has, or no labelled row at all.
        """
        frame = data.frame
        keep = np.isfinite(data.labels[self.target])
        wanted = () if self.sources == (ALL,) else self.sources
        for category, values in (
            ("source", wanted),
            ("engine", (self.engine,) if self.engine else ()),
            ("gpu_vendor", (self.vendor,) if self.vendor else ()),
        ):
            if not values:
                continue
            unknown = sorted(set(values) - set(frame.levels[category]))
            if unknown:
                raise UsageError(
                    f"no row has {category.replace('_', ' ')} '{unknown[0]}': "
                    f"say one of {', '.join(frame.levels[category])}"
                )
            keep &= np.isin(frame.category(category), values)
        if not keep.any():
            raise UsageError(f"no row of this filter has a label of {self.target}")
        return keep


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Out-of-fold answers for the tested rows.

    ``index`` rows of the dataset (n,); ``y`` log labels (n,); ``log`` log q10, q50, q90, lower,
    upper (n, 5); ``prior`` the log of the physics prior alone (n,); ``confidence`` labels (n,).
    """

    index: NDArray[np.int64]
    y: NDArray[np.float64]
    log: NDArray[np.float64]
    prior: NDArray[np.float64]
    confidence: NDArray[np.str_]
    n_folds: int


def hold_out(
    dataset: Dataset, question: Holdout, progress: Callable[[str], None] = lambda _: None
) -> HeldOut:
    """Predict every tested row by a model that never saw its group.

    Raises:
        UsageError: the target is answered by the prior alone, or nothing matches the filter.
    """
    head = HEAD_OF_TARGET.get(question.target)
    if head is None:
        raise UsageError(
            f"{question.target} has no label in these rows: it is answered by the prior alone"
        )
    data = dataset.data
    tested = question.mask(data)
    novelty = next(n for n in NOVELTY if n.name == CLASS_OF_SPLIT[question.split])
    groups = data.groups(novelty)
    of_test = np.unique(groups[tested])
    if len(of_test) < 2:
        raise UsageError(f"only one {question.split} in these rows: nothing to hold out against")
    rng = np.random.default_rng(question.seed)
    fold = np.full(data.frame.n, -1, dtype=np.int64)
    involved = np.isin(groups, of_test)
    fold[involved] = group_folds(groups[involved], FOLDS[question.split], rng)
    n_folds = int(fold.max()) + 1
    index = np.flatnonzero(tested)
    log = np.full((data.frame.n, 5), np.nan)
    prior_log = np.full(data.frame.n, np.nan)
    confidence = np.full(data.frame.n, "low", dtype="<U6")
    for k in range(n_folds):
        test = np.flatnonzero(tested & (fold == k))
        if len(test) == 0:
            continue
        progress(f"fold {k + 1} of {n_folds}: {len(test):,} rows")
        model = fit_cost_model(
            data.take(fold != k), heads=(head,), classes=(novelty.name,), seed=question.seed
        )
        frame = data.frame.take(test)
        prior = model.physics.evaluate(frame)
        residual, _, similarity = model.log_quantiles(frame, prior, head.name)
        prior_log[test] = prior.log[question.target]
        log[test] = prior.log[question.target][:, None] + residual
        confidence[test] = [v.confidence for v in model.envelope.support(frame, similarity)]
    y = data.labels[question.target][index]
    return HeldOut(index, y, log[index], prior_log[index], confidence[index], n_folds)


def report(dataset: Dataset, question: Holdout, held: HeldOut) -> dict[str, Any]:
    """Figures of a held-out evaluation, as printed by ``omnipilot evaluate``.

    The main figures are of the named row set where the filter has one; ``all_rows`` then holds the
    whole filter.
    """
    frame = dataset.data.frame.take(held.index)
    named = row_set(question.sources, question.engine)
    keep = named.mask(frame) if named is not None else np.ones(frame.n, dtype=bool)
    novelty = next(n for n in NOVELTY if n.name == CLASS_OF_SPLIT[question.split])
    groups = dataset.data.groups(novelty)[held.index]
    shown = frame.category("model") if question.split == "cell" else groups
    main = asdict(errors(held.y[keep], held.log[keep]))
    per_group = {
        str(g): asdict(errors(held.y[rows], held.log[rows]))
        for g in np.unique(shown[keep])
        for rows in [np.flatnonzero(keep & (shown == g))]
    }
    covered = [g["coverage"] for g in per_group.values()]
    regimes = {
        label: asdict(errors(held.y[rows], held.log[rows]))
        for label in ("high", "medium", "low")
        for rows in [np.flatnonzero(keep & (held.confidence == label))]
        if len(rows)
    }
    prior_only = np.repeat(held.prior[:, None], 5, axis=1)
    out: dict[str, Any] = {
        "target": question.target,
        "split": question.split,
        "filter": {
            "sources": list(question.sources), "engine": question.engine or ALL,
            "vendor": question.vendor or ALL, "status": "ok",
        },
        "row_set": named.meaning if named is not None else "every row of the filter",
        **main,
        "groups": len(np.unique(groups[keep])),
        "folds": held.n_folds,
        "nominal": NOMINAL_COVERAGE,
        "coverage_group_p25": float(np.percentile(covered, 25)),
        "prior_alone": {
            k: v for k, v in asdict(errors(held.y[keep], prior_only[keep])).items()
            if k in {"mape", "median_ape", "r2_log"}
        },
        "confidence": regimes,
        "excluded": asdict(dataset.excluded) | {
            "physically_impossible_in_filter": sum(
                n for s, n in dataset.screened_by_source.items()
                if question.sources in ((ALL,), (s,)) or s in question.sources
            )
        },
        "per_group": per_group,
    }  # fmt: skip
    if named is not None:
        out["all_rows"] = asdict(errors(held.y, held.log))
    return out
