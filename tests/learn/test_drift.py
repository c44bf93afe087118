"""The drift watch: its rate of false alarms by simulation, and what an alarm tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from learn_builders import base, local, runs

from omnipilot.learn.drift import FALSE_ALARM_RATE, arms_of, evidence, limit_of, watch
from omnipilot.learn.local_fit import answer


def test_the_rate_of_false_alarms_is_at_most_what_is_stated() -> None:
    # 3,000 watches of 100 arms of 4 rows each, an exact tenth of rows above and below in
    # expectation; looked at after every arm.
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(3000):
        u = rng.random((100, 4))
        sides = np.stack([(u > 0.9).mean(axis=1), (u < 0.1).mean(axis=1)])
        alarms += evidence(sides) >= 1.0 / FALSE_ALARM_RATE
    assert alarms / 3000 <= FALSE_ALARM_RATE


def test_rows_of_an_arm_that_err_together_do_not_raise_the_rate() -> None:
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(3000):
        u = np.repeat(rng.random((100, 1)), 4, axis=1)
        sides = np.stack([(u > 0.9).mean(axis=1), (u < 0.1).mean(axis=1)])
        alarms += evidence(sides) >= 1.0 / FALSE_ALARM_RATE
    assert alarms / 3000 <= FALSE_ALARM_RATE


def test_half_the_arms_above_their_interval_are_noticed_within_thirty() -> None:
    rng = np.random.default_rng(5)
    noticed = 0
    for _ in range(200):
        above = (rng.random(30) < 0.5).astype(float)
        noticed += evidence(np.stack([above, np.zeros(30)])) >= 1.0 / FALSE_ALARM_RATE
    assert noticed >= 190


def test_the_wealth_grows_with_every_arm_outside_and_never_falls_below_one() -> None:
    wealth = [evidence(np.stack([np.ones(n), np.zeros(n)])) for n in range(6)]
    assert wealth == sorted(wealth)
    assert evidence(np.zeros((2, 10))) == 1.0


def test_runs_as_predicted_raise_no_alarm() -> None:
    data = local(runs(factor=1.0)).data
    assert not any(s.alarm for s in watch(data.frame, answer(base(), data)))


def test_an_alarm_names_the_kind_that_drifted_its_ratio_and_what_to_measure_again() -> None:
    true = runs(factor=1.0)
    off = [
        replace(r, labels={k: v / 6.0 for k, v in r.labels.items()}) if r.gpu == "l40s-48" else r
        for r in true
    ]
    data = local(off).data
    streams = watch(data.frame, {"throughput": answer(base(), data)["throughput"]}, alpha=0.5)
    first = next(s for s in streams if s.kind == "GPU kind")
    assert first.level == "l40s-48"
    assert 1 / 7 < first.ratio < 1 / 5
    assert first.below == 1.0
    assert all("l40s-48" in arm for arm in first.again)
    quiet = [s for s in streams if s.level in {"h100-80", "a100-80"}]
    assert quiet
    assert not any(s.alarm for s in quiet)


def test_the_limit_counts_the_streams_that_could_reach_it() -> None:
    def most(arms: int) -> float:
        return evidence(np.stack([np.ones(arms), np.zeros(arms)]))

    # A stream of two arms cannot reach 100, those of six and twenty pass 300 with ease.
    assert most(2) < 100.0
    assert most(6) > 300.0
    assert limit_of([20, 6, 2, 2], 0.01) == pytest.approx(200.0)
    assert limit_of([20, 6, 6, 2], 0.01) == pytest.approx(300.0)
    # Four arms reach 400 and not 600: they count where the limit lies within their reach.
    assert 400.0 < most(4) < 600.0
    assert limit_of([20, 4, 4, 4], 0.01) == pytest.approx(400.0)
    assert limit_of([2, 1], 0.01) == pytest.approx(100.0)
    assert limit_of([], 0.01) == pytest.approx(100.0)


def test_streams_watched_together_keep_the_rate() -> None:
    # 2,000 watches of streams of 30, 12, 5, 3, 2 and 1 arms, each as its intervals say.
    rng = np.random.default_rng(6)
    arms = (30, 12, 5, 3, 2, 1)
    limit = limit_of(arms, 0.05)
    assert limit < len(arms) / 0.05
    alarms = 0
    for _ in range(2000):
        found = []
        for n in arms:
            u = rng.random(n)
            found.append(evidence(np.stack([u > 0.9, u < 0.1]).astype(np.float64)))
        alarms += max(found) >= limit
    assert alarms / 2000 <= 0.05


def test_an_arm_is_model_kind_count_format_and_engine_version() -> None:
    data = local(runs()[:1]).data
    assert arms_of(data.frame).tolist() == [
        "Qwen/Qwen2.5-7B-Instruct on 1x h100-80 bf16, vllm 0.11"
    ]
