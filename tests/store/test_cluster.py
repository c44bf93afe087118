"""The cluster's jobs out of the log."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnipilot.domain import ClusterJob, JobStatistics
from omnipilot.store import CLUSTER_LOG_NAME, Store
from omnipilot.store.cluster import JobFacts, each_once, facts_of, read_jobs
from omnipilot.store.log import ReadTally

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

JOB = ClusterJob(
    source="sacct", cluster="lab", job_id="1", state="COMPLETED", gpu="h100", n_gpus=2,
    partition="gpu_h100", submit_s=1_795_957_800, eligible_s=1_795_957_810,
    start_s=1_795_957_870, end_s=1_795_961_470, elapsed_s=3600,
)  # fmt: skip


def filled(home: Path, *jobs: ClusterJob) -> Store:
    store = Store.open(home, log_name=CLUSTER_LOG_NAME)
    store.append(jobs, now_s=0.0)
    return store


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    jobs=st.lists(
        st.builds(
            ClusterJob,
            source=st.just("sacct"),
            cluster=st.text(max_size=5),
            job_id=st.text(max_size=8),
            state=st.sampled_from(["COMPLETED", "FAILED"]),
            gpu=st.text(max_size=5),
            n_gpus=st.integers(0, 64),
            start_s=st.integers(0, 2**31),
            gpu_utilization_frac=st.lists(st.floats(0, 1), max_size=3).map(tuple),
        ),
        max_size=6,
    )
)
def test_the_short_way_reads_what_the_long_way_does(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[ClusterJob]
) -> None:
    store = filled(tmp_path_factory.mktemp("home"), *jobs)
    tally = ReadTally()
    told = [facts_of_parts(facts) for facts in read_jobs(store, tally)]
    rows = [stored.row for stored in store.rows()]
    assert told == [facts_of(row) for row in rows if isinstance(row, ClusterJob)]
    assert tally.rows == len(rows)


def facts_of_parts(facts: JobFacts) -> JobFacts:
    return JobFacts(**{name: getattr(facts, name) for name in JobFacts.__struct_fields__})


def test_lines_that_are_no_jobs_are_counted_and_passed_over(tmp_path: Path) -> None:
    other = JobStatistics(source="jobstats", job_id="1", elapsed_s=1.0, n_nodes=1)
    store = filled(tmp_path, JOB)
    store.append([other], now_s=0.0)
    whole = store.path.read_text().splitlines()[0]
    altered = whole.replace('"n_gpus":2', '"n_gpus":4')
    unknown = json.dumps(json.loads(whole) | {"kind": "gpu_probe"})
    reordered = json.dumps(dict(reversed(json.loads(whole).items())))
    with store.path.open("a") as stream:
        stream.write(f"garbage\n\n{altered}\n{unknown}\n{reordered}\n{'x' * 2**21}\n{whole[:80]}")
    tally = ReadTally()
    jobs = list(read_jobs(store, tally))
    assert [job.n_gpus for job in jobs] == [2, 2]
    assert tally.rows == 3
    assert tally.skipped == {"not a row": 1, "altered": 1, "too long": 1, "torn": 1}
    assert tally.unknown == {"gpu_probe": 1}


def test_jobs_of_a_newer_schema_are_passed_over_and_counted(tmp_path: Path) -> None:
    store = filled(tmp_path, JOB, dataclasses.replace(JOB, schema_version=2))
    tally = ReadTally()
    assert [(job.job_id, job.state) for job in read_jobs(store, tally)] == [("1", "COMPLETED")]
    assert tally.unknown == {"cluster_job schema 2": 1}


def test_no_log_has_no_jobs(tmp_path: Path) -> None:
    assert list(read_jobs(Store(tmp_path, log_name=CLUSTER_LOG_NAME), ReadTally())) == []


def test_a_job_harvested_with_other_columns_counts_once_and_each_run_of_it_stays() -> None:
    with_blob = dataclasses.replace(JOB, jobstats="short", exit_code=0)
    second_run = dataclasses.replace(JOB, submit_s=JOB.submit_s + 9)
    elsewhere = dataclasses.replace(JOB, cluster="other")
    jobs = [facts_of(job) for job in (JOB, with_blob, second_run, elsewhere, JOB)]
    assert list(each_once(jobs)) == [jobs[0], jobs[2], jobs[3]]
