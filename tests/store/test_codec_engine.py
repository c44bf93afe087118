"""Rows of engine starts and serving windows as hashed lines."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.domain import BadInputError, ServingWindow, StackFingerprint, StartupRun
from omnipilot.store import Store, load_runs, stats
from omnipilot.store.codec import ROW_TYPES, StoredRow, decode_line, encode_row

if TYPE_CHECKING:
    from pathlib import Path

START = StartupRun(
    source="site", model="Qwen/Qwen2.5-7B", engine="vllm", gpu="H100", n_gpus=2, precision="fp8",
    status="oom", labels={"weights_gib": 7.5}, failure="oom_profiling", stage="profiling",
    stack=StackFingerprint(engine_version="0.11.2"),
)  # fmt: skip
WINDOW = ServingWindow(
    source="site", model="Qwen/Qwen2.5-7B", engine="vllm", gpu="H100", n_gpus=2, precision="fp8",
    labels={"ttft_p50_s": 0.25, "preemptions": 3.0}, n_snapshots=2, start_s=100.0, end_s=200.0,
)  # fmt: skip

values = st.floats(allow_nan=False, allow_infinity=False)


@given(
    row=st.sampled_from([START, WINDOW]),
    labels=st.dictionaries(st.text(max_size=8), values, max_size=4),
    text=st.text(max_size=20),
    now_s=st.floats(0, 1e10),
)
def test_a_start_and_a_window_survive_the_log(
    row: StartupRun | ServingWindow, labels: dict[str, float], text: str, now_s: float
) -> None:
    row = dataclasses.replace(row, labels=labels, model=text)
    encoded = encode_row(row)
    assert decode_line(encoded.line(now_s)) == StoredRow(row, encoded.digest.hex(), now_s)


@pytest.mark.parametrize("row", [START, WINDOW])
def test_whole_numbers_and_floats_are_the_same_content(row: StartupRun | ServingWindow) -> None:
    whole = dataclasses.replace(row, labels={"kv_cache_tokens": 4096})
    told = dataclasses.replace(row, labels={"kv_cache_tokens": 4096.0})
    assert encode_row(whole).digest == encode_row(told).digest


@pytest.mark.parametrize("row", [START, WINDOW])
def test_labels_that_are_not_finite_are_refused(row: StartupRun | ServingWindow) -> None:
    with pytest.raises(BadInputError, match="not finite"):
        encode_row(dataclasses.replace(row, labels={"weights_gib": math.inf}))


def test_every_kind_is_stored_under_its_own_name() -> None:
    for kind, row in ROW_TYPES.items():
        assert {f.name: f.default for f in dataclasses.fields(row)}["kind"] == kind


def test_the_store_counts_starts_and_windows_and_learns_from_neither(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    assert store.append([START, WINDOW, START], now_s=1.0).accepted == 2
    counted = stats(store)
    assert counted.by_kind == {"startup_run": 1, "serving_window": 1}
    assert counted.by_status == {"oom": 1}
    assert counted.labels == {"weights_gib": 1, "ttft_p50_s": 1, "preemptions": 1}
    assert load_runs(store) == []
