"""The simulated engine keeps its books, and behaves as an engine does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_builders import deployment, load

from omnipilot.domain.errors import BadInputError
from omnipilot.simulate import engine as engine_module
from omnipilot.simulate.deployment import Deployment, Load
from omnipilot.simulate.engine import _Engine, serve
from omnipilot.simulate.startup import start

AMPLE_BLOCKS = 100_000


def rate(deployed: Deployment, clients: int, prompt: int = 1024, output: int = 256) -> float:
    """Output tokens a second of a closed loop on the cache that the start leaves."""
    blocks = start(deployed).kv_blocks
    trace = serve(deployed, load(clients, prompt, output, 3 * clients), blocks)
    return trace.output_tokens / trace.seconds


@st.composite
def loads(draw: st.DrawFn) -> tuple[Load, int, int, int]:
    n = draw(st.integers(1, 30))
    prompts = draw(st.lists(st.integers(1, 300), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 90), min_size=n, max_size=n))
    need = max(-(-(p + o) // 16) for p, o in zip(prompts, outputs, strict=True))
    blocks = draw(st.integers(need, need + 40))
    limit = draw(st.integers(1, 12))
    budget = draw(st.integers(limit, 200))
    return Load(draw(st.integers(1, n + 3)), tuple(prompts), tuple(outputs)), blocks, limit, budget


@settings(max_examples=150, deadline=None)
@given(loads())
def test_tokens_asked_for_are_tokens_served_whatever_the_cache(
    case: tuple[Load, int, int, int],
) -> None:
    asked, blocks, limit, budget = case
    deployed = deployment(max_num_seqs=limit, max_batched_tokens=budget)
    run = _Engine(deployed, asked, blocks)
    trace = run.run()
    assert trace.finished == len(asked.prompt_tokens)
    assert trace.output_tokens == sum(asked.output_tokens)
    assert trace.computed_prompt_tokens - trace.recomputed_tokens == sum(asked.prompt_tokens)
    assert run.free == blocks
    assert run.running == run.sum_base == sum(run.phases) == 0
    assert 0 < trace.peak_blocks <= blocks
    assert trace.peak_running <= limit
    for first, latency in zip(trace.first_token_s, trace.latency_s, strict=True):
        assert 0.0 < first <= latency <= trace.seconds * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(loads())
def test_taking_steps_at_once_is_taking_them_one_by_one(case: tuple[Load, int, int, int]) -> None:
    asked, blocks, limit, budget = case
    deployed = deployment(max_num_seqs=limit, max_batched_tokens=budget)
    at_once = serve(deployed, asked, blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "_MAX_JUMP", 1)
        one_by_one = serve(deployed, asked, blocks)
    assert at_once.steps == one_by_one.steps
    assert at_once.preemptions == one_by_one.preemptions
    assert at_once.peak_blocks == one_by_one.peak_blocks
    assert at_once.seconds == pytest.approx(one_by_one.seconds, rel=1e-3)


def test_no_request_is_pushed_out_while_the_cache_is_ample() -> None:
    trace = serve(deployment(), load(64, 512, 128, 128), AMPLE_BLOCKS)
    assert trace.preemptions == trace.recomputed_tokens == 0


def test_preemption_appears_when_the_cache_is_short_and_costs_throughput() -> None:
    # 64 requests of 640 tokens need 2,560 blocks.
    deployed, asked = deployment(), load(64, 512, 128, 128)
    ample, short = serve(deployed, asked, 2_600), serve(deployed, asked, 1_200)
    assert ample.preemptions == 0 < short.preemptions
    assert short.recomputed_tokens > 0
    assert short.seconds > ample.seconds
    assert short.peak_blocks == pytest.approx(1_200, abs=20)


def test_more_cache_never_makes_a_load_slower() -> None:
    asked = load(128, 1024, 256, 256)
    seconds = [serve(deployment(), asked, blocks).seconds for blocks in (600, 1200, 3000, 8000)]
    assert all(later <= earlier * 1.01 for earlier, later in pairwise(seconds))


def test_more_clients_raise_throughput_and_lengthen_the_time_per_token() -> None:
    traces = [serve(deployment(), load(n, 512, 128, 3 * n), AMPLE_BLOCKS) for n in (1, 8, 64, 256)]
    rates = [t.output_tokens / t.seconds for t in traces]
    per_token = [sorted(t.per_token_s)[len(t.per_token_s) // 2] for t in traces]
    assert rates == sorted(rates)
    assert per_token == sorted(per_token)


def test_newer_gpus_are_faster() -> None:
    rates = [rate(deployment(gpu=gpu), 64) for gpu in ("a100-40", "h100-80", "h200-141")]
    assert rates == sorted(rates)


def test_tensor_parallel_speeds_up_by_less_than_the_number_of_gpus() -> None:
    rates = [
        rate(deployment("Qwen/Qwen2.5-32B-Instruct", "h200-141", tensor_parallel=n), 16)
        for n in (1, 2, 4, 8)
    ]
    assert rates == sorted(rates)
    assert all(more < 2.0 * less for less, more in pairwise(rates))


def test_awq_is_off_the_trend_of_its_bits() -> None:
    by_format = {
        p: {n: rate(deployment(gpu="a100-40", precision=p), n) for n in (1, 128)}
        for p in ("bf16", "awq", "gptq")
    }
    assert by_format["bf16"][1] < by_format["awq"][1] < by_format["gptq"][1]
    # Under load, 4 bits lose to 16.
    assert by_format["awq"][128] < 0.85 * by_format["bf16"][128]
    assert by_format["awq"][128] < 0.85 * by_format["gptq"][128]


def test_fp8_gains_on_parts_that_have_the_unit_and_not_under_load_on_those_that_do_not() -> None:
    gain = {
        gpu: rate(deployment(gpu=gpu, precision="fp8"), 128) / rate(deployment(gpu=gpu), 128)
        for gpu in ("a100-40", "h100-80")
    }
    assert gain["h100-80"] > 1.15
    assert gain["a100-40"] < 1.05


def test_a_saturated_cache_makes_the_first_token_wait_for_seconds() -> None:
    deployed = deployment("Qwen/Qwen2.5-32B-Instruct", "h100-80", max_model_len=4096)
    blocks = start(deployed).kv_blocks
    trace = serve(deployed, load(64, 3072, 800, 96), blocks)
    assert trace.peak_blocks / trace.blocks > 0.97
    assert sorted(trace.first_token_s)[48] > 5.0


@pytest.mark.parametrize(
    ("asked", "blocks", "message"),
    [
        (Load(1, (5000,), (10,)), AMPLE_BLOCKS, "exceeds max_model_len 4096"),
        (Load(1, (1000,), (10,)), 10, "exceeds the cache of 160 tokens"),
    ],
)
def test_a_request_that_can_never_run_is_refused(asked: Load, blocks: int, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        serve(deployment(), asked, blocks)


def test_a_load_without_requests_or_with_empty_ones_is_refused() -> None:
    for clients, prompts, outputs in ((0, (1,), (1,)), (1, (), ()), (1, (1,), (0,)), (1, (1,), ())):
        with pytest.raises(BadInputError):
            Load(clients, prompts, outputs)
