"""Terms by closed form with round numbers, and what must hold for any numbers."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from decide_builders import costs, predictions
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.decide import (
    PROFILES,
    TERM_NAMES,
    TERMS,
    DecisionWeights,
    Economics,
    evaluate_utility,
    realised_utility_usd_per_h,
)
from omnipilot.decide.utility import saturation_factor
from omnipilot.domain import UsageError, UtilityTerms

PLAIN = Economics(value_per_token_usd=2e-7, pue=1.2, electricity_usd_per_kwh=0.10)
DOC = Path(__file__).resolve().parents[2] / "docs" / "utility.md"

positive = st.floats(0.01, 100.0)
spreads = st.floats(1.0, 5.0)
EVERYTHING = Economics(
    value_per_token_usd=2e-7,
    carbon_usd_per_kg=0.19,
    wait_cost_usd_per_h=3.0,
    slo_penalty_usd_per_h=7.0,
    lost_setup_h=0.1,
    ttft_limit_s=0.6,
    tpot_limit_s=0.025,
)


def test_serving_value_is_tokens_times_their_value() -> None:
    table = evaluate_utility(predictions(), costs(), PLAIN)
    # 2e-7 × 3600 × 10,000 tok/s × 1 h = 7.20 USD
    assert table.terms(0).serving_value_usd == pytest.approx(7.20)
    assert table.terms(0).kv_saturation_usd == pytest.approx(0.0)


def test_compute_is_gpu_price_plus_electricity() -> None:
    table = evaluate_utility(predictions(), costs(), PLAIN)
    # 2 × 1.50 + 1 kW × 1.2 × 0.10 = 3.12 USD
    assert table.terms(0).compute_usd == pytest.approx(3.12)
    assert table.usd_per_h[0] == pytest.approx(3.12)
    assert table.terms(0).total_usd == pytest.approx(7.20 - 3.12)


def test_hours_multiply_value_and_compute_but_not_the_queue() -> None:
    economics = replace(PLAIN, duration_h=10.0, wait_cost_usd_per_h=4.0)
    terms = evaluate_utility(predictions(), costs(wait_h=0.5), economics).terms(0)
    assert terms.serving_value_usd == pytest.approx(72.0)
    assert terms.compute_usd == pytest.approx(31.2)
    assert terms.queue_usd == pytest.approx(2.0)  # 0.5 h × 4 USD/h


def test_a_full_kv_cache_loses_half_the_value() -> None:
    table = evaluate_utility(predictions(kv_cache_peak_frac=1.0), costs(), PLAIN)
    assert table.terms(0).serving_value_usd == pytest.approx(7.20)
    assert table.terms(0).kv_saturation_usd == pytest.approx(3.60)


def test_half_way_between_knee_and_full_a_quarter_is_lost() -> None:
    table = evaluate_utility(predictions(kv_cache_peak_frac=0.925), costs(), PLAIN)
    assert table.terms(0).kv_saturation_usd == pytest.approx(1.80)


def test_failure_holds_gpus_while_starting_and_users_while_waiting() -> None:
    economics = replace(PLAIN, wait_cost_usd_per_h=2.0, lost_setup_h=0.4)
    table = evaluate_utility(predictions(), costs(wait_h=1.5, launch_success=0.9), economics)
    # C = 360 s = 0.1 h, L = 0.4 h, W = 1.5 h; 0.1 × (0.5 × 3.12 + 2.0 × 2.00) = 0.556 USD
    assert table.terms(0).failure_usd == pytest.approx(0.556)


def test_a_certain_launch_has_no_failure_cost() -> None:
    assert evaluate_utility(predictions(), costs(), EVERYTHING).terms(0).failure_usd == 0.0


def test_slo_is_the_penalty_when_a_limit_is_surely_missed() -> None:
    economics = replace(PLAIN, slo_penalty_usd_per_h=5.0, ttft_limit_s=0.4, tpot_limit_s=0.1)
    table = evaluate_utility(predictions(), costs(), economics)
    assert table.slo_violation_prob[0] == 1.0
    assert table.terms(0).slo_usd == pytest.approx(5.0)


def test_a_prediction_exactly_at_its_limit_keeps_it() -> None:
    economics = replace(PLAIN, slo_penalty_usd_per_h=5.0, ttft_limit_s=0.5)
    assert evaluate_utility(predictions(), costs(), economics).slo_violation_prob[0] == 0.0


def test_a_limit_at_the_upper_end_is_missed_one_time_in_ten() -> None:
    economics = replace(PLAIN, slo_penalty_usd_per_h=5.0, ttft_limit_s=1.0)
    table = evaluate_utility(predictions(spread=2.0), costs(), economics)
    assert table.slo_violation_prob[0] == pytest.approx(0.10, abs=1 / 256)


def test_a_limit_at_the_median_is_missed_half_of_the_time() -> None:
    economics = replace(PLAIN, tpot_limit_s=0.02)
    table = evaluate_utility(predictions(spread=2.0), costs(), economics)
    assert table.slo_violation_prob[0] == pytest.approx(0.5)


def test_either_limit_counts_once() -> None:
    both = replace(PLAIN, ttft_limit_s=0.5, tpot_limit_s=0.02)
    wide = predictions(spread=2.0)
    joint = evaluate_utility(wide, costs(), both).slo_violation_prob[0]
    # Latent correlation 0.2: P(neither) = 1/4 + asin(0.2)/2π = 0.282, P(either) = 0.718.
    assert joint == pytest.approx(0.718, abs=0.02)


def test_carbon_prices_the_emissions_of_the_electricity() -> None:
    economics = replace(PLAIN, carbon_kg_per_kwh=0.5, carbon_usd_per_kg=0.2)
    # 1 kW × 1.2 × 0.5 kg/kWh × 0.2 USD/kg = 0.12 USD
    assert evaluate_utility(predictions(), costs(), economics).terms(0).carbon_usd == (
        pytest.approx(0.12)
    )


def test_a_weight_counts_in_the_total_and_not_in_the_term() -> None:
    weights = DecisionWeights(compute=2.0)
    terms = evaluate_utility(predictions(), costs(), PLAIN, weights).terms(0)
    assert terms.compute_usd == pytest.approx(3.12)
    assert terms.total_usd == pytest.approx(7.20 - 2 * 3.12)


def test_the_interval_holds_the_ends_of_a_certain_cost_arm() -> None:
    free = replace(PLAIN, electricity_usd_per_kwh=0.0)
    tables = predictions(kv_cache_peak_frac=0.1)
    middle = tables["aggregate_tokens_per_s"][:, 1:2]
    tables["aggregate_tokens_per_s"] = middle * np.array([[0.5, 1.0, 2.0, 0.5, 2.0]])
    table = evaluate_utility(tables, costs(price_usd_per_gpu_h=0.0), free)
    # T is 5,000 at its 10 % point and 20,000 at its 90 % point: 3.60 and 14.40 USD.
    assert table.lower_usd[0] == pytest.approx(3.60, rel=0.005)
    assert table.upper_usd[0] == pytest.approx(14.40, rel=0.005)


def test_the_mean_of_a_wide_throughput_is_that_of_its_lognormal() -> None:
    free = replace(PLAIN, electricity_usd_per_kwh=0.0)
    tables = predictions(spread=2.0)
    value = evaluate_utility(tables, costs(), free).terms(0).serving_value_usd
    sigma = np.log(2.0) / 1.2815515655446004
    assert value == pytest.approx(7.20 * np.exp(sigma**2 / 2), rel=0.005)


def test_realised_utility_is_value_less_price() -> None:
    # 1e-6 × 3600 × 1,000 − 2 × 1.50 = 0.60 USD/h
    assert realised_utility_usd_per_h(1e-6, 1000.0, 2.0, 1.5) == pytest.approx(0.60)


def test_realised_utility_takes_arrays() -> None:
    ones = np.ones(2)
    realised = realised_utility_usd_per_h(1e-6, 1000.0 * ones, np.array([1.0, 2.0]), 1.5 * ones)
    assert realised.tolist() == pytest.approx([2.1, 0.6])


def test_the_factor_is_one_everywhere_when_the_knee_is_one() -> None:
    assert saturation_factor(np.array([0.0, 1.0]), knee_frac=1.0).tolist() == [1.0, 1.0]


@given(kv=st.floats(0, 1), knee=st.floats(0, 1), floor=st.floats(0, 1))
def test_the_saturation_factor_stays_between_the_floor_and_one(
    kv: float, knee: float, floor: float
) -> None:
    (factor,) = saturation_factor(np.array([kv]), knee, floor)
    assert floor - 1e-12 <= factor <= 1.0
    assert kv > knee or factor == 1.0


@given(low=positive, extra=positive, spread=spreads, success=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_utility_falls_as_the_price_rises(
    low: float, extra: float, spread: float, success: float
) -> None:
    dear = costs(price_usd_per_gpu_h=[low, low + extra], launch_success=success, n_arms=2)
    table = evaluate_utility(predictions(2, spread), dear, EVERYTHING)
    assert table.total_usd[0] > table.total_usd[1]
    assert table.lower_usd[0] > table.lower_usd[1]


@given(slow=st.floats(1.0, 1e5), gain=st.floats(1.01, 10.0), spread=spreads, kv=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_utility_rises_with_throughput(slow: float, gain: float, spread: float, kv: float) -> None:
    tables = predictions(
        2, spread, aggregate_tokens_per_s=[slow, slow * gain], kv_cache_peak_frac=kv
    )
    table = evaluate_utility(tables, costs(n_arms=2), EVERYTHING)
    assert table.total_usd[1] > table.total_usd[0]


@given(ttft=positive, slower=st.floats(1.0, 3.0), spread=spreads)
@settings(max_examples=40, deadline=None)
def test_a_slower_first_token_never_lowers_the_violation_probability(
    ttft: float, slower: float, spread: float
) -> None:
    tables = predictions(2, spread, ttft_p50_s=[ttft, ttft * slower])
    quick, slow = evaluate_utility(tables, costs(n_arms=2), EVERYTHING).slo_violation_prob
    assert 0.0 <= quick <= slow <= 1.0


@given(
    middles=st.lists(st.floats(10.0, 1e5), min_size=1, max_size=6),
    spread=spreads,
    wait=st.floats(0, 5),
    success=st.floats(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_with_unit_weights_the_total_is_value_less_all_costs(
    middles: list[float], spread: float, wait: float, success: float
) -> None:
    n = len(middles)
    tables = predictions(n, spread, aggregate_tokens_per_s=middles, kv_cache_peak_frac=0.9)
    table = evaluate_utility(
        tables, costs(wait_h=wait, launch_success=success, n_arms=n), EVERYTHING
    )
    for i in range(n):
        t = table.terms(i)
        parts = (
            t.serving_value_usd - t.kv_saturation_usd - t.compute_usd - t.queue_usd
            - t.failure_usd - t.slo_usd - t.carbon_usd
        )  # fmt: skip
        assert t.total_usd == pytest.approx(parts, abs=1e-9)
        assert min(t.kv_saturation_usd, t.compute_usd, t.queue_usd, t.failure_usd, t.slo_usd) >= 0
        assert t.lower_usd <= t.upper_usd


@given(order=st.permutations(range(5)), spread=spreads)
@settings(max_examples=30, deadline=None)
def test_reordering_the_arms_reorders_the_results(order: list[int], spread: float) -> None:
    middles = np.array([100.0, 2_000.0, 5_000.0, 30_000.0, 700.0])
    prices = np.array([1.0, 2.0, 3.0, 4.0, 5.0])

    def total(index: list[int]) -> list[float]:
        tables = predictions(5, spread, aggregate_tokens_per_s=middles[index].tolist())
        arms = costs(price_usd_per_gpu_h=prices[index].tolist(), n_arms=5)
        return [float(x) for x in evaluate_utility(tables, arms, EVERYTHING).total_usd]

    assert total(order) == pytest.approx([total(list(range(5)))[i] for i in order], rel=1e-12)


def test_equal_arms_get_equal_utility_because_draws_are_shared() -> None:
    table = evaluate_utility(predictions(3, 3.0), costs(n_arms=3), EVERYTHING)
    assert len(set(table.total_usd.tolist())) == 1
    assert len(set(table.lower_usd.tolist())) == 1


def test_the_same_question_gets_the_same_answer() -> None:
    first = evaluate_utility(predictions(4, 2.0), costs(n_arms=4), EVERYTHING)
    second = evaluate_utility(predictions(4, 2.0), costs(n_arms=4), EVERYTHING)
    assert first.total_usd.tolist() == second.total_usd.tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("launch_success", 1.2), ("launch_success", math.nan), ("wait_h", math.inf),
        ("wait_h", -1.0), ("n_gpus", 0.0), ("price_usd_per_gpu_h", math.nan),
    ],
)  # fmt: skip
def test_impossible_costs_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        replace(costs(), **{name: np.full(1, value)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"pue": 0.9},
        {"kv_floor": 1.1},
        {"duration_h": 0.0},
        {"value_per_token_usd": -1e-7},
        {"electricity_usd_per_kwh": float("nan")},
        {"ttft_limit_s": 0.0},
    ],
)
def test_impossible_economics_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Economics(**wrong)


def test_every_term_has_a_field_and_a_weight() -> None:
    shown = {f.name for f in fields(UtilityTerms)} - {"total_usd", "lower_usd", "upper_usd"}
    assert shown == {t.field for t in TERMS}
    assert tuple(f.name for f in fields(DecisionWeights)) == TERM_NAMES


def test_the_documentation_lists_every_term_with_its_formula() -> None:
    text = DOC.read_text(encoding="utf-8")
    for term in TERMS:
        sign = "+" if term.sign > 0 else "−"
        row = f"| {term.name} | `{term.field}` | {sign} | {term.formula} | {term.meaning} |"
        assert row in text


def test_the_documentation_lists_every_profile_with_its_weights() -> None:
    text = DOC.read_text(encoding="utf-8")
    for profile in PROFILES:
        limits = [f"{x:g} s" if x else "-" for x in (profile.ttft_limit_s, profile.tpot_limit_s)]
        weights = [f"{getattr(profile.weights, name):g}" for name in TERM_NAMES]
        cells = [profile.name, f"{profile.value_per_token_usd:g}", *limits, *weights]
        assert f"| {' | '.join(cells)} |" in text
