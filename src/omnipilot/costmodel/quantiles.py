"""Gradient-boosted trees on the log residual: the only module that knows a GBM library.

Training uses CatBoost's symmetric (oblivious) trees; the fitted forest is four small arrays that
numpy evaluates alone, so inference needs no GBM library and a stranger's bundle runs no code.
"""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.domain.errors import OmniPilotError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.targets import QUANTILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MEAN_LOSS = "RMSE"
QUANTILE_LOSS = "MultiQuantile:alpha=" + ",".join(str(q) for q in QUANTILES)
# Rows times trees scored at once: keeps the comparisons in cache.
CHUNK_PLACES = 20_480


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

    @classmethod
    def joined(cls, forests: Sequence[Forest], places: Sequence[NDArray[np.int32]]) -> Forest:
        """The trees of some forests in turn, over columns that all of them share; without a bias.

        Args:
            forests: of equally many outputs.
            places: of each forest's features among the shared columns (n_features,).
        """
        depth = max(forest.features.shape[1] for forest in forests)
        n_trees = sum(len(forest.features) for forest in forests)
        outputs = len(forests[0].bias)
        features = np.zeros((n_trees, depth), dtype=np.int32)
        # Splits that never fire fill shallower trees up.
        thresholds = np.full((n_trees, depth), np.inf, dtype=np.float32)
        leaves = np.zeros((n_trees, 1 << depth, outputs))
        start = 0
        for forest, place in zip(forests, places, strict=True):
            trees, own = slice(start, start + len(forest.features)), forest.features.shape[1]
            features[trees, :own] = place[forest.features]
            thresholds[trees, :own] = forest.thresholds
            leaves[trees, : 1 << own] = forest.leaves
            start = trees.stop
        return cls(features, thresholds, leaves, np.zeros(outputs))

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Sum of the trees, (n, n_outputs), for features (n, n_features)."""
        return np.asarray(self.bias + self.sums(x, (len(self.features),))[0])

    def sums(self, x: NDArray[np.float32], ends: Sequence[int]) -> NDArray[np.float64]:
        """Sums of runs of trees, without the bias.

        Args:
            x: features (n, n_features).
            ends: one past the last tree of each run, rising.

        Returns:
            Array (n_runs, n, n_outputs).
        """
        n_trees, depth = self.features.shape
        out = np.zeros((len(ends), len(x), len(self.bias)))
        if n_trees == 0:
            return out
        flat = self.leaves.reshape(-1, self.leaves.shape[2])
        first = (np.arange(n_trees, dtype=np.int64) << depth)[:, None]
        rows = max(CHUNK_PLACES // n_trees, 1)
        for start in range(0, len(x), rows):
            # Trees first: every look-up and the sum of the leaves run over whole rows of memory.
            columns = np.ascontiguousarray(x[start : start + rows].T)
            leaf = np.zeros((n_trees, columns.shape[1]), dtype=np.int8)
            for j in range(depth):
                above = columns.take(self.features[:, j], axis=0) > self.thresholds[:, j, None]
                leaf |= above.view(np.int8) << j
            leaves = flat.take(leaf + first, axis=0).astype(np.float64, copy=False)
            for run, (begin, end) in zip(out, pairwise((0, *ends)), strict=True):
                leaves[begin:end].sum(axis=0, out=run[start : start + rows])
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
