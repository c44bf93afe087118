"""Boosted trees without physics: what the residual layer would be if there were no prior."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.costmodel.folds import group_folds
from omnipilot.costmodel.heads import lead_labels
from omnipilot.costmodel.novelty import NOVELTY
from omnipilot.costmodel.quantiles import MEAN_LOSS, fit_forest
from omnipilot.evaluate.decision_cells import OUTPUT, Forecast
from omnipilot.evaluate.holdout import CLASS_OF_SPLIT, FOLDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.evaluate.holdout import Holdout
    from omnipilot.learn.dataset import Dataset

TREES: Final = 300
DEPTH: Final = 6
LEARNING_RATE: Final = 0.1
_LOGS: Final = (
    "params", "active", "layers", "hidden", "kv_heads", "concurrency", "prompt_tokens",
    "output_tokens", "n_gpus", "bandwidth", "flops", "memory_bytes", "link",
)  # fmt: skip
_LINEAR: Final = ("effective_bits", "moe", "mla", "pp", "static", "utilization")
_ONE_HOT: Final = (
    "source", "engine", "engine_era", "family", "gpu_kind", "precision", "kernel", "workload",
    "model",
)  # fmt: skip


def raw_features(frame: Frame) -> NDArray[np.float32]:
    """Facts of model, GPU and load, and one-hot names (n, n_features); nothing of the prior."""
    columns = [np.log(np.maximum(frame[name], 1e-9)) for name in _LOGS]
    columns += [frame[name] for name in _LINEAR]
    for category in _ONE_HOT:
        codes = frame.codes[category]
        columns += [(codes == i).astype(np.float64) for i in range(len(frame.levels[category]))]
    return np.stack(columns, axis=1).astype(np.float32)


def gbm_forecast(
    dataset: Dataset, question: Holdout, progress: Callable[[str], None] = lambda _: None
) -> Forecast:
    """Out-of-fold log output tokens per second of the trees, on the folds of ``hold_out``.

    Raises:
        OmniPilotError: the training library is not installed.
        UsageError: nothing matches the filter.
    """
    data = dataset.data
    tested = question.mask(data)
    novelty = next(n for n in NOVELTY if n.name == CLASS_OF_SPLIT[question.split])
    groups = data.groups(novelty)
    involved = np.isin(groups, np.unique(groups[tested]))
    fold = np.full(data.frame.n, -1, dtype=np.int64)
    rng = np.random.default_rng(question.seed)
    fold[involved] = group_folds(groups[involved], FOLDS[question.split], rng)
    x = raw_features(data.frame)
    y = lead_labels(data.frame, data.labels)[OUTPUT]
    out = np.full(data.frame.n, np.nan)
    for k in range(int(fold.max()) + 1):
        test = np.flatnonzero(tested & (fold == k))
        if len(test) == 0:
            continue
        progress(f"trees without physics, fold {k + 1} of {int(fold.max()) + 1}")
        train = np.flatnonzero((fold != k) & np.isfinite(y))
        centre = float(np.mean(y[train]))
        forest = fit_forest(
            x[train], y[train] - centre, data.weight[train], loss=MEAN_LOSS, trees=TREES,
            depth=DEPTH, learning_rate=LEARNING_RATE, seed=question.seed,
        )  # fmt: skip
        out[test] = centre + forest.predict(x[test])[:, 0]
    return Forecast.of_points(OUTPUT, out)
