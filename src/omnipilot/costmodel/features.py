"""The features of the learned residual, one table.

Log numerics, linear numerics, the prior's own terms and one-hot levels (PAPER, Features; COSTMODEL
§3). One-hot levels are those with training rows; an unseen level is all zeros. A new axis must be
a column here before rows with it are collected (feature before data, paper §3.2.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.columns import columns
from omnipilot.costmodel.frame import LOAD
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics


@dataclass(frozen=True, slots=True)
class Feature:
    """One numeric column: name, how it is scaled and how it is computed from frame and prior.

    ``of_arm`` tells that the load does not change it.
    """

    name: str
    scale: str
    compute: Callable[[Frame, Physics], NDArray[np.float64]]
    of_arm: bool = False


def _log(name: str, column: str = "") -> Feature:
    at = column or name
    return Feature(name, "log", lambda f, _: np.log(np.maximum(f[at], 1e-9)), at not in LOAD)


def _linear(name: str, column: str = "") -> Feature:
    at = column or name
    return Feature(name, "linear", lambda f, _: f[at], at not in LOAD)


def _term(name: str, term: str = "") -> Feature:
    at = term or name
    return Feature(name, "log", lambda _, p: np.log(np.maximum(p.terms[at], 1e-12)))


FEATURES: tuple[Feature, ...] = (
    _log("params"),
    _log("active"),
    _log("concurrency"),
    _log("prompt_tokens"),
    _log("output_tokens"),
    Feature("context", "log", lambda f, _: np.log(f["prompt_tokens"] + f["output_tokens"])),
    _term("kv_pressure", "pressure"),
    _term("batch"),
    _log("layers"),
    _log("hidden"),
    _log("kv_heads"),
    _log("vocab"),
    _log("bandwidth"),
    _log("flops"),
    _log("memory", "memory_bytes"),
    _log("link"),
    Feature("tensor_parallel", "linear", lambda f, _: np.log2(f["n_gpus"]), of_arm=True),
    _linear("pipeline_parallel", "pp"),
    _linear("memory_utilization", "utilization"),
    _linear("effective_bits"),
    _linear("moe"),
    _linear("mla"),
    _linear("encoder"),
    _linear("recurrent", "recurrent_frac"),
    _linear("nvlink"),
    _linear("static"),
    _linear("prompt_known"),
    _term("step", "step_s"),
    _term("prefill", "prefill_s"),
    Feature("weights_share", "linear", lambda _, p: p.terms["weights_s"] / p.terms["step_s"]),
    Feature("compute_share", "linear", lambda _, p: p.terms["compute_s"] / p.terms["step_s"]),
    Feature("kv_share", "linear", lambda _, p: p.terms["kv_s"] / p.terms["step_s"]),
    Feature("link_share", "linear", lambda _, p: p.terms["link_s"] / p.terms["step_s"]),
    Feature("host_share", "linear", lambda _, p: p.terms["host_s"] / p.terms["step_s"]),
    Feature("prefill_share", "linear", lambda _, p: p.terms["prefill_share"]),
    Feature("room", "linear", lambda _, p: p.terms["room_frac"]),
    _term("capacity"),
)
ONE_HOT: tuple[str, ...] = (
    "source", "engine", "engine_era", "family", "gpu_kind", "gpu_architecture", "precision",
    "kernel", "workload", "model",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FeatureSpace:
    """Which one-hot levels exist, fixed at fit time.

    ``levels`` maps a category to its levels; a withheld category has none. ``withheld`` names
    numeric features that are left out.
    """

    levels: dict[str, tuple[str, ...]]
    withheld: tuple[str, ...] = ()

    @classmethod
    def from_frame(cls, frame: Frame, withheld: tuple[str, ...] = ()) -> FeatureSpace:
        """Levels present in the training rows, sorted, without the ``withheld`` columns.

        Args:
            frame: training rows.
            withheld: categories and numeric features to leave out.
        """
        levels = {}
        for category in ONE_HOT:
            used = np.unique(frame.codes[category])
            names = tuple(frame.levels[category][i] for i in used)
            levels[category] = () if category in withheld else names
        return cls(levels, tuple(f.name for f in FEATURES if f.name in withheld))

    @staticmethod
    def joined(spaces: Iterable[FeatureSpace], used: Container[str]) -> FeatureSpace:
        """Every numeric feature, and the ``used`` one-hot columns of some spaces by name."""
        levels: dict[str, set[str]] = {category: set() for category in ONE_HOT}
        for space in spaces:
            for category, names in space.levels.items():
                levels[category] |= {name for name in names if f"{category}={name}" in used}
        return FeatureSpace({category: tuple(sorted(names)) for category, names in levels.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        one_hot = tuple(f"{c}={v}" for c in ONE_HOT for v in self.levels[c])
        return tuple(f.name for f in FEATURES if f.name not in self.withheld) + one_hot

    def matrix(
        self, frame: Frame, physics: Physics, numeric: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Feature matrix (n, n_features), float32, a feature after the other in memory.

        Args:
            frame: n scenarios.
            physics: their prior.
            numeric: ``numeric_features`` of both, where they are worked out already.
        """
        if numeric is None:
            numeric = numeric_features(frame, physics)
        kept, one_hot = frame.fixed(self, lambda: self._one_hot(frame))
        rows = numeric.T if len(kept) == len(FEATURES) else numeric.T[kept]
        return np.concatenate([rows, one_hot]).T

    def _one_hot(self, frame: Frame) -> tuple[list[int], NDArray[np.float32]]:
        """Numeric features that are not withheld, and the one-hot columns, float32 (width, n)."""
        kept = [j for j, f in enumerate(FEATURES) if f.name not in self.withheld]
        width = sum(len(names) for names in self.levels.values())
        out = np.zeros((width, frame.n), dtype=np.float32)
        start = 0
        for category in ONE_HOT:
            index = {name: i + start for i, name in enumerate(self.levels[category])}
            at = np.asarray([index.get(name, -1) for name in frame.levels[category]])
            column = at[frame.codes[category]]
            rows = np.flatnonzero(column >= 0)
            out[column[rows], rows] = 1.0
            start += len(index)
        return kept, out


def numeric_features(frame: Frame, physics: Physics) -> NDArray[np.float32]:
    """Every numeric feature, float32 (n, len(FEATURES)), a feature after the other in memory."""
    return columns(FEATURES, frame, physics, "F")
