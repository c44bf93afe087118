"""Starts and their failures."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from simulate_builders import deployment

from omnipilot.domain.labels import FAILURE_BY_NAME, STARTUP_LABELS
from omnipilot.simulate.startup import NODE_FAULTS, StorageState, fault, start

if TYPE_CHECKING:
    from omnipilot.simulate.deployment import Deployment

L70 = "meta-llama/Llama-3.1-70B-Instruct"


@pytest.mark.parametrize(
    ("deployed", "failure", "stage"),
    [
        (deployment(L70, "h100-80"), "oom_weights", "weights"),
        (deployment("Qwen/Qwen2.5-32B-Instruct", "h100-80", max_model_len=32768), "kv_too_small",
         "kv_cache"),
        (deployment("microsoft/phi-4", "a100-40", "bf16", max_batched_tokens=131072),
         "oom_profiling", "profiling"),
        (deployment(tensor_parallel=8), "divisibility", "config"),
        (deployment("allenai/OLMo-2-1124-7B-Instruct", precision="awq", tensor_parallel=4),
         "divisibility", "config"),
        (deployment("google/gemma-2-27b-it", precision="gptq"), "unsupported", "config"),
        (deployment("google/gemma-2-9b-it", max_model_len=16384), "max_model_len", "config"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_launch_fails_with_its_class(deployed: Deployment, failure: str, stage: str) -> None:
    started = start(deployed)
    assert (started.failure, started.stage, started.kv_blocks) == (failure, stage, 0)
    assert not started.ready


def test_more_gpus_or_fewer_bits_make_a_large_model_start() -> None:
    assert start(deployment(L70, tensor_parallel=4)).ready
    assert start(deployment(L70, "h200-141", "fp8")).ready


def test_labels_are_those_of_an_engine_s_log() -> None:
    known = {label.name for label in STARTUP_LABELS}
    assert set(start(deployment()).labels) <= known
    assert set(start(deployment(L70)).labels) <= known


def test_the_cache_takes_what_weights_and_activations_leave() -> None:
    started = start(deployment())
    parts = ("weights_gib", "activation_gib", "non_torch_gib", "kv_cache_gib")
    assert sum(started.labels[p] for p in parts) == pytest.approx(0.9 * 79.18)
    assert started.labels["kv_cache_tokens"] == started.kv_blocks * 16


def test_busy_storage_lengthens_a_cold_start_and_cached_weights_shorten_it() -> None:
    quiet, busy, cached = (
        start(deployment(), StorageState(load_frac=load, cached_frac=cached)).labels["cold_start_s"]
        for load, cached in ((0.1, 0.0), (0.7, 0.0), (0.1, 1.0))
    )
    assert cached < quiet < busy


def test_larger_models_start_more_slowly() -> None:
    models = ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-32B-Instruct")
    times = [start(deployment(m, "h200-141")).labels["cold_start_s"] for m in models]
    assert times == sorted(times)


def test_faults_of_nodes_are_drawn_by_their_shares_and_have_classes() -> None:
    rng = np.random.default_rng(0)
    drawn = Counter(fault(rng).failure for _ in range(2000))
    assert sum(share for _, share, _ in NODE_FAULTS) == pytest.approx(1.0)
    for name, share, _ in NODE_FAULTS:
        assert drawn[name] / 2000 == pytest.approx(share, abs=0.04)
        assert FAILURE_BY_NAME[name].status in {"error", "crash"}
