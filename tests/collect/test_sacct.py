"""Accounting that real Slurm printed, in all the forms captured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sacct_builders import KEY, codes, collect, rows, text

from omnipilot.collect import COLLECTOR_BY_NAME
from omnipilot.collect.identity import SiteKey
from omnipilot.collect.sacct import collect_sacct
from omnipilot.domain import BadInputError, ClusterJob
from omnipilot.store import CLUSTER_LOG_NAME, Store, import_items

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = ("22.05", "24.11")
FILES = ("sacct_X_D_P.txt", "sacct_X_P_epoch.txt", "sacct_D_P_steps.txt", "sacct.json")


def captured(shared_dir: Path, version: str, name: str) -> list[ClusterJob]:
    path = shared_dir / "captures" / f"slurm-{version}" / name
    return rows(list(collect_sacct(path, key=KEY)))


def by_id(jobs: list[ClusterJob]) -> dict[str, ClusterJob]:
    return {job.job_id: job for job in jobs}


@pytest.mark.parametrize(
    ("version", "states"),
    [
        (
            "22.05",
            {
                "3": "COMPLETED", "4": "FAILED", "5": "OUT_OF_MEMORY", "6": "TIMEOUT",
                "7": "CANCELLED", "8": "NODE_FAIL", "11+0": "COMPLETED", "20": "PREEMPTED",
                "10_0": "COMPLETED", "10_3": "FAILED", "26": "DEADLINE",
            },
        ),
        (
            "24.11",
            {
                "1": "COMPLETED", "2": "FAILED", "3": "OUT_OF_MEMORY", "4": "TIMEOUT",
                "5": "CANCELLED", "6": "NODE_FAIL", "7": "REQUEUED", "9+1": "COMPLETED",
                "15": "PREEMPTED", "8_3": "FAILED", "21": "DEADLINE",
            },
        ),
    ],
)  # fmt: skip
def test_every_state_is_what_was_submitted(
    shared_dir: Path, version: str, states: dict[str, str]
) -> None:
    jobs = by_id(captured(shared_dir, version, "sacct_X_D_P.txt"))
    assert {job_id: jobs[job_id].state for job_id in states} == states


def test_kinds_counts_waits_and_exits_of_the_older_capture(shared_dir: Path) -> None:
    jobs = by_id(captured(shared_dir, "22.05", "sacct_X_D_P.txt"))
    served = jobs["3"]
    assert (served.gpu, served.n_gpus, served.n_nodes, served.n_cpus) == ("h100", 2, 1, 4)
    assert (served.job_class, served.partition, served.cluster) == ("vllm", "gpu_h100", "lab")
    assert (served.jobstats, len(served.gpu_utilization_frac)) == ("ok", 2)
    assert (served.elapsed_s, served.time_limit_s, served.queue_wait_s) == (7, 300, 0)
    assert jobs["4"].gpu == "a100"  # asked for without a type
    assert (jobs["4"].exit_code, jobs["4"].exit_signal, jobs["4"].jobstats) == (3, 0, "short")
    assert (jobs["5"].exit_code, jobs["5"].exit_signal) == (0, 125)
    assert jobs["7"].ended_by == "user"
    assert (jobs["10_3"].raw_job_id, jobs["10_1"].jobstats) == (10, "none")
    assert (jobs["11+1"].raw_job_id, jobs["11+1"].gpu) == (12, "a100")
    assert (jobs["17"].gpu, jobs["17"].n_gpus) == ("", 0)
    assert jobs["19"].queue_wait_s == 0  # held back on purpose until 12 s after submission
    assert (jobs["21"].n_gpus, jobs["21"].n_nodes) == (2, 2)
    never = jobs["26"]
    assert (never.start_s, never.n_gpus, never.gpu, never.queue_wait_s) == (0, 8, "h200", None)
    assert jobs["28"].queue_wait_s == 92
    assert jobs["28"].restarts == -1  # this version does not tell


def test_a_requeued_job_has_one_row_a_run(shared_dir: Path) -> None:
    jobs = captured(shared_dir, "22.05", "sacct_X_D_P.txt")
    first, second = (job for job in jobs if job.job_id == "9")
    assert (first.state, second.state) == ("REQUEUED", "COMPLETED")
    assert second.submit_s > first.submit_s
    assert second.queue_wait_s == 0  # its penalty of two minutes is no wait
    newer = by_id(captured(shared_dir, "24.11", "sacct_X_D_P.txt"))
    assert newer["7"].restarts == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_local_times_epochs_and_steps_give_the_same_rows(shared_dir: Path, version: str) -> None:
    base = captured(shared_dir, version, "sacct_X_D_P.txt")
    assert captured(shared_dir, version, "sacct_D_P_steps.txt") == base
    epochs = captured(shared_dir, version, "sacct_X_P_epoch.txt")
    assert epochs == [job for job in base if job.state != "REQUEUED"]


@pytest.mark.parametrize("version", VERSIONS)
def test_json_gives_the_rows_of_the_text(shared_dir: Path, version: str) -> None:
    base = {(j.job_id, j.submit_s): j for j in captured(shared_dir, version, "sacct_X_D_P.txt")}
    jobs = captured(shared_dir, version, "sacct.json")
    assert len(jobs) == {"22.05": 6, "24.11": 11}[version]
    for job in jobs:
        wanted = base[job.job_id, job.submit_s]
        if version == "22.05" and job.state in {"FAILED", "PREEMPTED"}:
            # Its JSON says SUCCESS of a job that exited 3: not told is right, 0 would be wrong.
            assert (job.exit_code, job.exit_signal) == (-1, -1)
        else:
            assert job.exit_code == wanted.exit_code
        for name in ClusterJob.__dataclass_fields__:
            if not name.startswith("exit_"):
                assert getattr(job, name) == getattr(wanted, name), (job.job_id, name)


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_that_have_not_ended_are_told_and_left_for_later(
    shared_dir: Path, version: str
) -> None:
    path = shared_dir / "captures" / f"slurm-{version}" / "sacct_X_D_P.txt"
    told = codes(list(collect_sacct(path, key=KEY)))
    assert set(told) == {"not ended"}
    assert len(told) == {"22.05": 1, "24.11": 2}[version]


def test_columns_cut_to_ten_characters_are_refused(shared_dir: Path) -> None:
    path = shared_dir / "captures" / "slurm-22.05" / "sacct_default_truncated.txt"
    with pytest.raises(BadInputError, match="cut their fields: run sacct -a -X -D -P --format="):
        list(collect_sacct(path))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("version", VERSIONS)
def test_no_name_path_or_comment_of_the_input_reaches_the_store(
    shared_dir: Path, tmp_path: Path, version: str, name: str
) -> None:
    path = shared_dir / "captures" / f"slurm-{version}" / name
    source = path.read_text()
    store = Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
    collect_for_site = COLLECTOR_BY_NAME["sacct"].for_site(tmp_path)
    report = import_items(store, collect_for_site(path), now_s=0.0)
    assert report.accepted > 5
    stored = store.path.read_text()
    secret = (tmp_path / "secret.key").read_text().strip()
    names = ["alice", "bob", "acct_", "qwen", "wrap", "preemptor", "ünï", "κόσμος", "timeout|pipe",
             "h100n1", "a100n", "JS1:", "H4sI", "WORKDIR", "sbatch", "normal"]  # fmt: skip
    assert any(word in source for word in names)
    assert [word for word in [*names, secret, "@", "/"] if word in stored] == []


def test_a_second_harvest_adds_nothing(shared_dir: Path, tmp_path: Path) -> None:
    path = shared_dir / "captures" / "slurm-24.11" / "sacct_X_D_P.txt"
    store = Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
    entry = COLLECTOR_BY_NAME["sacct"]
    first = import_items(store, entry.for_site(tmp_path)(path), now_s=0.0)
    again = import_items(store, entry.for_site(tmp_path)(path), now_s=9.0)
    assert (first.accepted, first.by_reason) == (19, {"not ended": 2})
    assert (again.accepted, again.duplicate) == (0, 19)


def test_one_person_is_one_hash_here_and_another_elsewhere(tmp_path: Path) -> None:
    content = text({"User": "alice"}, {"User": "bob"}, {"User": "alice", "JobID": "7"})
    here = rows(collect(tmp_path / "a", content))
    there = rows(collect(tmp_path / "a", content, key=SiteKey(b"o" * 32)))
    assert here[0].user_hash == here[2].user_hash != here[1].user_hash
    assert here[0].user_hash != there[0].user_hash
    assert here[0].account_hash not in {"", here[0].user_hash}
    nobody = rows(collect(tmp_path / "a", content, key=None))
    assert {job.user_hash + job.account_hash for job in nobody} == {""}


def test_text_and_json_are_told_apart_by_their_first_character(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with pytest.raises(BadInputError, match="no list of jobs"):
        collect(path, json.dumps({"nodes": []}))
    for content, words in (
        (b"", "is empty"),
        (b"hello\n", "no accounting of Slurm"),
        (b"100|100|lab\n", "without -n"),
        (b"\x00\x01\n", "no readable header"),
        (b"PK\x03\x04", "zip"),
    ):
        with pytest.raises(BadInputError, match=words):
            collect(path, content)
