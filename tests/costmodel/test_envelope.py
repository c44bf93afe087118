"""The support envelope, confidence and nearest evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import LLAMA_8B, dense_model, made, scenario

from omnipilot.costmodel.envelope import (
    AXES,
    NEAR_SIMILARITY,
    SPARSE_SIMILARITY,
    Envelope,
)
from omnipilot.costmodel.frame import build_frame

if TYPE_CHECKING:
    from omnipilot.domain.prediction import SupportVerdict
    from omnipilot.domain.scenario import Scenario

ENVELOPE = Envelope.from_frame(made().data.frame)
SIBLING = "meta-llama/Llama-3.1-8B"  # not a training model; family, size and shape are known


def judge(question: Scenario, similarity: float = 0.9) -> SupportVerdict:
    return ENVELOPE.support(build_frame([question]), np.array([similarity]))[0]


def test_a_question_inside_on_all_axes_has_no_violation() -> None:
    verdict = judge(scenario())
    assert verdict.supported
    assert verdict.violations == ()
    assert verdict.novelty == "seen"
    assert verdict.confidence == "high"
    assert verdict.reasons == ()


@pytest.mark.parametrize(
    ("question", "axis", "words"),
    [
        (scenario("google/gemma-2-9b-it"), "family", "'gemma2' has no measured row"),
        (scenario(dense_model(family="llama")), "parameters", "1,000,000,000 parameters"),
        (scenario(gpu="a10-24"), "GPU kind", "'a10-24' has no measured row"),
        (scenario(n_gpus=8), "tensor parallel", "8 GPUs is outside the measured 1 to 4"),
        (scenario(precision="awq"), "precision", "'awq' has no measured row"),
        (scenario(concurrency=300.0), "concurrency", "300 requests is outside the measured 1 to"),
        (scenario(prompt_tokens=5000.0), "context", "5,128 tokens is outside the measured 640 to"),
        (scenario(prompt_tokens=10.0), "context", "138 tokens is outside the measured 640 to"),
    ],
)
def test_each_axis_is_flagged_in_words_when_it_is_out(
    question: Scenario, axis: str, words: str
) -> None:
    verdict = judge(question)
    assert not verdict.supported
    assert len(verdict.violations) == 1
    assert verdict.violations[0].startswith(axis)
    assert words in verdict.violations[0]
    assert verdict.confidence == "low"


def test_there_are_seven_axes() -> None:
    assert len(AXES) == 7
    assert set(ENVELOPE.levels) | set(ENVELOPE.ranges) == {a.name for a in AXES}


def test_several_axes_out_are_all_named() -> None:
    verdict = judge(scenario(gpu="a10-24", n_gpus=8, concurrency=999.0))
    assert [v.split(" ")[0] for v in verdict.violations] == ["GPU", "tensor", "concurrency"]


def test_the_ends_of_a_range_are_inside() -> None:
    low, high = ENVELOPE.ranges["concurrency"]
    assert (low, high) == (1.0, 256.0)
    assert judge(scenario(concurrency=low)).supported
    assert judge(scenario(concurrency=high)).supported


def test_what_a_question_leaves_unsaid_is_not_out_of_range() -> None:
    assert judge(scenario(prompt_tokens=0.0, output_tokens=1e6, concurrency=0.0)).supported


def test_unstated_loads_of_training_rows_do_not_widen_the_envelope() -> None:
    frame = build_frame([scenario(), scenario(concurrency=0.0, prompt_tokens=0.0)])
    envelope = Envelope.from_frame(frame)
    assert envelope.ranges["concurrency"] == (16.0, 16.0)
    assert envelope.ranges["context"] == (640.0, 640.0)


@pytest.mark.parametrize(
    ("question", "similarity", "confidence"),
    [
        (scenario(), NEAR_SIMILARITY, "high"),
        (scenario(), NEAR_SIMILARITY - 0.01, "medium"),
        (scenario(), SPARSE_SIMILARITY - 0.01, "low"),
        (scenario(source="gamma"), 1.0, "medium"),
        (scenario(source=""), 1.0, "medium"),
        (scenario(SIBLING), 1.0, "medium"),
        (scenario(engine_version="9.9.9"), 1.0, "medium"),
        (scenario(gpu="a10-24"), 1.0, "low"),
    ],
)
def test_confidence_is_high_only_near_rows_of_the_same_source_model_and_engine(
    question: Scenario, similarity: float, confidence: str
) -> None:
    assert judge(question, similarity).confidence == confidence


@pytest.mark.parametrize(
    ("question", "similarity", "reason"),
    [
        (scenario(source=""), 1.0, "no row of this site yet"),
        (scenario(SIBLING), 1.0, "no row of this model"),
        (scenario(engine_version="9.9.9"), 1.0, "no row of this engine version"),
        (scenario(), 0.1, "few measured rows near this question"),
    ],
)
def test_what_is_new_is_told_as_a_reason(
    question: Scenario, similarity: float, reason: str
) -> None:
    verdict = judge(question, similarity)
    assert len(verdict.reasons) == 1
    assert verdict.reasons[0].startswith(reason)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"concurrency": 40.0}, ""),
        ({"concurrency": 200.0}, "concurrency 200 requests is outside the measured 16 to 64"),
        ({"prompt_tokens": 2000.0}, "context 2,128 tokens is outside the measured"),
        ({"n_gpus": 4}, "tensor parallel 4 GPUs is outside the measured 1 to 1"),
        ({"gpu": "a100-80"}, "GPU kind 'a100-80' has no measured row at this site"),
        ({"model": SIBLING}, f"model '{SIBLING}' has no measured row at this site"),
    ],
)
def test_own_rows_make_no_answer_high_that_they_do_not_reach(
    changed: dict[str, object], words: str
) -> None:
    own = build_frame([scenario(source="ours", concurrency=c) for c in (16.0, 64.0)])
    asked = build_frame([scenario(**{"source": "ours", "concurrency": 32.0} | changed)])  # type: ignore[arg-type]
    here = ENVELOPE.extended(own)
    verdict = here.support(asked, np.array([0.9]), np.array([0.95]))[0]
    assert verdict.confidence == ("medium" if words else "high")
    assert any(words in reason for reason in verdict.reasons) if words else not verdict.reasons
    assert verdict.supported


def test_a_model_without_own_rows_lies_beyond_no_site() -> None:
    assert ENVELOPE.beyond_site(build_frame([scenario(concurrency=300.0)] * 2)) == [(), ()]


def test_distance_is_the_log_of_the_similarity() -> None:
    assert judge(scenario(), 1.0).distance == 0.0
    assert judge(scenario(), np.exp(-2.0)).distance == pytest.approx(2.0)
    assert np.isfinite(judge(scenario(), 0.0).distance)


def test_each_question_of_a_batch_is_judged_as_if_alone() -> None:
    questions = [scenario(), scenario(gpu="a10-24"), scenario(source=""), scenario(n_gpus=8)]
    batch = ENVELOPE.support(build_frame(questions), np.full(4, 0.9))
    assert list(batch) == [judge(q) for q in questions]
    assert batch[1:3] == list(batch)[1:3]
    assert batch.supported == [verdict.supported for verdict in batch]


def test_evidence_comes_nearest_first_with_the_same_arm_on_top() -> None:
    found = ENVELOPE.evidence(build_frame([scenario()]), 10)
    assert len(found) == 10
    assert [e.distance for e in found] == sorted(e.distance for e in found)
    first = found[0]
    assert first.distance == 0.0
    assert (first.source, first.model, first.gpu, first.n_gpus, first.precision) == (
        "alpha", LLAMA_8B, "h100-80", 1, "bf16"
    )  # fmt: skip
    assert first.rows == 10  # five loads x two lengths
    assert first.concurrency_range == (1.0, 256.0)
    assert first.context_range == (640.0, 2560.0)


def test_evidence_counts_every_row_once() -> None:
    found = ENVELOPE.evidence(build_frame([scenario()]), 1000)
    assert sum(e.rows for e in found) == made().data.frame.n
    assert len({(e.source, e.model, e.gpu, e.n_gpus, e.precision) for e in found}) == len(found)


def test_a_load_outside_what_was_measured_is_further_away() -> None:
    inside = ENVELOPE.evidence(build_frame([scenario(concurrency=256.0)]), 1)[0]
    outside = ENVELOPE.evidence(build_frame([scenario(concurrency=512.0)]), 1)[0]
    assert inside.distance == 0.0
    # half of log(512 / 256)
    assert outside.distance == pytest.approx(0.5 * np.log(2), abs=1e-3)


def test_another_gpu_counts_more_than_another_source() -> None:
    found = ENVELOPE.evidence(build_frame([scenario(source="gamma")]), 1)[0]
    assert found.distance == pytest.approx(0.25)
    elsewhere = ENVELOPE.evidence(build_frame([scenario(gpu="a10-24")]), 1)[0]
    assert elsewhere.distance == pytest.approx(1.0)
