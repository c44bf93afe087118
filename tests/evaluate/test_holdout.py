from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from omnipilot.catalog import Catalog
from omnipilot.cli.evaluate import SPLITS
from omnipilot.costmodel import fit
from omnipilot.domain.errors import UsageError
from omnipilot.domain.rows import InferenceRun
from omnipilot.evaluate import holdout
from omnipilot.evaluate.heldout_report import report
from omnipilot.evaluate.holdout import ROWS, Holdout, fold_models, folds_of, hold_out
from omnipilot.evaluate.probing import probe_curve
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
    monkeypatch.setitem(holdout.FOLDS, "cell", 3)
    question = Holdout(target="output_tokens_per_s", split="cell", sources=(SOURCE,))
    held = hold_out(real, question)
    figures = report(real, question, held)
    assert figures["n"] == 483 + 4  # ok, and ok but for a few requests
    assert figures["mape"] < 0.10
    assert figures["r2_log"] > 0.97
    assert 0.70 < figures["coverage"] < 0.92
    assert figures["mape"] < figures["prior_alone"]["mape"]
    assert figures["excluded"]["not_ok"] > 0
    # Where intervals are sized moves the medians little.
    easier = hold_out(real, replace(question, calibrated_on=ROWS))
    assert np.abs(easier.log[:, 1] - held.log[:, 1]).mean() < 0.02


def test_intervals_sized_on_cells_promise_too_much_for_unseen_models(
    real: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("catboost", reason="training needs the extra 'fit'")
    monkeypatch.setitem(holdout.FOLDS, "model", 3)
    question = Holdout(target="output_tokens_per_s", split="model", sources=(SOURCE,))

    def coverage(asked: Holdout) -> float:
        held = hold_out(real, asked)
        return float(np.mean((held.y >= held.log[:, 3]) & (held.y <= held.log[:, 4])))

    assert coverage(question) > 0.65
    assert coverage(replace(question, calibrated_on="cell")) < 0.5


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


def test_the_filter_changes_neither_folds_nor_groups(real: Dataset) -> None:
    whole = folds_of(real, Holdout("output_tokens_per_s", "model"))
    part = folds_of(real, Holdout("output_tokens_per_s", "model", vendor="nvidia"))
    assert (whole == part).all()
    models = real.data.frame.category("model")
    for name in np.unique(models):
        assert len(set(whole[models == name].tolist())) == 1


def test_one_by_one_leaves_out_each_group_alone(real: Dataset) -> None:
    fold = folds_of(real, Holdout("itl_p50_s", "model", sources=(SOURCE,), one_by_one=True))
    models = real.data.frame.category("model")
    assert len(set(fold.tolist())) == len(np.unique(models))


def test_fitted_folds_are_kept_and_probes_narrow_the_answers(
    real: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("catboost", reason="training needs the extra 'fit'")
    monkeypatch.setattr(fit, "DEFAULT_FOLDS", 2)
    monkeypatch.setitem(holdout.FOLDS, "model", 2)
    question = Holdout("output_tokens_per_s", "model", sources=(SOURCE,))
    first = hold_out(real, question, cache=tmp_path)
    said: list[str] = []
    again = hold_out(real, question, said.append, tmp_path)
    assert said == []  # nothing was fitted again
    assert again.log == pytest.approx(first.log, abs=1e-5)
    for fold in fold_models(real, question, tmp_path):
        held = set(real.data.frame.category("model")[fold.test].tolist())
        assert held.isdisjoint(fold.model.envelope.novelty["model"])
    for policy in ("random", "variance"):
        curve = probe_curve(real, question, 4, policy, tmp_path)["by_probes"]
        assert [c["probes"] for c in curve] == [0, 1, 2, 3, 4]
        assert curve[4]["mape"] < 0.8 * curve[0]["mape"]
        assert curve[4]["mean_log_width"] < curve[0]["mean_log_width"]


def test_probes_of_cells_are_refused_in_words(real: Dataset) -> None:
    with pytest.raises(UsageError, match="hidden group"):
        probe_curve(real, Holdout("output_tokens_per_s", "cell"), 2, "random")
