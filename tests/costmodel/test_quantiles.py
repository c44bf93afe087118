"""The numpy forest against the library that trained it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from omnipilot.costmodel import quantiles
from omnipilot.costmodel.quantiles import (
    MEAN_LOSS,
    QUANTILE_LOSS,
    Forest,
    _from_json,
    fit_forest,
)
from omnipilot.domain.errors import OmniPilotError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def rows() -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """300 rows of six features: one constant, one binary, and a wider spread where it is 1."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((300, 6)).astype(np.float32)
    x[:, 0] = 3.0
    x[:, 4] = x[:, 4] > 0
    y = x[:, 1] - 0.5 * x[:, 2] + (0.05 + 0.3 * x[:, 4]) * rng.standard_normal(300)
    return x, y.astype(np.float64), np.ones(300)


def stump(depth: int) -> dict[str, Any]:
    """One tree of depth 1: 10 above 0.5 of feature 2, else 20; scale 2, bias 1."""
    return {
        "scale_and_bias": [2.0, [1.0]],
        "oblivious_trees": [
            {"splits": [{"float_feature_index": 2, "border": 0.5}], "leaf_values": [20.0, 10.0]}
        ]
        * depth,
    }


@pytest.mark.parametrize("loss", [MEAN_LOSS, QUANTILE_LOSS])
def test_the_forest_equals_the_librarys_own_prediction(loss: str, tmp_path: Path) -> None:
    catboost = pytest.importorskip("catboost", reason="training needs catboost (extra 'fit')")
    x, y, weight = rows()
    model = catboost.CatBoostRegressor(
        loss_function=loss, iterations=25, depth=4, learning_rate=0.1, random_seed=3,
        thread_count=2, allow_writing_files=False, verbose=False,
    )  # fmt: skip
    model.fit(catboost.Pool(x, y, weight=weight))
    model.save_model(str(tmp_path / "m.json"), format="json")
    document = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    truth = np.asarray(model.predict(x)).reshape(len(x), -1)
    new = np.random.default_rng(4).standard_normal((700, 6)).astype(np.float32)
    for depth in (4, 6):
        forest = _from_json(document, depth)
        assert forest.features.shape == (25, depth)
        assert forest.predict(x) == pytest.approx(truth, abs=1e-5)
        assert forest.predict(new) == pytest.approx(
            np.asarray(model.predict(new)).reshape(len(new), -1), abs=1e-5
        )
    ours = fit_forest(x, y, weight, loss=loss, trees=25, depth=4, learning_rate=0.1, seed=3)
    assert ours.predict(x) == pytest.approx(truth, abs=1e-5)


def test_two_fits_are_equal_to_the_last_bit() -> None:
    pytest.importorskip("catboost", reason="training needs catboost (extra 'fit')")
    x, y, weight = rows()
    a, b = (
        fit_forest(x, y, weight, loss=QUANTILE_LOSS, trees=15, depth=3, learning_rate=0.1)
        for _ in range(2)
    )
    assert a.leaves.tobytes() == b.leaves.tobytes()
    assert a.thresholds.tobytes() == b.thresholds.tobytes()


def test_quantiles_widen_where_the_labels_spread() -> None:
    pytest.importorskip("catboost", reason="training needs catboost (extra 'fit')")
    x, y, weight = rows()
    q = fit_forest(
        x, y, weight, loss=QUANTILE_LOSS, trees=80, depth=4, learning_rate=0.1
    ).predict(x)  # fmt: skip
    width = q[:, 2] - q[:, 0]
    assert width[x[:, 4] == 1].mean() > 1.5 * width[x[:, 4] == 0].mean()
    assert np.mean(y < q[:, 0]) == pytest.approx(0.1, abs=0.07)
    assert np.mean(y < q[:, 1]) == pytest.approx(0.5, abs=0.07)
    assert np.mean(y < q[:, 2]) == pytest.approx(0.9, abs=0.07)


def test_a_tree_is_read_as_its_leaves_scaled_plus_the_bias() -> None:
    x = np.zeros((2, 3), dtype=np.float32)
    x[1, 2] = 0.6
    assert _from_json(stump(1), 1).predict(x).tolist() == [[41.0], [21.0]]
    assert _from_json(stump(2), 1).predict(x).tolist() == [[81.0], [41.0]]


def test_a_row_on_the_border_goes_to_the_lower_side() -> None:
    x = np.array([[0.0, 0.0, 0.5]], dtype=np.float32)
    assert _from_json(stump(1), 1).predict(x).tolist() == [[41.0]]


def test_a_shallow_tree_padded_to_more_depth_says_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    x[0] = np.inf
    assert (_from_json(stump(3), 5).predict(x) == _from_json(stump(3), 1).predict(x)).all()


def test_many_rows_are_scored_as_one_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = _from_json(stump(4), 2)
    monkeypatch.setattr(quantiles, "CHUNK_PLACES", 20 * len(forest.features))
    x = np.random.default_rng(0).standard_normal((43, 3)).astype(np.float32)
    one_by_one = np.vstack([forest.predict(x[i : i + 1]) for i in range(len(x))])
    assert (forest.predict(x) == one_by_one).all()
    assert forest.predict(x[:0]).shape == (0, 1)


def test_a_forest_without_trees_is_its_bias() -> None:
    empty = Forest(
        np.zeros((0, 3), dtype=np.int32), np.zeros((0, 3), dtype=np.float32),
        np.zeros((0, 8, 2), dtype=np.float32), np.array([1.0, 2.0]),
    )  # fmt: skip
    assert empty.predict(np.zeros((2, 4), dtype=np.float32)).tolist() == [[1.0, 2.0]] * 2


def test_training_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "catboost", None)
    x, y, weight = rows()
    with pytest.raises(OmniPilotError, match=r"omnipilot\[fit\]"):
        fit_forest(x, y, weight, loss=MEAN_LOSS, trees=1, depth=1, learning_rate=0.1)
