"""Fitting the whole cost model on made-up rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from costmodel_builders import fitted, made, scenarios

from omnipilot.costmodel import fit as module
from omnipilot.costmodel.fit import CEILING_MARGIN_LOG, SHARE_GROUPS, layer_shares, screen
from omnipilot.costmodel.fitted import ANY_SOURCE
from omnipilot.costmodel.heads import HEADS, MIN_LABELLED_ROWS
from omnipilot.costmodel.hyperparameters import Hyperparameters, Scales
from omnipilot.costmodel.kernel import KERNEL_TERMS
from omnipilot.costmodel.novelty import NOVELTY, SEEN
from omnipilot.costmodel.physics import throughput_ceiling
from omnipilot.costmodel.spread import MIN_SOURCE_ROWS
from omnipilot.domain.targets import TARGET_NAMES


def test_only_heads_with_enough_labels_are_fitted() -> None:
    labels = made().data.labels["ttft_p50_s"]
    assert 0 < np.isfinite(labels).sum() < MIN_LABELLED_ROWS
    assert set(fitted().heads) == {"throughput", "power"}


def test_only_the_classes_asked_for_are_calibrated() -> None:
    for head in fitted().heads.values():
        assert set(head.spreads) == {"seen", "model"}


def test_a_head_counts_the_rows_that_it_was_fitted_on() -> None:
    data = made().data
    assert fitted().heads["throughput"].n_rows == data.frame.n
    assert fitted().heads["power"].n_rows == int(np.isfinite(data.labels["power_mean_w"]).sum())


def test_medians_come_near_the_truth_behind_the_noise() -> None:
    truth = made().truth
    answers = fitted().predict(made().data.frame)
    for name, most in (("output_tokens_per_s", 0.05), ("aggregate_tokens_per_s", 0.05)):
        error = np.abs(np.log(answers.values[name][:, 1]) - truth[name])
        assert np.median(error) < most, name


def test_the_learned_layer_beats_the_prior_alone() -> None:
    frame, truth = made().data.frame, made().truth["output_tokens_per_s"]
    prior = fitted().physics.evaluate(frame).log["output_tokens_per_s"]
    learned = np.log(fitted().predict(frame).values["output_tokens_per_s"][:, 1])
    assert np.abs(learned - truth).mean() < 0.6 * np.abs(prior - truth).mean()


def test_held_out_intervals_cover_and_unseen_models_are_wider() -> None:
    head = fitted().heads["throughput"]
    for spread in head.spreads.values():
        assert spread.nested_coverage == pytest.approx(0.8, abs=0.1)
    assert head.spreads["model"].median_ape > head.spreads["seen"].median_ape


def test_a_source_with_groups_enough_says_itself_how_much_of_the_layer_to_believe() -> None:
    # The layer is right about the first source and misleads on the second and the third.
    n = MIN_SOURCE_ROWS
    layer = np.random.default_rng(0).normal(size=5 * n)
    beyond = np.concatenate([layer[: 3 * n], -layer[3 * n :]])
    source = np.repeat(["right", "misled", "few groups"], [3 * n, n, n])
    groups = np.char.add(source, np.resize(np.arange(SHARE_GROUPS).astype(np.str_), 5 * n))
    groups[4 * n :] = "one"
    shares = layer_shares(beyond, layer, source, groups)
    assert shares == {ANY_SOURCE: 1.0, "right": 1.0, "misled": 0.0}


def test_questions_take_the_share_of_their_source_and_others_the_common_one() -> None:
    frame = made().data.frame
    shares = {"model": {ANY_SOURCE: 0.5, "beta": 0.25}}
    head = replace(fitted().heads["throughput"], shares=shares)
    of_beta = frame.category("source") == "beta"
    assert set(head.share("model", frame)[of_beta]) == {0.25}
    assert set(head.share("model", frame)[~of_beta]) == {0.5}


def test_a_head_whose_rows_are_all_one_cell_is_left_to_the_prior(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def untuned(*_: object, **__: object) -> Hyperparameters:
        sd = np.asarray([t.sd for t in KERNEL_TERMS])
        return Hyperparameters(Scales(sd, (1.0, 1.0)), 0.08, {})

    pytest.importorskip("scipy", reason="training needs scipy (extra 'fit')")
    monkeypatch.setattr(module, "tune", untuned)
    data = made().data.take(np.arange(20))
    one_cell = replace(data, cells=np.full(20, "only"))
    model = module.fit_cost_model(one_cell, heads=HEADS[:1], classes=(SEEN,))
    assert model.heads == {}
    answers = model.predict(data.frame)
    assert set(answers.source.values()) == {"prior"}
    assert all(v.confidence == "low" for v in answers.support)


def test_progress_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise InterruptedError

    pytest.importorskip("scipy", reason="training needs scipy (extra 'fit')")
    said: list[str] = []
    monkeypatch.setattr(module, "tune", stop)
    with pytest.raises(InterruptedError):
        module.fit_cost_model(made().data, heads=HEADS[:1], progress=said.append)
    assert said == ["physics prior", "residual layer: throughput"]


def test_rows_above_the_ceiling_by_the_margin_are_impossible_and_others_are_not() -> None:
    frame = made().data.frame
    ceiling = throughput_ceiling(frame)
    labels = {name: np.full(frame.n, np.nan) for name in TARGET_NAMES}
    assert not screen(frame, labels).any()
    labels["output_tokens_per_s"] = ceiling + CEILING_MARGIN_LOG - 0.01
    labels["output_tokens_per_s"][:3] = ceiling[:3] + CEILING_MARGIN_LOG + 0.01
    labels["output_tokens_per_s"][3] = np.nan
    assert np.flatnonzero(screen(frame, labels)).tolist() == [0, 1, 2]


def test_an_impossible_aggregate_rate_is_screened_through_the_lengths() -> None:
    frame = made().data.frame
    labels = {name: np.full(frame.n, np.nan) for name in TARGET_NAMES}
    total = frame["prompt_tokens"] + frame["output_tokens"]
    share = np.log(total / frame["output_tokens"])
    labels["aggregate_tokens_per_s"] = throughput_ceiling(frame) + share + 0.5
    assert screen(frame, labels).all()


def test_no_row_of_the_made_up_set_is_impossible() -> None:
    assert not screen(made().data.frame, made().data.labels).any()


def test_rows_taken_keep_labels_cells_and_weights_together() -> None:
    data = made().data
    index = np.array([5, 200])
    part = data.take(index)
    assert part.frame.n == 2
    assert part.cells.tolist() == data.cells[index].tolist()
    assert part.weight.tolist() == [1.0, 1.0]
    assert part.labels["output_tokens_per_s"][0] == data.labels["output_tokens_per_s"][5]


def test_each_class_groups_rows_by_what_it_holds_out() -> None:
    data = made().data
    groups = {c.name: set(data.groups(c).tolist()) for c in NOVELTY}
    assert groups["source"] == {"alpha", "beta"}
    assert groups["gpu"] == {"a100-80", "h100-80", "l40s-48"}
    assert groups["model"] == {s.model.base_id for s in scenarios()}
    assert groups[SEEN] == set(data.cells.tolist())
