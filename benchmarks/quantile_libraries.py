"""CatBoost against LightGBM as the quantile trees, on the real rows.

Both learn the log residual of the physics prior with the features of the cost model, in the same
grouped folds (workload cells, then whole models): pinball loss, error of the median, raw coverage
of [q10, q90], seconds to fit and bytes of the fitted trees. LightGBM is no dependency of the
project: run with ``uv run --with lightgbm python benchmarks/quantile_libraries.py --data DIR``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.catalog import Catalog
from omnipilot.costmodel.features import FeatureSpace
from omnipilot.costmodel.folds import group_folds
from omnipilot.costmodel.heads import lead_labels
from omnipilot.costmodel.novelty import NOVELTY
from omnipilot.costmodel.physics_fit import fit_physics
from omnipilot.costmodel.quantiles import QUANTILE_LOSS, fit_forest
from omnipilot.domain.targets import QUANTILES
from omnipilot.learn.dataset import build_dataset, read_runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Fitted = tuple[Callable[[NDArray[Any]], NDArray[Any]], int]

TREES, DEPTH, RATE = 300, 6, 0.08
TARGETS = ("output_tokens_per_s", "ttft_p50_s", "power_mean_w")


@dataclass(frozen=True)
class Library:
    """One library: fits features and residuals, gives a predictor of (n, 3) and its size."""

    name: str
    fit: Callable[[NDArray[Any], NDArray[Any]], Fitted]


def catboost(x: NDArray[Any], y: NDArray[Any]) -> Fitted:
    forest = fit_forest(
        x, y, np.ones(len(y)), loss=QUANTILE_LOSS, trees=TREES, depth=DEPTH, learning_rate=RATE
    )
    size = sum(a.nbytes for a in (forest.features, forest.thresholds, forest.leaves, forest.bias))
    return forest.predict, size


def lightgbm(leaves: int) -> Callable[[NDArray[Any], NDArray[Any]], Fitted]:
    def fit(x: NDArray[Any], y: NDArray[Any]) -> Fitted:
        import lightgbm as lgb  # noqa: PLC0415 - not a dependency

        boosters = [
            lgb.train(
                {"objective": "quantile", "alpha": q, "num_leaves": leaves, "learning_rate": RATE,
                 "num_threads": 2, "seed": 0, "deterministic": True, "verbosity": -1},
                lgb.Dataset(x, y), num_boost_round=TREES,
            )
            for q in QUANTILES
        ]  # fmt: skip
        size = sum(len(b.model_to_string().encode()) for b in boosters)
        return lambda new: np.column_stack([b.predict(new) for b in boosters]), size

    return fit


LIBRARIES = (
    Library("CatBoost, depth 6, symmetric, MultiQuantile", catboost),
    Library("LightGBM, 31 leaves, one model a quantile", lightgbm(31)),
    Library("LightGBM, 15 leaves, one model a quantile", lightgbm(15)),
)


def pinball(y: NDArray[Any], q: NDArray[Any]) -> float:
    """Mean pinball loss over the three quantiles, log units."""
    levels = np.asarray(QUANTILES)
    gap = y[:, None] - q
    return float(np.mean(np.maximum(levels * gap, (levels - 1.0) * gap)))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, type=Path, help="folder of the measured rows")
    data = build_dataset(read_runs(parser.parse_args().data), Catalog.load()).data
    labels = lead_labels(data.frame, data.labels)
    print("| target | held out | library | pinball | MAPE | median APE | raw coverage | crossed "
          "| fit s | KiB |\n|---|---|---|---:|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    for target in TARGETS:
        rows = np.flatnonzero(np.isfinite(labels[target]))
        part = data.take(rows)
        y = labels[target][rows]
        for novelty in (n for n in NOVELTY if n.name in {"seen", "model"}):
            fold = group_folds(part.groups(novelty), 5, np.random.default_rng(0))
            priors = np.empty(len(y))
            xs = []
            for k in range(5):
                train = fold != k
                physics = fit_physics(
                    part.frame.take(train), {t: v[rows][train] for t, v in labels.items()}
                )
                prior = physics.evaluate(part.frame)
                space = FeatureSpace.from_frame(part.frame.take(train), novelty.withheld)
                xs.append((space.matrix(part.frame, prior), prior.log[target]))
                priors[~train] = prior.log[target][~train]
            for library in LIBRARIES:
                q, seconds, size = np.empty((len(y), 3)), 0.0, 0
                for k, (x, prior_log) in enumerate(xs):
                    train = fold != k
                    started = time.perf_counter()
                    predict, size = library.fit(x[train], (y - prior_log)[train])
                    seconds += time.perf_counter() - started
                    q[~train] = predict(x[~train])
                crossed = float(np.mean(np.any(np.diff(q, axis=1) < 0, axis=1)))
                q = np.sort(q, axis=1)
                r = y - priors
                ape = np.abs(np.expm1(q[:, 1] - r))
                inside = float(np.mean((r >= q[:, 0]) & (r <= q[:, 2])))
                print(f"| {target} | {novelty.name} | {library.name} | {pinball(r, q):.4f} "
                      f"| {ape.mean():.1%} | {np.median(ape):.1%} | {inside:.1%} | {crossed:.1%} "
                      f"| {seconds / 5:.1f} | {size / 1024:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
