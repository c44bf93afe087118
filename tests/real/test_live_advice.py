"""Advice follows a real Slurm: drained nodes, faults, full partitions, a controller that hangs."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from omnipilot.advisor import Advisor
from omnipilot.cli import app
from omnipilot.collect.live import ask_starts, read_cluster
from omnipilot.costmodel.bundle import base_model_path
from omnipilot.costmodel.predict import CostModel
from omnipilot.domain import GpuHealth
from omnipilot.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from real_slurm import SlurmCluster

REQUEST = (
    "--model", "Qwen/Qwen2.5-7B-Instruct", "--concurrency", "200", "--context", "4096",
)  # fmt: skip
H100_NODES = ("h100n1", "h100n2")


@pytest.fixture(scope="module")
def base_model() -> CostModel:
    """The shipped model, read once."""
    return CostModel.load(base_model_path())


@pytest.fixture
def cluster(
    slurm: SlurmCluster, base_model: CostModel, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """An idle cluster that this process asks; idle again afterwards."""
    monkeypatch.setattr(Advisor, "model", property(lambda _: base_model))
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])
    monkeypatch.setenv("OMNIPILOT_LIVE", "1")
    settle(slurm)
    yield slurm
    settle(slurm)


def settle(slurm: SlurmCluster) -> None:
    """No jobs and every node open."""
    slurm.run("bash", "-c", "scancel -u root; scancel -u games; scancel -u www-data; true")
    for _ in range(100):
        if not slurm.run("squeue", "-h", "-a", "-t", "R,CG,PD").strip():
            break
        time.sleep(0.2)
    for _ in range(150):
        lines = slurm.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        open_again = {line.split()[0] for line in lines if line.endswith(" idle")}
        closed = {line.split()[0] for line in lines} - open_again
        if not closed:
            return
        for node in closed:
            slurm.run("bash", "-c", f"scontrol update NodeName={node} State=RESUME; true")
        time.sleep(0.2)
    raise AssertionError(f"nodes do not come back: {slurm.run('sinfo', '-N')}")


@pytest.fixture
def ask(
    cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """``advise --format json`` (or another command's) from a home of the test."""
    del cluster

    def call(*extra: str, command: str = "advise", form: str = "json") -> Any:
        home = tmp_path / "home"
        (home / "cluster_state.json").unlink(missing_ok=True)
        code = app.run([command, *REQUEST, "--home", str(home), "--format", form, *extra])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return json.loads(out) if form == "json" else out

    return call


def winner(answer: Any) -> str:
    return str(answer["ranked"][0]["arm"]["gpu_kind"])


def outlook(answer: Any, kind: str, n: int = 1) -> Any:
    arms = answer["cluster"]["arms"]
    return next(a for a in arms if (a["gpu_kind"], a["tensor_parallel"]) == (kind, n))


def test_an_idle_cluster_is_read_whole(ask: Callable[..., Any]) -> None:
    cluster = ask()["cluster"]
    assert cluster["origin"] == "slurm"
    assert cluster["gpus"] == {
        "a100-40": {"free": 8, "total": 8}, "h100-80": {"free": 8, "total": 8},
        "h200-141": {"free": 8, "total": 8},
    }  # fmt: skip
    assert cluster["age_s"] < 5
    assert {a["partition"] for a in cluster["arms"]} == {"gpu_a100", "gpu_h100", "gpu_h200"}


def test_draining_all_nodes_of_a_kind_takes_it_out(
    ask: Callable[..., Any], cluster: SlurmCluster
) -> None:
    assert winner(ask()) == "h100-80"
    for node in H100_NODES:
        cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=fans")
    answer = ask()
    assert winner(answer) != "h100-80"
    reasons = {i["reason_code"]: i["reason"] for i in answer["infeasible"]}
    assert reasons["no_usable_node"] == "all 2 nodes with h100-80: 2 drained (fans)"
    said = " ".join(ask(command="explain", form="table").split())
    assert "Closed: h100n1 drained (fans); h100n2 drained (fans)." in said
    assert "no_usable_node" in said


def test_a_fault_on_a_node_keeps_launches_away_from_it(
    ask: Callable[..., Any], tmp_path: Path
) -> None:
    now_s = time.time()

    def fault(host: str) -> GpuHealth:
        return GpuHealth(
            "test", host, "GPU-1", "h100", "xid", "hardware", code=79, last_s=now_s - 600
        )

    store = Store.open(tmp_path / "home")
    store.append([fault("h100n1.example.org")], now_s=now_s)
    answer = ask()
    assert winner(answer) == "h100-80", answer["cluster"]["closed"]
    assert outlook(answer, "h100-80")["avoid_nodes"] == {"h100n1": "XID 79, 10 min ago"}
    store.append([fault("h100n2:9400")], now_s=now_s)
    answer = ask()
    assert winner(answer) != "h100-80"
    reasons = {i["reason_code"]: i["reason"] for i in answer["infeasible"]}
    assert "h100n1: XID 79, 10 min ago" in reasons["unhealthy_nodes"]
    said = " ".join(ask(command="explain", form="table").split())
    assert "Safety shield: h100n1 excluded: XID 79" in said


def test_a_full_partition_costs_its_wait(ask: Callable[..., Any], cluster: SlurmCluster) -> None:
    for _ in H100_NODES:
        cluster.submit("sleep 900", "-p", "gpu_h100", "--gres=gpu:h100:4", "-t", "2-00:00")
    time.sleep(2)
    answer = ask()
    assert winner(answer) != "h100-80"
    full = outlook(answer, "h100-80", 2)
    assert full["free_now"] is False
    assert 20 < full["wait_h"]["median"] < 28
    assert outlook(answer, "h200-141")["wait_h"]["median"] == 0
    said = " ".join(ask(command="explain", form="table").split())
    assert "h100-80 0 of 8 free" in said
    assert "h more in the queue" in " ".join(ask("--top", "40", form="table").split())


def test_slurm_plans_the_start_behind_those_who_wait(cluster: SlurmCluster) -> None:
    first = cluster.submit("sleep 900", "-p", "gpu_h200", "--gres=gpu:h200:8", "-t", "60")
    cluster.submit("sleep 900", "-p", "gpu_h200", "--gres=gpu:h200:8", "-t", "60")
    cluster.wait_for(first, "RUNNING")
    time.sleep(4)  # one pass of the backfill scheduler
    now_s = time.time()
    shapes = [("gpu_h200", "h200", 4), ("gpu_h100", "h100", 1), ("nosuch", "h100", 1)]
    busy, free, refused = ask_starts(shapes, limit_s=3600.0, timeout_s=10.0)
    assert busy.start_s is not None
    assert free.start_s is not None
    assert 3000 < busy.start_s - now_s < 8000
    assert free.start_s - now_s < 60
    assert "partition" in refused.refusal
    state = read_cluster(now_s=now_s, timeout_s=10.0)
    assert state.pending_gpus == 8
    assert sum(j.n_gpus for j in state.jobs if j.running) == 8


def test_a_reserved_node_is_not_free_for_a_job_that_would_run_into_it(
    ask: Callable[..., Any], cluster: SlurmCluster
) -> None:
    cluster.run(
        "scontrol", "create", "reservation", "ReservationName=works", "StartTime=now+2hours",
        "Duration=60", "Users=root", "Nodes=h200n1", "Flags=MAINT,IGNORE_JOBS",
    )  # fmt: skip
    try:
        assert outlook(ask(), "h200-141")["free_now"] is True
        assert outlook(ask("--hours", "4"), "h200-141")["free_now"] is False
    finally:
        cluster.run("scontrol", "delete", "ReservationName=works")


def test_live_state_adds_little_to_an_advice(
    cluster: SlurmCluster, ask: Callable[..., Any]
) -> None:
    def shortest_s(action: Callable[[], object]) -> float:
        """Of four times: what else runs on the machine only makes one longer."""
        times_s = []
        for _ in range(4):
            before_s = time.perf_counter()
            action()
            times_s.append(time.perf_counter() - before_s)
        return min(times_s)

    ask()
    added_s = shortest_s(ask) - shortest_s(lambda: ask("--no-live"))
    asked_s = shortest_s(lambda: (cluster.run("sinfo"), cluster.run("squeue")))
    assert added_s < asked_s + 0.3


def test_a_controller_that_hangs_costs_its_time_out_and_is_said(
    cluster: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "settings.toml").write_text("slurm_timeout_s = 1.0\n", encoding="utf-8")
    pid = int((cluster.folder / "run" / "slurmctld.pid").read_text(encoding="utf-8"))
    os.kill(pid, signal.SIGSTOP)
    try:
        before = time.perf_counter()
        code = app.run(["advise", *REQUEST, "--home", str(home), "--format", "json"])
        took_s = time.perf_counter() - before
    finally:
        os.kill(pid, signal.SIGCONT)
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert took_s < 8.0
    assert answer["cluster"]["origin"] == "none"
    assert "sinfo did not answer within 1 s" in answer["cluster"]["notes"][0]
    assert "of the history" in answer["cluster"]["notes"][0]
