"""Launch rates shrunk toward the pooled one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.decide.launch_rates import (
    SENSITIVITY_STRENGTHS,
    launch_rates,
    shrinkage_sensitivity,
)
from omnipilot.decide.priors import LaunchCounts, LaunchPrior, pooled_prior

COUNTS = {
    ("h100", 1): LaunchCounts(72, 100),
    ("h100", 4): LaunchCounts(19, 50),
    ("h200", 8): LaunchCounts(0, 0),
}


def test_rates_lie_between_their_own_and_the_pooled_one() -> None:
    rates = launch_rates(COUNTS)
    pooled = pooled_prior(COUNTS.values()).mean
    assert list(rates) == list(COUNTS)
    assert rates["h100", 1].raw == 0.72
    assert pooled < rates["h100", 1].shrunk < 0.72
    assert 0.38 < rates["h100", 4].shrunk < pooled
    assert rates["h200", 8].raw is None
    assert rates["h200", 8].shrunk == pytest.approx(pooled)


def test_the_posterior_is_the_beta_binomial_one() -> None:
    prior = LaunchPrior(mean=0.5, strength=10.0)
    rate = launch_rates({"a": LaunchCounts(7, 10)}, prior=prior)["a"]
    assert rate.shrunk == 0.6
    # The tenths of Beta(12, 8), from SciPy 1.13.
    assert rate.low == pytest.approx(0.4586791, abs=1e-6)
    assert rate.high == pytest.approx(0.7367272, abs=1e-6)


counts = st.integers(0, 60).flatmap(
    lambda n: st.integers(0, n).map(lambda k: LaunchCounts(float(k), float(n)))
)


@given(table=st.dictionaries(st.integers(), counts, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_intervals_hold_the_rate_and_a_higher_level_is_wider(
    table: dict[int, LaunchCounts],
) -> None:
    narrow, wide = launch_rates(table, level=0.5), launch_rates(table, level=0.95)
    for key in table:
        assert 0.0 <= wide[key].low <= narrow[key].low <= narrow[key].high <= wide[key].high <= 1.0
        assert wide[key].low <= narrow[key].shrunk <= wide[key].high


@given(table=st.dictionaries(st.integers(), counts, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_stronger_shrinkage_comes_nearer_to_the_pooled_rate(
    table: dict[int, LaunchCounts],
) -> None:
    pooled = pooled_prior(table.values()).mean
    for rates in shrinkage_sensitivity(table).values():
        assert len(rates) == len(SENSITIVITY_STRENGTHS)
        distance = [abs(rate - pooled) for rate in rates]
        assert all(b <= a + 1e-12 for a, b in pairwise(distance))
