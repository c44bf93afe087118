"""The queue: nobody gets more than there is, nobody waits for nothing, nobody waits for ever."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.domain.errors import BadInputError
from omnipilot.simulate.cluster import Drain, Pool, Requests, Schedule, schedule

WIDTH = 4


def requests(
    jobs: list[tuple[float, int, float]], *, pool: int = 0, cancel_s: float = math.inf
) -> Requests:
    """Jobs as (submitted, GPUs, runtime)."""
    n = len(jobs)
    return Requests(
        pool=np.full(n, pool, dtype=np.int64),
        n_gpus=np.array([j[1] for j in jobs], dtype=np.int64),
        submit_s=np.array([j[0] for j in jobs], dtype=np.float64),
        runtime_s=np.array([j[2] for j in jobs], dtype=np.float64),
        cancel_s=np.full(n, cancel_s),
    )


def check(pool: Pool, asked: Requests, drains: list[Drain], got: Schedule) -> None:
    """Hold a schedule against what any schedule must keep."""
    ran = ~np.isnan(got.start_s)
    assert (got.start_s[ran] >= asked.submit_s[ran]).all()
    assert (got.start_s[ran] <= asked.cancel_s[ran]).all()
    whole = ran & ~got.killed
    np.testing.assert_allclose(got.end_s[whole], (got.start_s + asked.runtime_s)[whole])
    assert np.isfinite(asked.cancel_s[~ran]).all()
    for node in range(pool.n_nodes):
        here = np.flatnonzero(got.node == node)
        changes = sorted(
            [(got.end_s[i], -asked.n_gpus[i]) for i in here]
            + [(got.start_s[i], asked.n_gpus[i]) for i in here]
        )
        used = 0
        for _, change in changes:
            used += change
            assert used <= pool.gpus_per_node
        for drain in (d for d in drains if d.node == node):
            inside = (got.start_s[here] > drain.start_s) & (got.start_s[here] < drain.end_s)
            assert not inside.any()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Pool, Requests, list[Drain]]:
    n = draw(st.integers(1, 60))
    jobs = [
        (draw(st.integers(0, 40)), draw(st.integers(1, WIDTH)), draw(st.integers(1, 30)))
        for _ in range(n)
    ]
    pool = Pool("h100", "gpu", draw(st.integers(1, 3)), WIDTH)
    drains = [
        Drain(0, draw(st.integers(0, pool.n_nodes - 1)), at + 0.25, at + 0.25 + length, kills)
        for at, length, kills in draw(
            st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.booleans()), max_size=4)
        )
    ]
    patience = draw(st.sampled_from([math.inf, 35.0]))
    asked = requests([(float(a), b, float(c)) for a, b, c in sorted(jobs)])
    patient = np.where(np.arange(n) % 3 == 0, asked.submit_s + patience, math.inf)
    return (
        pool,
        Requests(asked.pool, asked.n_gpus, asked.submit_s, asked.runtime_s, patient),
        drains,
    )


@settings(max_examples=200, deadline=None)
@given(cases())
def test_no_node_is_overbooked_and_every_job_ends(
    case: tuple[Pool, Requests, list[Drain]],
) -> None:
    pool, asked, drains = case
    got = schedule([pool], asked, drains)
    check(pool, asked, drains, got)
    assert (got.end_s > 0.0).all()


def test_a_job_on_an_empty_cluster_starts_at_once() -> None:
    got = schedule([Pool("h100", "gpu", 2, WIDTH)], requests([(5.0, 4, 10.0), (6.0, 4, 10.0)]), [])
    assert got.start_s.tolist() == [5.0, 6.0]


def test_jobs_of_one_size_start_in_the_order_of_submission() -> None:
    got = schedule(
        [Pool("h100", "gpu", 1, WIDTH)], requests([(float(i), 2, 50.0) for i in range(20)]), []
    )
    assert (np.diff(got.start_s) >= 0).all()
    assert got.start_s[2] == 50.0


def test_a_small_job_behind_a_large_one_starts_on_another_node() -> None:
    jobs = [(0.0, 3, 100.0), (1.0, 3, 100.0), (2.0, 4, 10.0), (3.0, 1, 500.0)]
    got = schedule([Pool("h100", "gpu", 2, WIDTH)], requests(jobs), [])
    assert got.start_s[2] == 100.0
    assert got.start_s[3] == 3.0


def test_a_stream_of_small_jobs_does_not_pass_over_a_large_one_for_ever() -> None:
    small = [(0.5 * i, 1, 30.0) for i in range(600)]
    jobs = sorted([*small, (20.1, 4, 5.0)])
    large = jobs.index((20.1, 4, 5.0))
    got = schedule([Pool("h100", "gpu", 3, WIDTH)], requests(jobs), [])
    # 28 jobs wait before it, and a node comes free within the 30 s of a job.
    assert got.start_s[large] < 130.0


def test_a_drain_that_kills_ends_its_jobs_and_one_that_does_not_lets_them_end() -> None:
    for kills, end_s in ((True, 10.0), (False, 100.0)):
        got = schedule(
            [Pool("h100", "gpu", 1, WIDTH)], requests([(0.0, 1, 100.0), (11.0, 1, 5.0)]),
            [Drain(0, 0, 10.0, 40.0, kills)],
        )  # fmt: skip
        assert got.killed.tolist() == [kills, False]
        assert got.end_s[0] == end_s
        assert got.start_s[1] == 40.0


def test_who_gives_up_never_starts() -> None:
    got = schedule(
        [Pool("h100", "gpu", 1, WIDTH)],
        requests([(0.0, 4, 100.0), (1.0, 4, 10.0)], cancel_s=50.0), [],
    )  # fmt: skip
    assert np.isnan(got.start_s[1])
    assert got.end_s[1] == 50.0


def test_jobs_that_no_node_holds_and_jobs_out_of_order_are_refused() -> None:
    pool = Pool("h100", "gpu", 1, WIDTH)
    with pytest.raises(BadInputError, match="1 to 4 GPUs"):
        schedule([pool], requests([(0.0, 5, 1.0)]), [])
    with pytest.raises(BadInputError, match="order of their submission"):
        schedule([pool], requests([(1.0, 1, 1.0), (0.0, 1, 1.0)]), [])
