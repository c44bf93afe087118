from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from omnipilot.catalog import Catalog
from omnipilot.cli.evaluate import SPLITS
from omnipilot.costmodel import fit
from omnipilot.domain.errors import UsageError
from omnipilot.domain.rows import InferenceRun
from omnipilot.evaluate import holdout
from omnipilot.evaluate.holdout import Holdout, hold_out, report
from omnipilot.evaluate.rowsets import row_set
from omnipilot.learn.dataset import Dataset, build_dataset, read_runs

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = "llm_pilot"


@pytest.fixture(scope="module")
def real(shared_dir: Path) -> Dataset:
    items = read_runs(shared_dir / "data")
    mine = [i for i in items if isinstance(i, InferenceRun) and i.source == SOURCE]
    return build_dataset(mine, Catalog.load())


def test_held_out_cells_of_real_rows_are_predicted_and_covered(
    real: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("catboost", reason="training needs the extra 'fit'")
    # A bounded sample of the heavy evaluation: one source, fewer folds.
    monkeypatch.setattr(fit, "DEFAULT_FOLDS", 3)
    monkeypatch.setitem(holdout.FOLDS, "cell", 3)
    question = Holdout(target="output_tokens_per_s", split="cell", sources=(SOURCE,))
    figures = report(real, question, hold_out(real, question))
    assert figures["n"] == 483 + 4  # ok, and ok but for a few requests
    assert figures["mape"] < 0.10
    assert figures["r2_log"] > 0.97
    assert 0.70 < figures["coverage"] < 0.92
    assert figures["mape"] < figures["prior_alone"]["mape"]
    assert figures["excluded"]["not_ok"] > 0


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Holdout("output_tokens_per_s", "cell", sources=("nowhere",)), "say one of"),
        (Holdout("output_tokens_per_s", "cell", engine="vllm"), "no row has engine 'vllm'"),
        (Holdout("power_mean_w", "cell"), "no row of this filter has a label"),
        (Holdout("cold_start_s", "cell"), "prior alone"),
        (Holdout("output_tokens_per_s", "source"), "nothing to hold out"),
    ],
)
def test_a_filter_that_matches_nothing_is_refused_in_words(
    question: Holdout, words: str, real: Dataset
) -> None:
    with pytest.raises(UsageError, match=words):
        hold_out(real, question)


def test_the_command_offers_every_split() -> None:
    assert set(SPLITS) == set(holdout.CLASS_OF_SPLIT) == set(holdout.FOLDS)


def test_the_named_row_set_is_one_source_and_engine_only(real: Dataset) -> None:
    assert row_set((SOURCE,), "vllm") is None
    named = row_set(("llm_inference_bench",), "vllm")
    assert named is not None
    assert not np.any(named.mask(real.data.frame))
