from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from decision_builders import A100, FOUR_H100, H100, H100_FP8, cell
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.evaluate import baselines
from omnipilot.evaluate.baselines import POLICIES, Policy, Setting
from omnipilot.evaluate.decisions import (
    OperatingPoint,
    Outcomes,
    certain_utility_usd_per_h,
    choose,
    expected_utility_usd_per_h,
    measured_utility_usd_per_h,
    outcomes,
    precision_choices,
    score,
    with_limits,
)

if TYPE_CHECKING:
    from omnipilot.evaluate.decision_cells import DecisionCell

# At 1e-6 USD a token 1000 tok/s are worth 3.60 USD an hour.
POINT = OperatingPoint("test", 1e-6)
SLO = OperatingPoint("slo", 1e-6, ttft_limit_s=1.0, tpot_limit_s=0.05)


def pick(name: str, it: DecisionCell, others: tuple[DecisionCell, ...] = ()) -> str:
    policy = next(p for p in POLICIES if p.name == name)
    gbm = {c.name: c.by_arm(c.prior) for c in (it, *others)}
    return it.arms[policy.pick(it, Setting.of((it, *others), POINT, gbm))].label


def test_the_measured_utility_is_the_worth_of_the_tokens_less_the_price_of_the_gpus() -> None:
    it = cell([A100, FOUR_H100], [1000.0, 5000.0])
    assert measured_utility_usd_per_h(it, POINT) == pytest.approx([3.6 - 1.5, 18.0 - 12.0])


def test_predictions_without_a_width_have_the_utility_of_certain_quantities() -> None:
    seconds = {"ttft_p50_s": (0.5, 2.0), "tpot_p50_s": (0.01, 0.01)}
    it = cell([A100, H100], [1000.0, 2000.0], latency=seconds)
    for point in (POINT, SLO):
        certain = certain_utility_usd_per_h(it, it.measured, point, it.latency)
        assert expected_utility_usd_per_h(it, point) == pytest.approx(certain)
    assert certain[1] == pytest.approx(7.2 - 3.0 - 10.0)


def test_a_wrong_choice_costs_the_difference_and_its_shares() -> None:
    # The A100 earns 3.60 - 1.50 = 2.10, the H100 4.32 - 3.00 = 1.32 but is believed to earn more.
    it = cell([A100, H100], [1000.0, 1200.0], predicted=[1000.0, 2000.0])
    assert choose(it, POINT) == 1
    found = outcomes([it], [1], POINT)
    assert not found.hit[0]
    assert found.regret_usd_per_h[0] == pytest.approx(0.78)
    assert found.relative[0] == pytest.approx(0.78 / 2.10)
    assert found.revenue_frac[0] == pytest.approx(0.78 / 3.60)


@pytest.mark.parametrize(("tokens", "hit"), [(1400.0, True), (1360.0, False)])
def test_a_choice_within_four_percent_of_the_best_utility_counts_as_right(
    tokens: float, hit: bool
) -> None:
    # Best 2.10; 1400 tok/s on the H100 earn 2.04 (97 %), 1360 earn 1.896 (90 %).
    found = outcomes([cell([A100, H100], [1000.0, tokens])], [1], POINT)
    assert bool(found.hit[0]) is hit
    assert found.regret_usd_per_h[0] > 0


def test_a_regret_is_never_divided_by_less_than_ten_cents() -> None:
    # 1.50 USD of tokens pay the A100 exactly.
    it = cell([A100, H100], [1.5 / 0.0036, 1.5 / 0.0036])
    assert outcomes([it], [1], POINT).relative[0] == pytest.approx(1.5 / 0.1)


def test_equal_arms_are_settled_by_fewer_gpus_and_the_lower_price() -> None:
    it = cell([FOUR_H100, A100], [12.0 / 0.0036, 1.5 / 0.0036])
    assert it.arms[choose(it, POINT)] == A100


def test_limits_are_judged_only_where_every_arm_has_both_latencies() -> None:
    seconds = {"ttft_p50_s": (0.1, 0.2), "tpot_p50_s": (0.01, 0.01)}
    both, one = cell([A100, H100], [1, 1], latency=seconds), cell([A100, H100], [1, 1])
    assert with_limits([both, one]) == [both]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_every_policy_chooses_among_the_arms_that_are_left(policy: Policy) -> None:
    whole = cell([A100, H100, H100_FP8], [1.0, 2.0, 3.0])
    left = whole.take([len(whole.arms) - 1])
    setting = Setting.of((whole,), POINT, {whole.name: whole.by_arm(whole.prior)})
    assert policy.pick(left, setting) == 0


def test_a_precision_choice_keeps_the_gpus_fixed() -> None:
    (alone,) = precision_choices([cell([A100, H100, H100_FP8], [1.0, 2.0, 3.0])])
    assert alone.arms == (H100, H100_FP8)
    assert alone.measured.tolist() == [2.0, 3.0]


def test_the_mean_lies_inside_its_bootstrap_interval_and_equal_cells_have_none() -> None:
    mixed = Outcomes(
        np.array([True, False] * 20), np.arange(40.0), np.arange(40.0) / 10, np.arange(40.0) / 20
    )
    found = score(mixed, np.random.default_rng(0))
    assert found.cells == 40
    assert found.top1_ci[0] < found.top1 == 0.5 < found.top1_ci[1]
    assert found.regret_ci[0] < found.regret_relative < found.regret_ci[1]
    same = score(mixed.take(np.array([2, 2])), np.random.default_rng(0))
    assert same.regret_ci == (same.regret_relative, same.regret_relative)


@given(
    st.lists(st.floats(1.0, 1e5), min_size=3, max_size=3),
    st.lists(st.floats(1.0, 1e5), min_size=3, max_size=3),
)
def test_regret_is_never_negative_and_right_predictions_have_none(
    measured: list[float], predicted: list[float]
) -> None:
    arms = [A100, H100, FOUR_H100]
    wrong = cell(arms, measured, predicted)
    assert outcomes([wrong], [choose(wrong, POINT)], POINT).regret_usd_per_h[0] >= 0
    right = cell(arms, measured)
    found = outcomes([right], [choose(right, POINT)], POINT)
    assert found.hit[0]
    assert found.regret_usd_per_h[0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("policy", "params", "arm"),
    [
        ("size-threshold", 7e9, "1x a100-40 bf16"),
        ("size-threshold", 32e9, "1x h100-80 bf16"),
        ("size-threshold", 70e9, "4x h100-80 bf16"),
        ("h100-fp8", 70e9, "1x h100-80 fp8"),
        ("throughput-max", 7e9, "4x h100-80 bf16"),
        ("cheapest-fit", 70e9, "1x a100-40 bf16"),
        ("always-16-bit", 7e9, "1x h100-80 bf16"),
        ("physics-alone", 7e9, "1x h100-80 fp8"),
        ("gbm-without-physics", 7e9, "1x h100-80 fp8"),
    ],
)
def test_each_policy_takes_the_arm_of_its_rule(policy: str, params: float, arm: str) -> None:
    arms = [A100, H100, H100_FP8, FOUR_H100]
    it = cell(arms, [1000.0, 2000.0, 3000.0, 3500.0], params=params)
    assert pick(policy, it) == arm


def test_the_nearest_neighbour_looks_at_the_most_similar_cell_that_is_not_held_out() -> None:
    arms = [A100, H100]
    it = cell(arms, [1000.0, 5000.0], load=1.0)
    like = cell(arms, [5000.0, 1000.0], name="like", load=1.1)
    unlike = cell(arms, [1000.0, 5000.0], name="unlike", load=9.0)
    assert pick("nearest-neighbour", it, (like, unlike)) == A100.label
    together = cell(arms, [5000.0, 1000.0], name="like", group="cell", load=1.1)
    assert pick("nearest-neighbour", it, (together, unlike)) == H100.label


def test_the_nearest_neighbour_prefers_a_cell_that_measured_the_same_arms() -> None:
    it = cell([A100, H100, H100_FP8], [1.0, 1.0, 1.0], load=1.0)
    part = cell([A100, H100], [9000.0, 1.0], name="part", load=1.1)
    whole = cell([A100, H100, H100_FP8], [1.0, 1.0, 9000.0], name="whole", load=5.0)
    assert pick("nearest-neighbour", it, (part, whole)) == H100_FP8.label
    assert pick("nearest-neighbour", it, (part,)) == A100.label
    assert pick("nearest-neighbour", it) == A100.label  # nothing else measured: the cheapest


def test_the_worked_example_of_a_baseline_picks_an_arm() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "contributing.md").read_text("utf-8")
    example = page.split("### A baseline")[1].split("```python\n")[1].split("```")[0]
    names = dict(vars(baselines))
    # The last expression is the entry of the table.
    *_, entry = ast.parse(example).body
    exec(compile(example, "example", "exec"), names)  # noqa: S102 - our own page
    (added,) = eval(ast.unparse(entry), names)  # noqa: S307 - same
    it = cell([A100, FOUR_H100, H100], [1000.0, 5000.0, 2000.0])
    assert it.arms[added.pick(it, Setting.of((it,), POINT, {}))] == FOUR_H100
