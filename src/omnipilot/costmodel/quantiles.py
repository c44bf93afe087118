"""Gradient-boosted trees on the log residual: the only module that knows a GBM library.

Training uses CatBoost's symmetric (oblivious) trees; the fitted forest is four small arrays that
numpy evaluates alone, so inference needs no GBM library and a stranger's bundle runs no code.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.domain.errors import OmniPilotError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.targets import QUANTILES

if TYPE_CHECKING:
    from numpy.typing import NDArray

MEAN_LOSS = "RMSE"
QUANTILE_LOSS = "MultiQuantile:alpha=" + ",".join(str(q) for q in QUANTILES)
# Rows scored at once: keeps the (rows, trees, depth) comparisons in cache.
CHUNK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Forest:
    """Symmetric trees of equal depth.

    ``features`` int32 (n_trees, depth) and ``thresholds`` float32 (n_trees, depth): bit j of a
    row's leaf is x[features[t, j]] > thresholds[t, j]. ``leaves`` float32 (n_trees, 2**depth,
    n_outputs); ``bias`` float64 (n_outputs,).
    """

    features: NDArray[np.int32]
    thresholds: NDArray[np.float32]
    leaves: NDArray[np.float32]
    bias: NDArray[np.float64]

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Sum of the trees, (n, n_outputs), for features (n, n_features)."""
        n_trees, depth = self.features.shape
        out = np.empty((len(x), len(self.bias)))
        out[:] = self.bias
        if n_trees == 0:
            return out
        flat = self.leaves.reshape(-1, self.leaves.shape[2])
        first = (np.arange(n_trees, dtype=np.int64) << depth)[:, None]
        for start in range(0, len(x), CHUNK_ROWS):
            # Trees first: every look-up and the sum of the leaves run over whole rows of memory.
            columns = np.ascontiguousarray(x[start : start + CHUNK_ROWS].T)
            leaf = np.zeros((n_trees, columns.shape[1]), dtype=np.int8)
            for j in range(depth):
                above = columns.take(self.features[:, j], axis=0) > self.thresholds[:, j, None]
                leaf |= above.view(np.int8) << j
            leaves = flat.take(leaf + first, axis=0).astype(np.float64)
            out[start : start + CHUNK_ROWS] += leaves.sum(axis=0)
        return out


def fit_forest(
    x: NDArray[np.float32],
    y: NDArray[np.float64],
    weight: NDArray[np.float64],
    *,
    loss: str,
    trees: int,
    depth: int,
    learning_rate: float,
    seed: int = 0,
) -> Forest:
    """Fit symmetric trees.

    Args:
        x: features (n, n_features).
        y: log residuals (n,).
        weight: row weights (n,).
        loss: ``MEAN_LOSS`` (one output) or ``QUANTILE_LOSS`` (one output a quantile).
        trees: number of boosting rounds.
        depth: depth of every tree.
        learning_rate: shrinkage.
        seed: makes the fit repeatable bit for bit.

    Raises:
        OmniPilotError: the training library is not installed.
    """
    try:
        from catboost import CatBoostRegressor, Pool  # noqa: PLC0415 - training only
    except ImportError as error:
        raise OmniPilotError(
            "training needs the 'fit' extra: install omnipilot[fit] (uv sync --extra fit)"
        ) from error
    model = CatBoostRegressor(
        loss_function=loss,
        iterations=trees,
        depth=depth,
        learning_rate=learning_rate,
        random_seed=seed,
        thread_count=2,
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(Pool(x, y, weight=weight))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        return _from_json(json.loads(path.read_text(encoding="utf-8")), depth)


def _from_json(document: dict[str, Any], depth: int) -> Forest:
    """Arrays of CatBoost's JSON export; shallower trees are padded with splits that never fire."""
    scale, bias = document["scale_and_bias"]
    bias_array = np.asarray(bias, dtype=np.float64).reshape(-1)
    outputs = len(bias_array)
    trees = document["oblivious_trees"]
    features = np.zeros((len(trees), depth), dtype=np.int32)
    thresholds = np.full((len(trees), depth), np.inf, dtype=np.float32)
    leaves = np.zeros((len(trees), 1 << depth, outputs), dtype=np.float32)
    for i, tree in enumerate(trees):
        for j, split in enumerate(tree["splits"]):
            features[i, j] = split["float_feature_index"]
            thresholds[i, j] = split["border"]
        values = np.asarray(tree["leaf_values"], dtype=np.float64).reshape(-1, outputs) * scale
        leaves[i, : len(values)] = values
    return Forest(features=features, thresholds=thresholds, leaves=leaves, bias=bias_array)
