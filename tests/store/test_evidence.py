"""The site's evidence weighed by its age."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from omnipilot.domain import ClusterJob, GpuHealth, GpuWindow
from omnipilot.settings import Settings
from omnipilot.store import CLUSTER_LOG_NAME, Store
from omnipilot.store.evidence import MetricEvidence, one_reading, site_evidence

if TYPE_CHECKING:
    from pathlib import Path

NOW_S = 1_795_960_000.0
HOUR_S = 3600.0
FRESHNESS_S = Settings.load().freshness_s
WINDOW = GpuWindow(
    source="dcgm", job_id="12", gpu="H100", n_gpus=2,
    labels={"power_mean_w": 400.0, "sm_active_frac": 0.5}, job_labels={},
    serve_start_s=NOW_S - 600, serve_end_s=NOW_S,
)  # fmt: skip
OLDER = dataclasses.replace(
    WINDOW, labels={"power_mean_w": 1000.0}, serve_start_s=NOW_S - 3 * HOUR_S,
    serve_end_s=NOW_S - HOUR_S,
)  # fmt: skip
FAULT = GpuHealth(
    source="dcgm", host="n1", gpu_uuid="GPU-1", gpu="H100", event="xid", severity="hardware",
    code=79, first_s=NOW_S - 1200, last_s=NOW_S - 600,
)  # fmt: skip
JOB = ClusterJob(
    source="sacct", cluster="lab", job_id="1", state="COMPLETED", gpu="h100", n_gpus=1,
    eligible_s=int(NOW_S) - 86_400 * 7 - 50, start_s=int(NOW_S) - 86_400 * 7,
    end_s=int(NOW_S) - 86_400 * 5,
)  # fmt: skip


def weighed(home: Path, kind: str = "H100") -> dict[str, MetricEvidence]:
    found = site_evidence(
        home, now_s=NOW_S, freshness_s=FRESHNESS_S, is_kind=lambda name: name == kind
    )
    return {m.metric: m for m in found}


def test_older_rows_count_less(tmp_path: Path) -> None:
    Store.open(tmp_path).append([WINDOW, OLDER, FAULT], now_s=NOW_S)
    Store.open(tmp_path, log_name=CLUSTER_LOG_NAME).append([JOB], now_s=NOW_S)
    found = weighed(tmp_path)
    assert list(found) == ["node_health", "power", "activity", "launch_success", "queue_wait"]
    # 200 W now and 500 W an hour ago, which counts half: (200 + 250) / 1.5.
    power = found["power"]
    assert power.value == pytest.approx(300)
    assert (power.rows, power.newest_age_s, power.weight, power.total_weight) == (2, 0, 1, 1.5)
    assert found["activity"].value == 0.5
    assert found["node_health"].value == 0.5  # one fault, ten minutes ago
    assert (found["queue_wait"].value, found["queue_wait"].weight) == (50, 0.5)
    assert found["launch_success"].weight == pytest.approx(0.5 ** (5 / 30))


def test_rows_beyond_four_windows_count_nothing(tmp_path: Path) -> None:
    stale = dataclasses.replace(OLDER, serve_end_s=NOW_S - 5 * HOUR_S)
    Store.open(tmp_path).append([stale], now_s=NOW_S)
    power = weighed(tmp_path)["power"]
    assert (power.value, power.rows, power.weight) == (None, 1, 0)


def test_other_kinds_and_an_empty_site_say_nothing(tmp_path: Path) -> None:
    assert weighed(tmp_path) == {}
    Store.open(tmp_path).append([WINDOW, FAULT], now_s=NOW_S)
    assert weighed(tmp_path, "A100") == {}


def test_of_a_long_cluster_log_the_newest_part_is_read(tmp_path: Path) -> None:
    store = Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
    jobs = [dataclasses.replace(JOB, job_id=str(n), end_s=JOB.end_s + n) for n in range(9000)]
    store.append(jobs, now_s=NOW_S)
    found = weighed(tmp_path)["launch_success"]
    assert 0 < found.rows < 9000
    assert found.newest_age_s == NOW_S - JOB.end_s - 8999


def test_a_single_reading_is_weighed_alike() -> None:
    weights = [
        one_reading("queue", 1.0, "GPUs", age_s=age, window_s=60).weight
        for age in (-5, 0, 60, 240, 241)
    ]
    assert weights == [1, 1, 0.5, 0.0625, 0]
