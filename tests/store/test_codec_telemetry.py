"""Rows of telemetry, joins, training, recovery and probes as hashed lines."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.domain import (
    BadInputError,
    ClusterJob,
    GpuHealth,
    GpuSnapshot,
    GpuWindow,
    HardwareProbe,
    JobStatistics,
    LabelledRun,
    RecoveryRun,
    Row,
    TrainingRun,
)
from omnipilot.store import Store, load_runs, stats
from omnipilot.store.codec import ROW_TYPES, StoredRow, decode_line, encode_row

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = GpuWindow(
    source="dcgm", job_id="12", gpu="NVIDIA H100 80GB HBM3", n_gpus=2,
    labels={"power_mean_w": 378.0}, job_labels={"power_mean_w": 264.0}, serve_start_s=100.0,
    serve_end_s=200.0, start_s=40.0, end_s=220.0, coverage_frac=0.75, n_samples=20, job_samples=36,
)  # fmt: skip
HEALTH = GpuHealth(
    source="dcgm", host="h100n1", gpu_uuid="GPU-1", gpu="NVIDIA H100", event="xid",
    severity="hardware", code=79, job_id="12", first_s=100.0, last_s=160.0,
)  # fmt: skip
SNAPSHOT = GpuSnapshot(
    source="dcgm", gpu="NVIDIA H100", n_gpus=8, labels={"sm_active_frac": 0.5}, n_hosts=1, n_busy=6
)
JOINED = LabelledRun(
    source="site", model="Qwen/Qwen2.5-7B", engine="vllm", gpu="h100-80", n_gpus=2,
    precision="fp8", mode="online", status="ok", labels={"power_mean_w": 378.0},
    label_sources={"power_mean_w": "dcgm"}, label_weights={"power_mean_w": 1.0},
    run_hash="0" * 64, left_out=("log: another model",), job_id="12",
)  # fmt: skip
TRAINING = TrainingRun(
    source="site", model="m", framework="torchtitan", gpu="h100-80", n_gpus=8, precision="bf16",
    status="ok", labels={"flop_utilization_frac": 0.42},
)  # fmt: skip
RECOVERY = RecoveryRun(
    source="site", cause="node_fail", status="recovered", gpu="h100-80", n_gpus=8,
    labels={"downtime_s": 240.0},
)  # fmt: skip
PROBE = HardwareProbe(
    source="site", probe="node_admission", status="pass", gpu="h100-80", n_gpus=8,
    labels={"flops_per_s": 7.1e14}, host="h100n1",
)  # fmt: skip
ROWS: tuple[Row, ...] = (WINDOW, HEALTH, SNAPSHOT, JOINED, TRAINING, RECOVERY, PROBE)

values = st.floats(allow_nan=False, allow_infinity=False)


@given(
    row=st.sampled_from(ROWS),
    labels=st.dictionaries(st.text(max_size=8), values, max_size=4),
    gpu=st.text(max_size=20),
    now_s=st.floats(0, 1e10),
)
def test_every_kind_survives_the_log(
    row: Row, labels: dict[str, float], gpu: str, now_s: float
) -> None:
    if not isinstance(row, JobStatistics):
        row = dataclasses.replace(row, gpu=gpu)
    if not isinstance(row, GpuHealth | ClusterJob | JobStatistics):
        row = dataclasses.replace(row, labels=labels)
    encoded = encode_row(row)
    assert decode_line(encoded.line(now_s)) == StoredRow(row, encoded.digest.hex(), now_s)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind)
def test_a_line_tells_kind_schema_hash_stack_and_source(row: Row) -> None:
    told = json.loads(encode_row(row).line(5.0))
    assert told["kind"] == row.kind
    assert ROW_TYPES[row.kind] is type(row)
    assert told["schema_version"] == 1
    assert told["source"] == row.source
    assert set(told["stack"]) == {"engine_version", "cuda", "driver", "image_digest"}
    assert len(told["content_hash"]) == 64


def test_averages_that_are_not_finite_are_refused() -> None:
    bad = {"power_mean_w": math.nan}
    for row in (
        dataclasses.replace(WINDOW, labels=bad),
        dataclasses.replace(WINDOW, job_labels=bad),
    ):
        with pytest.raises(BadInputError, match="not finite"):
            encode_row(row)


def test_the_store_counts_them_and_the_advisor_learns_from_none_but_the_join(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path)
    assert store.append([*ROWS, *ROWS], now_s=1.0) == (len(ROWS), len(ROWS))
    assert stats(store).by_kind == {row.kind: 1 for row in ROWS}
    assert [run.labels for run in load_runs(store)] == [JOINED.labels]
