"""Fitting the prior: planted parameters come back, odd rows and starts do not matter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import made, planted, scenario, scenarios

from omnipilot.costmodel import physics_fit
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.physics import PARAMETER_NAMES, START_LOG
from omnipilot.costmodel.physics_fit import (
    OFFSET_GROUPS,
    TARGET_SCALE,
    PhysicsParameters,
    fit_physics,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame

pytest.importorskip("scipy", reason="training needs scipy (extra 'fit')")


def rows() -> tuple[Frame, dict[str, NDArray[np.float64]]]:
    """300 questions and the labels that the planted parameters give exactly."""
    frame = made().data.frame
    log = planted().evaluate(frame).log
    return frame, {name: log[name] for name in TARGET_SCALE}


def furthest(
    a: PhysicsParameters, b: PhysicsParameters, frame: Frame, name: str = "output_tokens_per_s"
) -> float:
    """Largest difference of two priors in log units."""
    return float(np.abs(a.evaluate(frame).log[name] - b.evaluate(frame).log[name]).max())


def test_planted_parameters_and_offsets_come_back() -> None:
    frame, labels = rows()
    fitted = fit_physics(frame, labels)
    for name in TARGET_SCALE:
        assert furthest(fitted, planted(), frame, name) < 0.04, name
    off = np.abs(fitted.log_theta(frame) - planted().log_theta(frame)).max(axis=0)
    worst = dict(zip(PARAMETER_NAMES, off, strict=True))
    assert worst["weight_bandwidth_eff"] < 0.02
    assert worst["step_overhead_s"] < 0.05  # +0.6 in source beta only
    assert worst["decode_compute_eff"] < 0.1  # -0.3 on the L40S only
    assert worst["idle_power_frac"] < 0.02


def test_the_fit_beats_its_start_on_every_target() -> None:
    frame, labels = rows()
    fitted = fit_physics(frame, labels)
    start = PhysicsParameters(START_LOG, {})
    for name in TARGET_SCALE:
        assert furthest(fitted, planted(), frame, name) < furthest(start, planted(), frame, name)


def test_the_start_does_not_decide_where_the_fit_ends() -> None:
    frame, labels = rows()
    fitted = fit_physics(frame, labels)
    elsewhere = PhysicsParameters(
        fitted.base + 0.3,
        {
            category: {level: v + 0.1 for level, v in levels.items()}
            for category, levels in fitted.offsets.items()
        },
    )
    again = fit_physics(frame, labels, start=elsewhere)
    for name, scale in TARGET_SCALE.items():
        assert furthest(again, fitted, frame, name) < 0.1 * scale, name


@pytest.mark.parametrize(("seed", "sd"), [(1, 2.0), (2, 4.0), (3, 1.0)])
def test_a_fit_does_not_end_while_a_shorter_step_would_gain(
    seed: int, sd: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, labels = rows()
    # Models that no offset explains make steps of full length overshoot.
    pulls = np.random.default_rng(seed).normal(0.0, sd, (len(labels), len(frame.levels["model"])))
    labels = {
        name: y + pull[frame.codes["model"]]
        for (name, y), pull in zip(labels.items(), pulls, strict=True)
    }
    fitted = fit_physics(frame, labels)
    monkeypatch.setattr(physics_fit, "MAX_DAMPINGS", 3 * physics_fit.MAX_DAMPINGS)
    assert furthest(fitted, fit_physics(frame, labels), frame) < 1e-6


def test_an_unseen_moe_model_takes_the_mean_and_a_seen_one_keeps_what_is_its_own() -> None:
    frame, labels = rows()
    moe = frame.category("moe_model")
    name = next(level for level in frame.levels["moe_model"] if level != "dense")
    slower = {
        t: y + np.where(moe == name, -0.3 if t == "output_tokens_per_s" else 0.3, 0.0)
        for t, y in labels.items() if t != "power_mean_w"
    }  # fmt: skip
    fitted = fit_physics(frame, slower)
    question = next(s for s in scenarios() if s.model.base_id == name)
    stranger = replace(question, model=replace(question.model, base_id="never/heard-of"))
    asked = build_frame([question, stranger])
    theta = fitted.log_theta(asked)
    assert theta[0] - theta[1] == pytest.approx(fitted.offsets["moe_model"][name])
    seen, unseen = fitted.evaluate(asked).log["output_tokens_per_s"]
    assert seen < unseen - 0.01


def test_a_task_says_how_long_its_prompts_are_and_no_other_row_is_moved_by_it() -> None:
    some = [replace(s, workload="video-chat", prompt_tokens=0.0) for s in scenarios()[::2]]
    frame = build_frame([*some, *scenarios()[1::2]])
    truth = planted()
    at = PARAMETER_NAMES.index("guessed_prompt_ratio")
    shorter = np.zeros(len(PARAMETER_NAMES))
    shorter[at] = np.log(0.2)
    truth = replace(truth, offsets=truth.offsets | {"workload": {"video-chat": shorter}})
    log = truth.evaluate(frame).log
    fitted = fit_physics(frame, {name: log[name] for name in TARGET_SCALE})
    assert np.exp(fitted.offsets["workload"]["video-chat"][at]) == pytest.approx(0.2, rel=0.15)
    assert fitted.base[at] == START_LOG[at]
    assert not fitted.offsets["workload"][""].any()


def test_two_fits_of_the_same_rows_are_equal_to_the_last_bit() -> None:
    frame, labels = rows()
    a, b = fit_physics(frame, labels), fit_physics(frame, labels)
    assert a.base.tobytes() == b.base.tobytes()
    assert a.log_theta(frame).tobytes() == b.log_theta(frame).tobytes()


def test_2_percent_of_gross_errors_move_the_prior_by_less_than_their_mean() -> None:
    frame, labels = rows()
    rng = np.random.default_rng(0)
    spoilt = {}
    for name, y in labels.items():
        spoilt[name] = y + 0.02 * rng.standard_normal(frame.n)
        spoilt[name][rng.choice(frame.n, frame.n // 50, replace=False)] += np.log(10)
    fitted = fit_physics(frame, spoilt).evaluate(frame).log
    for name, y in labels.items():
        # least squares would be off by about 2 % of log 10 = 0.046
        assert np.abs(fitted[name] - y).mean() < 0.015, name


def test_a_level_without_rows_has_offset_zero_even_when_the_start_knew_it() -> None:
    frame, labels = rows()
    everything = fit_physics(frame, labels)
    assert np.abs(everything.offsets["gpu_kind"]["l40s-48"]).max() > 0.01
    keep = frame.category("gpu_kind") != "l40s-48"
    held = fit_physics(frame.take(keep), {t: y[keep] for t, y in labels.items()}, start=everything)
    assert not held.offsets["gpu_kind"]["l40s-48"].any()


def test_a_level_never_heard_of_takes_the_base() -> None:
    base, beta = START_LOG + 0.1, np.full_like(START_LOG, 0.5)
    parameters = PhysicsParameters(base, {"source": {"beta": beta}})
    theta = parameters.log_theta(
        build_frame([scenario(source="beta"), scenario(source="elsewhere"), scenario(source="")])
    )
    assert theta[0] == pytest.approx(base + 0.5)
    assert theta[1:] == pytest.approx(np.stack([base, base]))


def test_every_offset_group_has_an_offset_for_every_level() -> None:
    frame, labels = rows()
    fitted = fit_physics(frame, labels)
    assert len(fitted.offsets) == len(OFFSET_GROUPS)
    for category, levels in fitted.offsets.items():
        assert tuple(levels) == frame.levels[category]


def test_weightless_rows_count_for_nothing() -> None:
    frame, labels = rows()
    beta = frame.category("source") == "beta"
    spoilt = {t: np.where(beta, y + 1.0, y) for t, y in labels.items()}
    missing = {t: np.where(beta, np.nan, y) for t, y in labels.items()}
    weightless = fit_physics(frame, spoilt, np.where(beta, 0.0, 1.0))
    assert furthest(weightless, fit_physics(frame, missing), frame) < 1e-6


def test_rows_without_any_label_leave_the_start() -> None:
    frame, labels = rows()
    nothing = {t: np.full(frame.n, np.nan) for t in labels}
    fitted = fit_physics(frame, nothing)
    assert fitted.base == pytest.approx(START_LOG)
    assert not any(v.any() for levels in fitted.offsets.values() for v in levels.values())


def test_a_group_moves_only_the_parameters_that_it_names() -> None:
    frame, labels = rows()
    fitted = fit_physics(frame, labels)
    for group in OFFSET_GROUPS:
        still = [j for j, name in enumerate(PARAMETER_NAMES) if name not in group.parameters]
        offsets = np.stack(list(fitted.offsets[group.category].values()))
        assert not offsets[:, still].any(), group.category
        assert set(group.parameters) <= set(PARAMETER_NAMES)
