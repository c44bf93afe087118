"""Interval widths sized on what was left out, and on how new rows really fell.

Two factors on the half-widths, each for questions near local rows and for the others; centres do
not move. The first is conformal: the finite-sample quantile of the scores of rows whose fold of
workload cells was left out. The second follows the future, which brings other arms and engine
versions: adaptive conformal inference (Gibbs and Candès 2021) widens or narrows by the share of new
rows that fell outside. Adapting it alone is the offset-only path of learning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE, conformal_offset
from omnipilot.costmodel.fitted import NEAR_SHARE
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import FittedModel

__all__ = ["UNSCALED", "Scale", "adapted", "left_out_scale", "rescaled", "widened"]

STEP: Final = 0.5
# So many rows make a whole step; fewer say less.
FULL_ROWS: Final = 50
NARROWEST: Final = 0.5
WIDEST: Final = 4.0
# With fewer rows left out their quantile says nothing.
FEWEST_LEFT_OUT: Final = 30
MOST_NARROWED: Final = 0.25
_NARROWED_COVERAGE: Final = 0.9
_LEAST_HALF_WIDTH: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors on the half-widths of one head's intervals.

    ``near`` holds where local rows took most of the variance away, ``far`` elsewhere.
    """

    far: float = 1.0
    near: float = 1.0

    def times(self, other: Scale) -> Scale:
        """Both factors together."""
        return Scale(self.far * other.far, self.near * other.near)

    @classmethod
    def of(cls, value: Any) -> Scale:  # noqa: ANN401 - read from JSON
        """Read what :func:`dataclasses.astuple` wrote."""
        far, near = value
        return cls(float(far), float(near))


UNSCALED: Final = Scale()


def adapted(scale: Scale, inside: NDArray[np.bool_], informed: NDArray[np.float64]) -> Scale:
    """The factors after a batch of new rows.

    Args:
        scale: factors that the rows' intervals had.
        inside: whether each row fell into its interval (n,).
        informed: share of the variance that local rows had taken away (n,).

    Example:
        >>> missed = np.zeros(100, dtype=bool)
        >>> round(adapted(Scale(), missed, np.ones(100)).near, 3)
        1.492
    """
    near = informed >= NEAR_SHARE

    def after(factor: float, rows: NDArray[np.bool_]) -> float:
        n = int(np.count_nonzero(rows))
        if not n:
            return factor
        missed = 1.0 - float(np.mean(inside[rows]))
        step = STEP * min(n / FULL_ROWS, 1.0) * (missed - (1.0 - NOMINAL_COVERAGE))
        return float(np.clip(factor * np.exp(step), NARROWEST, WIDEST))

    return Scale(far=after(scale.far, ~near), near=after(scale.near, near))


def left_out_scale(
    y: NDArray[np.float64], log: NDArray[np.float64], informed: NDArray[np.float64]
) -> Scale:
    """The factors under which four of five left-out rows lie in their intervals.

    Intervals are narrowed only as far as nine of ten still would: what comes next differs more from
    the past than one workload cell from the others.

    Args:
        y: log labels (n,).
        log: log q10, q50, q90, lower, upper of predictions without the rows' folds (n, 5).
        informed: share of the variance that local rows had taken away (n,).
    """
    off = y - log[:, 1]
    half = np.where(off > 0.0, log[:, 4] - log[:, 1], log[:, 1] - log[:, 3])
    score = np.abs(off) / np.maximum(half, _LEAST_HALF_WIDTH)
    near = informed >= NEAR_SHARE

    def of(rows: NDArray[np.bool_]) -> float:
        if np.count_nonzero(rows) < FEWEST_LEFT_OUT:
            return 1.0
        nominal = conformal_offset(score[rows])
        if nominal >= 1.0:
            return min(nominal, WIDEST)
        return float(np.clip(conformal_offset(score[rows], _NARROWED_COVERAGE), MOST_NARROWED, 1.0))

    return Scale(far=of(~near), near=of(near))


def widened(
    log: NDArray[np.float64], informed: NDArray[np.float64], scale: Scale
) -> NDArray[np.float64]:
    """Answers (n, 5) with their half-widths multiplied."""
    factor = np.where(informed >= NEAR_SHARE, scale.near, scale.far)[:, None]
    centre = log[:, 1:2]
    return np.asarray(centre + factor * (log - centre))


def rescaled(model: FittedModel, scales: Mapping[str, Scale]) -> FittedModel:
    """A model with the half-widths of its local classes multiplied; its centres stay.

    Only the classes that local rows speak of are touched: questions about other sites keep the
    intervals of the base model.
    """
    heads = dict(model.heads)
    local = dict(model.local)
    for (name, label), rows in model.local.items():
        scale = scales.get(name, UNSCALED)
        head = heads[name]
        spread = head.spreads[label]
        forest = replace(
            spread.forest, leaves=spread.forest.leaves * scale.far,
            bias=spread.forest.bias * scale.far,
        )  # fmt: skip
        heads[name] = replace(head, spreads={**head.spreads, label: replace(spread, forest=forest)})
        if rows.band is not None:
            lower, upper = rows.band
            local[name, label] = replace(rows, band=(lower * scale.near, upper * scale.near))
    return replace(model, heads=heads, local=local)
