"""Held-out evaluation of the pipeline that ships: fit without a group, predict it.

Every fold fits the whole cost model (prior, hyper-parameters, residual layer, spread, offsets) on
the rows of all sources without the fold's groups; nothing about a test row enters its fit. Which
rows are then looked at (a source, an engine, a vendor) changes neither folds nor fits, so the
fitted folds are kept and shared between questions.
"""

from __future__ import annotations

import hashlib
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.bundle import load_bundle, save_bundle
from omnipilot.costmodel.fit import fit_cost_model
from omnipilot.costmodel.folds import group_folds
from omnipilot.costmodel.heads import HEAD_OF_TARGET, lead_labels
from omnipilot.costmodel.novelty import NOVELTY, SEEN
from omnipilot.domain.errors import BundleError, UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.digests import code_digest, dataset_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from omnipilot.costmodel.fit import TrainingSet
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.heads import Head
    from omnipilot.costmodel.novelty import NoveltyClass
    from omnipilot.learn.dataset import Dataset

CLASS_OF_SPLIT = {"cell": SEEN, "model": "model", "family": "family", "gpu": "gpu",
                  "source": "source"}  # fmt: skip
# Sources one by one; of the 20 GPU kinds the large ones end up alone.
FOLDS = {"cell": 5, "model": 10, "family": 5, "gpu": 10, "source": 9}
ALL = "all"
# Calibrated on rows left out one by one, which no question of a new workload resembles.
ROWS = "row"
# Where fitted folds are kept, below a site's folder.
FOLDS_FOLDER = Path("cache", "folds")


@dataclass(frozen=True, slots=True)
class Holdout:
    """Which rows are tested: sources ("all" for every one), engine and vendor, and the split.

    ``one_by_one`` leaves out the groups of the tested sources one at a time instead of by folds
    over all sources. ``calibrated_on`` names an easier split, or ``ROWS``, on whose held-out errors
    the intervals are sized instead: to show what that would cover.
    """

    target: str
    split: str
    sources: tuple[str, ...] = (ALL,)
    engine: str = ""
    vendor: str = ""
    seed: int = 0
    one_by_one: bool = False
    calibrated_on: str = ""

    @property
    def head(self) -> Head:
        """The head that answers the target.

        Raises:
            UsageError: the target is answered by the prior alone.
        """
        head = HEAD_OF_TARGET.get(self.target)
        if head is None:
            raise UsageError(
                f"{self.target} has no label in these rows: it is answered by the prior alone"
            )
        return head

    @property
    def novelty(self) -> NoveltyClass:
        """The novelty class that the split simulates."""
        return next(n for n in NOVELTY if n.name == CLASS_OF_SPLIT[self.split])

    @property
    def calibration(self) -> str:
        """The novelty class on which the intervals are sized."""
        if self.calibrated_on == ROWS:
            return SEEN
        return CLASS_OF_SPLIT[self.calibrated_on or self.split]

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
class Fold:
    """One fold: the model that never saw its rows, and all rows held out, (n_test,)."""

    model: FittedModel
    test: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Out-of-fold answers for the tested rows.

    ``index`` rows of the dataset (n,); ``y`` log labels (n,); ``log`` log q10, q50, q90, lower,
    upper (n, 5); ``prior`` the log of the physics prior alone (n,); ``confidence`` labels (n,);
    ``crossed`` whether raw quantiles were out of order (n,).
    """

    index: NDArray[np.int64]
    y: NDArray[np.float64]
    log: NDArray[np.float64]
    prior: NDArray[np.float64]
    confidence: NDArray[np.str_]
    n_folds: int
    crossed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))


def folds_of(dataset: Dataset, question: Holdout) -> NDArray[np.int64]:
    """Fold of each row (n,); −1 where the head has no label. The filter plays no part.

    Raises:
        UsageError: one group only.
    """
    data = dataset.data
    known = np.isfinite(lead_labels(data.frame, data.labels)[question.head.lead])
    groups = data.groups(question.novelty)
    if len(np.unique(groups[known])) < 2:
        raise UsageError(f"only one {question.split} in these rows: nothing to hold out against")
    # A group's rows without this label are held out too.
    involved = np.isin(groups, np.unique(groups[known]))
    fold = np.full(data.frame.n, -1, dtype=np.int64)
    if question.one_by_one:
        involved = np.isin(groups, np.unique(groups[question.mask(data)]))
        fold[involved] = np.unique(groups[involved], return_inverse=True)[1].ravel()
        return fold
    rng = np.random.default_rng(question.seed)
    fold[involved] = group_folds(groups[involved], FOLDS[question.split], rng)
    return fold


def fold_models(
    dataset: Dataset,
    question: Holdout,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Fold]:
    """Fit every fold in which a tested row lies.

    Args:
        dataset: all rows.
        question: what is held out, and the rows that are looked at.
        cache: folder in which fitted folds are kept and found again; nothing is kept where None.
        progress: told in words what is being done.

    Raises:
        UsageError: the target is answered by the prior alone, or nothing matches the filter.
    """
    head, data = question.head, dataset.data
    tested = question.mask(data)
    fold = folds_of(dataset, question)
    n_folds = int(fold.max()) + 1
    key = _fold_key(dataset, question) if cache is not None else ""
    for k in range(n_folds):
        test = np.flatnonzero(fold == k)
        if not tested[test].any():
            continue
        kept = cache / key / f"fold-{k}" if cache is not None else None
        model = _kept(kept)
        if model is None:
            progress(f"fold {k + 1} of {n_folds}: {np.count_nonzero(tested[test]):,} rows")
            train = data.take(fold != k)
            if question.calibrated_on == ROWS:
                train = replace(train, cells=np.arange(train.frame.n).astype(np.str_))
            model = fit_cost_model(
                train, heads=(head,), classes=(question.calibration,), seed=question.seed
            )
            if kept is not None:
                save_bundle(model, kept, {})
        yield Fold(model, test)


def _kept(folder: Path | None) -> FittedModel | None:
    if folder is None or not folder.is_dir():
        return None
    try:
        return load_bundle(folder)[0]
    except BundleError:
        return None  # a cut write; it is fitted and written again


def _fold_key(dataset: Dataset, question: Holdout) -> str:
    """Name of a set of folds: rows, head, split, seed and the code that fits."""
    asked = (
        question.head.name, question.split, str(question.seed),
        ",".join(question.sources) if question.one_by_one else "",
        dataset_digest(dataset), code_digest(),
        *([f"calibrated on {question.calibrated_on}"] if question.calibrated_on else []),
    )  # fmt: skip
    return hashlib.sha256("|".join(asked).encode()).hexdigest()[:16]


def hold_out(
    dataset: Dataset,
    question: Holdout,
    progress: Callable[[str], None] = lambda _: None,
    cache: Path | None = None,
) -> HeldOut:
    """Predict every tested row by a model that never saw its group; see :func:`fold_models`."""
    head, data = question.head, dataset.data
    tested = question.mask(data)
    n = data.frame.n
    log, prior_log = np.full((n, 5), np.nan), np.full(n, np.nan)
    confidence = np.full(n, "low", dtype="<U6")
    crossed = np.zeros(n, dtype=bool)
    n_folds = 0
    for fold in fold_models(dataset, question, cache, progress):
        n_folds += 1
        rows = fold.test[tested[fold.test]]
        frame = data.frame.take(rows)
        asked = fold.model.questions(frame)
        answer = fold.model.log_quantiles(asked, head.name)
        prior_log[rows] = asked.prior.log[question.target]
        log[rows] = prior_log[rows][:, None] + answer.log
        crossed[rows] = answer.crossed
        verdicts = fold.model.envelope.support(frame, answer.similarity)
        confidence[rows] = [v.confidence for v in verdicts]
    index = np.flatnonzero(tested)
    y = data.labels[question.target][index]
    return HeldOut(
        index, y, log[index], prior_log[index], confidence[index], n_folds, crossed[index]
    )
