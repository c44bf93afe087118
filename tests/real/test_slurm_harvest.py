"""Jobs submitted to a real Slurm come back as they went."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from omnipilot.cli import app
from omnipilot.collect.identity import SiteKey
from omnipilot.collect.sacct import collect_sacct
from omnipilot.domain import ClusterJob
from omnipilot.domain.rejection import Rejection
from omnipilot.store import CLUSTER_LOG_NAME, Store, import_file

if TYPE_CHECKING:
    from pathlib import Path

    from real_slurm import SlurmCluster

COLUMNS = (
    "JobID,JobIDRaw,Cluster,User,Account,Partition,State,ExitCode,Submit,Eligible,Start,End,"
    "ElapsedRaw,TimelimitRaw,AllocTRES,ReqTRES,NNodes,NCPUS,AdminComment,JobName"
)
USER = "games"
EMAIL = "someone@example.org"


@dataclass(frozen=True)
class Submitted:
    """What was submitted and what must come back."""

    job_id: int
    state: str
    gpu: str
    n_gpus: int
    exit_code: int | None = None
    wait_s: tuple[float, float] | None = (0, 6)
    job_class: str = "other"
    ended_by: str = ""


@pytest.fixture(scope="module")
def submitted(slurm: SlurmCluster) -> dict[str, Submitted]:
    """One job of each end, all of them ended."""
    began_s = time.time()
    h100 = ("-p", "gpu_h100", "--mem=200M", "-c1")
    one = (*h100, "--gres=gpu:h100:1")
    done = slurm.submit("true", *h100, "--gres=gpu:h100:2", "--job-name=vLLM-qwen", user=USER)
    failed = slurm.submit("exit 3", *one, f"--comment={EMAIL}", user=USER)
    slow = slurm.submit("sleep 300", *one, "-t5")
    cancelled = slurm.submit("sleep 300", *one, user=USER)
    # Its two companions fill the node that it needs, so that it waits until one is cancelled.
    filler = slurm.submit("sleep 300", "-p", "gpu_h200", "--gres=gpu:h200:8", "--mem=200M")
    waited = slurm.submit("true", "-p", "gpu_h200", "--gres=gpu:h200:8", "--mem=200M")
    never = slurm.submit("true", "-p", "gpu_h200", "--gres=gpu:h200:4", "--mem=200M", user=USER)
    hungry = slurm.submit(
        "head -c 400M /dev/zero | tail", "-p", "gpu_a100", "--gres=gpu:a100:1", "--mem=100M"
    )
    again = slurm.submit("sleep 300", "-p", "gpu_a100", "--gres=gpu:a100:4", "--mem=200M")
    for job_id in (slow, cancelled, filler, again):
        slurm.wait_for(job_id, "RUNNING")
    slurm.run("scontrol", "update", f"JobId={slow}", "EndTime=now")
    slurm.run("scancel", str(cancelled), user=USER)
    slurm.run("scancel", str(never), user=USER)
    slurm.run("scontrol", "requeue", str(again))
    slurm.wait_for(again, "PENDING")
    # A requeued job is held back for two minutes.
    slurm.run("scontrol", "update", f"JobId={again}", "StartTime=now")
    slurm.wait_for(again, "RUNNING")
    time.sleep(2)
    slurm.run("scancel", str(filler))
    slurm.run("scancel", str(again))
    oom = "OUT_OF_MEMORY" if slurm.has_memory_cgroup else "FAILED"
    jobs = {
        "done": Submitted(done, "COMPLETED", "h100", 2, exit_code=0, job_class="vllm"),
        "failed": Submitted(failed, "FAILED", "h100", 1, exit_code=3),
        "timed out": Submitted(slow, "TIMEOUT", "h100", 1),
        "cancelled": Submitted(cancelled, "CANCELLED", "h100", 1, ended_by="user"),
        "filler": Submitted(filler, "CANCELLED", "h200", 8, ended_by="system"),
        "waited": Submitted(waited, "COMPLETED", "h200", 8, exit_code=0, wait_s=(3, 40)),
        "never": Submitted(never, "CANCELLED", "h200", 4, wait_s=None, ended_by="user"),
        "out of memory": Submitted(hungry, oom, "a100", 1),
        "requeued": Submitted(again, "CANCELLED", "a100", 4, ended_by="system"),
    }
    for job in jobs.values():
        slurm.wait_for(job.job_id, job.state)
    assert time.time() - began_s < 90
    return jobs


def printed(slurm: SlurmCluster, tmp_path: Path, *options: str) -> Path:
    path = tmp_path / "sacct.txt"
    path.write_text(slurm.run("sacct", "-a", "-D", "-S", "now-1hour", *options), encoding="utf-8")
    return path


def as_text(slurm: SlurmCluster, tmp_path: Path) -> Path:
    return printed(slurm, tmp_path, "-X", "-P", f"--format={COLUMNS}")


def check(rows: list[ClusterJob], submitted: dict[str, Submitted], *, exit_codes: bool) -> None:
    by_id: dict[str, list[ClusterJob]] = {}
    for row in rows:
        by_id.setdefault(row.job_id, []).append(row)
    # Other tests run jobs on the same cluster.
    assert set(by_id) >= {str(job.job_id) for job in submitted.values()}
    for what, job in submitted.items():
        row = max(by_id[str(job.job_id)], key=lambda r: (r.submit_s, r.end_s))
        assert row.state == job.state, (what, by_id[str(job.job_id)])
        assert (row.gpu, row.n_gpus) == (job.gpu, job.n_gpus), what
        assert row.job_class == job.job_class, what
        assert row.ended_by == job.ended_by, what
        if exit_codes and job.exit_code is not None:
            assert row.exit_code == job.exit_code, what
        wait_s = row.queue_wait_s
        if job.wait_s is None:
            assert wait_s is None, what
        else:
            assert wait_s is not None, what
            assert job.wait_s[0] <= wait_s <= job.wait_s[1], (what, wait_s)
    # A requeued job has a record of each of its runs.
    runs = by_id[str(submitted["requeued"].job_id)]
    assert sorted(run.state for run in runs) == ["CANCELLED", "REQUEUED"]
    assert next(run for run in runs if run.state == "REQUEUED").queue_wait_s is not None


def test_every_state_and_wait_is_what_was_submitted(
    slurm: SlurmCluster, submitted: dict[str, Submitted], tmp_path: Path
) -> None:
    items = list(collect_sacct(as_text(slurm, tmp_path), key=SiteKey(bytes(32))))
    assert [item for item in items if isinstance(item, Rejection)] == []
    check([i for i in items if isinstance(i, ClusterJob)], submitted, exit_codes=True)


def test_json_tells_the_same_as_text(
    slurm: SlurmCluster, submitted: dict[str, Submitted], tmp_path: Path
) -> None:
    items = list(collect_sacct(printed(slurm, tmp_path, "--json"), key=SiteKey(bytes(32))))
    rows = [i for i in items if isinstance(i, ClusterJob)]
    # `sacct --json` of 22.05 gives exit code 0 for every job.
    check(rows, submitted, exit_codes=False)


@pytest.mark.usefixtures("submitted")
def test_a_second_harvest_adds_nothing_and_names_nobody(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    store = Store.open(tmp_path / "site", log_name=CLUSTER_LOG_NAME)
    key = SiteKey(bytes(32))
    for accepted in (True, False):
        report = import_file(
            store, as_text(slurm, tmp_path), lambda p: collect_sacct(p, key=key), now_s=time.time()
        )
        assert report.rejected == 0
        assert bool(report.accepted) is accepted
    text = store.path.read_text(encoding="utf-8")
    assert key.hashed("user", USER) in text
    assert not [word for word in (USER, EMAIL, "qwen", str(slurm.folder)) if word in text]


def test_the_command_harvests_the_running_slurm_once(
    slurm: SlurmCluster,
    submitted: dict[str, Submitted],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    command = ["collect", "sacct", "--home", str(tmp_path / "site"), "--format", "json"]
    assert app.run([*command, "--since", "1d"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["cluster"], first["rejected"], first["by_reason"]) == ("lab", 0, {})
    assert app.run(command) == 0
    second = json.loads(capsys.readouterr().out)
    assert (second["accepted"], second["duplicate"]) == (0, first["accepted"])
    store = Store(tmp_path / "site", log_name=CLUSTER_LOG_NAME)
    rows = [stored.row for stored in store.rows()]
    check([row for row in rows if isinstance(row, ClusterJob)], submitted, exit_codes=True)
    text = store.path.read_text(encoding="utf-8")
    assert not [word for word in (USER, EMAIL, "qwen", str(slurm.folder)) if word in text]
