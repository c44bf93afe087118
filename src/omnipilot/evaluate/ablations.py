"""Component ablations: the same pipeline on rows that hide one thing from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.learn.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Ablation:
    """One ablation: ``hide`` gives the rows without what ``meaning`` names."""

    name: str
    meaning: str
    hide: Callable[[Dataset], Dataset]


def _without(dataset: Dataset, *categories: str, **columns: float | str) -> Dataset:
    """Rows whose categories are one level each and whose columns are a constant or another one."""
    frame = dataset.data.frame
    codes, levels = dict(frame.codes), dict(frame.levels)
    for name in categories:
        codes[name], levels[name] = np.zeros_like(codes[name]), ("hidden",)
    values = dict(frame.columns)
    for name, value in columns.items():
        values[name] = (
            frame.columns[value] if isinstance(value, str) else np.full(frame.n, float(value))
        )
    hidden = replace(frame, columns=values, codes=codes, levels=levels)
    return replace(dataset, data=replace(dataset.data, frame=hidden))


def share_of_cells(dataset: Dataset, share: float, seed: int = 0) -> Dataset:
    """Rows of a random share of the workload cells."""
    names = np.unique(dataset.data.cells)
    rng = np.random.default_rng(seed)
    kept = rng.permutation(names)[: max(2, round(share * len(names)))]
    index = np.flatnonzero(np.isin(dataset.data.cells, kept))
    runs = tuple(dataset.runs[i] for i in index) if dataset.runs else ()
    return replace(dataset, data=dataset.data.take(index), runs=runs)


# Every entry hides its thing from the prior and from the residual layer alike.
ABLATIONS: Final[tuple[Ablation, ...]] = (
    Ablation(
        "quantisation",
        "weight format: all rows look like 16 bit",
        lambda d: _without(
            d, "precision", "kernel", weight_bytes=2.0, dense_bytes=2.0, effective_bits=16.0,
            embeddings_16bit=1.0, flops="flops16",
        ),
    ),
    Ablation(
        "engine-version",
        "engine version: all releases look alike",
        lambda d: _without(d, "engine_era", "engine_release"),
    ),
    Ablation(
        "gpu-identity",
        "GPU names: bandwidth, FLOP/s and memory remain",
        lambda d: _without(d, "gpu_kind", "gpu_architecture"),
    ),
    Ablation(
        "model-identity",
        "model and family names: sizes and shapes remain",
        lambda d: _without(d, "model", "family"),
    ),
    Ablation(
        "concurrency",
        "requests in flight: all rows look like 16",
        lambda d: _without(d, concurrency=16.0),
    ),
)  # fmt: skip
