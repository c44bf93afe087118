"""Launches, demand and waits counted from the cluster's history."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_history import count_history, each_once, facts_of, read_jobs

from omnipilot.collect import COLLECTOR_BY_NAME
from omnipilot.domain import ClusterJob, UsageError
from omnipilot.domain.job_states import ENDED_STATES
from omnipilot.store import CLUSTER_LOG_NAME, Store, import_items
from omnipilot.store.log import ReadTally
from omnipilot.store.priors import (
    DEFAULT_OUTCOMES,
    ClusterHistory,
    Configuration,
    LaunchDefinition,
)

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.store.cluster import JobFacts

NOW_S = 1_800_000_000
DAY_S = 86_400
JOB = ClusterJob(
    source="sacct", cluster="lab", job_id="1", state="COMPLETED", gpu="h100", n_gpus=1,
    partition="gpu", submit_s=NOW_S - 900, eligible_s=NOW_S - 800, start_s=NOW_S - 700,
    end_s=NOW_S - 100, elapsed_s=600,
)  # fmt: skip


def job(**change: Any) -> JobFacts:
    return facts_of(dataclasses.replace(JOB, **change))


def waited(wait_s: int, **change: Any) -> JobFacts:
    return job(eligible_s=NOW_S - 700 - wait_s, **change)


def count(*jobs: JobFacts, **definition: Any) -> ClusterHistory:
    return count_history(jobs, LaunchDefinition(**definition), now_s=NOW_S)


def only(history: ClusterHistory) -> tuple[float, float, int]:
    (one,) = history.configurations
    return one.successes, one.attempts, one.excluded


@pytest.mark.parametrize(("state", "outcome"), DEFAULT_OUTCOMES.items())
def test_every_state_counts_as_documented(state: str, outcome: str) -> None:
    wanted = {"success": (1, 1, 0), "failure": (0, 1, 0), "excluded": (0, 0, 1)}[outcome]
    assert only(count(job(state=state))) == wanted


def test_every_end_state_of_slurm_has_an_outcome() -> None:
    assert set(DEFAULT_OUTCOMES) == ENDED_STATES


def test_the_rates_of_the_paper_s_shape_are_counted() -> None:
    small = [job(state="COMPLETED" if i < 72 else "FAILED") for i in range(100)]
    large = [job(n_gpus=4, state="COMPLETED" if i < 19 else "FAILED") for i in range(50)]
    history = count(*small, *large)
    assert [(c.configuration, c.raw_rate) for c in history.configurations] == [
        (Configuration("h100", 1), 0.72),
        (Configuration("h100", 4), 0.38),
    ]
    assert [c.demand_frac for c in history.configurations] == [100 / 150, 50 / 150]
    assert history.jobs == 150
    assert history.outcomes == {("COMPLETED", "success"): 91, ("FAILED", "failure"): 59}


@pytest.mark.parametrize(
    ("definition", "wanted"),
    [
        ({}, (0, 0, 1)),
        ({"user_cancel": "failure"}, (0, 1, 0)),
        ({"user_cancel": "runtime"}, (1, 1, 0)),
        ({"user_cancel": "runtime", "min_runtime_s": 601}, (0, 1, 0)),
        ({"user_cancel": "runtime", "min_runtime_s": 600}, (1, 1, 0)),
        ({"outcomes": {"CANCELLED": "failure"}}, (0, 0, 1)),
    ],
)
def test_what_a_user_cancelled_counts_as_configured(
    definition: dict[str, Any], wanted: tuple[int, int, int]
) -> None:
    assert only(count(job(state="CANCELLED", ended_by="user"), **definition)) == wanted


def test_what_the_system_cancelled_follows_its_state() -> None:
    by_system = job(state="CANCELLED", ended_by="system")
    assert only(count(by_system, user_cancel="failure")) == (0, 0, 1)
    assert only(count(by_system, outcomes={"CANCELLED": "failure"})) == (0, 1, 0)


def test_a_success_that_ended_too_soon_is_a_failure() -> None:
    assert only(count(job(), min_runtime_s=601)) == (0, 1, 0)
    assert only(count(job(state="FAILED"), min_runtime_s=1)) == (0, 1, 0)


def test_other_classes_of_jobs_can_be_left_out() -> None:
    history = count(job(job_class="vllm"), job(job_class="other"), job_class="vllm")
    assert history.jobs == 1


def test_a_job_that_never_started_is_demand_and_no_launch() -> None:
    never = job(state="CANCELLED", start_s=0, n_tasks=5, job_id="1_[1-5]")
    (one,) = count(never).configurations
    assert (one.jobs, one.launches, one.excluded, one.raw_rate) == (5, 0, 0, None)


def test_a_requeued_job_is_asked_for_once() -> None:
    first = job(state="REQUEUED")
    (one,) = count(first, job(submit_s=NOW_S - 850)).configurations
    assert (one.jobs, one.launches, one.excluded) == (1, 1, 1)


def test_jobs_without_gpus_are_counted_apart_and_kinds_follow_the_partition() -> None:
    jobs = [job(n_gpus=0), job(gpu=""), job(gpu="", partition="big")]
    history = count_history(
        jobs, LaunchDefinition(), now_s=NOW_S, kind_of_partition={"big": "h200"}
    )
    assert (history.without_gpus, history.untyped, history.jobs) == (1, 1, 2)
    assert {c.configuration.gpu for c in history.configurations} == {"", "h200"}


def test_old_launches_count_less_and_very_old_ones_nothing() -> None:
    jobs = [
        job(end_s=NOW_S),
        job(end_s=NOW_S - 30 * DAY_S, state="FAILED"),
        job(end_s=NOW_S - 121 * DAY_S, state="FAILED"),
    ]
    (one,) = count(*jobs, window_s=30 * DAY_S).configurations
    assert (one.successes, one.attempts, one.launches) == (1.0, 1.5, 3)
    (alike,) = count(*jobs).configurations
    assert (alike.successes, alike.attempts) == (1.0, 3.0)


def test_waits_are_by_partition_and_size_from_the_time_of_being_eligible() -> None:
    jobs = [waited(w) for w in range(10, 101, 10)] + [
        waited(7, n_gpus=4),
        waited(5, partition="other"),
        job(eligible_s=0),
        job(start_s=0),
    ]
    waits = {(w.partition, w.n_gpus): w for w in count(*jobs).waits}
    assert set(waits) == {("gpu", 1), ("gpu", 4), ("other", 1)}
    assert waits["gpu", 1].jobs == 10
    assert waits["gpu", 1].quantiles_s == (10.0, 50.0, 90.0)
    assert waits["gpu", 1].mean_s == 55.0
    assert waits["gpu", 4].quantiles_s == (7.0, 7.0, 7.0)


@given(waits=st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
@settings(max_examples=100)
def test_wait_quantiles_are_those_of_the_inverted_distribution(waits: list[int]) -> None:
    (told,) = count(*[waited(w) for w in waits]).waits
    wanted = np.quantile(waits, (0.1, 0.5, 0.9), method="inverted_cdf")
    assert told.quantiles_s == tuple(wanted)
    assert told.mean_s == pytest.approx(np.mean(waits))


def test_old_waits_count_less() -> None:
    def at(days: int, wait_s: int) -> JobFacts:
        start_s = NOW_S - days * DAY_S
        return job(start_s=start_s, eligible_s=start_s - wait_s, end_s=start_s + 9)

    jobs = [at(0, 100), at(7, 10), at(7, 20), at(40, 9)]
    (told,) = count(*jobs, wait_window_s=7 * DAY_S).waits
    assert told.jobs == 4
    assert told.mean_s == pytest.approx((100 + 0.5 * 10 + 0.5 * 20) / 2)
    assert told.quantiles_s == (10.0, 20.0, 100.0)


@given(
    jobs=st.lists(
        st.builds(
            job,
            state=st.sampled_from(sorted(DEFAULT_OUTCOMES)),
            ended_by=st.sampled_from(["", "user", "system"]),
            gpu=st.sampled_from(["", "a100", "h100"]),
            n_gpus=st.integers(0, 8),
            n_tasks=st.integers(1, 4),
            start_s=st.sampled_from([0, NOW_S - 700]),
        ),
        max_size=40,
    ),
    user_cancel=st.sampled_from(["excluded", "failure", "runtime"]),
    min_runtime_s=st.sampled_from([0.0, 600.0, 601.0]),
)
@settings(max_examples=100)
def test_nothing_is_lost_in_counting_and_order_does_not_matter(
    jobs: list[JobFacts], user_cancel: str, min_runtime_s: float
) -> None:
    definition = {"user_cancel": user_cancel, "min_runtime_s": min_runtime_s}
    history = count(*jobs, **definition)
    assert count(*reversed(jobs), **definition) == history
    for one in history.configurations:
        assert 0 <= one.successes <= one.attempts == one.launches
    started = [j for j in jobs if j.n_gpus and j.start_s]
    launches = sum(c.launches + c.excluded for c in history.configurations)
    assert launches == len(started) == sum(history.outcomes.values())
    asked = sum(j.n_tasks for j in jobs if j.state != "REQUEUED" or not j.n_gpus)
    assert history.jobs + history.without_gpus == asked
    if history.jobs:
        assert sum(c.demand_frac for c in history.configurations) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_runtime_s": -1.0},
        {"window_s": float("nan")},
        {"wait_window_s": float("inf")},
        {"user_cancel": "ignore"},
        {"outcomes": {"FAILED": "bad"}},
    ],
)
def test_a_definition_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LaunchDefinition(**wrong)


def test_an_empty_history_has_nothing() -> None:
    history = count()
    assert (history.configurations, history.waits, history.jobs) == ((), (), 0)


def test_the_capture_is_counted_from_file_to_rates(shared_dir: Path, tmp_path: Path) -> None:
    store = Store.open(tmp_path, log_name=CLUSTER_LOG_NAME)
    collect = COLLECTOR_BY_NAME["sacct"].for_site(tmp_path)
    folder = shared_dir / "captures" / "slurm-22.05"
    for name in ("sacct_X_D_P.txt", "sacct.json"):  # the second repeats jobs of the first
        import_items(store, collect(folder / name), now_s=0.0)
    jobs = each_once(read_jobs(store, ReadTally()))
    history = count_history(jobs, LaunchDefinition(), now_s=NOW_S)
    counts = {c.configuration: c for c in history.configurations}
    h100 = counts[Configuration("h100", 1)]
    assert (h100.jobs, h100.launches, h100.successes) == (4, 4, 4)
    a100 = counts[Configuration("a100", 1)]
    # Completed: 10_0, 11+1, 13, 14, 25, the second run of 9; timed out: 6; failed: 4, 5, 10_1..3.
    assert (a100.successes, a100.attempts) == (7.0, 12.0)
    assert a100.excluded == 2  # the requeued run of 9, the preempted 20
    assert history.without_gpus == 1
    assert counts[Configuration("h200", 8)].jobs == 3
    waits = {(w.partition, w.n_gpus): w for w in history.waits}
    assert waits["gpu_h200", 8].quantiles_s == (0.0, 0.0, 92.0)
