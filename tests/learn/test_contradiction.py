"""Rows whose own numbers cannot all be true: wrong units above all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog.catalog import Catalog
from omnipilot.domain.rows import InferenceRun
from omnipilot.learn.contradiction import WRONG_UNITS
from omnipilot.learn.dataset import build_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping

CATALOG = Catalog.load()
TTFT_S, TPOT_S = 0.095, 0.011
# 32 clients, each served in TTFT + 127 TPOT.
RATE = 32 * 128 / (TTFT_S + 127 * TPOT_S)
HONEST = InferenceRun(
    source="ours", model="Qwen/Qwen2.5-7B-Instruct", engine="vllm", gpu="H100",
    gpu_memory_gb=80.0, n_gpus=1, precision="bf16", mode="online", status="ok",
    labels={"output_tokens_per_s": RATE, "ttft_p50_s": TTFT_S, "tpot_p50_s": TPOT_S},
    prompt_tokens=512.0, output_tokens=128.0, concurrency=32.0,
)  # fmt: skip
# Without latencies, so that a set is never empty.
PLAIN = replace(HONEST, labels={"output_tokens_per_s": 100.0}, concurrency=1.0)


def told(run: InferenceRun, **factors: float) -> InferenceRun:
    """The run with some labels multiplied."""
    return replace(run, labels={k: v * factors.get(k, 1.0) for k, v in run.labels.items()})


def without(run: InferenceRun, *labels: str) -> InferenceRun:
    return replace(run, labels={k: v for k, v in run.labels.items() if k not in labels})


def is_left_out(run: InferenceRun) -> bool:
    found = build_dataset([PLAIN, run], CATALOG)
    assert len(found.runs) + found.excluded.contradictory == 2
    assert found.excluded.physically_impossible == 0
    return bool(found.excluded.contradictory)


@pytest.mark.parametrize(
    "factors",
    [
        {"ttft_p50_s": 1e-3, "tpot_p50_s": 1e-3},
        {"ttft_p50_s": 1e3, "tpot_p50_s": 1e3},
        {"ttft_p50_s": 1e-3},
        {"ttft_p50_s": 1e3},
        {"tpot_p50_s": 1e-3},
        {"tpot_p50_s": 1e3},
        {"output_tokens_per_s": 1e-3},
    ],
)
def test_a_label_in_wrong_units_contradicts_the_others(factors: Mapping[str, float]) -> None:
    assert not is_left_out(HONEST)
    assert is_left_out(told(HONEST, **factors))


def test_an_aggregate_rate_is_held_against_the_latencies_too() -> None:
    run = replace(HONEST, labels={**HONEST.labels, "aggregate_tokens_per_s": 5 * RATE})
    run = without(run, "output_tokens_per_s")
    assert not is_left_out(run)
    assert is_left_out(told(run, aggregate_tokens_per_s=1e-2))


@given(st.floats(0.3, 1.5), st.floats(0.3, 3.0))
def test_rows_as_far_off_as_any_public_one_are_kept(rate: float, latency: float) -> None:
    assert not is_left_out(
        told(HONEST, output_tokens_per_s=rate, ttft_p50_s=latency, tpot_p50_s=latency)
    )


def test_the_requests_in_flight_may_be_off_by_the_stated_factor() -> None:
    assert not is_left_out(told(HONEST, output_tokens_per_s=1.01 / WRONG_UNITS))
    assert is_left_out(told(HONEST, output_tokens_per_s=0.99 / WRONG_UNITS))


def test_one_latency_alone_bounds_what_is_in_flight_from_below_only() -> None:
    assert not is_left_out(without(HONEST, "tpot_p50_s"))
    assert is_left_out(told(without(HONEST, "ttft_p50_s"), tpot_p50_s=1e3))
    # A long prompt or a short answer may leave next to nothing for one of them.
    assert not is_left_out(told(without(HONEST, "tpot_p50_s"), output_tokens_per_s=0.1))


def test_little_s_law_is_asked_of_closed_loops_of_known_size_alone() -> None:
    slow = told(HONEST, output_tokens_per_s=1e-2)
    assert is_left_out(slow)
    assert not is_left_out(replace(slow, mode="poisson"))
    assert not is_left_out(replace(slow, concurrency=0.0))
    assert not is_left_out(replace(slow, output_tokens=0.0))


@pytest.mark.parametrize("label", ["ttft_p50_s", "tpot_p50_s"])
def test_no_token_comes_sooner_than_the_weights_are_read(label: str) -> None:
    # 15 GB at 3.35 TB/s take 4.5 ms; speculation may give some tokens for one reading, not many.
    alone = replace(HONEST, labels={label: 4.5e-3}, mode="poisson")
    assert not is_left_out(alone)
    assert not is_left_out(told(alone, **{label: 0.2}))
    assert is_left_out(told(alone, **{label: 0.05}))


def test_gaps_between_tokens_may_vanish_where_an_engine_hands_out_several() -> None:
    assert not is_left_out(replace(HONEST, labels={**HONEST.labels, "itl_p50_s": 1e-5}))
