"""Launch success and queue wait before any data, and with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.decide.priors import (
    LaunchCounts,
    LaunchPrior,
    beta_cdf,
    beta_quantile,
    pooled_prior,
    queue_wait,
)
from omnipilot.domain import UsageError


def test_without_data_a_launch_succeeds_with_95_percent() -> None:
    success = pooled_prior([]).posterior()
    assert success.mean == pytest.approx(0.95)
    assert "default" in success.note


def test_a_configuration_is_shrunk_toward_the_prior_by_its_strength() -> None:
    # Beta(8, 2) and 2 of 10: (8 + 2) / (10 + 10) = 0.5
    success = LaunchPrior(mean=0.8, strength=10.0).posterior(LaunchCounts(2, 10))
    assert success.mean == pytest.approx(0.5)
    assert success.note == "10 launches of this arm"


def test_an_unseen_configuration_gets_the_pooled_rate() -> None:
    prior = pooled_prior([LaunchCounts(40, 80), LaunchCounts(41, 100)])
    # (0.95 × 20 + 81) / (20 + 180) = 0.5
    assert prior.mean == pytest.approx(0.5)
    assert prior.posterior().mean == pytest.approx(0.5)
    assert "180 launches" in prior.note


def test_configurations_that_differ_weaken_the_prior() -> None:
    alike = pooled_prior([LaunchCounts(50, 100), LaunchCounts(52, 100), LaunchCounts(48, 100)])
    apart = pooled_prior([LaunchCounts(95, 100), LaunchCounts(50, 100), LaunchCounts(5, 100)])
    assert alike.strength == 1000.0
    assert apart.strength < 3.0


def test_the_strength_follows_the_moment_estimator() -> None:
    # Rate 0.5, variance 0.25; spread 2 × 10 × 0.2² = 0.8; spare 20 − 200 / 20 − 1 = 9;
    # overdispersion (0.8 − 0.25) / (0.25 × 9) = 0.2444; strength 1 / 0.2444 − 1 = 3.0909
    prior = pooled_prior([LaunchCounts(7, 10), LaunchCounts(3, 10)])
    assert prior.strength == pytest.approx(3.0909, abs=1e-4)


def test_the_strength_of_simulated_configurations_is_recovered() -> None:
    rng = np.random.default_rng(7)
    rates = rng.beta(6.0, 4.0, size=400)  # strength 10
    counts = [LaunchCounts(int(rng.binomial(30, rate)), 30) for rate in rates]
    assert pooled_prior(counts).strength == pytest.approx(10.0, rel=0.2)


def test_configurations_that_always_succeed_keep_the_default_strength() -> None:
    assert pooled_prior([LaunchCounts(5, 5), LaunchCounts(9, 9)]).strength == 20.0


def test_more_launches_narrow_the_interval() -> None:
    prior = LaunchPrior()
    few = prior.posterior(LaunchCounts(5, 10)).interval()
    many = prior.posterior(LaunchCounts(500, 1000)).interval()
    assert many[1] - many[0] < few[1] - few[0]


@given(
    mean=st.floats(0.01, 0.99),
    strength=st.floats(1.0, 100.0),
    attempts=st.integers(0, 200),
    share=st.floats(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_the_posterior_lies_between_prior_and_rate_and_inside_its_interval(
    mean: float, strength: float, attempts: int, share: float
) -> None:
    counts = LaunchCounts(round(share * attempts), attempts)
    posterior = LaunchPrior(mean, strength).posterior(counts)
    rate = counts.successes / attempts if attempts else mean
    assert min(mean, rate) - 1e-9 <= posterior.mean <= max(mean, rate) + 1e-9
    low, high = posterior.interval()
    assert 0.0 <= low <= high <= 1.0


@pytest.mark.parametrize(("successes", "attempts"), [(-1, 3), (4, 3), (0, float("inf"))])
def test_impossible_counts_are_refused(successes: float, attempts: float) -> None:
    with pytest.raises(UsageError, match="impossible"):
        LaunchCounts(successes, attempts)


def test_the_beta_distribution_agrees_with_its_closed_forms() -> None:
    # I_x(2, 3) = 6x² − 8x³ + 3x⁴; at 0.4: 0.96 − 0.512 + 0.0768 = 0.5248
    assert beta_cdf(0.4, 2.0, 3.0) == pytest.approx(0.5248)
    # I_x(a, 1) = x^a, so the 90 % point of Beta(2, 1) is √0.9.
    assert beta_quantile(0.9, 2.0, 1.0) == pytest.approx(0.9**0.5, abs=1e-8)
    assert (beta_cdf(-1.0, 2, 3), beta_cdf(2.0, 2, 3)) == (0.0, 1.0)


@given(x=st.floats(0.001, 0.999), a=st.floats(0.05, 300), b=st.floats(0.05, 300))
def test_the_beta_distribution_is_symmetric(x: float, a: float, b: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(1.0 - beta_cdf(1.0 - x, b, a), abs=1e-9)


def test_without_waits_the_default_is_assumed_and_said() -> None:
    wait = queue_wait([])
    assert wait.expected_h == 0.0
    assert "assumed" in wait.note


def test_observed_waits_are_shrunk_toward_the_default() -> None:
    # (5 × 1.0 + 2.0 + 4.0 + 9.0 + 3.0 + 7.0) / (5 + 5) = 3.0
    wait = queue_wait([2.0, 4.0, 9.0, 3.0, 7.0], default_h=1.0)
    assert wait.expected_h == pytest.approx(3.0)
    assert wait.n_jobs == 5


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(UsageError, match="queue wait"):
        queue_wait([1.0, -0.5])
