"""Will it start: verdicts, reasons and what must hold of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from omnipilot.catalog.catalog import Catalog
from omnipilot.catalog.engines import LaunchRule, engines, launch_rules
from omnipilot.costmodel.feasibility import REASON_CODES, FitQuestion, check_fit
from omnipilot.domain.errors import BadInputError, UnknownNameError

if TYPE_CHECKING:
    from omnipilot.domain.feasibility import FitVerdict

CATALOG = Catalog.load()
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
GPUS = ("t4-16", "a10-24", "a100-40", "a100-80", "l40s-48", "h100-80", "h200-141", "mi300x-192")
MODELS = (
    LLAMA_8B, LLAMA_70B, "Qwen/Qwen3-32B", "openai/gpt-oss-20b", "google/gemma-4-31B-it",
    "Qwen/Qwen3.5-27B", "deepseek-ai/DeepSeek-V2-Chat", "Qwen/Qwen3-30B-A3B",
)  # fmt: skip


def ask(model: str, gpu: str, precision: str, degree: int = 1, **rest: object) -> FitQuestion:
    """A question by names."""
    return FitQuestion(
        CATALOG.model(model), CATALOG.gpu(gpu), CATALOG.precision(precision), degree,
        **rest,  # type: ignore[arg-type]
    )  # fmt: skip


def judge(model: str, gpu: str, precision: str, degree: int = 1, **rest: object) -> FitVerdict:
    """The verdict by names."""
    return check_fit(ask(model, gpu, precision, degree, **rest))


def test_the_reason_names_the_number_that_failed_and_what_would_run() -> None:
    verdict = judge(LLAMA_70B, "a100-80", "bf16", max_model_len=8192, engine_version="0.5")
    assert verdict.reason == (
        "weights 131.4 GiB exceed 71.2 GiB usable on 1x a100-80: use tp 2 or an 8-bit format"
    )
    assert (verdict.verdict, verdict.reason_code) == ("oom", "weights_exceed_memory")


def test_a_fitting_launch_says_how_many_tokens_it_holds() -> None:
    verdict = judge(LLAMA_8B, "h100-80", "bf16", max_model_len=16000, engine_version="0.11.0")
    assert verdict.verdict == "fits"
    assert verdict.kv_cache_tokens == pytest.approx(51.38 * 2**30 / 131072, rel=0.01)
    assert verdict.max_model_len_possible == 131072
    assert verdict.max_concurrency == pytest.approx(26.3, abs=0.2)


def test_a_cache_smaller_than_one_request_is_oom_with_the_largest_length() -> None:
    verdict = judge(
        "Qwen/Qwen3-32B", "h100-80", "bf16", max_model_len=32000, engine_version="0.11.0"
    )
    assert verdict.reason_code == "kv_too_small"
    longest = verdict.max_model_len_possible
    assert longest is not None
    assert 16000 < longest < 32000
    again = judge(
        "Qwen/Qwen3-32B", "h100-80", "bf16", max_model_len=longest, engine_version="0.11.0"
    )
    assert again.verdict == "fits"


def test_a_shorter_length_also_shrinks_the_profile_run_of_v0() -> None:
    verdict = judge(LLAMA_8B, "rtx3090-24", "bf16", max_model_len=29000, engine_version="0.6.4")
    assert verdict.reason_code == "kv_too_small"
    longest = verdict.max_model_len_possible
    assert longest is not None
    assert longest > (verdict.kv_cache_tokens or 0)
    for length, expected in ((longest, "fits"), (longest + 16, "oom"), (35000, "fits")):
        again = judge(LLAMA_8B, "rtx3090-24", "bf16", max_model_len=length, engine_version="0.6.4")
        assert again.verdict == expected


def test_the_sampler_warm_up_of_many_sequences_can_exceed_the_part() -> None:
    common: dict[str, Any] = {
        "engine_version": "0.8.1",
        "gpu_memory_utilization": 0.95,
        "max_model_len": 2048,
    }
    many = judge(LLAMA_8B, "l4-24", "bf16", max_num_seqs=2048, **common)
    assert many.reason_code == "sampler_warmup_oom"
    assert "--max-num-seqs" in many.reason
    assert judge(LLAMA_8B, "l4-24", "bf16", max_num_seqs=256, **common).verdict == "fits"


def test_graphs_need_room_outside_the_share() -> None:
    verdicts = {
        share: judge(
            "Qwen/Qwen3.6-27B", "rtx5090-laptop-24", "nvfp4", kv_dtype="nvfp4",
            max_model_len=100000, gpu_memory_utilization=share, engine_version="0.29.1",
        )
        for share in (0.97, 0.98)
    }  # fmt: skip
    assert verdicts[0.98].reason_code == "graph_capture_oom"
    assert "share ≤ 0.97" in verdicts[0.98].reason
    assert verdicts[0.97].verdict == "fits"


def test_eager_mode_captures_no_graphs() -> None:
    verdict = judge(
        "Qwen/Qwen3.6-27B", "rtx5090-laptop-24", "nvfp4", kv_dtype="nvfp4", max_model_len=100000,
        gpu_memory_utilization=0.98, engine_version="0.29.1", enforce_eager=True,
    )  # fmt: skip
    assert (verdict.verdict, verdict.graph_gib) == ("fits", 0.0)


@pytest.mark.parametrize(
    ("model", "degree", "code", "number"),
    [
        ("Qwen/Qwen2-7B", 8, "heads_not_divisible", "28 attention heads"),
        ("Qwen/Qwen1.5-32B", 6, "heads_not_divisible", "40 attention heads"),
        ("google/gemma-3-27b-it", 3, "heads_not_divisible", "32 attention heads"),
        ("Qwen/Qwen2.5-14B-Instruct", 5, "kv_heads_not_divisible", "8 KV heads"),
    ],
)
def test_a_split_that_does_not_divide_is_unsupported(
    model: str, degree: int, code: str, number: str
) -> None:
    verdict = judge(model, "h100-80", "bf16", degree)
    assert (verdict.verdict, verdict.reason_code) == ("unsupported", code)
    assert number in verdict.reason


def test_half_a_block_of_scales_is_unsupported_unless_experts_stay_whole() -> None:
    name = "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"
    verdict = judge(name, "h200-141", "fp8", 8, max_model_len=32768)
    assert verdict.reason_code == "quant_group_not_divisible"
    assert "2560 over tensor parallel 8 is 320" in verdict.reason
    assert judge(name, "h200-141", "fp8", 4, max_model_len=32768).verdict == "fits"
    whole = judge(name, "h200-141", "fp8", 8, max_model_len=32768, expert_parallel=True)
    assert whole.verdict == "fits"


@pytest.mark.parametrize(
    ("gpu", "version", "code"),
    [("h100-80", "0.11.0", "fits"), ("a100-80", "0.8.5", "compute_capability")],
)
def test_a_checkpoint_of_block_scaled_fp8_is_judged_as_such_under_either_name(
    gpu: str, version: str, code: str
) -> None:
    verdicts = [
        judge("Qwen/Qwen3-8B-FP8", gpu, name, max_model_len=8192, engine_version=version)
        for name in ("fp8", "fp8-block")
    ]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].reason_code == code


def test_an_awq_group_must_survive_the_split() -> None:
    # 18944 / 4 = 4736 = 37 groups of 128; 29568 / 8 = 3696 is not a multiple
    assert judge("Qwen/Qwen2.5-7B-Instruct", "a100-80", "awq", 4).verdict == "fits"
    verdict = judge("Qwen/Qwen2.5-72B-Instruct", "a100-80", "awq", 8)
    assert verdict.reason_code == "quant_group_not_divisible"
    assert "a checkpoint whose width is padded" in verdict.reason


@pytest.mark.parametrize("base", ["Qwen/Qwen2-72B-Instruct", "Qwen/Qwen2.5-72B-Instruct"])
@pytest.mark.parametrize(
    ("suffix", "precision"),
    [("AWQ", "awq"), ("GPTQ-Int4", "gptq"), ("GPTQ-Int8", "gptq-int8")],
)
def test_checkpoints_padded_for_it_split_over_two_four_and_eight(
    base: str, suffix: str, precision: str
) -> None:
    for degree in (2, 4, 8):
        verdict = judge(f"{base}-{suffix}", "a100-80", precision, degree, max_model_len=8192)
        assert verdict.verdict == "fits"


def test_a_degree_that_is_refused_itself_is_no_remedy() -> None:
    # 231 groups of 128 divide over 3, 7 and 11 GPUs only.
    unpadded = judge("Qwen/Qwen2.5-72B-Instruct", "l4-24", "awq")
    assert unpadded.reason_code == "weights_exceed_memory"
    assert "tp" not in unpadded.reason
    padded = judge("Qwen/Qwen2.5-72B-Instruct-AWQ", "l4-24", "awq")
    assert "use tp 4" in padded.reason
    assert "use tp" not in judge(LLAMA_70B, "a100-80", "bf16", gpus_per_node=1).reason


@pytest.mark.parametrize(("share", "ways"), [(0.1, ""), (0.45, " or tp 8 or an 8-bit format")])
def test_a_small_memory_share_is_named_as_what_keeps_a_launch_from_starting(
    share: float, ways: str
) -> None:
    model = "Qwen/Qwen2.5-72B-Instruct"
    verdict = judge(model, "h100-80", "bf16", 4, gpu_memory_utilization=share)
    assert verdict.verdict == "oom"
    assert f"use a memory share of 0.92{ways}" in verdict.reason
    assert "more memory" not in verdict.reason
    assert judge(model, "h100-80", "bf16", 4, gpu_memory_utilization=0.92).verdict == "fits"


def test_a_share_that_helps_no_further_is_not_proposed() -> None:
    verdict = judge("Qwen/Qwen2.5-72B-Instruct", "h100-80", "bf16", gpu_memory_utilization=0.1)
    assert "share" not in verdict.reason


def test_the_place_of_a_launch_counts_the_gpus_of_all_stages() -> None:
    verdict = judge("Qwen/Qwen2.5-72B-Instruct", "h100-80", "bf16", 1, pipeline_parallel=4)
    assert verdict.verdict == "fits"
    assert "usable on 4x h100-80" in verdict.reason


def test_slices_cannot_be_combined_and_are_sized_as_slices() -> None:
    one = judge("Qwen/Qwen2.5-7B-Instruct", "a100-40.mig-3g.20gb", "bf16", max_model_len=4096)
    assert one.verdict == "fits"
    assert "of 17.9 GiB" in one.reason  # 0.92 x 19.5, not of the whole part
    two = judge("Qwen/Qwen2.5-7B-Instruct", "a100-40.mig-3g.20gb", "bf16", 2)
    assert two.reason_code == "mig_tensor_parallel"


def test_more_gpus_than_a_node_has_are_unsupported() -> None:
    verdict = judge(LLAMA_70B, "h100-80", "bf16", 8, gpus_per_node=4)
    assert verdict.reason_code == "gpus_per_node"
    assert judge(LLAMA_70B, "h100-80", "bf16", 4, gpus_per_node=4).verdict == "fits"


def test_a_length_beyond_the_model_is_unsupported() -> None:
    verdict = judge("Qwen/Qwen3-32B", "h200-141", "bf16", max_model_len=200000)
    assert verdict.reason_code == "max_model_len_exceeds_model"


@pytest.mark.parametrize("engine_version", ["unsloth 2025.10.1", "TGIS 2023"])
def test_another_program_is_unknown_and_not_guessed(engine_version: str) -> None:
    verdict = judge(LLAMA_8B, "h100-80", "bf16", engine_version=engine_version)
    assert (verdict.verdict, verdict.reason_code) == ("unknown", "not_enough_information")
    assert judge(LLAMA_8B, "h100-80", "bf16", engine="lmdeploy").verdict == "unknown"


def test_a_model_without_structure_is_unknown() -> None:
    question = ask(LLAMA_8B, "h100-80", "bf16")
    bare = replace(question, model=replace(question.model, total_params=0))
    assert check_fit(bare).reason_code == "not_enough_information"


@pytest.mark.parametrize(
    ("field", "value"),
    [("tensor_parallel", 0), ("pipeline_parallel", 0), ("max_model_len", -1), ("max_num_seqs", 0),
     ("gpu_memory_utilization", 1.2), ("gpu_memory_utilization", 0.0)],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(field: str, value: float) -> None:
    question = ask(LLAMA_8B, "h100-80", "bf16")
    with pytest.raises(BadInputError):
        check_fit(replace(question, **{field: value}))  # type: ignore[arg-type]


def test_an_unknown_cache_type_is_refused() -> None:
    with pytest.raises(UnknownNameError):
        judge(LLAMA_8B, "h100-80", "bf16", kv_dtype="fp3")


def test_the_engine_must_know_the_model() -> None:
    verdict = judge("Qwen/Qwen3-32B", "h100-80", "bf16", engine_version="0.8.3")
    assert verdict.reason_code == "engine_too_old"
    assert "0.8.4" in verdict.reason


def test_other_engines_start_with_a_cache_shorter_than_the_models_length() -> None:
    verdict = judge(LLAMA_8B, "a10-24", "bf16", engine="sglang")
    assert verdict.verdict == "fits"
    assert (verdict.kv_cache_tokens or 0) < 131072
    asked = judge(LLAMA_8B, "a10-24", "bf16", engine="sglang", max_model_len=131072)
    assert asked.reason_code == "kv_too_small"


def test_parts_without_nvlink_say_what_nccl_may_need() -> None:
    verdict = judge("Qwen/Qwen3-32B", "rtxpro6000-96", "bf16", 2)
    assert verdict.verdict == "fits"
    assert any("NCCL_P2P_DISABLE=1" in text for text in verdict.assumptions)


def example_of(rule: LaunchRule) -> FitVerdict | None:
    """A launch that the rule answers, found among catalogue entries; None where there is none."""
    engine = "vllm" if rule.engine == "any" else rule.engine
    upper = rule.until if rule.until < (9999, 0, 0) else engines()[engine].latest
    major, minor, patch = upper
    below = (major, minor, patch - 1) if patch else (major, minor - 1, 99)
    versions = [rule.since, below if rule.until < (9999, 0, 0) else upper]
    names = (
        LLAMA_8B, "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B", "google/gemma-2-27b-it",
        "google/gemma-4-26B-A4B-it", "openai/gpt-oss-20b", "google/flan-t5-xl", "facebook/opt-125m",
        "Qwen/Qwen2.5-7B-Instruct", "mistralai/Mistral-7B-v0.1", "deepseek-ai/DeepSeek-V3",
    )  # fmt: skip
    kinds = ("h100-80", "a100-80", "t4-16", "v100-32", "b200-180", "mi250-128", "mi300x-192")
    precisions = rule.precisions or ("bf16", "fp16")
    for version, name, kind, precision in product(versions, names, kinds, precisions):
        verdict = judge(
            name, kind, precision, 2 if rule.pipeline_from else 1,
            pipeline_parallel=max(rule.pipeline_from, 1),
            kv_dtype=(rule.kv_dtypes or ("auto",))[0],
            dtype=(rule.dtypes or ("auto",))[0],
            speculative=bool(rule.speculative),
            engine=engine, engine_version=".".join(map(str, version)),
        )  # fmt: skip
        if verdict.reason.lower().startswith(rule.why.lower()):
            return verdict
    return None


@pytest.mark.parametrize("rule", launch_rules().rules, ids=[r.id for r in launch_rules().rules])
def test_every_rule_answers_some_launch_in_its_own_words(rule: LaunchRule) -> None:
    found = example_of(rule)
    if rule.id in UNREACHED:
        assert found is None
        return
    assert found is not None
    assert (found.verdict, found.reason_code) == ("unsupported", rule.reason_code)
    assert rule.remedy in found.reason


# No published part is below the bound.
UNREACHED = {"fp8-cache-before-turing"}


def test_every_reason_code_is_described() -> None:
    rules = {rule.reason_code for rule in launch_rules().rules}
    assert rules <= set(REASON_CODES)
    assert all(REASON_CODES.values())


questions = st.builds(
    ask,
    st.sampled_from(MODELS), st.sampled_from(GPUS), st.sampled_from(["fp16", "bf16", "fp8", "awq"]),
    st.sampled_from([1, 2, 4, 8]),
    max_model_len=st.integers(64, 40000),
    gpu_memory_utilization=st.floats(0.3, 0.99),
    max_num_seqs=st.integers(1, 1024),
    max_num_batched_tokens=st.integers(256, 16384),
    engine_version=st.sampled_from(["0.8.5", "0.11.0", "0.16.0", "0.25.1", ""]),
    engine=st.sampled_from(["vllm", "sglang", "trtllm"]),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(questions, st.floats(1.0, 4.0))
def test_more_memory_never_makes_a_fitting_launch_unfit(
    question: FitQuestion, factor: float
) -> None:
    assume(check_fit(question).verdict == "fits")
    gpu = replace(question.gpu, memory_gib=question.gpu.memory_gib * factor)
    assert check_fit(replace(question, gpu=gpu)).verdict == "fits"


@settings(max_examples=200, deadline=None)
@given(questions, st.integers(1, 30000))
def test_a_longer_context_never_turns_oom_into_fits(question: FitQuestion, more: int) -> None:
    assume(check_fit(question).verdict == "oom")
    longer = replace(question, max_model_len=(question.max_model_len or 0) + more)
    assert check_fit(longer).verdict in ("oom", "unsupported")


@settings(max_examples=200, deadline=None)
@given(questions, st.floats(0.0, 0.5))
def test_cache_tokens_grow_with_the_memory_share(question: FitQuestion, more: float) -> None:
    low = check_fit(question)
    assume(low.kv_cache_tokens is not None)
    share = min((question.gpu_memory_utilization or 0.9) + more, 1.0)
    high = check_fit(replace(question, gpu_memory_utilization=share))
    assert (high.kv_cache_tokens or 0) >= (low.kv_cache_tokens or 0)


@settings(max_examples=200, deadline=None)
@given(questions)
def test_the_longest_possible_length_starts_and_the_verdict_is_the_same_twice(
    question: FitQuestion,
) -> None:
    verdict = check_fit(question)
    assert verdict == check_fit(question)
    longest = verdict.max_model_len_possible
    if verdict.reason_code == "kv_too_small" and longest:
        again = check_fit(replace(question, max_model_len=longest))
        assert again.reason_code in ("fits", "graph_capture_oom")
