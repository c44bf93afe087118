"""The cost model as its users see it."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import fitted, made, scenario, scenarios
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.costmodel import fitted as module
from omnipilot.costmodel.bundle import save_bundle
from omnipilot.costmodel.fitted import FALLBACK_ORDER, POWER_MARGIN
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.heads import HEAD_OF_TARGET
from omnipilot.costmodel.novelty import CLASS_NAMES
from omnipilot.costmodel.predict import CostModel
from omnipilot.domain.errors import BundleError
from omnipilot.domain.scenario import ScenarioGroup
from omnipilot.domain.targets import TARGET_BY_NAME, TARGET_NAMES, TARGETS

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.domain.scenario import Scenario

LEARNED = {"aggregate_tokens_per_s", "output_tokens_per_s", "request_per_s", "power_mean_w"}
FRACTIONS = [t.name for t in TARGETS if t.fraction]


def model() -> CostModel:
    return CostModel(fitted(), {}, "made-up")


questions = st.builds(
    scenario,
    model=st.sampled_from(
        ("meta-llama/Llama-3.1-8B-Instruct", "google/gemma-2-9b-it", "openai/gpt-oss-20b")
    ),
    gpu=st.sampled_from(("a100-80", "h100-80", "l40s-48", "b200-180", "mi300x-192", "v100-32")),
    precision=st.sampled_from(("bf16", "fp8", "awq", "mxfp4")),
    n_gpus=st.sampled_from((1, 2, 4, 8)),
    prompt_tokens=st.floats(0, 2e5),
    output_tokens=st.floats(0, 2e4),
    concurrency=st.floats(0, 1e5),
    mode=st.sampled_from(("static", "online", "saturated", "lowlat", "poisson")),
    source=st.sampled_from(("alpha", "beta", "gamma", "")),
    engine=st.sampled_from(("vllm", "sglang")),
    engine_version=st.sampled_from(("", "0.8.5", "99.0")),
)


@given(asked=st.lists(questions, min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_question_has_finite_answers_in_order_and_within_their_limits(
    asked: list[Scenario],
) -> None:
    out = model().predict(asked)
    assert set(out.values) == set(TARGET_NAMES)
    for name, value in out.values.items():
        assert value.shape == (len(asked), 5)
        assert np.isfinite(value).all(), name
        assert (value > 0).all(), name
        q10, q50, q90, lower, upper = value.T
        assert (q10 <= q50).all(), name
        assert (q50 <= q90).all(), name
        assert (lower <= q50).all(), name
        assert (q50 <= upper).all(), name
    for name in FRACTIONS:
        assert out.values[name].max() <= 1.0
    limit = np.array([s.gpu.tdp_w * s.n_gpus * POWER_MARGIN for s in asked])
    assert (out.values["power_mean_w"] <= limit[:, None] * (1 + 1e-12)).all()
    clients = build_frame(asked)["concurrency"]
    turn_s = clients / out.values["request_per_s"][:, 1]
    for one, ttft_s, most_s in zip(asked, out.values["ttft_p50_s"][:, 1], turn_s, strict=True):
        assert one.mode != "online" or ttft_s <= most_s * (1 + 1e-12)
    assert len(out.support) == len(asked)


@given(question=questions)
@settings(max_examples=25, deadline=None)
def test_rates_of_one_question_agree_with_one_another(question: Scenario) -> None:
    values = model().predict([question]).values
    prompt = question.prompt_tokens
    if prompt <= 0 or question.output_tokens < 1:
        return
    output, request = values["output_tokens_per_s"][0], values["request_per_s"][0]
    assert request * question.output_tokens == pytest.approx(output)
    total = output * (prompt + question.output_tokens) / question.output_tokens
    assert values["aggregate_tokens_per_s"][0] == pytest.approx(total)


def test_targets_without_a_head_are_marked_as_the_priors_and_say_within_a_factor() -> None:
    out = model().predict([scenario()])
    assert {name for name, source in out.source.items() if source == "model"} == LEARNED
    for name in set(TARGET_NAMES) - LEARNED - set(FRACTIONS):
        q10, q50, q90, lower, upper = out.values[name][0]
        assert (lower, upper) == (q10, q90)
        assert q90 / q50 == pytest.approx(2.0)
        assert q50 / q10 == pytest.approx(2.0)
        assert not out.crossed[name].any()


def test_one_target_of_one_question_carries_unit_and_source() -> None:
    out = model().predict([scenario(), scenario(concurrency=64.0)])
    for name in TARGET_NAMES:
        one = out.targets(1)[name]
        assert (one.q10, one.q50, one.q90, one.lower, one.upper) == tuple(
            float(v) for v in out.values[name][1]
        )
        assert one.unit == TARGET_BY_NAME[name].unit
        assert one.source == ("model" if name in LEARNED else "prior")
        assert isinstance(one.crossed, bool)


def test_no_power_above_the_limit_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    free = model().predict([scenario()]).values["power_mean_w"][0]
    monkeypatch.setattr(module, "POWER_MARGIN", 0.1)
    held = model().predict([scenario()]).values["power_mean_w"][0]
    assert free.min() > held.max() == pytest.approx(0.1 * scenario().gpu.tdp_w)


def test_an_answer_is_the_same_alone_and_in_a_batch() -> None:
    asked = [*scenarios()[::40], scenario(gpu="b200-180"), scenario(source="")]
    batch = model().predict(asked)
    for i, question in enumerate(asked):
        alone = model().predict([question])
        for name in TARGET_NAMES:
            assert alone.values[name][0] == pytest.approx(batch.values[name][i], rel=1e-3), name
        assert alone.support[0].novelty == batch.support[i].novelty


def test_two_predictions_are_equal_to_the_last_bit() -> None:
    a, b = (model().predict(scenarios()) for _ in range(2))
    for name in TARGET_NAMES:
        assert a.values[name].tobytes() == b.values[name].tobytes()


def test_unseen_models_get_wider_intervals_than_seen_ones() -> None:
    def log_width(asked: list[Scenario]) -> float:
        value = model().predict(asked).values["output_tokens_per_s"]
        return float(np.log(value[:, 4] / value[:, 3]).mean())

    seen = list(scenarios()[:20])
    other = [replace(s, model=scenario("meta-llama/Llama-3.1-8B").model) for s in seen]
    assert {v.novelty for v in model().predict(other).support} == {"model"}
    assert log_width(other) > 1.5 * log_width(seen)


def test_a_class_that_was_not_calibrated_takes_the_nearest_broader_one() -> None:
    head = fitted().heads["throughput"]
    assert head.calibrated("seen") == "seen"
    for name in ("model", "family", "gpu", "source"):
        assert head.calibrated(name) == "model"
    only = replace(head, spreads={"source": head.spreads["seen"], "family": head.spreads["model"]})
    assert only.calibrated("seen") == only.calibrated("model") == "family"
    assert only.calibrated("gpu") == "source"
    assert set(FALLBACK_ORDER) == set(CLASS_NAMES)


def test_questions_of_the_measured_rows_are_answered_with_high_confidence() -> None:
    support = model().predict(scenarios()).support
    assert np.mean([v.confidence == "high" for v in support]) > 0.8
    assert all(v.supported for v in support)


def test_a_prior_alone_never_gives_high_confidence() -> None:
    bare = replace(fitted(), heads={})
    support = CostModel(bare, {}, "prior").predict(scenarios()[:5]).support
    assert {v.confidence for v in support} == {"low"}


def test_evidence_names_the_measured_arm_of_a_question() -> None:
    found = model().evidence(scenarios()[0], 3)
    assert len(found) == 3
    assert found[0].distance == 0.0
    assert found[0].source == "alpha"


def test_a_loaded_bundle_knows_its_version_and_card(tmp_path: Path) -> None:
    version = save_bundle(fitted(), tmp_path, {"rows": made().data.frame.n})
    loaded = CostModel.load(tmp_path)
    assert loaded.version == version
    assert loaded.card == {"rows": 300}
    assert (
        loaded.predict([scenario()]).values["output_tokens_per_s"].tobytes()
        == model().predict([scenario()]).values["output_tokens_per_s"].tobytes()
    )
    with pytest.raises(BundleError):
        CostModel.load(tmp_path / "nowhere")


def test_every_learned_target_has_its_head() -> None:
    heads = {HEAD_OF_TARGET[name].name for name in LEARNED}
    assert heads == set(fitted().heads)


@given(
    asked=st.lists(questions, min_size=1, max_size=6),
    loads=st.lists(
        st.tuples(st.sampled_from((0.0, 700.0)), st.floats(1, 2e4), st.floats(1, 1e5)),
        min_size=2,
        max_size=3,
    ),
)
@settings(max_examples=30, deadline=None)
def test_a_group_answers_under_any_load_what_its_scenarios_answer(
    asked: list[Scenario], loads: list[tuple[float, float, float]]
) -> None:
    group, kept = ScenarioGroup(tuple(asked)), model()
    for load in loads:
        shared = group.under(*load)
        one, other = kept.predict(shared), model().predict(list(shared))
        for name in TARGET_NAMES:
            assert one.values[name].tobytes() == other.values[name].tobytes(), name
            assert one.crossed[name].tolist() == other.crossed[name].tolist()
        assert one.support == other.support


def test_columns_of_a_group_go_with_it() -> None:
    kept, group = model(), ScenarioGroup((scenario(),))
    kept.predict(group.under(100.0, 10.0, 1.0))
    assert len(kept.frames) == 1
    del group
    gc.collect()
    assert len(kept.frames) == 0


def test_own_rows_narrow_no_band_beyond_their_own_loads() -> None:
    own = build_frame(
        [
            scenario(source="ours", concurrency=c, prompt_tokens=p)
            for c in (4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0)
            for p in (512.0, 600.0, 700.0, 800.0, 900.0, 1024.0)
        ]
    )
    name, rng = "output_tokens_per_s", np.random.default_rng(3)
    base = fitted()
    truth = base.physics.evaluate(own).log[name] + 0.4 + 0.02 * rng.standard_normal(own.n)
    labels = dict.fromkeys(TARGET_NAMES, np.full(own.n, np.nan)) | {name: truth}
    site = base.condition(own, labels, cells=np.arange(own.n).astype(str))
    asked = build_frame([scenario(source="ours", concurrency=c) for c in (40.0, 160.0)])
    values = site.predict(asked).values[name]
    inside, beyond = np.log(values[:, 4] / values[:, 3])
    # 1.8 times as wide; 1.1 times where the site's own errors size the band beyond its loads too.
    assert beyond > 1.4 * inside
