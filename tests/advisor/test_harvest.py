"""Harvests of a running Slurm: nothing lost, nothing twice, nobody named."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from slurm_stand_in import StandInSlurm

from omnipilot.advisor.harvest import DAY_S, Progress, Sacct, collect_files, harvest_slurm
from omnipilot.domain import ClusterJob, StateError, ToolError, UsageError
from omnipilot.store import CLUSTER_LOG_NAME, Store

if TYPE_CHECKING:
    from pathlib import Path

NOW_S = 1_800_000_000
BEGIN_S = NOW_S - 40 * DAY_S
COLUMNS = (
    "JobID", "JobIDRaw", "Cluster", "User", "Account", "Partition", "State", "ExitCode", "Submit",
    "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw", "NNodes", "NCPUS", "AllocTRES",
    "ReqTRES", "Restarts", "AdminComment", "JobName", "WorkDir", "SubmitLine", "Comment", "StdOut",
)  # fmt: skip
TRES = "cpu=4,gres/gpu:h100=2,gres/gpu=2"
SECRETS = (
    "mallory", "lab_of_mallory", "/scratch/mallory", "mallory@example.org", "secret-project",
    "node017",
)  # fmt: skip


def record(job: int, end_s: int, **change: str) -> str:
    fields = dict(
        zip(
            COLUMNS,
            (
                str(job), str(job), "lab", "mallory", "lab_of_mallory", "gpu", "COMPLETED", "0:0",
                str(end_s - 200), str(end_s - 150), str(end_s - 100), str(end_s), "100", "60", "1",
                "4", TRES, TRES, "0", "JS1:Short", "secret-project vllm", "/scratch/mallory/run",
                "sbatch /scratch/mallory/run.sh", "mail mallory@example.org", "/scratch/mallory/o",
            ),
            strict=True,
        ),
        **change,
    )  # fmt: skip
    return "|".join(fields.values())


def accounting(*records: str) -> str:
    return "\n".join(["|".join(COLUMNS), *records]) + "\n"


def forty_days(per_day: int = 3) -> str:
    step_s = DAY_S // per_day
    return accounting(*(record(n, BEGIN_S + n * step_s) for n in range(1, 40 * per_day)))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    programs = StandInSlurm(tmp_path / "bin")
    programs.holds(forty_days())
    monkeypatch.setenv("PATH", programs.path)
    return programs


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def jobs(home: Path) -> list[ClusterJob]:
    rows = [stored.row for stored in Store(home, log_name=CLUSTER_LOG_NAME).rows()]
    assert all(isinstance(row, ClusterJob) for row in rows)
    return [row for row in rows if isinstance(row, ClusterJob)]


def asked(slurm: StandInSlurm) -> list[str]:
    return [call for call in slurm.calls() if "--starttime" in call]


@pytest.mark.usefixtures("slurm")
def test_a_harvest_takes_every_job_and_the_next_one_adds_nothing(home: Path) -> None:
    first = harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    assert (first.accepted, first.duplicate, first.rejected) == (119, 0, 0)
    assert (first.cluster, first.covered_from_s, first.covered_until_s) == ("lab", BEGIN_S, NOW_S)
    log = (home / CLUSTER_LOG_NAME).read_bytes()
    second = harvest_slurm(home, Sacct(), now_s=NOW_S + 60)
    assert (second.accepted, second.covered_until_s) == (0, NOW_S + 60)
    assert second.duplicate > 0
    assert (home / CLUSTER_LOG_NAME).read_bytes() == log
    again = harvest_slurm(home, Sacct(since_s=BEGIN_S, again=True), now_s=NOW_S + 60)
    assert (again.accepted, again.duplicate) == (0, 119)


def test_the_time_is_asked_for_week_by_week_and_then_from_the_mark_on(
    slurm: StandInSlurm, home: Path
) -> None:
    harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    assert len(asked(slurm)) == 6
    assert all("--allusers --allocations --duplicates --parsable2" in call for call in asked(slurm))
    assert not any("WorkDir" in call or "SubmitLine" in call for call in slurm.calls())
    harvest_slurm(home, Sacct(overlap_s=3600), now_s=NOW_S + 60)
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(NOW_S - 3600))
    assert f"--starttime={start}" in asked(slurm)[-1]
    assert len(asked(slurm)) == 7


def test_jobs_that_reached_the_accounting_late_are_found_in_the_overlap(
    slurm: StandInSlurm, home: Path
) -> None:
    harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    slurm.holds(forty_days().rstrip() + "\n" + record(900, NOW_S - 3600) + "\n")
    assert harvest_slurm(home, Sacct(), now_s=NOW_S + 60).accepted == 1


def test_an_earlier_begin_adds_the_time_before_newest_first(
    slurm: StandInSlurm, home: Path
) -> None:
    late_s = NOW_S - 10 * DAY_S
    harvest_slurm(home, Sacct(since_s=late_s), now_s=NOW_S)
    before = len(asked(slurm))
    report = harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    assert len(jobs(home)) == 119
    assert (report.covered_from_s, report.covered_until_s) == (BEGIN_S, NOW_S)
    starts = [call.split("--starttime=")[1].split()[0] for call in asked(slurm)[before:]]
    assert starts[:-1] == sorted(starts[:-1], reverse=True)


def test_a_later_begin_leaves_no_gap(slurm: StandInSlurm, home: Path) -> None:
    harvest_slurm(home, Sacct(since_s=BEGIN_S, until_s=BEGIN_S + 9 * DAY_S), now_s=NOW_S)
    assert len(jobs(home)) < 60
    report = harvest_slurm(home, Sacct(since_s=NOW_S - DAY_S), now_s=NOW_S)
    assert len(jobs(home)) == 119
    assert report.covered_from_s == BEGIN_S
    assert slurm.calls()


@pytest.mark.usefixtures("slurm")
def test_the_first_harvest_must_be_told_a_begin(home: Path) -> None:
    with pytest.raises(UsageError, match="nothing of lab was harvested yet"):
        harvest_slurm(home, Sacct(), now_s=NOW_S)


@pytest.mark.usefixtures("slurm")
def test_a_log_that_was_deleted_is_harvested_anew(home: Path) -> None:
    harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    (home / CLUSTER_LOG_NAME).unlink()
    with pytest.raises(UsageError, match="nothing of lab"):
        harvest_slurm(home, Sacct(), now_s=NOW_S)
    assert harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S).accepted == 119


def test_clusters_have_marks_of_their_own_and_unknown_ones_are_refused(
    slurm: StandInSlurm, home: Path
) -> None:
    slurm.holds(accounting(record(1, NOW_S - 60), record(1, NOW_S - 60, Cluster="big")))
    assert harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S).accepted == 1
    big = Sacct(since_s=BEGIN_S, cluster="big")
    assert harvest_slurm(home, big, now_s=NOW_S).accepted == 1
    assert {job.cluster for job in jobs(home)} == {"lab", "big"}
    with pytest.raises(UsageError, match="no cluster 'none'"):
        harvest_slurm(home, Sacct(since_s=BEGIN_S, cluster="none"), now_s=NOW_S)
    with pytest.raises(UsageError, match="is no name of one cluster"):
        harvest_slurm(home, Sacct(since_s=BEGIN_S, cluster="-x"), now_s=NOW_S)


def test_a_failure_of_sacct_keeps_what_came_before_and_is_made_up_for(
    slurm: StandInSlurm, home: Path
) -> None:
    harvest_slurm(home, Sacct(since_s=BEGIN_S, until_s=BEGIN_S + 9 * DAY_S), now_s=NOW_S)
    n = len(jobs(home))
    slurm.fails("sacct: error: slurm_persist_conn_open_without_init: Connection refused")
    with pytest.raises(ToolError, match="Connection refused"):
        harvest_slurm(home, Sacct(), now_s=NOW_S)
    assert len(jobs(home)) == n
    slurm.fails("")
    harvest_slurm(home, Sacct(), now_s=NOW_S)
    assert len(jobs(home)) == 119


def test_an_older_sacct_is_not_asked_for_columns_that_it_lacks(
    slurm: StandInSlurm, home: Path
) -> None:
    slurm.knows(*(c for c in COLUMNS if c not in {"Restarts", "AdminComment"}))
    harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    assert not any("Restarts" in call or "AdminComment" in call for call in asked(slurm))
    assert len(jobs(home)) == 119


@pytest.mark.usefixtures("slurm")
def test_progress_tells_the_share_of_the_time(home: Path) -> None:
    told: list[Progress] = []
    harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S, on_progress=told.append)
    shares = [at.done_frac for at in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.5 < shares[-1] < 1


def test_a_damaged_mark_is_told_and_costs_nothing(slurm: StandInSlurm, home: Path) -> None:
    harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    (home / "harvest.json").write_text("{")
    with pytest.raises(StateError, match="delete it"):
        harvest_slurm(home, Sacct(), now_s=NOW_S)
    (home / "harvest.json").unlink()
    assert harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S).accepted == 0
    assert slurm.calls()


def test_files_are_taken_by_time_and_cluster(home: Path, tmp_path: Path) -> None:
    text = accounting(
        record(1, NOW_S), record(2, NOW_S - 9 * DAY_S), record(3, NOW_S, Cluster=""),
        record(4, NOW_S, Cluster="big"),
    )  # fmt: skip
    (tmp_path / "a.txt").write_text(text)
    wanted = Sacct(since_s=NOW_S - DAY_S, until_s=NOW_S, cluster="lab")
    report = collect_files(home, "sacct", [tmp_path / "a.txt"], now_s=NOW_S, wanted=wanted)
    assert (report.accepted, report.outside, report.covered_until_s) == (2, 2, 0)
    assert {(job.job_id, job.cluster) for job in jobs(home)} == {("1", "lab"), ("3", "lab")}
    everything = collect_files(home, "sacct", [tmp_path / "a.txt"], now_s=NOW_S, wanted=Sacct())
    assert (everything.accepted, everything.duplicate) == (3, 1)


@pytest.mark.usefixtures("slurm")
def test_nobody_is_named_anywhere_in_the_site_s_folder(home: Path, tmp_path: Path) -> None:
    harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    # Every column, as a careless export holds it, and records that are refused.
    careless = accounting(
        record(901, NOW_S), record(902, NOW_S, State="ODD"), record(903, NOW_S, JobName="a|b")
    )
    (tmp_path / "careless.txt").write_text(careless)
    report = collect_files(home, "sacct", [tmp_path / "careless.txt"], now_s=NOW_S)
    assert report.accepted
    files = [path for path in home.rglob("*") if path.is_file()]
    assert CLUSTER_LOG_NAME in {path.name for path in files}
    for path in files:
        content = path.read_bytes().lower()
        for secret in SECRETS:
            assert secret.encode() not in content, (path.name, secret)
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name


@pytest.mark.usefixtures("slurm")
def test_one_user_has_one_hash_here_and_another_elsewhere(tmp_path: Path) -> None:
    hashes = []
    for site in ("one", "other"):
        harvest_slurm(tmp_path / site, Sacct(since_s=BEGIN_S), now_s=NOW_S)
        (own,) = {job.user_hash for job in jobs(tmp_path / site)}
        (account,) = {job.account_hash for job in jobs(tmp_path / site)}
        hashes += [own, account]
    assert len(set(hashes)) == 4
    assert all(len(h) == 32 for h in hashes)


KILLED = """
import sys
from pathlib import Path
from omnipilot.advisor.harvest import Sacct, harvest_slurm
print("ready", flush=True)
harvest_slurm(Path(sys.argv[1]), Sacct(since_s=int(sys.argv[2])), now_s=int(sys.argv[3]))
"""


def test_killed_anywhere_and_started_again_it_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = StandInSlurm(tmp_path / "bin")
    slurm.holds(forty_days(per_day=20))
    monkeypatch.setenv("PATH", slurm.path)
    harvest_slurm(tmp_path / "whole", Sacct(since_s=BEGIN_S), now_s=NOW_S)
    wanted = sorted(job.job_id for job in jobs(tmp_path / "whole"))
    assert len(wanted) == 799
    slurm.is_slow()
    rng = random.Random(11)  # noqa: S311 - no secret
    home = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, str(home), str(BEGIN_S), str(NOW_S)]
    killed = 0
    for _ in range(20):
        process = subprocess.Popen(
            command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        with process.stdout as told:
            assert told.readline() == b"ready\n"
        try:
            process.wait(timeout=rng.uniform(0.02, 1.2))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
        else:
            assert process.returncode == 0
            break
        found = [job.job_id for job in jobs(home)]
        assert len(found) == len(set(found))
    assert killed
    harvest_slurm(home, Sacct(since_s=BEGIN_S), now_s=NOW_S)
    assert sorted(job.job_id for job in jobs(home)) == wanted
    marks = json.loads((home / "harvest.json").read_text())["covered"]["sacct"]["lab"]
    assert (marks["from_s"], marks["until_s"]) == (BEGIN_S, NOW_S)
