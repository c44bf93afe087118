"""The parameters with which an arm starts are those with which it was judged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog import Catalog
from omnipilot.catalog.launch_flags import launch_flags
from omnipilot.costmodel.fit_question import FitQuestion
from omnipilot.domain import FitVerdict
from omnipilot.launch.parameters import engine_parameters

FACTS = Catalog.load()


def question(gpu: str = "h100-80", precision: str = "bf16", **more: object) -> FitQuestion:
    return FitQuestion(
        FACTS.model("Qwen/Qwen2.5-7B-Instruct"), FACTS.gpu(gpu), FACTS.precision(precision),
        **({"max_model_len": 4096} | more),  # type: ignore[arg-type]
    )  # fmt: skip


def test_what_was_asked_is_what_is_said() -> None:
    found = engine_parameters(
        question(gpu_memory_utilization=0.85, kv_dtype="fp8", max_num_seqs=17), concurrency=4
    )
    assert (found.max_model_len, found.memory_utilization_frac) == (4096, 0.85)
    assert (found.kv_dtype, found.max_num_seqs) == ("fp8", 17)


@given(st.integers(1, 100_000))
def test_the_batch_limit_holds_the_load_or_is_the_default(concurrency: int) -> None:
    # vLLM 0.11 on an H100: 1024 sequences.
    found = engine_parameters(question(engine_version="0.11.0"), concurrency)
    assert found.max_num_seqs >= min(concurrency, 1024)
    assert found.max_num_seqs <= 1024
    assert found.max_num_seqs < 2 * max(concurrency, 8)


def test_the_share_of_memory_is_the_version_s_own() -> None:
    assert engine_parameters(question(engine_version="0.11.0"), 8).memory_utilization_frac == 0.90
    assert engine_parameters(question(engine_version="0.21.0"), 8).memory_utilization_frac == 0.92


def test_every_flag_is_told_with_its_reason_and_source() -> None:
    found = engine_parameters(question("rtx4090-24", "fp8", tensor_parallel=2), 8)
    assert ("NCCL_P2P_DISABLE", "1") in found.environment
    assert "--disable-custom-all-reduce" in found.arguments
    said = " ".join(reason.flag for reason in found.reasons)
    for name, value in found.environment:
        assert f"{name}={value}" in said
    for argument in found.arguments:
        assert argument in said
    assert all(reason.why and reason.source for reason in found.reasons)


def test_graphs_that_do_not_fit_are_left_out_where_that_makes_it_start() -> None:
    full = FitVerdict("oom", "graph_capture_oom", "too little is left")
    assert "--enforce-eager" in engine_parameters(question(), 8, full).arguments
    assert "--enforce-eager" not in engine_parameters(question(), 8).arguments


def test_a_checkpoint_that_is_in_the_format_needs_nothing() -> None:
    own = FACTS.model("openai/gpt-oss-20b")
    asked = FitQuestion(own, FACTS.gpu("h100-80"), FACTS.precision("mxfp4"), max_model_len=4096)
    assert not engine_parameters(asked, 8).needs
    assert engine_parameters(question(precision="awq"), 8).needs


@pytest.mark.parametrize("name", ["fp8", "fp8-block"])
def test_a_checkpoint_of_block_scaled_fp8_is_not_quantised_again(name: str) -> None:
    own = FACTS.model("deepseek-ai/DeepSeek-V3")
    asked = FitQuestion(own, FACTS.gpu("h200-141"), FACTS.precision(name), 8, max_model_len=8192)
    found = engine_parameters(asked, 16)
    assert "--quantization" not in found.arguments
    assert not found.needs
    assert "--quantization" in engine_parameters(question(precision="fp8"), 8).arguments
    assert engine_parameters(question(precision="fp8-block"), 8).needs


def test_an_engine_without_flags_still_gets_its_limits() -> None:
    found = engine_parameters(question(engine="sglang"), 8)
    assert found.reasons == ()
    assert found.max_num_seqs == 8
    assert {flag.engine for flag in launch_flags()} == {"vllm"}
