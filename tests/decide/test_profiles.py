"""Operating points and what a request may override."""

from __future__ import annotations

import pytest

from omnipilot.decide import PROFILE_NAMES, DecisionWeights, Economics, apply_profile
from omnipilot.domain import UnknownNameError, UsageError

SITE = Economics(value_per_token_usd=5e-7, slo_penalty_usd_per_h=10.0)


def test_without_a_profile_the_site_decides_with_unit_weights() -> None:
    assert apply_profile(None, SITE) == (SITE, DecisionWeights())


def test_the_papers_operating_points_are_there() -> None:
    assert apply_profile("cost-conscious", SITE)[0].value_per_token_usd == 2e-7
    assert apply_profile("throughput-first", SITE)[0].value_per_token_usd == 1e-6
    constrained, _ = apply_profile("slo-constrained", SITE)
    assert constrained.value_per_token_usd == 2e-7
    assert (constrained.ttft_limit_s, constrained.tpot_limit_s) == (1.0, 0.05)


def test_the_requests_own_value_and_weights_win() -> None:
    economics, weights = apply_profile(
        "latency-first", SITE, value_per_token_usd=3e-7, weights={"slo": 2.0}
    )
    assert economics.value_per_token_usd == 3e-7
    assert weights == DecisionWeights(slo=2.0, queue=2.0)


def test_limits_already_set_are_kept() -> None:
    economics, _ = apply_profile("slo-constrained", Economics(ttft_limit_s=0.2))
    assert (economics.ttft_limit_s, economics.tpot_limit_s) == (0.2, 0.05)


def test_energy_first_brings_a_carbon_price_where_the_site_has_none() -> None:
    assert apply_profile("energy-first", SITE)[0].carbon_usd_per_kg == 0.19
    dear = Economics(carbon_usd_per_kg=0.5)
    assert apply_profile("energy-first", dear)[0].carbon_usd_per_kg == 0.5


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as error:
        apply_profile("cheap", SITE)
    assert all(name in str(error.value) for name in PROFILE_NAMES)


def test_an_unknown_term_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="'kv': say one of serving_value, kv_saturation"):
        apply_profile(None, SITE, weights={"kv": 1.0})


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_an_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(UsageError, match="weight of compute"):
        apply_profile(None, SITE, weights={"compute": weight})
