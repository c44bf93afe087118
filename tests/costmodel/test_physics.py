"""The closed-form prior: hand-computed cases and what must hold whatever the question."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from costmodel_builders import CATALOG, GPUS, MODELS, dense_model, prior_of, scenario
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.physics import (
    COMPILE_S_PER_LAYER,
    ENGINE_INIT_S,
    LOAD_BYTES_PER_S,
    PARAMETER_NAMES,
    RESERVED_GIB,
    START_LOG,
    Physics,
    evaluate,
    throughput_ceiling,
)
from omnipilot.domain.targets import TARGET_NAMES

if TYPE_CHECKING:
    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.scenario import Scenario

MORE_MODELS = (*MODELS, "openai/gpt-oss-20b", "google/gemma-2-9b-it", "deepseek-ai/DeepSeek-V3")
HALF = 0.5 / (1.0 - 0.5**4) ** 0.25  # bounded by 1 it has the effect of 0.5
ROUND = {
    "weight_bandwidth_eff": 0.5, "kv_bandwidth_eff": 0.5, "decode_compute_eff": HALF,
    "prefill_compute_eff": HALF, "layer_overhead_s": 1e-5, "step_overhead_s": 1e-3,
    "sequence_overhead_s": 1e-5, "allreduce_latency_s": 1e-5, "link_bandwidth_eff": HALF,
    "prefill_overhead_s": 1e-3, "moe_read_frac": 1.0, "tpot_prefill_frac": 0.5,
    "ttft_queue_frac": 0.5, "ttft_overhead_s": 0.01, "kv_wait_frac": 0.5,
    "media_overhead_s": 0.05, "kv_output_frac": 1.0, "padded_cache_ratio": 5.0,
    "guessed_prompt_ratio": 1.0,
    "moe_layer_frac": 0.5, "moe_weight_eff": 0.5, "expert_compute_eff": 0.4,
    "gqa_reread_frac": 1e-12, "mla_kv_eff": 2.0, "allreduce_hop_frac": 0.5, "idle_power_frac": 0.2,
    "memory_power_frac": 0.4, "compute_power_frac": 0.6,
}  # fmt: skip
# The best that the arithmetic allows: every efficiency 1, nothing fixed costs anything.
IDEAL = {n: 1e-12 if n.endswith("_s") else 1.0 for n in PARAMETER_NAMES} | {
    "gqa_reread_frac": 1e-12
}


def round_gpu(**changes: Any) -> GpuSpec:
    """1 TB/s, 100 TFLOP/s, 80 GiB, 500 W, 100 GB/s link."""
    numbers: dict[str, Any] = {
        "bandwidth_bytes_per_s": 1e12, "bf16_flops": 1e14, "fp16_flops": 1e14, "fp8_flops": 2e14,
        "memory_gib": 80.0, "tdp_w": 500.0, "link_bytes_per_s": 1e11, **changes,
    }  # fmt: skip
    return replace(CATALOG.gpu("h100-80"), **numbers)


def answer(question: Scenario, parameters: dict[str, float] = ROUND) -> dict[str, float]:
    """Targets (in their units) and terms of one question."""
    theta = np.log([[parameters[name] for name in PARAMETER_NAMES]])
    physics = evaluate(build_frame([question]), theta)
    out = {name: float(np.exp(log[0])) for name, log in physics.log.items()}
    return out | {name: float(term[0]) for name, term in physics.terms.items()}


def on(gpu: GpuSpec, question: Scenario) -> Scenario:
    return replace(question, gpu=gpu)


def test_one_dense_model_at_batch_1_adds_up_to_the_hand_computed_step() -> None:
    # 1e9 parameters at 2 bytes; 10 layers x 2 x 5 heads x 100 = 10,000 cache elements a token.
    question = on(
        round_gpu(),
        scenario(dense_model(), prompt_tokens=900, output_tokens=200, concurrency=1),
    )
    a = answer(question)
    weights = 2e9 / 1e12 / 0.5  # 4 ms
    compute = 2 * 1e9 * 1 / 1e14 / 0.5  # 0.04 ms
    cache = 10_000 * 2 * (900 + 200 / 2) / 1e12 / 0.5  # 0.04 ms
    layers, host = 10 * 1e-5, 1e-3 + 1e-5
    step = math.hypot(weights, compute) + cache + layers + host
    prefill = (2 * 1e9 * 900 + 2 * 10 * 1000 * 900**2) / 1e14 / 0.5 + 1e-3
    cycle = 200 * step + prefill
    assert a["batch"] == pytest.approx(1.0)
    assert a["weights_s"] == pytest.approx(weights)
    assert a["compute_s"] == pytest.approx(compute)
    assert a["kv_s"] == pytest.approx(cache)
    assert a["layer_s"] == pytest.approx(layers)
    assert a["host_s"] == pytest.approx(host)
    assert a["link_s"] == 0
    assert a["itl_p50_s"] == pytest.approx(step)
    assert a["step_s"] == pytest.approx(step)
    assert a["prefill_s"] == pytest.approx(prefill)
    assert a["cycle_s"] == pytest.approx(cycle)
    assert a["output_tokens_per_s"] == pytest.approx(200 / cycle)
    assert a["aggregate_tokens_per_s"] == pytest.approx(1100 / cycle)
    assert a["request_per_s"] == pytest.approx(1 / cycle)
    assert a["tpot_p50_s"] == pytest.approx(step + 0.5 * prefill / 200)
    assert a["ttft_p50_s"] == pytest.approx(0.01 + prefill + step)
    assert a["cold_start_s"] == pytest.approx(
        ENGINE_INIT_S + 2e9 / LOAD_BYTES_PER_S + COMPILE_S_PER_LAYER * 10
    )
    busy_memory = (weights + cache) / step * (200 * step / cycle)
    busy_compute = (compute * 200 + (prefill - 1e-3)) / cycle
    assert a["tensor_active_frac"] == pytest.approx(busy_compute)
    assert a["power_mean_w"] == pytest.approx(500 * (0.2 + 0.4 * busy_memory + 0.6 * busy_compute))


def test_capacity_is_what_memory_leaves_for_whole_sequences() -> None:
    question = on(
        round_gpu(),
        scenario(dense_model(), prompt_tokens=30_000, output_tokens=2_000, concurrency=1000),
    )
    a = answer(question)
    room = 0.9 * 80 * 2**30 - RESERVED_GIB * 2**30 - 2e9
    capacity = room / (10_000 * 2 * 32_000)
    assert a["capacity"] == pytest.approx(capacity)
    assert a["pressure"] == pytest.approx(1000 / capacity)
    assert a["batch"] == pytest.approx(capacity, rel=1e-3)
    assert a["kv_cache_peak_frac"] == 1.0
    few = answer(replace(question, concurrency=capacity / 4))
    assert few["kv_cache_peak_frac"] == pytest.approx(0.25)


def test_sequences_of_an_online_engine_hold_a_share_of_their_output_and_static_ones_all() -> None:
    online = on(
        round_gpu(),
        scenario(dense_model(), prompt_tokens=1_000, output_tokens=30_000, concurrency=1000),
    )
    half = ROUND | {"kv_output_frac": 0.5}
    room = 0.9 * 80 * 2**30 - RESERVED_GIB * 2**30 - 2e9
    assert answer(online, half)["capacity"] == pytest.approx(room / (10_000 * 2 * 16_000))
    static = replace(online, mode="static")
    assert answer(static, half)["capacity"] == pytest.approx(room / (10_000 * 2 * 31_000))


def test_a_sequence_of_a_padded_batch_reserves_several_times_the_cache_that_it_uses() -> None:
    question = on(
        round_gpu(),
        scenario(dense_model(), prompt_tokens=9_000, output_tokens=1_000, concurrency=1000),
    )
    # TGIS runs Llama by flash-attention code of its own, MPT by reference code.
    own = replace(question, engine="tgis", model=replace(question.model, architecture="Llama"))
    reference = replace(own, model=replace(own.model, architecture="MPTForCausalLM"))
    paged = answer(replace(reference, engine="vllm"))
    assert answer(own)["capacity"] == paged["capacity"]
    padded = answer(reference)
    assert padded["capacity"] == pytest.approx(paged["capacity"] / 5.0)
    assert padded["output_tokens_per_s"] < paged["output_tokens_per_s"]


def test_a_split_over_two_gpus_pays_two_all_reduces_a_layer() -> None:
    question = on(
        round_gpu(), scenario(dense_model(), prompt_tokens=900, output_tokens=200, concurrency=1)
    )
    one, two = answer(question), answer(replace(question, n_gpus=2))
    # latency x 2 for the first doubling; volume 2 (2 - 1)/2 x 1 token x 1000 x 2 bytes
    # over half of the link
    hop = 1e-5 * 2 + 1.0 * 1 * 1000 * 2 / (0.5 * 1e11)
    assert two["link_s"] == pytest.approx(2 * 10 * hop)
    assert two["weights_s"] == pytest.approx(one["weights_s"] / 2)
    assert two["compute_s"] == pytest.approx(one["compute_s"] / 2)
    assert two["kv_s"] == pytest.approx(one["kv_s"] / 2)
    eight = answer(replace(question, n_gpus=8))
    # two further doublings add half of the first one's latency each
    hop = 1e-5 * 2 * (1 + 0.5 * 2) + 2 * 7 / 8 * 1000 * 2 / (0.5 * 1e11)
    assert eight["link_s"] == pytest.approx(2 * 10 * hop)


def test_the_cache_shards_no_further_than_the_kv_heads_and_a_latent_cache_not_at_all() -> None:
    dense = scenario(dense_model(n_kv_heads=2), concurrency=1)
    latent = scenario(
        dense_model(kv_lora_rank=512, qk_rope_head_dim=64, n_kv_heads=8), concurrency=1
    )
    kv = {n: answer(replace(dense, n_gpus=n))["kv_s"] for n in (1, 2, 4)}
    assert kv[2] == pytest.approx(kv[1] / 2)
    assert kv[4] == pytest.approx(kv[2])
    assert answer(replace(latent, n_gpus=4))["kv_s"] == pytest.approx(answer(latent)["kv_s"])


def test_a_batch_touches_the_share_of_experts_that_uniform_routing_gives() -> None:
    mixture = dense_model(
        n_experts=4, experts_per_token=2, n_moe_layers=10, routed_expert_params=800_000_000,
        active_params=600_000_000,
    )  # fmt: skip
    one = answer(on(round_gpu(), scenario(mixture, concurrency=1)))
    two = answer(on(round_gpu(), scenario(mixture, concurrency=2)))
    assert one["expert_share"] == pytest.approx(0.5)
    assert two["expert_share"] == pytest.approx(1 - 0.5**2, rel=1e-6)
    # 0.2e9 shared and 0.5 x 0.8e9 routed parameters of 2 bytes, these at half of the bandwidth
    assert one["weights_s"] == pytest.approx((0.2e9 + 0.4e9 / 0.5) * 2 / 1e12 / 0.5)
    # and the operations of the experts at their own efficiency
    assert one["compute_s"] == pytest.approx(2 * (0.2e9 / 0.5 + 0.4e9 / 0.4) / 1e14)
    assert one["layer_s"] == pytest.approx(1e-5 * (10 + 0.5 * 10))


def test_a_kernel_may_read_a_shared_kv_head_again_for_every_query_head() -> None:
    shared, own = dense_model(n_heads=8, n_kv_heads=2), dense_model(n_heads=8, n_kv_heads=8)
    again = {**ROUND, "gqa_reread_frac": 0.5}
    once = answer(scenario(shared))["kv_s"]
    # four query heads share a KV head: three of them read half of it again
    assert answer(scenario(shared), again)["kv_s"] == pytest.approx(once * (1 + 0.5 * 3))
    assert answer(scenario(own), again)["kv_s"] == pytest.approx(answer(scenario(own))["kv_s"])
    # on four GPUs each holds a copy of a KV head for two query heads
    four = [answer(scenario(shared, n_gpus=4), theta)["kv_s"] for theta in (ROUND, again)]
    assert four[1] == pytest.approx(four[0] * 1.5)


def test_ranks_of_attention_in_data_parallel_keep_whole_dense_weights_and_few_sequences() -> None:
    mixture = dense_model(
        kv_lora_rank=512, qk_rope_head_dim=64, n_experts=4, experts_per_token=4, n_moe_layers=10,
        routed_expert_params=800_000_000, active_params=1_000_000_000,
    )  # fmt: skip
    question = on(round_gpu(), scenario(mixture, concurrency=64, n_gpus=4))
    split = answer(question, {**ROUND, "moe_weight_eff": 1.0})
    ranks = answer(replace(question, attention_dp=True), {**ROUND, "moe_weight_eff": 1.0})
    # 0.2e9 dense parameters on every GPU, 0.8e9 of experts shared out
    assert split["weights_s"] == pytest.approx(1e9 / 4 * 2 / 1e12 / 0.5)
    assert ranks["weights_s"] == pytest.approx((0.2e9 + 0.8e9 / 4) * 2 / 1e12 / 0.5)
    assert split["host_s"] == pytest.approx(1e-3 + 64 * 1e-5, rel=1e-3)
    assert ranks["host_s"] == pytest.approx(1e-3 + 16 * 1e-5, rel=1e-3)
    assert ranks["compute_s"] == pytest.approx(split["compute_s"], rel=1e-3)


def test_latent_attention_beyond_a_node_runs_in_data_parallel() -> None:
    latent = scenario(dense_model(kv_lora_rank=512, qk_rope_head_dim=64), concurrency=64, n_gpus=8)
    eight, sixteen = answer(latent), answer(replace(latent, n_gpus=16))
    assert sixteen["kv_s"] == pytest.approx(eight["kv_s"] / 16)
    assert sixteen == answer(replace(latent, n_gpus=16, attention_dp=True))


def test_attention_in_data_parallel_shards_a_latent_cache() -> None:
    latent = dense_model(kv_lora_rank=512, qk_rope_head_dim=64, n_kv_heads=8)
    one = answer(scenario(latent, concurrency=4))
    four = answer(scenario(latent, concurrency=4, n_gpus=4, attention_dp=True))
    assert four["kv_s"] == pytest.approx(one["kv_s"] / 4)


def test_images_and_videos_cost_each_request_their_decoding() -> None:
    plain = answer(scenario(workload="chat", prompt_tokens=700))
    media = answer(scenario(workload="image-chat", prompt_tokens=700))
    assert media["prefill_s"] == pytest.approx(plain["prefill_s"] + 0.05)


@pytest.mark.parametrize(
    ("name", "term"),
    [("decode_compute_eff", "compute_s"), ("prefill_compute_eff", "prefill_s"),
     ("link_bandwidth_eff", "link_s")],
)  # fmt: skip
def test_no_efficiency_is_more_than_the_hardware_has(name: str, term: str) -> None:
    question = on(round_gpu(), scenario(dense_model(), n_gpus=2, concurrency=64))
    half, one, twelve = (answer(question, ROUND | {name: v})[term] for v in (HALF, 1.0, 12.0))
    assert answer(question, ROUND | {name: 1e6})[term] == pytest.approx(twelve, rel=1e-4)
    assert twelve < one < half
    # what the same hardware would take if twelve times its peak were allowed
    free = 0.5 / 12.0 * half
    assert twelve > 2.0 * free


def test_a_guessed_prompt_is_corrected_by_its_task_and_a_told_one_is_not() -> None:
    shorter = ROUND | {"guessed_prompt_ratio": 0.25}
    guessed = scenario(workload="video-chat", prompt_tokens=0)
    told = replace(guessed, prompt_tokens=1000.0)
    assert answer(told, shorter) == answer(told)
    quarter = replace(guessed, prompt_tokens=1000.0)  # of the 4,000 that are guessed
    assert answer(guessed, shorter) == pytest.approx(answer(quarter))
    assert answer(guessed)["prefill_s"] > 2.0 * answer(quarter)["prefill_s"]


def test_sliding_layers_stop_growing_at_the_window() -> None:
    sliding = dense_model(n_full_attention_layers=0, n_sliding_layers=10, sliding_window=1000)
    short = answer(scenario(sliding, prompt_tokens=400, output_tokens=200, concurrency=1))
    full = answer(scenario(dense_model(), prompt_tokens=400, output_tokens=200, concurrency=1))
    long = answer(scenario(sliding, prompt_tokens=9000, output_tokens=200, concurrency=1))
    longer = answer(scenario(sliding, prompt_tokens=90_000, output_tokens=200, concurrency=1))
    assert short["kv_s"] == pytest.approx(full["kv_s"])
    assert longer["kv_s"] == pytest.approx(long["kv_s"])
    assert long["kv_s"] == pytest.approx(short["kv_s"] * 1000 / 500)


def test_the_prior_answers_every_target() -> None:
    physics = prior_of(build_frame([scenario()]))
    assert set(physics.log) == set(TARGET_NAMES)
    assert all(np.isfinite(log).all() for log in physics.log.values())


def test_every_parameter_moves_some_answer() -> None:
    frame = build_frame(
        [
            scenario("Qwen/Qwen3-30B-A3B", n_gpus=4, concurrency=4),
            scenario("deepseek-ai/DeepSeek-V3", n_gpus=8, workload="image-chat", prompt_tokens=0),
            scenario(concurrency=5000, prompt_tokens=4000, output_tokens=1000),
            scenario("Salesforce/codegen2-16B", engine="tgis", concurrency=5000),
        ]
    )
    start = np.tile(START_LOG, (frame.n, 1))
    before = evaluate(frame, start).log
    for j, name in enumerate(PARAMETER_NAMES):
        bumped = start.copy()
        bumped[:, j] -= 0.1
        after = evaluate(frame, bumped).log
        assert any(np.abs(after[t] - before[t]).max() > 1e-6 for t in before), name


questions = st.builds(
    scenario,
    model=st.sampled_from(MORE_MODELS),
    gpu=st.sampled_from((*GPUS, "v100-32", "mi300x-192")),
    precision=st.sampled_from(("bf16", "fp16", "fp8", "awq", "mxfp4", "nvfp4", "int8")),
    n_gpus=st.sampled_from((1, 2, 4, 8)),
    prompt_tokens=st.floats(1, 1e5),
    output_tokens=st.floats(1, 1e4),
    concurrency=st.floats(1, 1e4),
    mode=st.sampled_from(("static", "online", "saturated", "lowlat")),
    kv_dtype=st.sampled_from(("auto", "fp8")),
)
factors = st.floats(1.0, 10.0)
FASTER = {
    "output_tokens_per_s": 1, "aggregate_tokens_per_s": 1, "request_per_s": 1,
    "itl_p50_s": -1, "tpot_p50_s": -1, "ttft_p50_s": -1,
}  # fmt: skip


def pair(slow: Scenario, fast: Scenario) -> Physics:
    return prior_of(build_frame([slow, fast]))


def assert_never_slower(physics: Physics, targets: dict[str, int]) -> None:
    for name, sign in targets.items():
        slow, fast = physics.log[name]
        assert sign * (fast - slow) >= -1e-9, name


@given(question=questions, factor=factors)
@settings(max_examples=60, deadline=None)
def test_more_bandwidth_is_never_slower(question: Scenario, factor: float) -> None:
    gpu = question.gpu
    wide = replace(gpu, bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * factor)
    assert_never_slower(pair(question, on(wide, question)), FASTER)


@given(question=questions, factor=factors)
@settings(max_examples=60, deadline=None)
def test_more_flops_are_never_slower(question: Scenario, factor: float) -> None:
    gpu = question.gpu
    peaks = ("bf16_flops", "fp16_flops", "fp8_flops", "fp4_flops", "int8_flops")
    quick = replace(gpu, **{name: getattr(gpu, name) * factor for name in peaks})
    assert_never_slower(pair(question, on(quick, question)), FASTER)


@given(question=questions, factor=factors)
@settings(max_examples=60, deadline=None)
def test_a_faster_link_is_never_slower(question: Scenario, factor: float) -> None:
    gpu = question.gpu
    wide = replace(gpu, link_bytes_per_s=gpu.link_bytes_per_s * factor)
    assert_never_slower(pair(question, on(wide, question)), FASTER)


@given(question=questions, factor=factors)
@settings(max_examples=60, deadline=None)
def test_more_memory_or_more_clients_never_lower_throughput(
    question: Scenario, factor: float
) -> None:
    rates = {"output_tokens_per_s": 1}
    large = replace(question.gpu, memory_gib=question.gpu.memory_gib * factor)
    assert_never_slower(pair(question, on(large, question)), rates)
    busy = replace(question, concurrency=question.concurrency * factor)
    assert_never_slower(pair(question, busy), rates)


@given(question=questions, factor=factors)
@settings(max_examples=60, deadline=None)
def test_a_larger_model_is_never_faster(question: Scenario, factor: float) -> None:
    m = question.model
    sizes = (
        "total_params", "active_params", "embedding_params", "routed_expert_params", "n_layers",
        "n_full_attention_layers", "n_sliding_layers", "hidden_size",
    )  # fmt: skip
    larger = replace(m, **{name: math.ceil(getattr(m, name) * factor) for name in sizes})
    assert_never_slower(pair(replace(question, model=larger), question), {"output_tokens_per_s": 1})


@given(question=questions, factor=factors)
@settings(max_examples=60, deadline=None)
def test_capacity_falls_with_context(question: Scenario, factor: float) -> None:
    longer = replace(question, prompt_tokens=question.prompt_tokens * factor)
    short, long = prior_of(build_frame([question, longer])).terms["capacity"]
    assert long <= short


@given(question=questions)
@settings(max_examples=60, deadline=None)
def test_tensor_parallel_divides_the_time_of_the_weights(question: Scenario) -> None:
    few = replace(question, n_gpus=1, concurrency=1)
    one, four = prior_of(build_frame([few, replace(few, n_gpus=4)])).terms["weights_s"]
    assert four == pytest.approx(one / 4, rel=0.1)
    assert four < one


@given(question=questions)
@settings(max_examples=100, deadline=None)
def test_shares_stay_below_1_and_power_below_its_limit(question: Scenario) -> None:
    physics = prior_of(build_frame([question]))
    for name in ("kv_cache_peak_frac", "sm_active_frac", "tensor_active_frac"):
        assert physics.log[name][0] <= 1e-12, name
    limit = question.gpu.tdp_w * question.n_gpus * 1.1
    assert physics.log["power_mean_w"][0] <= math.log(limit) + 1e-12
    assert 0 <= physics.terms["prefill_share"][0] <= 1


@given(question=questions)
@settings(max_examples=150, deadline=None)
def test_no_prior_exceeds_the_ceiling_even_with_ideal_efficiencies(question: Scenario) -> None:
    frame = build_frame([question])
    ceiling = throughput_ceiling(frame)[0]
    theta = np.log([[IDEAL[name] for name in PARAMETER_NAMES]])
    assert evaluate(frame, theta).log["output_tokens_per_s"][0] <= ceiling + 1e-6
    assert prior_of(frame).log["output_tokens_per_s"][0] <= ceiling + 1e-6


def test_the_ceiling_of_one_stream_is_one_reading_of_the_weights_a_token() -> None:
    question = on(
        round_gpu(), scenario(dense_model(), prompt_tokens=1, output_tokens=1000, concurrency=1)
    )
    # 2e9 bytes of weights and a cache of 10,000 x 501 one-byte elements at 1e12 bytes/s
    step = (2e9 + 10_000 * 501) / 1e12
    cycle = 1000 * step + 2 * 1e9 * 1 / 1e14
    assert np.exp(throughput_ceiling(build_frame([question]))[0]) == pytest.approx(1000 / cycle)
