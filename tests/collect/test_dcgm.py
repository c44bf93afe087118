"""GPU telemetry as rows of jobs, faults and moments."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from dcgm_stand_in import (
    MODEL,
    SERVE_END_S,
    SERVE_START_S,
    STEP_S,
    T0,
    answer,
    labels,
    page,
    series,
    slow_start,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import mutated, survives

from omnipilot.collect.dcgm import Telemetry, Window, collect_dcgm
from omnipilot.domain import BadInputError, GpuHealth, GpuSnapshot, GpuWindow
from omnipilot.domain.labels import GPU_LABELS
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

SERVED = Telemetry(windows={"12": Window(SERVE_START_S, SERVE_END_S)})
POWER = "DCGM_FI_DEV_POWER_USAGE"
SM = "DCGM_FI_PROF_SM_ACTIVE"
XID = "DCGM_FI_DEV_XID_ERRORS"


def read(tmp_path: Path, text: str, telemetry: Telemetry = SERVED) -> list[Any]:
    path = tmp_path / "dump"
    path.write_text(text, encoding="utf-8")
    return list(collect_dcgm(path, telemetry=telemetry))


def test_the_serving_window_differs_from_the_whole_job_as_in_the_paper(tmp_path: Path) -> None:
    (row,) = read(tmp_path, answer(*slow_start(0), *slow_start(1)))
    assert isinstance(row, GpuWindow)
    assert (row.job_id, row.gpu, row.n_gpus) == ("12", MODEL, 2)
    serving, whole = row.labels, row.job_labels
    assert serving["sm_active_frac"] == pytest.approx(0.51)
    assert whole["sm_active_frac"] == pytest.approx(0.21)
    assert serving["power_mean_w"] == pytest.approx(2 * 189)
    assert whole["power_mean_w"] == pytest.approx(2 * 131.94, abs=0.01)
    assert serving["tensor_active_frac"] == pytest.approx(0.17)
    assert serving["dram_active_frac"] == pytest.approx(0.34)
    assert (serving["fb_used_mean_gib"], serving["fb_used_peak_gib"]) == (70, 70)
    assert (row.serve_start_s, row.serve_end_s) == (SERVE_START_S, SERVE_END_S)
    assert (row.start_s, row.end_s) == (T0, SERVE_END_S)
    assert row.coverage_frac == 1
    assert (row.n_samples, row.job_samples) == (2 * 5 * 7, 2 * 5 * 17)
    assert set(serving) | set(whole) <= {label.name for label in GPU_LABELS}


def test_slices_of_one_gpu_draw_its_power_once(tmp_path: Path) -> None:
    parts = [series(POWER, [300.0] * 10) for _ in range(2)]
    for part, number in zip(parts, "12", strict=True):
        part["metric"] |= {"GPU_I_ID": number}
    (row,) = read(tmp_path, answer(*parts), Telemetry())
    assert (row.n_gpus, row.job_labels["power_mean_w"]) == (2, 300)


def test_without_a_window_only_the_whole_job_is_told(tmp_path: Path) -> None:
    (row,) = read(tmp_path, answer(*slow_start()), Telemetry())
    assert row.labels == {}
    assert row.job_labels["sm_active_frac"] == pytest.approx(0.21)
    assert (row.serve_start_s, row.coverage_frac) == (0, 0)


def test_a_window_without_readings_is_told(tmp_path: Path) -> None:
    late = Telemetry(windows={"12": Window(SERVE_END_S + 100, SERVE_END_S + 200)})
    refused, row = read(tmp_path, answer(*slow_start()), late)
    assert "no readings in its serving window" in refused.reason
    assert (row.labels, row.coverage_frac) == ({}, 0)


def test_half_a_window_counts_as_half_covered(tmp_path: Path) -> None:
    telemetry = Telemetry(windows={"12": Window(SERVE_START_S, SERVE_START_S + 14 * STEP_S)})
    (row,) = read(tmp_path, answer(*slow_start()), telemetry)
    assert row.coverage_frac == pytest.approx(0.5)


def test_a_gap_between_readings_does_not_count_as_a_reading(tmp_path: Path) -> None:
    # 100 W for 10 readings, none for 10 steps, 300 W for 10: as many readings on either side.
    parts = (series(POWER, [100.0] * 10), series(POWER, [300.0] * 10, start_s=T0 + 20 * STEP_S))
    (row,) = read(tmp_path, answer(*parts), Telemetry())
    assert row.job_labels["power_mean_w"] == pytest.approx(200)
    # Dense and sparse readings of one minute each count alike.
    dense = {"metric": parts[0]["metric"], "values": [[T0 + n, "100"] for n in range(60)]}
    sparse = {"metric": parts[0]["metric"], "values": [[T0 + 60, "300"], [T0 + 62, "300"]]}
    (row,) = read(tmp_path, answer(dense, sparse), Telemetry())
    assert 100 < row.job_labels["power_mean_w"] < 112


def test_answers_of_parts_of_the_time_are_put_together(tmp_path: Path) -> None:
    whole = slow_start()
    first = [part | {"values": part["values"][:9]} for part in whole]
    second = [part | {"values": part["values"][8:]} for part in whole]  # one reading twice
    assert read(tmp_path, answer(*first) + "\n" + answer(*second)) == read(tmp_path, answer(*whole))


def test_a_metric_that_some_gpu_lacks_is_left_out_and_told(tmp_path: Path) -> None:
    results = [*slow_start(0), *(s for s in slow_start(1) if s["metric"]["__name__"] != POWER)]
    *refused, row = read(tmp_path, answer(*results))
    assert len(refused) == 2
    assert all("1 of 2 GPUs is missing" in r.reason for r in refused)
    assert row.n_gpus == 2
    assert "power_mean_w" not in row.labels
    assert "power_mean_w" not in row.job_labels
    assert row.labels["sm_active_frac"] == pytest.approx(0.51)


@pytest.mark.parametrize(
    ("metric", "value", "code"),
    [
        (POWER, "-1", "reading out of range"),
        (POWER, "20000", "reading out of range"),
        (SM, "1.2", "reading out of range"),
        (XID, "3.5", "reading out of range"),
        (POWER, "1_0", "not a number"),
        (POWER, "full", "not a number"),
    ],
)
def test_a_reading_that_no_gpu_gives_spoils_its_average_and_is_told(
    tmp_path: Path, metric: str, value: str, code: str
) -> None:
    results = [*slow_start(0), *slow_start(1), series(metric, [1.0] * 17, 2)]
    results[-1]["values"][3][1] = value
    items = read(tmp_path, answer(*results))
    assert code in {i.code for i in items if isinstance(i, Rejection)}
    rows = [i for i in items if isinstance(i, GpuWindow)]
    if metric == POWER:
        assert all("power_mean_w" not in row.labels | row.job_labels for row in rows)


@pytest.mark.parametrize("blank", [140737488355328, 9223372036854775794, 2147483632])
def test_what_a_page_tells_as_not_recorded_costs_only_its_own_metric(
    tmp_path: Path, blank: float
) -> None:
    (row,) = read(tmp_path, page({POWER: [100.0, 300.0], SM: [0.25, blank]}))
    assert row.labels == {"power_mean_w": 400.0}


def test_values_that_were_not_recorded_are_passed_over(tmp_path: Path) -> None:
    blanks = ["NaN", "140737488355328", "9223372036854775794", "2147483632"]
    result = series(POWER, [100.0] * 10)
    for at, blank in enumerate(blanks):
        result["values"][2 * at][1] = blank
    (row,) = read(tmp_path, answer(result), Telemetry())
    assert (row.job_labels["power_mean_w"], row.job_samples) == (100, 6)


def test_a_job_that_moved_to_other_gpus_has_no_average_over_both(tmp_path: Path) -> None:
    first, second = series(POWER, [100.0] * 9, 0), series(POWER, [300.0] * 9, 1, start_s=T0 + 400)
    refused, row = read(
        tmp_path, answer(first, second), Telemetry(windows={"12": Window(T0 + 420, T0 + 600)})
    )
    assert "other GPUs at other times" in refused.reason
    assert row.job_labels == {}
    assert (row.labels["power_mean_w"], row.n_gpus) == (300, 1)


def test_jobs_by_the_gpu_that_held_them_without_a_job_label(tmp_path: Path) -> None:
    held = {
        "metric": {"__name__": "nvidia_gpu_jobId", "uuid": "GPU-h100n1-0", "instance": "h100n1:9"},
        "values": [[T0 + n * STEP_S, "12" if n < 5 else "13"] for n in range(10)],
    }
    power = series(POWER, [100.0] * 5 + [300.0] * 5, job=None)
    first, second = read(tmp_path, answer(power, held), Telemetry())
    assert (first.job_id, first.job_labels) == ("12", {"power_mean_w": 100})
    assert (second.job_id, second.job_labels) == ("13", {"power_mean_w": 300})


def test_readings_of_no_job_are_of_no_job(tmp_path: Path) -> None:
    idle = [series(POWER, [70.0] * 4, job=None), series(POWER, [70.0] * 4, gpu=1, job="0")]
    assert read(tmp_path, answer(series(POWER, [100.0] * 4, gpu=2), *idle), Telemetry())[
        0
    ].job_labels == {"power_mean_w": 100}


def test_faults_become_health_rows_with_who_has_to_act(tmp_path: Path) -> None:
    faults = (
        series(XID, [0, 0, 79, 79, 31], 0),
        series("DCGM_FI_DEV_ROW_REMAP_FAILURE", [0, 1, 1, 1, 1], 1),
        series("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", [0, 0, 0, 2, 5], 2),
        series("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", [0, 0, 0, 0, 0], 3),
    )
    rows = [r for r in read(tmp_path, answer(*faults)) if isinstance(r, GpuHealth)]
    told = [(r.gpu_uuid, r.event, r.code, r.count, r.severity) for r in rows]
    assert told == [
        ("GPU-h100n1-0", "xid", 31, 0, "application"),
        ("GPU-h100n1-0", "xid", 79, 0, "hardware"),
        ("GPU-h100n1-1", "row_remap_failure", 0, 1, "hardware"),
        ("GPU-h100n1-2", "ecc_double_bit", 0, 5, "hardware"),
    ]
    assert (rows[1].first_s, rows[1].last_s) == (T0 + 2 * STEP_S, T0 + 3 * STEP_S)
    assert {r.job_id for r in rows} == {"12"}
    assert {r.host for r in rows} == {"h100n1"}


def test_a_page_is_a_snapshot_of_the_gpus_of_each_kind(tmp_path: Path) -> None:
    text = page({POWER: [100.0, 300.0], SM: [0.25, 0.75], XID: [0, 48]})
    health, snapshot = read(tmp_path, text, Telemetry(at_s=T0, cluster="lab"))
    assert isinstance(health, GpuHealth)
    assert (health.code, health.severity, health.first_s) == (48, "hardware", T0)
    assert isinstance(snapshot, GpuSnapshot)
    assert snapshot.labels == {"power_mean_w": 400.0, "sm_active_frac": 0.5}
    assert (snapshot.n_gpus, snapshot.n_hosts, snapshot.n_busy, snapshot.n_faulty) == (2, 1, 2, 1)
    assert (snapshot.at_s, snapshot.cluster) == (T0, "lab")


def test_the_captures_are_read(shared_dir: Path) -> None:
    folder = shared_dir / "captures" / "prometheus"
    (row,) = collect_dcgm(folder / "query_range_dcgm_synthetic.json")
    assert isinstance(row, GpuWindow)
    assert (row.job_id, row.n_gpus, row.job_samples) == ("1", 2, 8)
    assert row.job_labels["power_mean_w"] == pytest.approx(340.32 + 311.27, abs=2.5)
    (snapshot,) = collect_dcgm(folder / "exporter_synthetic.prom")
    assert isinstance(snapshot, GpuSnapshot)
    assert snapshot.labels["power_mean_w"] == pytest.approx(633.88, abs=0.01)


def test_an_error_answer_and_other_files_are_refused(tmp_path: Path) -> None:
    (refused,) = read(tmp_path, '{"status":"error","error":"query timed out"}')
    assert (refused.code, "query timed out" in refused.reason) == ("error answer", True)
    with pytest.raises(BadInputError, match="no metric of dcgm-exporter"):
        read(tmp_path, "up 1\n")
    assert [item.code for item in read(tmp_path, "{hello")] == ["not JSON"]


def test_a_compressed_dump_is_read(tmp_path: Path) -> None:
    path = tmp_path / "dump.json.gz"
    path.write_bytes(gzip.compress(answer(*slow_start()).encode()))
    (row,) = collect_dcgm(path, telemetry=SERVED)
    assert isinstance(row, GpuWindow)


def test_odd_labels_never_reach_a_row(tmp_path: Path) -> None:
    odd = labels(0) | {"modelName": "see /data/alice", "pod": "alice-qwen", "Hostname": "h100n1"}
    result = series(POWER, [100.0] * 4) | {"metric": {"__name__": POWER} | odd}
    (row,) = read(tmp_path, answer(result), Telemetry())
    assert "alice" not in repr(row)
    bad = series(POWER, [100.0] * 4) | {"metric": {"__name__": POWER} | odd | {"hpc_job": "al ice"}}
    (refused,) = read(tmp_path, answer(bad), Telemetry())
    assert refused.code == "JobID unreadable"


@given(
    values=st.lists(st.floats(0, 1000), min_size=2, max_size=40),
    low=st.integers(0, 39),
    length=st.integers(1, 39),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_averages_lie_within_the_readings_of_their_window(
    tmp_path: Path, values: list[float], low: int, length: int
) -> None:
    window = Window(T0 + low * STEP_S, T0 + (low + length) * STEP_S)
    items = read(tmp_path, answer(series(POWER, values)), Telemetry(windows={"12": window}))
    row = next(i for i in items if isinstance(i, GpuWindow))
    inside = values[low : low + length + 1]
    if inside:
        mean = row.labels["power_mean_w"]
        assert min(inside) - 1e-9 <= mean <= max(inside) + 1e-9
        assert mean == pytest.approx(sum(inside) / len(inside), abs=1e-6)
    else:
        assert row.labels == {}
    assert 0 <= row.coverage_frac <= 1


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(BadInputError, match="must end after"):
        Telemetry(windows={"12": Window(2.0, 1.0)})


RANGE = answer(*slow_start(0), series(XID, [0, 79, 79], 0)).encode()
PAGE = page({POWER: [100.0, 300.0], SM: [0.25, 0.75], XID: [0, 48]}).encode()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=mutated(RANGE) | mutated(PAGE))
def test_damage_is_refused_or_leaves_sound_rows(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(data)
    for row in survives(lambda: collect_dcgm(path, telemetry=SERVED)):
        for name, value in (getattr(row, "labels", {}) | getattr(row, "job_labels", {})).items():
            assert 0 <= value <= (1 if name.endswith("_frac") else 2e4), json.dumps(name)
