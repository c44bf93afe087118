"""Plans, the blend of plan, depth and past, and how both fare on a simulated queue."""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_simulator import SimJob
from wait_backtest import Backtest, backtest

from omnipilot.decide.queue_plan import PoolNow, QueuePlan, plan_start
from omnipilot.decide.wait_replay import learn_waits, replay
from omnipilot.decide.waits import (
    WaitClass,
    WaitEvidence,
    WaitModel,
    estimate_wait,
    fit_wait_model,
)

H = 3600.0


class TestPlan:
    def test_free_gpus_are_had_at_once(self) -> None:
        pool = PoolNow(total=8, free=4, running=[(H, 4)])
        assert plan_start(pool, 4, H) == QueuePlan(0.0, 0.0)
        assert plan_start(pool, 5, H) == QueuePlan(H, H)

    def test_those_in_line_go_first(self) -> None:
        pool = PoolNow(total=8, free=0, running=[(H, 8)], waiting=[(8, 2 * H), (4, H)])
        assert plan_start(pool, 8, H) == QueuePlan(4 * H, H)
        assert plan_start(pool, 4, H) == QueuePlan(3 * H, H)

    def test_a_short_job_fills_the_hole_that_it_delays_nobody_in(self) -> None:
        pool = PoolNow(total=8, free=2, running=[(H, 6)], waiting=[(8, H)])
        assert plan_start(pool, 2, H).behind_all_s == 0.0
        assert plan_start(pool, 2, 1.5 * H).behind_all_s == 2 * H

    def test_gpus_that_nothing_known_frees_are_never_had(self) -> None:
        assert plan_start(PoolNow(total=8, free=1, running=[]), 2, H).behind_all_s == math.inf

    def test_more_gpus_than_there_are_never_start_and_hold_nobody_up(self) -> None:
        pool = PoolNow(total=4, free=0, running=[(H, 4)], waiting=[(8, H)])
        assert plan_start(pool, 8, H).behind_all_s == math.inf
        assert plan_start(pool, 4, H).behind_all_s == H

    @given(
        running=st.lists(st.tuples(st.floats(-10.0, 1e5), st.integers(1, 8)), max_size=8),
        waiting=st.lists(st.tuples(st.integers(1, 12), st.floats(1.0, 1e5)), max_size=8),
        n=st.integers(1, 8),
    )
    def test_a_longer_line_never_helps(
        self, running: list[tuple[float, int]], waiting: list[tuple[int, float]], n: int
    ) -> None:
        running = [*running, (0.0, 8)]
        total = sum(g for _, g in running) + 2
        plans = [
            plan_start(PoolNow(total, 2, running, waiting[:k]), n, H).behind_all_s
            for k in range(len(waiting) + 1)
        ]
        first = plan_start(PoolNow(total, 2, running, waiting), n, H).first_in_line_s
        assert all(plan >= first for plan in plans)
        assert math.isfinite(plans[-1]) == (n <= total)


class TestEstimate:
    def test_without_a_history_a_plan_is_taken_with_assumed_errors(self) -> None:
        estimate = estimate_wait(WaitEvidence(planned_s=10 * H))
        assert (estimate.lower_h, estimate.median_h, estimate.upper_h) == (0.5, 5.0, 15.0)
        assert "assumed" in estimate.note

    def test_without_an_answer_of_the_cluster_the_history_answers(self) -> None:
        estimate = estimate_wait(WaitEvidence(None), None, (0.0, H, 5 * H))
        assert (estimate.median_h, estimate.upper_h) == (1.0, 5.0)
        assert estimate.expected_h == pytest.approx(1.9)

    def test_with_nothing_the_default_is_said_to_be_one(self) -> None:
        estimate = estimate_wait(WaitEvidence(None), default_h=0.5)
        assert estimate.expected_h == 0.5
        assert "assumed" in estimate.note

    def test_a_plan_without_a_start_is_a_very_long_wait(self) -> None:
        assert estimate_wait(WaitEvidence(math.inf)).expected_h >= 24.0 * 30

    def test_few_jobs_make_no_model(self) -> None:
        assert fit_wait_model([WaitEvidence(H)] * 20, [H] * 20) is None

    def test_a_cluster_whose_jobs_halve_their_plans_teaches_that(self) -> None:
        rng = np.random.default_rng(0)
        plans = rng.uniform(2 * H, 40 * H, size=400)
        waits = 0.5 * plans * np.exp(rng.normal(0.0, 0.2, size=400))
        model = fit_wait_model([WaitEvidence(p, 0.0, 10 * H, 3.0) for p in plans], waits.tolist())
        estimate = estimate_wait(WaitEvidence(20 * H, 0.0, 10 * H, 3.0), model)
        assert estimate.median_h == pytest.approx(10.0, rel=0.15)
        assert estimate.lower_h == pytest.approx(10.0 * math.exp(-0.26), rel=0.15)
        assert "400 jobs" in estimate.note

    @pytest.mark.parametrize("plans_h", [[1.0], [1.0, 10.0], [1.0, 5.0, 10.0, 10.0]])
    def test_a_history_that_repeats_itself_answers_for_longer_plans_too(
        self, plans_h: list[float]
    ) -> None:
        jobs = plans_h * 60
        model = fit_wait_model(
            [WaitEvidence(h * H, H, H, 1.0) for h in jobs], [h * H for h in jobs]
        )
        assert model is not None
        assert model.classes[-1].up_to > 1e6
        estimates = [
            estimate_wait(WaitEvidence(h * H, H, H, 1.0), model) for h in (1, 10, 100, 1000)
        ]
        assert all(math.isfinite(e.expected_h) for e in estimates)
        assert estimates[-1].median_h > estimates[0].median_h

    def test_the_last_class_of_a_model_kept_from_before_holds_all_above(self) -> None:
        classes = (WaitClass(5.0, (0.0,) * 3, 60),)
        kept = WaitModel((0.0, 1.0, 0.0, 0.0, 0.0), (0.0,) * 3, classes, H, 60)
        assert estimate_wait(WaitEvidence(10 * H), kept).median_h == pytest.approx(10.0)

    @settings(max_examples=50)
    @given(
        planned=st.one_of(st.none(), st.floats(0.0, 1e7), st.just(math.inf)),
        past=st.one_of(st.none(), st.floats(0.0, 1e6)),
        pending=st.floats(0.0, 1e4),
    )
    def test_an_interval_holds_its_median_and_is_finite(
        self, planned: float | None, past: float | None, pending: float
    ) -> None:
        rng = np.random.default_rng(1)
        plans = rng.uniform(0, 40 * H, size=200)
        model = fit_wait_model([WaitEvidence(p) for p in plans], (plans * 0.5).tolist())
        for fitted in (None, model):
            e = estimate_wait(WaitEvidence(planned, None, past, pending), fitted)
            assert 0.0 <= e.lower_h <= e.median_h <= e.upper_h < math.inf
            assert e.lower_h <= e.expected_h <= e.upper_h


class TestReplay:
    def test_what_was_known_then_is_worked_out_from_starts_ends_and_limits(self) -> None:
        def job(eligible: int, start: int, end: int, n: int = 4) -> SimJob:
            made = SimJob(n, 1_000_000 + eligible, 0.0, 100.0, 0.0)
            made.start_s, made.end_s = 1_000_000 + start, 1_000_000 + end
            return made

        jobs = [job(0, 0, 50), job(5, 5, 60), job(10, 50, 90), job(20, 60, 80)]
        last = replay(jobs)[-1]
        # At 20 s eight GPUs are held until 100 and 105 s, and one job of 4 GPUs waits.
        assert last.evidence.first_in_line_s == 80.0
        assert last.evidence.planned_s == 85.0
        assert last.evidence.past_s == 0.0
        assert last.wait_s == 40.0

    def test_jobs_that_never_started_or_have_no_gpus_are_passed_over(self) -> None:
        cpu = SimJob(0, 1_000_000, 0.0, 100.0, 0.0)
        assert replay([cpu, SimJob(1, 1_000_000, 0.0, 100.0, 0.0)]) == []
        assert learn_waits([]) is None

    def test_days_whose_jobs_have_not_all_ended_teach_nothing(self) -> None:
        def job(i: int) -> SimJob:
            made = SimJob(1, 1_000_000 + 3600 * i, 0.0, 40_000.0, 0.0)
            made.start_s = made.eligible_s
            made.end_s = made.start_s + (36_000 if i % 2 else 3_600)
            return made

        harvested_s = 1_000_000 + 3600 * 200
        ended = [j for j in map(job, range(200)) if j.end_s <= harvested_s]
        # Short jobs of the last ten hours have ended; the long ones beside them are missing.
        assert len(ended) == 195
        model = learn_waits(ended)
        assert model is not None
        last_end_s = max(j.end_s for j in ended)
        whole = sum(j.eligible_s <= last_end_s - 36_000 for j in ended)
        assert model.samples == whole - int(0.1 * len(ended)) == 171


@pytest.fixture(scope="module")
def backtests() -> list[Backtest]:
    return [backtest(seed=seed, load=load) for load, seed in ((0.8, 10), (0.9, 11), (0.9, 12))]


class TestBacktest:
    def test_intervals_cover_four_waits_in_five(self, backtests: list[Backtest]) -> None:
        total = reduce(add, backtests)
        asked = total.queued
        assert asked.sum() > 200
        assert 0.75 <= total.covered[asked].mean() <= 0.85

    def test_the_median_errs_less_than_test_only_alone(self, backtests: list[Backtest]) -> None:
        for test in backtests:
            asked = test.queued
            blend = np.median(np.abs(test.actual - test.median)[asked])
            alone = np.median(np.abs(test.actual - test.test_only)[asked])
            assert blend < 0.5 * alone
