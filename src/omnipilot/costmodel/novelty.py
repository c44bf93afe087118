"""Novelty classes: what about a question the training rows have never seen.

Five look-ups, worst first (a Mondrian taxonomy; COSTMODEL §4). Each class has its own conformal
calibration on residuals of rows whose source, GPU kind, family, model or cell was held out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame


@dataclass(frozen=True, slots=True)
class NoveltyClass:
    """One class: a row belongs to it when its ``category`` level is new.

    ``withheld`` one-hot categories tell the spread model nothing in this class, because the level
    in question never has rows there. ``layered`` tells whether the residual layer has a say: what
    it learnt of other GPU kinds made answers about a new one no better (docs/EVALUATION.md).
    """

    name: str
    category: str
    withheld: tuple[str, ...]
    layered: bool = True


SEEN = "seen"
# Index into ``NOVELTY``, and the rows of that class.
Members = tuple[int, "NDArray[np.int64]"]
NOVELTY: tuple[NoveltyClass, ...] = (
    NoveltyClass("source", "source", ("source", "engine_era", "workload", "model")),
    NoveltyClass("gpu", "gpu_kind", ("gpu_kind", "gpu_architecture", "model"), layered=False),
    NoveltyClass("family", "family", ("family", "model")),
    NoveltyClass("model", "model", ("model",)),
    NoveltyClass(SEEN, "", ("model",)),
)
CLASS_NAMES = tuple(c.name for c in NOVELTY)


def training_levels(frame: Frame) -> dict[str, tuple[str, ...]]:
    """Levels of each novelty category present in the rows, sorted."""
    return {
        c.category: tuple(frame.levels[c.category][i] for i in np.unique(frame.codes[c.category]))
        for c in NOVELTY
        if c.category
    }


def novelty_of(frame: Frame, levels: dict[str, tuple[str, ...]]) -> NDArray[np.int64]:
    """Index into ``NOVELTY`` of each row (n,): the first class whose level is new."""
    return frame.fixed(levels, lambda: _novelty(frame, levels))


def _novelty(frame: Frame, levels: dict[str, tuple[str, ...]]) -> NDArray[np.int64]:
    out = np.full(frame.n, len(NOVELTY) - 1, dtype=np.int64)
    for i in reversed(range(len(NOVELTY) - 1)):
        category = NOVELTY[i].category
        known = set(levels[category])
        new = np.asarray([level not in known for level in frame.levels[category]])
        out[new[frame.codes[category]]] = i
    return out


def members_of(frame: Frame, levels: dict[str, tuple[str, ...]]) -> list[Members]:
    """The classes that occur, rising, with their rows."""

    def members() -> list[Members]:
        novelty = novelty_of(frame, levels)
        return [(i, np.flatnonzero(novelty == i)) for i in classes_in(novelty).tolist()]

    return frame.fixed(levels, members, "members")


def classes_in(novelty: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices into ``NOVELTY`` that occur, rising; ``np.unique`` would load masked arrays first."""
    return np.flatnonzero(np.bincount(novelty))
