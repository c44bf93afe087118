"""Cluster rows as hashed lines, and the cluster-wide log."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

import pytest

from omnipilot.domain import BadInputError, ClusterJob, InferenceRun, JobStatistics
from omnipilot.store import CLUSTER_LOG_NAME, Store, load_runs, stats
from omnipilot.store.codec import StoredRow, decode_line, encode_row

if TYPE_CHECKING:
    from pathlib import Path

JOB = ClusterJob(
    source="sacct", cluster="lab", job_id="10_3", state="COMPLETED", gpu="h100", n_gpus=2,
    submit_s=1_795_957_800, eligible_s=1_795_957_810, start_s=1_795_957_870, end_s=1_795_961_470,
    jobstats="ok", gpu_utilization_frac=(0.5, 0.25), gpu_memory_used_gib=(40.0, 20.0),
    gpu_memory_total_gib=(80.0, 80.0),
)  # fmt: skip
STATISTICS = JobStatistics(
    source="jobstats", job_id="10", elapsed_s=60.0, n_nodes=1, gpu_utilization_frac=(0.5,),
    gpu_memory_used_gib=(40.0,), gpu_memory_total_gib=(80.0,),
)  # fmt: skip


@pytest.mark.parametrize("row", [JOB, STATISTICS], ids=lambda row: row.kind)
def test_a_cluster_row_survives_the_log_with_its_kind_and_schema(
    row: ClusterJob | JobStatistics,
) -> None:
    encoded = encode_row(row)
    line = encoded.line(5.0)
    assert decode_line(line) == StoredRow(row, encoded.digest.hex(), 5.0)
    told = json.loads(line)
    assert (told["kind"], told["schema_version"]) == (row.kind, 1)


def test_whole_numbers_in_a_tuple_of_floats_are_the_same_content() -> None:
    whole = dataclasses.replace(JOB, gpu_memory_used_gib=(40, 20))
    assert encode_row(whole).digest == encode_row(JOB).digest
    other = dataclasses.replace(JOB, gpu_memory_used_gib=(40.0, 21.0))
    assert encode_row(other).digest != encode_row(JOB).digest


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_tuple_with_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(BadInputError, match="not finite"):
        encode_row(dataclasses.replace(JOB, gpu_utilization_frac=(0.5, value)))


def test_a_text_that_says_null_is_stored() -> None:
    job = dataclasses.replace(JOB, partition="null")
    assert decode_line(encode_row(job).line(0.0)).row == job


def test_the_cluster_log_is_a_file_of_its_own(tmp_path: Path) -> None:
    cluster = Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
    own = Store.open(tmp_path)
    assert cluster.append([JOB, JOB], now_s=0.0) == (1, 1)
    assert own.append([STATISTICS], now_s=0.0) == (1, 0)
    assert Store.open(tmp_path, log_name=CLUSTER_LOG_NAME).append([JOB], now_s=9.0) == (0, 1)
    assert [stored.row for stored in cluster.rows()] == [JOB]
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == [
        "cluster_history.jsonl",
        "history.jsonl",
    ]


def test_a_torn_end_of_the_cluster_log_is_kept_under_its_own_name(tmp_path: Path) -> None:
    store = Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
    store.append([JOB], now_s=0.0)
    with store.path.open("ab") as stream:
        stream.write(b'{"content_hash":"torn')
    again = Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
    assert [path.name for path in again.torn_files()] == ["cluster_history.jsonl.torn-1"]
    assert Store.open(tmp_path).torn_files() == []


def test_rows_of_other_kinds_are_counted_and_never_learned_from(tmp_path: Path) -> None:
    run = InferenceRun(
        source="site", model="m", engine="vllm", gpu="H100", n_gpus=1, precision="fp8",
        mode="online", status="ok", labels={"ttft_p50_s": 0.25},
    )  # fmt: skip
    store = Store.open(tmp_path)
    store.append([run, JOB, STATISTICS], now_s=0.0)
    assert load_runs(store) == [run]
    told = stats(store)
    assert told.by_kind == {"inference_run": 1, "cluster_job": 1, "job_statistics": 1}
    assert told.by_model == {"m": 1}
    assert told.labels == {"ttft_p50_s": 1}


def test_a_wait_is_counted_from_eligible_and_is_absent_where_it_cannot_be() -> None:
    assert JOB.queue_wait_s == 60
    assert dataclasses.replace(JOB, start_s=0).queue_wait_s is None
    assert dataclasses.replace(JOB, eligible_s=0).queue_wait_s is None
    assert dataclasses.replace(JOB, eligible_s=JOB.start_s + 1).queue_wait_s is None
