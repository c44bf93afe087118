"""``omnipilot collect dcgm`` and the ``data`` commands over rows, from the outside."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from dcgm_stand_in import SERVE_END_S, SERVE_START_S, answer, page, series, slow_start

from omnipilot.cli import app
from omnipilot.domain import ClusterJob, InferenceRun, ServingWindow, StartupRun
from omnipilot.store import CLUSTER_LOG_NAME, Store

if TYPE_CHECKING:
    from pathlib import Path

RUN = InferenceRun(
    source="site", model="Qwen/Qwen2.5-7B-Instruct", engine="vllm", gpu="h100-80", n_gpus=2,
    precision="bf16", mode="online", status="ok", labels={"ttft_p50_s": 0.2}, concurrency=16.0,
)  # fmt: skip
START = StartupRun(
    source="site", model="Qwen2.5-7B-Instruct", engine="vllm", gpu="", n_gpus=0, precision="bf16",
    status="ok", labels={"cold_start_s": 45.0},
)  # fmt: skip
JOB = ClusterJob(
    source="sacct", cluster="lab", job_id="12", state="COMPLETED", gpu="h100", n_gpus=2,
    eligible_s=int(SERVE_START_S) - 400, start_s=int(SERVE_START_S) - 300,
    end_s=int(SERVE_END_S) + 5, gpu_utilization_frac=(0.5, 0.7),
    gpu_memory_used_gib=(60.0, 70.0), gpu_memory_total_gib=(80.0, 80.0),
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump.json"
    faults = series("DCGM_FI_DEV_XID_ERRORS", [0, 79], 0)
    path.write_text(answer(*slow_start(0), *slow_start(1), faults), encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    assert app.run([*map(str, args)]) == code
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    return json.loads(run(capsys, *args, "--format", "json"))


def collected(home: Path, dump: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    return run_json(
        capsys, "collect", "dcgm", dump, "--home", home, "--job", "12",
        "--serve-start", int(SERVE_START_S), "--serve-end", int(SERVE_END_S),
    )  # fmt: skip


def test_one_command_shows_serving_beside_the_whole_job(
    home: Path, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(
        capsys, "collect", "dcgm", dump, "--home", home, "--job", "12",
        "--serve-start", int(SERVE_START_S), "--serve-end", int(SERVE_END_S),
    )  # fmt: skip
    lines = [line.split() for line in text.splitlines()]
    serving = next(line for line in lines if "serving" in line)
    whole = next(line for line in lines if "whole" in line)
    # PAPER, §2.3: 132 W and 21 % become 189 W and 51 %.
    assert serving[:6] == ["12", "serving", "3.0", "2", "189", "51"]
    assert whole[:7] == ["12", "whole", "job", "8.0", "2", "132", "21"]
    assert "xid 79, hardware, job 12" in text
    assert "2 new, 0 stored already, 0 refused" in text


def test_what_was_collected_is_stored_once_and_shown_again(
    home: Path, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = collected(home, dump, capsys), collected(home, dump, capsys)
    assert (first["accepted"], second["accepted"], second["duplicate"]) == (2, 0, 2)
    (row,) = run_json(capsys, "data", "telemetry", "--home", home)
    assert row == first["jobs"][0]
    assert row["labels"]["sm_active_frac"] == pytest.approx(0.51)
    text = run(capsys, "data", "telemetry", "--home", home, "--job", "12", "--format", "csv")
    assert "12,serving,power_mean_w,378\n" in text
    assert "No telemetry" in run(capsys, "data", "telemetry", "--home", home, "--job", "13")


def test_windows_of_many_jobs_come_from_a_file(
    home: Path, tmp_path: Path, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = tmp_path / "served.csv"
    windows.write_text(
        f"job_id,serve_start_s,serve_end_s\n12,{SERVE_START_S},{SERVE_END_S}\n", encoding="utf-8"
    )
    told = run_json(capsys, "collect", "dcgm", dump, "--home", home, "--windows", windows)
    assert told["jobs"][0]["labels"]["power_mean_w"] == pytest.approx(378)
    windows.write_text("job_id,serve_start_s,serve_end_s\n12,now,later\n", encoding="utf-8")
    assert app.run(["collect", "dcgm", str(dump), "--windows", str(windows)]) == 2
    assert "line 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ((), "give a recorded file"),
        (("--prometheus", "http://127.0.0.1:9"), "--since"),
        (("--prometheus", "nowhere", "--since", "1d"), "no address"),
        (("x.json", "--serve-start", "1769846400"), "needs --job"),
        (("absent.json",), "cannot read"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    home: Path, args: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["collect", "dcgm", *args, "--home", str(home)]) == 2
    err = capsys.readouterr().err
    assert hint in err
    assert err.count("\n") == 1


def test_a_page_of_the_exporter_is_a_snapshot(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.prom"
    path.write_text(page({"DCGM_FI_DEV_POWER_USAGE": [100.0, 300.0]}), encoding="utf-8")
    assert "2 in 1 nodes, 2 with a job, 0 faulty" in run(
        capsys, "collect", "dcgm", path, "--home", home
    )


def test_probe_rows_are_taken_in_stored_and_listed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "probe.json"
    probe = {
        "kind": "hardware_probe", "source": "site", "probe": "node_admission", "status": "pass",
        "gpu": "h100-80", "n_gpus": 8, "host": "h100n1", "labels": {"flops_per_s": 7e14},
    }  # fmt: skip
    path.write_text(json.dumps(probe), encoding="utf-8")
    assert run_json(capsys, "collect", "rows", path, "--home", home)["accepted"] == 1
    (listed,) = run_json(capsys, "data", "list", "--home", home, "--kind", "hardware_probe")
    assert listed["row"]["labels"] == {"flops_per_s": 7e14}
    assert "node_admission" in run(capsys, "data", "list", "--home", home)
    assert "No row of kind recovery_run" in run(
        capsys, "data", "list", "--home", home, "--kind", "recovery_run"
    )
    assert run_json(capsys, "data", "stats", "--home", home)["by_kind"] == {"hardware_probe": 1}


def test_a_run_is_joined_with_its_start_telemetry_and_job(
    home: Path, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store.open(home).append([RUN, START], now_s=50.0)
    Store.open(home, log_name=CLUSTER_LOG_NAME).append([JOB], now_s=60.0)
    collected(home, dump, capsys)
    listed = run_json(capsys, "data", "list", "--home", home, "--kind", "inference_run")
    run_hash = listed[0]["content_hash"][:12]
    row = run_json(capsys, "data", "join", run_hash, "--home", home, "--job", "12")
    assert row["left_out"] == []
    assert row["label_sources"] == {
        "ttft_p50_s": "run",
        "cold_start_s": "log",
        "power_mean_w": "dcgm",
        "sm_active_frac": "dcgm",
        "tensor_active_frac": "dcgm",
        "dram_active_frac": "dcgm",
        "fb_used_mean_gib": "dcgm",
        "fb_used_peak_gib": "dcgm",
        "job_gpu_utilization_frac": "jobstats",
        "job_gpu_memory_peak_gib": "jobstats",
        "job_queue_wait_s": "jobstats",
    }
    assert row["labels"]["power_mean_w"] == pytest.approx(378)
    assert row["labels"]["job_gpu_utilization_frac"] == pytest.approx(0.6)
    assert (row["labels"]["job_queue_wait_s"], row["cluster"]) == (100, "lab")
    assert set(row["label_weights"].values()) == {1.0}
    assert (row["serve_start_s"], row["serve_end_s"]) == (SERVE_START_S, SERVE_END_S)
    # Joined once more, nothing is added.
    run(capsys, "data", "join", run_hash, "--home", home, "--job", "12")
    kinds = run_json(capsys, "data", "stats", "--home", home)["by_kind"]
    assert kinds["labelled_run"] == 1


def test_what_may_be_of_another_run_is_not_joined_by_guess(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = dataclasses.replace(RUN, concurrency=64.0)
    window = ServingWindow(
        source="site", model=RUN.model, engine="vllm", gpu="", n_gpus=0, precision="bf16",
        labels={"kv_cache_peak_frac": 0.9},
    )  # fmt: skip
    later = dataclasses.replace(START, labels={"cold_start_s": 90.0})
    store = Store.open(home)
    store.append([RUN, other, START, later, window], now_s=50.0)
    run_hash, start_hash = (
        next(s.content_hash for s in store.rows() if s.row == row) for row in (RUN, later)
    )
    row = run_json(capsys, "data", "join", run_hash, "--home", home)
    assert row["label_sources"] == {"ttft_p50_s": "run"}
    assert row["left_out"] == [
        "log: 2 starts came with the run, name one by --with",
        "metrics: 1 windows came with 2 runs, name one by --with",
    ]
    row = run_json(capsys, "data", "join", run_hash, "--home", home, "--with", start_hash[:8])
    assert (row["labels"]["cold_start_s"], row["left_out"]) == (90, [])


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("zz",), "is no row's hash"),
        (("abcdef0",), "no row abcdef0"),
    ],
)
def test_a_run_that_cannot_be_found_is_said(
    home: Path, args: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["data", "join", *args, "--home", str(home)]) == 2
    assert hint in capsys.readouterr().err
