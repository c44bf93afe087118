"""Start-up memory: weights, activations and the sampler against printed figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omnipilot.catalog.catalog import Catalog
from omnipilot.costmodel.feasibility import FitQuestion, plan_memory
from omnipilot.costmodel.fit_question import LaunchSetup, fill_defaults, version_asked
from omnipilot.costmodel.memory import GIB, step_bytes, weights_bytes_per_gpu

CATALOG = Catalog.load()
LLAMA = CATALOG.model("meta-llama/Llama-3.1-8B-Instruct")


def ask(model: str, gpu: str, precision: str, degree: int = 1, **rest: object) -> FitQuestion:
    """A question by names."""
    return FitQuestion(
        CATALOG.model(model), CATALOG.gpu(gpu), CATALOG.precision(precision), degree,
        **rest,  # type: ignore[arg-type]
    )  # fmt: skip


def setup_of(question: FitQuestion) -> LaunchSetup:
    """The question as the engine fills it in."""
    return fill_defaults(question, version_asked(question))


@pytest.mark.parametrize(
    ("model", "precision", "degree", "printed_gib"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", 1, 14.99),
        ("Qwen/Qwen3-0.6B", "bf16", 1, 1.12),
        ("Qwen/Qwen3-32B", "bf16", 2, 30.59),
        ("meta-llama/Llama-3.3-70B-Instruct", "fp8", 2, 33.88),
        ("openai/gpt-oss-20b", "mxfp4", 1, 13.47),
        ("openai/gpt-oss-120b", "mxfp4", 1, 64.38),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "bf16", 1, 44.76),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "bf16", 2, 13.95),
        ("Qwen/Qwen2.5-7B", "awq", 1, 5.20),
        ("google/gemma-4-31B-it", "fp8", 1, 31.73),
    ],
)
def test_weights_are_within_3_percent_of_what_vllm_printed(
    model: str, precision: str, degree: int, printed_gib: float
) -> None:
    size = weights_bytes_per_gpu(CATALOG.model(model), CATALOG.precision(precision), degree)
    assert size / GIB == pytest.approx(printed_gib, rel=0.03)


def test_one_forward_pass_holds_the_mlp_beside_three_rows_of_model_width() -> None:
    # 20000 x (3 x 14336 + 3 x 4096) x 2 bytes
    assert step_bytes(LLAMA, 20000) == 20000 * (43008 + 12288) * 2
    assert step_bytes(LLAMA, 20000) / GIB == pytest.approx(2.07, abs=0.02)
    assert step_bytes(LLAMA, 40000, 2) / GIB == pytest.approx(2.53, abs=0.02)


@pytest.mark.parametrize(
    ("model", "precision", "degree", "kv_gib"),
    [
        ("openai/gpt-oss-20b", "mxfp4", 1, 50.28),
        ("meta-llama/Llama-3.3-70B-Instruct", "fp8", 2, 32.0),
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16", 1, 51.38),
        ("Qwen/Qwen3-0.6B", "bf16", 1, 64.45),
        ("Qwen/Qwen3-32B", "bf16", 1, 4.45),
        ("Qwen/Qwen3-32B", "bf16", 2, 34.49),
    ],
)
def test_the_pool_is_within_a_tenth_of_a_gib_of_measured_launches(
    model: str, precision: str, degree: int, kv_gib: float
) -> None:
    # llm-d config explorer, vLLM 0.11.0, H100-80, share 0.9
    question = ask(model, "H100", precision, degree, max_model_len=16000, engine_version="0.11.0")
    assert plan_memory(setup_of(question)).kv_bytes / GIB == pytest.approx(kv_gib, abs=0.1)


def test_the_sampler_does_not_shrink_with_tensor_parallelism() -> None:
    one, two = (
        plan_memory(setup_of(ask("Qwen/Qwen3-32B", "H100", "bf16", n, engine_version="0.11.0")))
        for n in (1, 2)
    )
    assert one.sampler_decides
    assert one.activation_bytes == two.activation_bytes


def test_v0_profiles_the_whole_length_until_chunked_prefill_sets_in() -> None:
    steps = {
        length: setup_of(
            replace(ask("meta-llama/Llama-3.1-8B-Instruct", "RTX 3090", "bf16"),
                    max_model_len=length, engine_version="0.6.4")
        ).step_tokens
        for length in (1000, 20000, 32768, 35000)
    }  # fmt: skip
    assert steps == {1000: 2048, 20000: 20000, 32768: 32768, 35000: 512}


def test_large_parts_take_the_larger_batch_and_an_a100_does_not() -> None:
    seqs = {
        gpu: setup_of(ask("meta-llama/Llama-3.1-8B-Instruct", gpu, "bf16")).max_num_seqs
        for gpu in ("h100-80", "b200-180", "mi300x-192", "a100-80", "l40s-48")
    }
    assert seqs == {
        "h100-80": 1024, "b200-180": 1024, "mi300x-192": 1024, "a100-80": 256, "l40s-48": 256,
    }  # fmt: skip


def test_record_stream_held_all_reduce_inputs_before_0_3() -> None:
    # vllm PR 2031: Llama-2-70B on 4 A100-80 keeps 20865 blocks, Llama-2-7B on one 7351
    big = ask("meta-llama/Llama-2-70b-hf", "a100-80", "fp16", 4, engine_version="0.2.5")
    small = ask("meta-llama/Llama-2-7b-hf", "a100-80", "fp16", engine_version="0.2.5")
    assert plan_memory(setup_of(big)).blocks == pytest.approx(20865, rel=0.1)
    assert plan_memory(setup_of(small)).blocks == pytest.approx(7351, rel=0.01)
    fixed = plan_memory(setup_of(replace(big, engine_version="0.3.0")))
    assert fixed.blocks > 1.3 * plan_memory(setup_of(big)).blocks


def test_pipeline_stages_share_layers_and_the_ends_hold_an_embedding() -> None:
    bf16 = CATALOG.precision("bf16")
    whole = weights_bytes_per_gpu(LLAMA, bf16)
    stage = weights_bytes_per_gpu(LLAMA, bf16, 1, 2)
    assert whole / 2 <= stage < whole * 0.56


def test_more_kv_heads_than_gpus_cost_nothing_and_fewer_are_replicated() -> None:
    model = CATALOG.model("Qwen/Qwen3-235B-A22B")  # 4 KV heads
    bf16 = CATALOG.precision("bf16")
    four, eight = (weights_bytes_per_gpu(model, bf16, n) for n in (4, 8))
    extra = 2 * model.n_layers * model.hidden_size * model.head_dim * 4 * 2.0
    assert eight * 8 == pytest.approx(four * 4 + extra)
