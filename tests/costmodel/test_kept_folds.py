"""A base fit that is cut takes up where it stopped."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import made

from omnipilot.costmodel import fit
from omnipilot.costmodel.fit import fit_cost_model
from omnipilot.costmodel.heads import HEADS
from omnipilot.costmodel.hyperparameters import tune
from omnipilot.learn.kept_folds import KeptFolds

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.costmodel.fitted import FittedModel


class Cut(Exception):  # noqa: N818 - stands for a kill
    """The machine went down."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("catboost", reason="training needs catboost (extra 'fit')")
    monkeypatch.setattr(fit, "N_GLOBAL", 30)
    monkeypatch.setattr(fit, "N_SOURCE", 30)
    monkeypatch.setattr(fit, "HELD_OUT_N_SOURCE", 30)
    monkeypatch.setattr(fit, "tune", partial(tune, rows=60, subsets=1, iterations=2))


def run(kept: KeptFolds | None, said: list[str], cut_at: int = 0) -> FittedModel:
    """Fit one head with two classes; with ``cut_at`` it dies when that fold begins."""

    def tell(text: str) -> None:
        said.append(text)
        if cut_at and sum("fold" in s for s in said) == cut_at:
            raise Cut

    return fit_cost_model(
        made().data, heads=HEADS[:1], classes=("seen", "model"), progress=tell, kept=kept
    )


def test_a_cut_fit_goes_on_with_the_folds_it_had_and_ends_the_same(tmp_path: Path) -> None:
    kept = KeptFolds(tmp_path / "fit")
    with pytest.raises(Cut):
        run(kept, [], cut_at=4)
    whole_ones = list(kept.folder.glob("*.npz"))
    assert 3 <= len(whole_ones) <= 4  # the fold that was being fitted is still ended
    damaged = min(whole_ones)
    damaged.write_bytes(damaged.read_bytes()[:50])
    said: list[str] = []
    resumed = run(kept, said)
    assert sum(s.endswith("(kept)") for s in said) == len(whole_ones) - 1
    whole = run(None, [])
    frame = made().data.frame
    for target, values in whole.predict(frame).values.items():
        assert values.tobytes() == resumed.predict(frame).values[target].tobytes()
    kept.clear()
    assert not kept.folder.exists()


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    kept = KeptFolds(blocked / "fit")
    kept.save("seen-0", {"throughput-prior": np.zeros(3)})
    assert kept.load("seen-0") is None
