from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from omnipilot.advisor import Advisor, Question
from omnipilot.catalog import Catalog
from omnipilot.costmodel.bundle import base_model_path
from omnipilot.costmodel.predict import CostModel
from omnipilot.domain import TARGETS, Scenario, ServingRequest
from omnipilot.learn.dataset import build_dataset, read_runs
from omnipilot.learn.origins import ORIGINS
from omnipilot.learn.train import CARD_FILE, render_card

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def base() -> CostModel:
    return CostModel.load(base_model_path())


def test_the_shipped_bundle_is_small_and_holds_text_and_arrays_only() -> None:
    files = [f for f in base_model_path().iterdir() if f.is_file()]
    assert {f.name for f in files} == {"bundle.json", "arrays.npz", CARD_FILE}
    assert sum(f.stat().st_size for f in files) < 10 * 2**20


def test_the_card_names_the_licence_of_every_source_and_is_of_this_version(base: CostModel) -> None:
    assert set(base.card["sources"]) == set(ORIGINS)
    text = (base_model_path() / CARD_FILE).read_text(encoding="utf-8")
    assert text == render_card(base.version, base.card)
    assert "Copyright (c) 2024 UChicago Argonne, LLC" in text


def test_every_target_is_answered_in_order_and_unlabelled_ones_say_prior(base: CostModel) -> None:
    catalog = Catalog.load()
    out = base.predict(
        [
            Scenario(
                model=catalog.model("Qwen/Qwen2.5-7B-Instruct"), gpu=catalog.gpu(kind),
                precision=catalog.precision("bf16"), n_gpus=n, prompt_tokens=3072.0,
                output_tokens=1024.0, concurrency=200.0,
            )
            for kind in ("a100-40", "h100-80", "mi300x-192") for n in (1, 2)
        ]
    )  # fmt: skip
    for target in TARGETS:
        q10, q50, q90, lower, upper = out.values[target.name].T
        assert np.all((q10 > 0) & (q10 <= q50) & (q50 <= q90))
        assert np.all((lower <= q50) & (q50 <= upper))
        labelled = base.card["labels"][target.name] > 0
        assert out.source[target.name] == ("model" if labelled else "prior")
    assert {v.novelty for v in out.support} == {"source"}
    assert "high" not in {v.confidence for v in out.support}


@pytest.mark.parametrize(
    "name", ["deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "Qwen/Qwen3-235B-A22B-FP8"]
)
def test_a_checkpoint_of_block_scaled_fp8_is_answered_from_rows_that_say_fp8(
    name: str, base: CostModel, tmp_path: Path
) -> None:
    advisor = Advisor(tmp_path, model=base)
    request = ServingRequest(name, 16, 8192, 6144, 2048)
    answers = [
        advisor.advise(Question(request, gpus=("h200-141",), precisions=asked)).recommendation
        for asked in ((), ("fp8-block",), ("fp8",))
    ]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0].abstention is None
    assert {arm.support.supported for arm in answers[0].ranked} == {True}


def test_the_shipped_intervals_cover_the_rows_they_were_fitted_on(
    base: CostModel, shared_dir: Path
) -> None:
    # A floor, not the evaluation: rows of the fit must be covered more often than held-out ones.
    data = build_dataset(read_runs(shared_dir / "data"), Catalog.load()).data
    rows = np.arange(0, data.frame.n, 40)
    answers = base.fitted.predict(data.frame.take(rows))
    y = data.labels["output_tokens_per_s"][rows]
    known = np.isfinite(y)
    value = np.exp(y[known])
    lower, upper = answers.values["output_tokens_per_s"][known][:, 3:].T
    assert np.mean((value >= lower) & (value <= upper)) > 0.8
    assert np.median(np.abs(answers.values["output_tokens_per_s"][known, 1] / value - 1)) < 0.05
