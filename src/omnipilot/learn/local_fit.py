"""Conditioning a base model on local rows, and how well that predicts rows it has not seen."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.costmodel.folds import group_folds
from omnipilot.costmodel.heads import lead_labels
from omnipilot.domain.frozen import dataclass
from omnipilot.learn.recalibrate import UNSCALED, Scale, left_out_scale, rescaled, widened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.fit import TrainingSet
    from omnipilot.costmodel.fitted import FittedModel

__all__ = ["DECISION_HEAD", "N_FOLDS", "Answered", "Recipe", "answer", "cell_folds"]

N_FOLDS: Final = 5
# The head that answers the decision target, aggregate tokens per second. Its lead is the rate of
# output tokens, which a row's lengths turn into the aggregate rate: both have the same relative
# error, and rows that state only one of them count too.
DECISION_HEAD: Final = "throughput"


@dataclass(frozen=True, slots=True)
class Answered:
    """Answers of one head beside its labels.

    ``y`` log labels (n,), NaN where a row has none; ``log`` log q10, q50, q90, lower, upper (n, 5),
    NaN where it was not asked; ``prior`` the log of the physics prior (n,); ``informed`` the share
    of the variance that local rows took away (n,).
    """

    y: NDArray[np.float64]
    log: NDArray[np.float64]
    prior: NDArray[np.float64]
    informed: NDArray[np.float64]

    @classmethod
    def empty(cls, n: int) -> Answered:
        """Room for n answers."""
        return cls(
            np.full(n, np.nan), np.full((n, 5), np.nan), np.full(n, np.nan), np.full(n, np.nan)
        )

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Answered:
        """Answers to some of the rows."""
        return Answered(self.y[rows], self.log[rows], self.prior[rows], self.informed[rows])

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Rows with a label and an answer (n,)."""
        return np.isfinite(self.y) & np.isfinite(self.log[:, 1])

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Rows whose label lies in its interval (n,)."""
        return (self.y >= self.log[:, 3]) & (self.y <= self.log[:, 4])


def answer(model: FittedModel, data: TrainingSet) -> dict[str, Answered]:
    """Ask a model about rows, by head."""
    asked = model.questions(data.frame)
    labels = lead_labels(data.frame, data.labels)
    out = {}
    for name, head in model.heads.items():
        lead = head.head.lead
        found = model.log_quantiles(asked, name)
        at = asked.prior.log[lead]
        out[name] = Answered(labels[lead], at[:, None] + found.log, at, found.informed)
    return out


def cell_folds(cells: NDArray[np.str_], seed: int = 0) -> NDArray[np.int64]:
    """Fold of each row (n,); the rows of a workload cell stay together."""
    return group_folds(cells, N_FOLDS, np.random.default_rng(seed))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a site's model is made: a base model, what each local row counts, interval factors.

    ``weight`` is of n local rows (n,), 0 for those that it has not learned; by head, ``widths``
    were sized on left-out rows and ``scales`` follow new ones.
    """

    base: FittedModel
    weight: NDArray[np.float64]
    scales: Mapping[str, Scale] = field(default_factory=dict)
    widths: Mapping[str, Scale] = field(default_factory=dict)

    @property
    def is_base(self) -> bool:
        """Whether no local row was learned."""
        return not bool((self.weight > 0.0).any())

    def take(self, rows: NDArray[np.int64]) -> Recipe:
        """The recipe over some of the rows."""
        return replace(self, weight=self.weight[rows])

    def model(self, data: TrainingSet) -> FittedModel:
        """Condition the base model; without a row to learn from it is the base model itself.

        Args:
            data: the n local rows.
        """
        plain = self._conditioned(data, np.ones(len(self.weight), dtype=bool))
        names = plain.heads
        return rescaled(
            plain,
            {n: self.scales.get(n, UNSCALED).times(self.widths.get(n, UNSCALED)) for n in names},
        )

    def _conditioned(self, data: TrainingSet, rows: NDArray[np.bool_]) -> FittedModel:
        used = np.flatnonzero((self.weight > 0.0) & rows)
        if len(used) == 0:
            return self.base
        part = replace(data, weight=self.weight).take(used)
        return self.base.condition(part.frame, part.labels, part.weight, part.cells)

    def cross_validate(
        self,
        data: TrainingSet,
        fold: NDArray[np.int64],
        progress: Callable[[str], None] = lambda _: None,
    ) -> tuple[dict[str, Answered], dict[str, Scale]]:
        """Predict every local row by the recipe without the rows of its fold.

        Args:
            data: the n local rows.
            fold: of each row (n,).
            progress: told in words what is being done.

        Returns:
            The answers by head, their widths sized on the rows of the other folds, and the widths
            that all rows together call for.
        """
        if self.is_base:
            return answer(self.base, data), {}
        n, folds = data.frame.n, int(fold.max(initial=0)) + 1
        out = {name: Answered.empty(n) for name in self.base.heads}
        for k in range(folds):
            progress(f"fold {k + 1} of {folds}")
            test = np.flatnonzero(fold == k)
            model = self._conditioned(data, fold != k)
            for name, found in answer(model, data.take(test)).items():
                whole = out[name]
                whole.y[test], whole.log[test] = found.y, found.log
                whole.prior[test], whole.informed[test] = found.prior, found.informed
        widths = {name: _left_out(a, a.usable) for name, a in out.items()}
        for name, a in out.items():
            raw = a.log.copy()
            for k in range(folds):
                test = np.flatnonzero(fold == k)
                scale = _left_out(replace(a, log=raw), a.usable & (fold != k))
                scale = scale.times(self.scales.get(name, UNSCALED))
                a.log[test] = widened(raw[test], a.informed[test], scale)
        return out, widths


def _left_out(a: Answered, rows: NDArray[np.bool_]) -> Scale:
    return left_out_scale(a.y[rows], a.log[rows], a.informed[rows])
