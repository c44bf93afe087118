"""A run joined with what watched it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.domain import (
    ClusterJob,
    GpuWindow,
    InferenceRun,
    JobStatistics,
    LabelledRun,
    ServingWindow,
    StartupRun,
)
from omnipilot.domain.labels import JOB_LABELS
from omnipilot.settings import Settings
from omnipilot.store.codec import encode_row
from omnipilot.store.dataset import run_of
from omnipilot.store.join import RunTime, Source, join_run

FRESHNESS_S = Settings.load().freshness_s
RUN = InferenceRun(
    source="site", model="Qwen/Qwen2.5-7B", engine="vllm", gpu="h100-80", n_gpus=2,
    precision="fp8", mode="online", status="ok", labels={"ttft_p50_s": 0.25}, concurrency=8.0,
    workload="chat",
)  # fmt: skip
DCGM = GpuWindow(
    source="dcgm", job_id="12", gpu="NVIDIA H100 80GB HBM3", n_gpus=2,
    labels={"power_mean_w": 378.0, "sm_active_frac": 0.51}, job_labels={"power_mean_w": 264.0},
    serve_start_s=1000.0, serve_end_s=2000.0,
)  # fmt: skip
LOG = StartupRun(
    source="site", model="qwen2.5-7b", engine="vllm", gpu="", n_gpus=2, precision="fp8",
    status="ok", labels={"cold_start_s": 45.0, "kv_cache_tokens": 100.0},
)  # fmt: skip
METRICS = ServingWindow(
    source="site", model="Qwen/Qwen2.5-7B", engine="vllm", gpu="", n_gpus=0, precision="fp8",
    labels={"ttft_p50_s": 0.3, "kv_cache_peak_frac": 0.8, "kv_cache_tokens": 200.0},
)  # fmt: skip
JOB = JobStatistics(
    source="jobstats", job_id="12", elapsed_s=900, n_nodes=1, gpu_utilization_frac=(0.4, 0.8),
    gpu_memory_used_gib=(10.0, 30.0), gpu_memory_total_gib=(80.0, 80.0),
)  # fmt: skip


THEN = RunTime("12", "", 1000.0, 2000.0)


def joined(*sources: Source, when: RunTime = THEN) -> LabelledRun:
    return join_run(RUN, "0" * 64, sources, when, FRESHNESS_S)


def test_each_source_gives_its_labels_and_the_run_s_own_win() -> None:
    row = joined(DCGM, JOB, LOG, METRICS)
    assert row.labels == {
        "ttft_p50_s": 0.25, "kv_cache_peak_frac": 0.8, "kv_cache_tokens": 200.0,
        "cold_start_s": 45.0, "power_mean_w": 378.0, "sm_active_frac": 0.51,
        "job_gpu_utilization_frac": pytest.approx(0.6), "job_gpu_memory_peak_gib": 30.0,
    }  # fmt: skip
    assert row.label_sources["kv_cache_tokens"] == "metrics"
    assert row.left_out == ()
    of_the_job = {label.name for label in JOB_LABELS}
    assert {name for name in row.labels if name.startswith("job_")} <= of_the_job
    assert (row.workload, row.concurrency, row.job_id) == ("chat", 8.0, "12")
    encode_row(row)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (dataclasses.replace(DCGM, job_id="13"), "dcgm: of job 13"),
        (dataclasses.replace(DCGM, n_gpus=4), "dcgm: of 4 GPUs, not 2"),
        (dataclasses.replace(DCGM, labels={}), "dcgm: it has averages of the whole job only"),
        (dataclasses.replace(LOG, model="Llama-3-8B"), "log: of model Llama-3-8B"),
        (dataclasses.replace(LOG, engine="sglang"), "log: of engine sglang"),
        (dataclasses.replace(LOG, status="oom"), "log: of a start that did not get ready"),
        (dataclasses.replace(JOB, gpu_utilization_frac=(0.1,)), "jobstats: of 1 GPUs, not 2"),
        (dataclasses.replace(JOB, gpu_utilization_frac=(), gpu_memory_used_gib=()),
         "jobstats: no GPU in the record"),
    ],
)  # fmt: skip
def test_what_is_of_another_run_is_left_out_with_the_reason(source: Source, reason: str) -> None:
    row = joined(source)
    assert row.labels == RUN.labels
    assert len(row.left_out) == 1
    assert row.left_out[0].startswith(reason)


def test_another_gpu_kind_is_left_out() -> None:
    row = join_run(
        RUN, "0" * 64, [DCGM], RunTime(), FRESHNESS_S, same_gpu=lambda one, other: one == other
    )
    assert row.left_out == ("dcgm: of GPU NVIDIA H100 80GB HBM3, not h100-80",)


def test_labels_count_by_the_time_between_source_and_run() -> None:
    def weight(gap_s: float) -> float:
        when = RunTime("12", "", 2000.0 + gap_s, 3000.0 + gap_s)
        return joined(DCGM, when=when).label_weights["power_mean_w"]

    hour_s = FRESHNESS_S["power"]
    assert [weight(gap * hour_s) for gap in (0, 1, 2, 4, 5)] == [1, 0.5, 0.25, 0.0625, 0]
    # Before the run as after it, and overlapping counts whole.
    before = RunTime("12", "", 0.0, 1000.0 - hour_s)
    assert joined(DCGM, when=before).label_weights["sm_active_frac"] == 0.5
    assert joined(DCGM, when=RunTime("12", "", 1500.0, 9000.0)).label_weights["power_mean_w"] == 1


def test_of_two_windows_the_nearest_is_taken() -> None:
    old = dataclasses.replace(
        DCGM, labels={"power_mean_w": 100.0}, serve_start_s=1.0, serve_end_s=2.0
    )
    assert joined(old, DCGM).labels["power_mean_w"] == 378.0
    assert joined(old).labels["power_mean_w"] == 100.0


def test_the_window_of_the_telemetry_is_the_run_s_where_none_is_told() -> None:
    row = join_run(RUN, "0" * 64, [DCGM], RunTime(), FRESHNESS_S)
    assert (row.job_id, row.serve_start_s, row.serve_end_s) == ("12", 1000.0, 2000.0)


def test_what_is_of_another_run_does_not_tell_when_the_run_was() -> None:
    other = dataclasses.replace(DCGM, job_id="13", serve_start_s=1e6, serve_end_s=1e6 + 1)
    page = dataclasses.replace(METRICS, model="Llama-3-8B", start_s=5e6, end_s=5e6 + 1)
    row = joined(page, other, DCGM, when=RunTime("12"))
    assert (row.serve_start_s, row.serve_end_s) == (1000.0, 2000.0)
    assert row.label_weights["power_mean_w"] == 1.0
    small = dataclasses.replace(other, n_gpus=1)
    assert joined(small, DCGM, when=RunTime()).job_id == "12"


def test_learning_takes_only_labels_that_count() -> None:
    stale = RunTime("12", "", 2000.0 + 5 * FRESHNESS_S["power"], 1e6)
    assert run_of(joined(DCGM, when=stale)) == RUN
    assert run_of(joined(DCGM)).labels == RUN.labels | DCGM.labels


@given(
    gap_s=st.floats(0, 1e9),
    sources=st.lists(st.sampled_from([DCGM, LOG, METRICS, JOB]), unique_by=id),
)
def test_a_join_keeps_the_run_s_labels_and_weighs_within_one(
    gap_s: float, sources: list[Source]
) -> None:
    row = joined(*sources, when=RunTime("12", "", 2000.0 + gap_s, 3000.0 + gap_s))
    assert row.labels.keys() == row.label_sources.keys() == row.label_weights.keys()
    assert RUN.labels.items() <= row.labels.items()
    assert all(0 <= weight <= 1 for weight in row.label_weights.values())


def test_a_job_of_another_cluster_is_left_out() -> None:
    job = ClusterJob(
        source="sacct", cluster="other", job_id="12", state="COMPLETED", gpu="h100", n_gpus=2
    )
    assert joined(job, when=RunTime("12", "lab")).left_out == ("jobstats: of cluster other",)
