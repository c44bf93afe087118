"""The cluster's history has the paper's shape."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from plain_history import count_history, facts_of
from simulate_builders import catalog

from omnipilot.decide.launch_rates import launch_rates
from omnipilot.decide.priors import LaunchCounts
from omnipilot.simulate.jobs import DEMAND, POOL_KINDS, History, OwnJobs, _classes, simulate_history
from omnipilot.store.priors import ClusterHistory, Configuration, LaunchDefinition

NOW_S = 1.76e9
N_JOBS = 40_000
N_OWN = 30


@cache
def history(seed: int = 0, n_jobs: int = N_JOBS) -> History:
    own = OwnJobs(
        pool=np.arange(N_OWN) % 3,
        n_gpus=np.full(N_OWN, 2),
        at_frac=np.linspace(0.5, 0.99, N_OWN),
        runtime_s=np.full(N_OWN, 600.0),
        failed=np.arange(N_OWN) % 5 == 0,
    )
    return simulate_history(n_jobs, own, now_s=NOW_S, rng=np.random.default_rng(seed))


@cache
def counted() -> ClusterHistory:
    jobs = (facts_of(row) for row in history().rows())
    return count_history(jobs, LaunchDefinition(), now_s=NOW_S)


def test_demand_is_the_paper_s() -> None:
    share = {c.configuration: c.demand_frac for c in counted().configurations}
    assert share[Configuration("h100", 1)] == pytest.approx(0.43, abs=0.01)
    assert share[Configuration("a100_40gb", 1)] == pytest.approx(0.38, abs=0.01)
    assert sum(d.share_frac for d in DEMAND) == pytest.approx(1.0)


def test_launches_come_up_less_often_the_more_gpus_they_take() -> None:
    counts = {
        c.configuration: LaunchCounts(c.successes, c.attempts) for c in counted().configurations
    }
    rates = launch_rates(counts)
    of_h100 = [rates[Configuration("h100", n)].raw or 0.0 for n in (1, 2, 4)]
    assert of_h100[0] == pytest.approx(0.72, abs=0.015)
    assert of_h100[2] == pytest.approx(0.38, abs=0.04)
    assert of_h100 == sorted(of_h100, reverse=True)


def test_larger_jobs_wait_longer() -> None:
    waits = {(w.partition, w.n_gpus): w.mean_s for w in counted().waits}
    assert 0.0 < waits["gpu_h100", 1] < waits["gpu_h100", 4] < waits["gpu_h100", 8]


def test_of_half_a_million_jobs_903_look_like_vllm() -> None:
    own = np.zeros(500_000, dtype=np.bool_)
    own[:561] = True
    assert Counter(_classes(own, np.random.default_rng(0)))["vllm"] == 903


def test_the_own_jobs_are_found_again_in_their_order() -> None:
    found = history()
    rows = list(found.rows())
    mine = [rows[i] for i in found.own]
    assert [r.n_gpus for r in mine] == [2] * N_OWN
    assert [found.pools.index(next(p for p in found.pools if p.gpu == r.gpu)) for r in mine] == [
        i % 3 for i in range(N_OWN)
    ]
    assert [r.state for r in mine] == [
        "FAILED" if i % 5 == 0 else "COMPLETED" for i in range(N_OWN)
    ]
    assert all(r.job_class == "vllm" for r in mine)
    assert all(abs(r.elapsed_s - 600) <= 1 for r in mine)


def test_rows_say_that_they_are_simulated_and_are_in_the_past() -> None:
    rows = list(history().rows())
    assert len(rows) == N_JOBS
    assert {r.source for r in rows} == {"simulated"}
    assert max(r.end_s for r in rows) <= NOW_S
    assert all(r.submit_s <= r.start_s <= r.end_s for r in rows if r.start_s)
    assert len({r.job_id for r in rows}) == N_JOBS


def test_the_scheduler_s_names_are_the_catalogue_s_kinds() -> None:
    assert tuple(catalog().gpu(p.gpu).kind for p in history().pools) == POOL_KINDS


def test_the_same_seed_gives_the_same_history_and_another_one_another() -> None:
    small = [list(history.__wrapped__(seed, 2_000).rows()) for seed in (3, 3, 4)]
    assert small[0] == small[1] != small[2]


def test_a_shorter_history_is_no_emptier_cluster() -> None:
    assert [p.n_nodes for p in history(0, 10_000).pools] == pytest.approx(
        [p.n_nodes for p in history().pools], abs=3
    )
