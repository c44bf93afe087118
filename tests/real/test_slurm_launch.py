"""From advice to a job on a real Slurm, and back as evidence for the next advice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import vllm_stand_in

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.launching import LaunchOrder, prepare_launch, save_launch
from omnipilot.domain import ClusterJob, InferenceRun, ServingRequest, StartupRun
from omnipilot.domain.labels import FAILURE_BY_NAME
from omnipilot.launch.emit import is_done, outcome_of, read_marks
from omnipilot.launch.script import launch_script
from omnipilot.launch.slurm import submit
from omnipilot.launch.spec import Software
from omnipilot.store import CLUSTER_LOG_NAME, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from real_slurm import SlurmCluster

MODEL = "Qwen/Qwen2.5-7B-Instruct"
REQUEST = ("--model", MODEL, "--concurrency", "8", "--context", "4096")
START_S = 90


@pytest.fixture
def home(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Path]:
    """A clean home that every node sees."""
    folder = slurm.folder / "jobs" / tmp_path.name
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def venv(slurm: SlurmCluster) -> Path:
    return vllm_stand_in.install(slurm.folder / "jobs" / "venv")


@pytest.fixture
def in_slurm(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """This process's own commands talk to the cluster."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    return slurm


def omnipilot(
    slurm: SlurmCluster, home: Path, *arguments: str, code: int = 0, timeout_s: float = 90
) -> dict[str, Any]:
    """Run a command; its JSON answer ({} where it failed as expected)."""
    done = subprocess.run(
        [sys.executable, "-m", "omnipilot", *arguments, "--home", home, "--format", "json"],
        env=slurm.environment | {"OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr}
    assert isinstance(answer, dict)
    return answer


def wait_until(told: Callable[[], bool], timeout_s: float = START_S) -> None:
    until = time.monotonic() + timeout_s
    while not told():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.2)


def test_harvest_advise_launch_ingest_and_the_next_advice_shows_the_run(
    slurm: SlurmCluster, home: Path, venv: Path
) -> None:
    slurm.submit("true", "-p", "gpu_h100", "--gres=gpu:h100:1", "--mem=200M",
                 "--job-name=vllm-before")  # fmt: skip
    omnipilot(slurm, home, "collect", "sacct", "--since", "1d")
    before = omnipilot(slurm, home, "advise", *REQUEST, "--gpus", "h100-80", "--precisions", "bf16")
    assert before["site_runs"] == []
    best = before["ranked"][0]["arm"]
    launched = omnipilot(
        slurm, home, "launch", *REQUEST, "--gpus", "h100-80", "--precisions", "bf16", "--submit",
        "--bench", "--num-prompts", "40", "--stop-after-bench", "--venv", str(venv),
        "--memory-gib", "1",
    )  # fmt: skip
    assert launched["arm"] == best
    assert launched["partition"] == "gpu_h100"
    job_id = int(launched["job_id"])
    slurm.wait_for(job_id, "COMPLETED", timeout_s=START_S)
    # The script took its rows in by itself; doing it again adds nothing.
    again = omnipilot(slurm, home, "bench", "ingest", launched["folder"])
    assert [run["accepted"] for run in again["runs"]] == [0]
    assert [run["duplicate"] for run in again["runs"]] == [3]
    after = omnipilot(slurm, home, "advise", *REQUEST, "--gpus", "h100-80", "--precisions", "bf16")
    (evidence,) = after["site_runs"]
    assert (evidence["gpu_kind"], evidence["n_gpus"], evidence["precision"]) == (
        best["gpu_kind"], best["tensor_parallel"], best["precision"],
    )  # fmt: skip
    assert (evidence["status"], evidence["n_runs"], evidence["concurrency"]) == ("ok", 1, 8)
    assert evidence["tokens_per_s"] > 0
    (run,) = [s.row for s in Store(home).rows() if isinstance(s.row, InferenceRun)]
    assert {"aggregate_tokens_per_s", "ttft_p50_s", "cold_start_s"} <= set(run.labels)
    assert run.stack.engine_version == vllm_stand_in.VERSION

    # The harvest knows the job as a vLLM server that came up, once the accounting knows its name:
    # its end may be there before its start.
    def harvested() -> list[ClusterJob]:
        omnipilot(slurm, home, "collect", "sacct", "--since", "1d")
        jobs = [s.row for s in Store(home, log_name=CLUSTER_LOG_NAME).rows()]
        return [j for j in jobs if isinstance(j, ClusterJob) and j.job_id == str(job_id)]

    wait_until(lambda: harvested() != [])
    (job,) = harvested()
    assert (job.job_class, job.partition, job.state) == ("vllm", "gpu_h100", "COMPLETED")


def request_of(**changes: Any) -> ServingRequest:
    return ServingRequest(MODEL, 8, 4096, 64, 16, **changes)


def test_a_server_that_fails_at_start_comes_back_as_a_row_with_its_class(
    in_slurm: SlurmCluster, home: Path, venv: Path
) -> None:
    order = LaunchOrder(
        Question(request_of()), arm="h100-80:1:bf16", bench=True, num_prompts=8,
        stop_after_bench=True, memory_gib=1, time_limit_min=10, software=Software(venv=str(venv)),
    )  # fmt: skip
    base = prepare_launch(Advisor.open(home), order, "base")
    runs: dict[str, Path] = {}
    for kind in vllm_stand_in.FAILURES:
        run_dir = base.run_dir.with_name(kind)
        spec = replace(
            base.spec, run_id=kind,
            software=replace(order.software, environment=(("STAND_IN_FAIL", kind),)),
        )  # fmt: skip
        # Rows are taken in below, all at once: twenty emitters on two cores only cost time.
        prepared = replace(base, spec=spec, run_dir=run_dir, script=launch_script(spec, run_dir))
        submit(save_launch(prepared))
        runs[kind] = run_dir
    wait_until(lambda: all(is_done(folder) for folder in runs.values()), timeout_s=120)
    answer = omnipilot(in_slurm, home, "bench", "ingest")
    assert {run["run"] for run in answer["runs"]} == set(runs)
    starts = [s.row for s in Store(home).rows() if isinstance(s.row, StartupRun)]
    found = [s.row for s in Store(home).rows() if isinstance(s.row, InferenceRun)]
    classes = set(vllm_stand_in.FAILURES)
    assert {start.failure for start in starts} == classes
    for kind in classes:
        assert outcome_of(runs[kind]) in ("failed", "bench_failed"), kind
        mine = [run for run in found if run.notes.startswith(f"failed: {kind}")
                and run.notes.removeprefix(f"failed: {kind}")[:1] in ("", ",")]  # fmt: skip
        if kind == "terminated":
            assert mine == []  # stopped from outside: it says nothing of the arm
            continue
        (run,) = mine
        status = FAILURE_BY_NAME[kind].status
        assert run.status == ("error" if status == "unfinished" else status)
        assert run.labels == {}
    after = omnipilot(
        in_slurm, home, "advise", *REQUEST, "--gpus", "h100-80", "--precisions", "bf16"
    )
    assert {group["note"] for group in after["site_runs"]} >= {"failed: oom_kv_cache"}
    assert all(group["tokens_per_s"] is None for group in after["site_runs"])


@pytest.mark.parametrize("name", ["fail_tp3.log", "fail_kv_too_small.log", "fail_quant_fp8.log",
                                  "fail_engine_dead_at_first_request.log"])  # fmt: skip
@pytest.mark.parametrize("version", ["vllm-0.11.2", "vllm-0.32.0"])
def test_a_captured_failure_replayed_as_a_launch_keeps_its_class(
    version: str, name: str, shared_dir: Path, tmp_path: Path
) -> None:
    captured = shared_dir / "captures" / version / name
    if not captured.is_file():
        pytest.skip(f"{version} has no {name}")
    expected = {
        "fail_tp3.log": "divisibility", "fail_kv_too_small.log": "kv_too_small",
        "fail_quant_fp8.log": "unsupported",
        "fail_engine_dead_at_first_request.log": "engine_dead",
    }[name]  # fmt: skip
    venv = vllm_stand_in.install(tmp_path / "venv")
    done = subprocess.run(
        [sys.executable, "-m", "omnipilot", "launch", *REQUEST, "--arm", "h100-80:1:bf16",
         "--local", "--bench", "--num-prompts", "8", "--stop-after-bench", "--venv", venv,
         "--env", f"STAND_IN_REPLAY={captured}", "--home", tmp_path / "home"],
        env=os.environ | {"OMNIPILOT_LIVE": "0"}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    rows = [s.row for s in Store(tmp_path / "home").rows()]
    assert [r.failure for r in rows if isinstance(r, StartupRun)] == [expected]
    assert [r.notes for r in rows if isinstance(r, InferenceRun)] == [f"failed: {expected}"]


@contextmanager
def controller_down(slurm: SlurmCluster) -> Iterator[None]:
    """End the controller, its state saved; bring it back with its jobs."""
    pid = int((slurm.folder / "run" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not _alive(pid), timeout_s=10)
    try:
        yield
    finally:
        subprocess.run(["slurmctld"], env=slurm.environment, check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)  # fmt: skip
        wait_until(lambda: "UP" in _ping(slurm), timeout_s=60)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _ping(slurm: SlurmCluster) -> str:
    done = subprocess.run(["scontrol", "ping"], env=slurm.environment, capture_output=True,
                          text=True, timeout=30, check=False)  # fmt: skip
    return done.stdout


def test_a_controller_that_goes_down_half_way_loses_no_run(
    slurm: SlurmCluster, home: Path, venv: Path
) -> None:
    arguments = (*REQUEST, "--arm", "h100-80:1:bf16", "--submit", "--bench", "--num-prompts", "40",
                 "--stop-after-bench", "--venv", str(venv), "--memory-gib", "1",
                 "--env", "STAND_IN_REQUEST_S=0.3")  # fmt: skip
    launched = omnipilot(slurm, home, "launch", *arguments)
    folder = home / "launches" / launched["run_id"]
    wait_until(lambda: "bench_start" in read_marks(folder))
    with controller_down(slurm):
        # What needs the controller says so in one line, and leaves the script for later.
        refused = omnipilot(slurm, home, "launch", *arguments, "--partition", "gpu_h100",
                            "--gres", "gpu:h100:1", code=1)  # fmt: skip
        assert "sbatch" in refused["error"]
        assert "launch.sh" in refused["error"]
        # The running job needs none: it ends, and its rows are taken in.
        wait_until((folder / "taken").exists)
        assert outcome_of(folder) == "benchmarked"
        during = omnipilot(slurm, home, "advise", *REQUEST, "--gpus", "h100-80",
                           "--precisions", "bf16")  # fmt: skip
        assert [group["status"] for group in during["site_runs"]] == ["ok"]
    slurm.wait_for(int(launched["job_id"]), "COMPLETED", timeout_s=START_S)
    # The script that could not be submitted is submitted by hand.
    waiting = [p for p in (home / "launches").iterdir() if p != folder]
    assert [is_done(p) for p in waiting] == [False]
    slurm.run("sbatch", str(waiting[0] / "launch.sh"))
    wait_until((waiting[0] / "taken").exists)


def test_a_grid_on_slurm_survives_a_killed_driver_and_a_controller_that_is_down(
    slurm: SlurmCluster, home: Path, venv: Path
) -> None:
    home.mkdir(parents=True)
    plan = home / "grid.json"
    planned = omnipilot(
        slurm, home, "bench", "plan", "--models", MODEL, "--gpus", "h100-80", "--precisions",
        "bf16,fp8", "--concurrency", "2,4", "--context", "512,1024", "--max-gpus", "2",
        "--venv", str(venv), "--memory-gib", "1", "--env", "STAND_IN_REQUEST_S=0.05",
        "--out", str(plan),
    )  # fmt: skip
    assert planned["runs"] == 8

    def driver() -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "omnipilot",
            "bench",
            "run",
            str(plan),
            "--home",
            str(home),
        ]
        with (home / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--poll", "0.3"], env=slurm.environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip

    runs = home / "grid.runs"
    first = driver()
    wait_until(lambda: len(list(runs.glob("*/try-1/done"))) >= 2)
    first.kill()
    first.wait()
    second = driver()
    wait_until(lambda: len(list(runs.glob("*/try-1/done"))) >= 4)
    with controller_down(slurm):
        time.sleep(2)
    try:
        assert second.wait(timeout=120) == 0, (home / "driver.log").read_text()
    finally:
        second.kill()
        second.wait()
    status = omnipilot_status(slurm, plan)
    assert (status["ended"], status["lost"]) == (8, 0)
    assert {state["tries"] for state in status["states"]} == {1}
    assert {state["outcome"] for state in status["states"]} == {"benchmarked"}
    names = [f"omnipilot-vllm-{state['run_id']}" for state in status["states"]]

    def accounted() -> list[str]:
        given = f"--name={','.join(names)}"
        return sorted(slurm.run("sacct", "-n", "-P", "-X", "--format=JobName", given).split())

    # Accounting lags behind the controller that was down.
    wait_until(lambda: len(accounted()) >= len(names))
    assert accounted() == sorted(names)
    loads = [(s.row.precision, s.row.concurrency, s.row.max_model_len)
             for s in Store(home).rows() if isinstance(s.row, InferenceRun)]  # fmt: skip
    assert len(loads) == len(set(loads)) == 8


def omnipilot_status(slurm: SlurmCluster, plan: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "omnipilot", "bench", "status", plan, "--format", "json"],
        env=slurm.environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer
