"""Times of single steps."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate_builders import catalog, deployment

import omnipilot.simulate
from omnipilot.domain.errors import BadInputError
from omnipilot.simulate.deployment import Deployment
from omnipilot.simulate.kernels import KernelTimer

TIMER = KernelTimer(deployment())
AMPERE = KernelTimer(deployment(gpu="a100-40"))


@given(st.integers(1, 1000), st.integers(1, 4000), st.integers(0, 4000))
def test_longer_contexts_never_make_a_step_quicker(n: int, context: int, more: int) -> None:
    one, other = TIMER.decode(n, n * context), TIMER.decode(n, n * (context + more))
    assert other.seconds >= one.seconds * (1 - 1e-12)
    assert other.joules >= one.joules * (1 - 1e-12)


@given(st.integers(1, 1000), st.integers(0, 30_000))
def test_the_parts_of_a_step_are_within_it(n: int, context: int) -> None:
    cost = AMPERE.decode(n, n * (1.0 + context))
    assert 0.0 < cost.tensor_s < cost.busy_s < cost.seconds
    assert cost.active_s <= cost.busy_s * (1 + 1e-12)


@given(st.integers(1, 8192), st.integers(0, 32_000))
def test_the_power_limit_holds(tokens: int, before: int) -> None:
    cost = TIMER.mixed(0, 0.0, [(tokens, before)])
    assert cost.joules / cost.seconds <= 700.0 * (1 + 1e-9)


def test_a_product_takes_time_in_rounds_of_tiles() -> None:
    # Within one tile of rows nothing changes; a full device takes the next round at once.
    within = [TIMER.mixed(0, 0.0, [(n, 0)]).seconds for n in (4097, 4104, 4112)]
    assert within[1] - within[0] < 1e-5
    times = [KernelTimer(deployment())._time_products(n, 1, captured=False).seconds
             for n in (1920, 2048, 2064)]  # fmt: skip
    assert times[2] - times[1] > 0.2 * (times[1] - times[0])


def test_a_captured_graph_saves_launches() -> None:
    small = deployment("Qwen/Qwen2.5-0.5B-Instruct")
    assert (
        KernelTimer(small).decode(8, 800).seconds
        < KernelTimer(small).mixed(8, 800, [(8, 0)]).seconds
    )


def test_small_messages_are_summed_in_one_shot_and_large_ones_by_a_tree() -> None:
    timer = KernelTimer(deployment(tensor_parallel=4))
    small, large = timer._sum_over_group(1e4), timer._sum_over_group(1e8)
    assert small < 1e-5
    assert large < 1e8 * 3 / (0.82 * 450e9)  # less than reading all peers would take
    assert KernelTimer(deployment())._sum_over_group(1e8) == 0.0


def test_a_window_saves_time_on_long_contexts() -> None:
    model = "google/gemma-2-9b-it"
    timer = KernelTimer(deployment(model))
    at, beyond = (timer._cache_read(64, 64 * n)[1] for n in (4096, 8192))
    assert beyond == pytest.approx(1.5 * at)  # half of the layers see 4,096 tokens


def test_an_expert_model_reads_fewer_experts_for_one_request_than_for_many() -> None:
    timer = KernelTimer(deployment("mistralai/Mixtral-8x7B-Instruct-v0.1", tensor_parallel=2))
    one, many = (timer._time_products(n, n, captured=True).bytes for n in (1, 64))
    assert one < 0.5 * many


def test_formats_without_a_kernel_and_models_without_plain_attention_are_refused() -> None:
    with pytest.raises(BadInputError, match="nvfp4 cannot be simulated"):
        KernelTimer(deployment(precision="nvfp4"))
    facts = catalog()
    with pytest.raises(BadInputError, match="cannot be simulated"):
        Deployment(
            facts.model("deepseek-ai/DeepSeek-V3"), facts.gpu("h200-141"), facts.precision("fp8"), 8
        )


def test_the_simulator_imports_nothing_of_what_it_tests() -> None:
    folder = Path(omnipilot.simulate.__file__).parent
    imported = {
        name
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom)
            else [a.name for a in node.names] if isinstance(node, ast.Import) else []
        )
    }  # fmt: skip
    forbidden = ("omnipilot.costmodel", "omnipilot.learn", "omnipilot.decide", "omnipilot.evaluate")
    assert not [name for name in imported if name.startswith(forbidden)]
