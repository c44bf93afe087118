"""The features of the learned residual, one table.

Log numerics, linear numerics, the prior's own terms and one-hot levels (PAPER, Features; COSTMODEL
§3). One-hot levels are those with training rows; an unseen level is all zeros. A new axis must be
a column here before rows with it are collected (feature before data, paper §3.2.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics


@dataclass(frozen=True, slots=True)
class Feature:
    """One numeric column: name, how it is scaled and how it is computed from frame and prior."""

    name: str
    scale: str
    compute: Callable[[Frame, Physics], NDArray[np.float64]]


def _log(column: str) -> Callable[[Frame, Physics], NDArray[np.float64]]:
    return lambda f, _: np.log(np.maximum(f[column], 1e-9))


def _linear(column: str) -> Callable[[Frame, Physics], NDArray[np.float64]]:
    return lambda f, _: f[column]


def _term(name: str) -> Callable[[Frame, Physics], NDArray[np.float64]]:
    return lambda _, p: np.log(np.maximum(p.terms[name], 1e-12))


FEATURES: tuple[Feature, ...] = (
    Feature("params", "log", _log("params")),
    Feature("active", "log", _log("active")),
    Feature("concurrency", "log", _log("concurrency")),
    Feature("prompt_tokens", "log", _log("prompt_tokens")),
    Feature("output_tokens", "log", _log("output_tokens")),
    Feature("context", "log", lambda f, _: np.log(f["prompt_tokens"] + f["output_tokens"])),
    Feature("kv_pressure", "log", _term("pressure")),
    Feature("batch", "log", _term("batch")),
    Feature("layers", "log", _log("layers")),
    Feature("hidden", "log", _log("hidden")),
    Feature("kv_heads", "log", _log("kv_heads")),
    Feature("vocab", "log", _log("vocab")),
    Feature("bandwidth", "log", _log("bandwidth")),
    Feature("flops", "log", _log("flops")),
    Feature("memory", "log", _log("memory_bytes")),
    Feature("link", "log", _log("link")),
    Feature("tensor_parallel", "linear", lambda f, _: np.log2(f["n_gpus"])),
    Feature("pipeline_parallel", "linear", _linear("pp")),
    Feature("memory_utilization", "linear", _linear("utilization")),
    Feature("effective_bits", "linear", _linear("effective_bits")),
    Feature("moe", "linear", _linear("moe")),
    Feature("mla", "linear", _linear("mla")),
    Feature("encoder", "linear", _linear("encoder")),
    Feature("recurrent", "linear", _linear("recurrent_frac")),
    Feature("nvlink", "linear", _linear("nvlink")),
    Feature("static", "linear", _linear("static")),
    Feature("prompt_known", "linear", _linear("prompt_known")),
    Feature("step", "log", _term("step_s")),
    Feature("prefill", "log", _term("prefill_s")),
    Feature("weights_share", "linear", lambda _, p: p.terms["weights_s"] / p.terms["step_s"]),
    Feature("compute_share", "linear", lambda _, p: p.terms["compute_s"] / p.terms["step_s"]),
    Feature("kv_share", "linear", lambda _, p: p.terms["kv_s"] / p.terms["step_s"]),
    Feature("link_share", "linear", lambda _, p: p.terms["link_s"] / p.terms["step_s"]),
    Feature("host_share", "linear", lambda _, p: p.terms["host_s"] / p.terms["step_s"]),
    Feature("prefill_share", "linear", lambda _, p: p.terms["prefill_share"]),
    Feature("room", "linear", lambda _, p: p.terms["room_frac"]),
    Feature("capacity", "log", _term("capacity")),
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
        columns = numeric.T if len(kept) == len(FEATURES) else numeric.T[kept]
        return np.concatenate([columns, one_hot]).T

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
    out = np.empty((len(FEATURES), frame.n), dtype=np.float32)
    for row, feature in zip(out, FEATURES, strict=True):
        row[:] = feature.compute(frame, physics)
    return out.T
