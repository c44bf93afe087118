"""Hidden groups: what probes of them do to decisions and errors, on made-up rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_rows import made

from omnipilot.cli.app import run
from omnipilot.costmodel.bundle import base_model_path, load_bundle
from omnipilot.costmodel.new_kind import known_kinds
from omnipilot.domain.errors import UsageError
from omnipilot.evaluate import probe_decisions as module
from omnipilot.evaluate.decisions import OperatingPoint
from omnipilot.evaluate.hidden_group import HiddenGroup
from omnipilot.evaluate.holdout import Fold, Holdout
from omnipilot.evaluate.prices import PRICES_USD_PER_GPU_H
from omnipilot.evaluate.probe_decisions import GroupResult, Terms, judge_groups
from omnipilot.evaluate.probe_report import probe_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.learn.dataset import Dataset

TERMS = Terms(OperatingPoint("asked", 1e-6), PRICES_USD_PER_GPU_H, hours=24.0, random_draws=4)
KEYS = {
    "groups", "cells", "regret_no_probe", "regret_random", "regret_chosen",
    "net_utility_no_probe", "net_utility_chosen", "mape_by_probes",
}  # fmt: skip


def model(without_kind: str = "") -> FittedModel:
    """The shipped model: the made-up source is one that it never saw.

    ``without_kind`` is a GPU kind that it then takes for a new one.
    """
    shipped = load_bundle(base_model_path())[0]
    known = [k for k in shipped.envelope.novelty["gpu_kind"] if k != without_kind]
    novelty = shipped.envelope.novelty | {"gpu_kind": tuple(known)}
    return replace(
        shipped,
        physics=known_kinds(shipped.physics, known),
        envelope=replace(shipped.envelope, novelty=novelty),
    )


@pytest.fixture
def one_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fold that hides a model or a GPU kind, without fitting anything."""

    def folds(dataset: Dataset, question: Holdout, *_: object) -> Iterator[Fold]:
        category = {"model": "model", "gpu": "gpu_kind"}[question.split]
        values = dataset.data.frame.category(category)
        name = {"model": values[0], "gpu": "h100-80"}[question.split]
        yield Fold(model(), np.flatnonzero(values == name))

    monkeypatch.setattr(module, "fold_models", folds)


def result(split: str, probes: int = 1) -> list[GroupResult]:
    return judge_groups(made(), Holdout("output_tokens_per_s", split), probes, TERMS)


def group(split: str = "model", without_kind: str = "") -> HiddenGroup:
    dataset = made()
    held = dataset.data.frame.category({"model": "model", "gpu": "gpu_kind"}[split])
    hidden = held == (held[0] if split == "model" else "h100-80")
    rows = np.concatenate([np.flatnonzero(hidden), np.flatnonzero(~hidden)])
    question = Holdout("output_tokens_per_s", split)
    asked = model(without_kind)
    return HiddenGroup.ask("g", dataset, question, asked, rows, hidden[rows])


@pytest.mark.parametrize("without_kind", ["", "h100-80"])
def test_revealing_rows_is_conditioning_the_model_on_them(without_kind: str) -> None:
    dataset = made()
    question = Holdout("output_tokens_per_s", "gpu" if without_kind else "model")
    asked = group(question.split, without_kind)
    asked = asked.take(np.flatnonzero(asked.hidden))
    at = [0, 7]
    rows = asked.rows[at]
    head = question.head
    labels = {
        t: values[rows] if t in head.targets else np.full(len(rows), np.nan)
        for t, values in dataset.data.labels.items()
    }
    told = asked.model.condition(dataset.data.frame.take(rows), labels)
    frame = dataset.data.frame.take(asked.rows)
    prior = told.physics.evaluate(frame)
    answer = told.log_quantiles(told.questions(frame), head.name)
    log, covariance = asked.after(at)
    expected = prior.log[question.target][:, None] + answer.log
    assert log[:, 1] == pytest.approx(expected[:, 1], abs=0.02)
    # The trees that size a band see the prior, which a new kind's parameters have moved there.
    assert log == pytest.approx(expected, abs=0.05 if without_kind else 0.02)
    joint = told.joint(frame, prior, head.name)
    assert covariance == pytest.approx(joint.covariance, abs=0.02)
    moved = told.physics.evaluate(frame).log[question.target]
    before = asked.model.physics.evaluate(frame).log[question.target]
    assert np.allclose(moved, before) == (not without_kind)


def test_other_groups_rows_are_known_and_a_probe_tells_nothing_of_them() -> None:
    asked = group("gpu")
    known = ~asked.hidden
    assert asked.log[known, 1] == pytest.approx(asked.y[known])
    log, _ = asked.after([0])
    assert log[known] == pytest.approx(asked.log[known])
    assert not np.allclose(log[asked.hidden], asked.log[asked.hidden])


def test_errors_are_of_the_hidden_rows_that_were_not_revealed() -> None:
    asked = group("gpu")
    ape = asked.ape(asked.log, [0])
    assert np.isnan(ape[0])
    assert np.isnan(ape[~asked.hidden]).all()
    assert np.isfinite(ape[asked.hidden]).sum() == asked.hidden.sum() - 1


def test_the_most_telling_row_takes_most_off_the_others() -> None:
    asked = group()
    candidates = np.flatnonzero(asked.hidden)
    best = asked.most_telling(asked.covariance, candidates)

    def left(i: int) -> float:
        return float(np.sqrt(np.maximum(np.diag(asked.after([i])[1])[asked.hidden], 0.0)).sum())

    assert left(best) == pytest.approx(min(left(int(i)) for i in candidates), rel=1e-6)


@pytest.mark.usefixtures("one_fold")
@pytest.mark.parametrize("split", ["model", "gpu"])
def test_knowing_every_hidden_arm_leaves_no_regret(split: str) -> None:
    (found,) = result(split, probes=2)
    n = {"model": 5, "gpu": 10}[split]  # one decision a load: of one model, or of both
    assert found.decisions == n
    assert found.regret_usd_per_h["chosen"] == pytest.approx(np.zeros(n), abs=1e-9)
    assert np.all(found.cost_usd["chosen"] > 0)
    assert found.cost_usd["no_probe"].tolist() == [0.0] * n


@pytest.mark.usefixtures("one_fold")
def test_the_document_has_its_keys_and_adds_up() -> None:
    results = result("model")
    figures = probe_document(results, Holdout("output_tokens_per_s", "model"), 1, TERMS)
    assert set(figures) >= KEYS
    for key in KEYS - {"groups", "cells", "mape_by_probes"}:
        low, high = figures[f"{key}_ci"]
        assert low <= figures[key] <= high
    assert figures["cells"] == sum(r.decisions for r in results) == 5
    for policy in ("chosen", "random"):
        curve = figures["mape_by_probes"][policy]
        assert [e["probes"] for e in curve] == [0, 1]
        assert all(e["mape_ci"][0] <= e["mape"] <= e["mape_ci"][1] for e in curve)
    gain = figures["net_utility_chosen"] - figures["net_utility_no_probe"]
    assert figures["net_gain"] == pytest.approx(gain)
    hours = 24.0
    saved = figures["regret_usd_per_h"]["no_probe"] - figures["regret_usd_per_h"]["chosen"]
    assert gain == pytest.approx(hours * saved - figures["probe_cost_usd"])


@pytest.mark.usefixtures("one_fold")
def test_the_gate_makes_no_probe_where_none_pays() -> None:
    brief = replace(TERMS, hours=1e-6)
    (found,) = judge_groups(made(), Holdout("output_tokens_per_s", "model"), 1, brief)
    assert found.probes["chosen"].tolist() == [1.0] * 5
    assert found.probes["as_it_pays"].tolist() == [0.0] * 5
    assert found.cost_usd["as_it_pays"].tolist() == [0.0] * 5
    assert found.utility_usd["as_it_pays"].tolist() == found.utility_usd["no_probe"].tolist()
    (found,) = result("model")
    assert found.probes["as_it_pays"].sum() > 0


@pytest.mark.usefixtures("one_fold")
def test_the_table_of_the_command_shows_every_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("omnipilot.learn.dataset.read_runs", lambda _: [])
    monkeypatch.setattr("omnipilot.learn.dataset.build_dataset", lambda *_: made())
    arguments = ["evaluate", "probes", "--data", str(tmp_path), "--probes", "1"]
    assert run([*arguments, "--home", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("no probe", "1 random", "1 chosen by the gate", "that the gate says pay"):
        assert words in text
    assert "errors of the hidden rows: MAPE" in text
    assert run([*arguments, "--home", str(tmp_path), "--format", "json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= KEYS


@pytest.mark.usefixtures("one_fold")
def test_the_same_question_gets_the_same_figures() -> None:
    question = Holdout("output_tokens_per_s", "model")
    first, again = (probe_document(result("model"), question, 1, TERMS) for _ in range(2))
    assert first == again


@pytest.mark.usefixtures("one_fold")
def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(UsageError, match="model or gpu"):
        judge_groups(made(), Holdout("output_tokens_per_s", "cell"), 1, TERMS)
    nothing = replace(TERMS, prices={"a100-80": 1.8})
    with pytest.raises(UsageError, match="two priced arms"):
        judge_groups(made(), Holdout("output_tokens_per_s", "model"), 1, nothing)


def test_probes_without_a_hidden_group_are_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("read the rows first")

    monkeypatch.setattr("omnipilot.learn.dataset.read_runs", never)
    arguments = ["evaluate", "--data", str(tmp_path), "--target", "output_tokens_per_s"]
    assert run([*arguments, "--split", "cell", "--probes", "3", "--home", str(tmp_path)]) == 2
    assert "say --split model" in capsys.readouterr().err
