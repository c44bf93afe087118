from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_rows import AGG, CATALOG, MODELS, OUT, made, right_answers

from omnipilot.domain.errors import UsageError
from omnipilot.evaluate import decision_report, holdout_cache
from omnipilot.evaluate.baselines import POLICIES
from omnipilot.evaluate.decision_cells import Forecast, build_cells, throughput_targets
from omnipilot.evaluate.decision_report import SIZE_BANDS, document, gather
from omnipilot.evaluate.holdout import Holdout
from omnipilot.evaluate.holdout_cache import held_out, is_kept
from omnipilot.evaluate.plain_gbm import gbm_forecast
from omnipilot.evaluate.prices import PRICES_USD_PER_GPU_H

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.evaluate.holdout import HeldOut
    from omnipilot.learn.dataset import Dataset


@pytest.fixture
def always_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(dataset: Dataset, question: Holdout, home: Path | None, say: object) -> HeldOut:
        del home, say
        return right_answers(dataset, question, lambda _: None)

    monkeypatch.setattr(decision_report, "held_out", answer)


QUESTION = Holdout(AGG, "cell", ("alpha",))


def test_arms_of_kinds_without_a_price_are_left_out_and_counted() -> None:
    dataset = made()
    answers = right_answers(dataset, QUESTION, lambda _: None)
    table = build_cells(
        dataset, "cell", Forecast.of(answers, AGG, dataset.data.frame.n), PRICES_USD_PER_GPU_H
    )
    assert len(table.cells) == 10
    assert table.unpriced == 10
    assert {len(c.arms) for c in table.cells} == {2}


@pytest.mark.parametrize("predicted", [OUT, AGG])
def test_output_rates_become_aggregate_ones_by_the_lengths_of_the_row(predicted: str) -> None:
    dataset = made(repeats=2)
    answers = right_answers(dataset, replace(QUESTION, target=predicted), lambda _: None)
    forecast = Forecast.of(answers, predicted, dataset.data.frame.n)
    table = build_cells(dataset, "cell", forecast, PRICES_USD_PER_GPU_H)
    for cell in table.cells:
        assert cell.predicted[:, 1] == pytest.approx(cell.measured)
        assert [len(rows) for rows in cell.rows] == [2, 2]
    first = min(table.cells, key=lambda c: (c.params, c.likeness[2]))
    assert first.measured == pytest.approx([500.0, 1000.0])


def test_a_source_with_output_rates_only_is_decided_by_them() -> None:
    dataset = made(labelled=(OUT,))
    assert throughput_targets(dataset, QUESTION) == (OUT,)
    answers = right_answers(dataset, replace(QUESTION, target=OUT), lambda _: None)
    table = build_cells(
        dataset, "cell", Forecast.of(answers, OUT, dataset.data.frame.n), PRICES_USD_PER_GPU_H
    )
    first = min(table.cells, key=lambda c: (c.params, c.likeness[2]))
    assert first.measured == pytest.approx([100.0, 200.0])


@pytest.mark.parametrize("split", ["cell", "model"])
def test_what_is_held_out_together_is_the_group_of_a_cell(split: str) -> None:
    dataset = made()
    answers = right_answers(dataset, QUESTION, lambda _: None)
    forecast = Forecast.of(answers, AGG, dataset.data.frame.n)
    table = build_cells(dataset, split, forecast, PRICES_USD_PER_GPU_H)
    assert len({c.group for c in table.cells}) == (10 if split == "cell" else 2)


@pytest.mark.usefixtures("always_right")
def test_right_predictions_have_no_regret_and_every_documented_key() -> None:
    evidence = gather(made(), QUESTION, PRICES_USD_PER_GPU_H, None, trees=False)
    figures = document(evidence, QUESTION, 2e-7)
    assert figures["cells"] == 10
    assert figures["top1"] == 1.0
    assert figures["regret_relative"] == pytest.approx(0.0, abs=1e-9)
    assert {
        "top1_ci", "regret_usd_per_h", "regret_revenue_frac", "regret_ci", "per_model",
        "per_band", "values", "operating_points",
    } <= set(figures)  # fmt: skip
    assert set(figures["baselines"]) == {p.name for p in POLICIES if not p.needs_gbm}
    for baseline in figures["baselines"].values():
        assert {"top1", "regret_usd_per_h", "regret_relative"} <= set(baseline)
    assert set(figures["per_model"]) == set(MODELS)
    assert set(figures["per_band"]) == {"3-9B", "15-35B"}
    assert figures["operating_points"]["slo-constrained"] is None  # no latency label
    assert figures["precision"] is None
    assert figures["worst_cells"] == []


@pytest.mark.usefixtures("always_right")
def test_rows_without_a_choice_are_refused_in_words() -> None:
    with pytest.raises(UsageError, match="two priced arms"):
        gather(made(), QUESTION, {"a100-80": 1.8}, None, trees=False)
    with pytest.raises(UsageError, match="no row has source 'beta'"):
        gather(made(), replace(QUESTION, sources=("beta",)), PRICES_USD_PER_GPU_H, None)


def test_trees_without_physics_learn_the_rows_of_other_folds() -> None:
    pytest.importorskip("catboost", reason="training needs the extra 'fit'")
    dataset = made(repeats=2)
    forecast = gbm_forecast(dataset, QUESTION)
    error = forecast.prior - dataset.data.labels[OUT]
    assert np.isfinite(error).all()
    spread = np.std(dataset.data.labels[OUT])
    assert np.sqrt(np.mean(error**2)) < spread
    assert np.abs(error).max() > 0.01  # cells were left out: nothing is known by heart


def test_answers_are_kept_and_used_again_only_for_the_same_rows_question_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answer(dataset: Dataset, question: Holdout, say: Callable[[str], None]) -> HeldOut:
        asked.append(question.split)
        return right_answers(dataset, question, say)

    dataset = made()
    first = held_out(dataset, QUESTION, tmp_path, answer=answer)
    again = held_out(dataset, QUESTION, tmp_path, answer=answer)
    assert asked == ["cell"]
    assert is_kept(dataset, QUESTION, tmp_path)
    assert again.n_folds == first.n_folds
    np.testing.assert_array_equal(again.log, first.log)
    np.testing.assert_array_equal(again.confidence, first.confidence)

    held_out(dataset, replace(QUESTION, split="model"), tmp_path, answer=answer)
    held_out(dataset, replace(QUESTION, seed=1), tmp_path, answer=answer)
    held_out(made(labelled=(AGG,)), QUESTION, tmp_path, answer=answer)
    assert asked == ["cell", "model", "cell", "cell"]
    monkeypatch.setattr(holdout_cache, "code_digest", lambda: "other code")
    assert not is_kept(dataset, QUESTION, tmp_path)
    held_out(dataset, QUESTION, tmp_path, answer=answer)
    assert len(asked) == 5


def test_a_damaged_or_unwritable_cache_is_passed_over(tmp_path: Path) -> None:
    dataset = made()

    def answer(_: Dataset, question: Holdout, say: Callable[[str], None]) -> HeldOut:
        return right_answers(dataset, question, say)

    held_out(dataset, QUESTION, tmp_path, answer=answer)
    (kept,) = (tmp_path / holdout_cache.FOLDER).glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:100])
    assert not is_kept(dataset, QUESTION, tmp_path)
    assert held_out(dataset, QUESTION, tmp_path, answer=answer).n_folds == 5
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert held_out(dataset, QUESTION, file, answer=answer).n_folds == 5


def test_size_bands_cover_every_size_once() -> None:
    edges = [low for _, low, _ in SIZE_BANDS] + [SIZE_BANDS[-1][2]]
    assert edges == sorted(edges)
    assert all(a[2] == b[1] for a, b in itertools.pairwise(SIZE_BANDS))


def test_the_price_table_and_the_baselines_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "decisions.md").read_text(encoding="utf-8")
    priced = re.findall(r"^\| ([A-Z0-9-]+) \| ([0-9.]+) \|$", text, flags=re.MULTILINE)
    assert len(priced) == 13
    for part, price in priced:
        kinds = [k for k in PRICES_USD_PER_GPU_H if re.match(rf"{part.lower()}\D?(-|$)", k)]
        assert kinds, part
        assert all(PRICES_USD_PER_GPU_H[k] == float(price) for k in kinds), part
    for policy in POLICIES:
        assert f"| {policy.name} | {policy.meaning} |" in text
    assert set(PRICES_USD_PER_GPU_H) <= {gpu.kind for gpu in CATALOG.gpus()}
