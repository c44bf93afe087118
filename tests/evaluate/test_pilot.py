from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from omnipilot.catalog import Catalog
from omnipilot.domain.errors import BadInputError
from omnipilot.evaluate import pilot as module
from omnipilot.evaluate.pilot import PilotRows, expense, pilot_rows, so_score

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def rows(shared_dir: Path) -> PilotRows:
    return pilot_rows(shared_dir / "data", Catalog.load())


def test_the_grid_is_the_published_one(rows: PilotRows) -> None:
    assert rows.frame.n == 528  # 526 measured rows and the two that the data set leaves out
    assert len(np.unique(rows.model)) == 10
    assert len(rows.profiles) == 14
    assert set(rows.users.tolist()) == {2.0**k for k in range(8)}


def test_the_user_count_ends_before_the_first_breach() -> None:
    users = np.array([4.0, 1.0, 2.0, 8.0])  # any order
    nttft = np.array([60.0, 10.0, 20.0, 50.0])
    itl = np.array([60.0, 10.0, 20.0, 30.0])  # breached at 4; 8 would be fine again
    assert expense(users, nttft, itl, 3.0) == (300.0, 100, 2.0)
    assert expense(users, nttft, np.full(4, 51.0), 3.0)[1:] == (0, 0.0)
    assert np.isinf(expense(users, np.full(4, 101.0), itl, 3.0)[0])


def test_the_score_is_the_harmonic_mean_of_success_and_thrift() -> None:
    assert so_score([True] * 8 + [False] * 2, [0.199] * 8) == pytest.approx(
        (0.8, 0.199, 0.80), abs=1e-3
    )
    assert so_score([False], []) == (0.0, 0.0, 0.0)
    assert so_score([True], [2.0])[2] == 0.0


@pytest.mark.parametrize("probes", [0, 1, 2])
def test_the_measurements_as_predictions_score_one(
    rows: PilotRows, probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def truth(_: object, frame: object, target: str, labels: np.ndarray) -> np.ndarray:
        mine = asked[-1]
        index = np.flatnonzero(rows.model == np.unique(rows.model)[mine])
        del frame, labels
        if target == "itl_p50_s":
            return np.asarray(rows.itl_ms[index] / 1e3)
        return np.asarray(rows.nttft_ms[index] * rows.frame["prompt_tokens"][index] / 1e3)

    monkeypatch.setattr(module, "_median", truth)
    successes, overspends = [], []
    for i, model in enumerate(np.unique(rows.model)):
        asked.append(i)
        models = {"ttft_p50_s": None, "itl_p50_s": None}
        entry = module._recommend(rows, np.flatnonzero(rows.model == model), 1.0, models, probes)  # type: ignore[arg-type]
        successes.append(entry["success"])
        overspends.append(entry["overspend"])
        assert len(entry["probed"]) == min(
            probes, len(np.unique(rows.profile[rows.model == model]))
        )
    assert so_score(successes, overspends) == (1.0, 0.0, 1.0)


def test_a_folder_without_the_grid_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"normalised\.csv"):
        pilot_rows(tmp_path, Catalog.load())
