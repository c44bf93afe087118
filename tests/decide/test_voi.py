"""What a measurement is worth: structure, closed forms and plain simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from voi_builders import brute_force_usd, shared, stakes

from omnipilot.decide.knowledge_gradient import knowledge_gradient, lognormal_gain, pair_gain
from omnipilot.decide.normals import base_normals, cumulative, quantile
from omnipilot.decide.stakes import Quantity, Stakes
from omnipilot.decide.voi import (
    Belief,
    gains_usd,
    promises_usd,
    value_usd,
    win_probability,
)

ARMS = st.integers(2, 5)


@st.composite
def decisions(draw: st.DrawFn) -> Stakes:
    n = draw(ARMS)
    seed = draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, n))
    covariance = 0.02 * (root @ root.T) + 0.01 * np.eye(n)
    return stakes(
        rng.uniform(2, 6, n).tolist(),
        rng.uniform(0, 3, n).tolist(),
        covariance,
        noise_sd=draw(st.floats(0.01, 1.0)),
    )


def every(asked: Stakes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(asked.n_probes, dtype=np.int64)


@given(decisions())
@settings(max_examples=60, deadline=None)
def test_information_is_never_worth_less_than_nothing(asked: Stakes) -> None:
    empty = Belief.empty(asked)
    first = gains_usd(asked, empty, every(asked))
    assert np.all(first >= 0)
    assert np.all(gains_usd(asked, empty.after(asked, 0), every(asked)[1:]) >= 0)
    assert np.all(promises_usd(asked, empty, every(asked)) >= 0)


@given(decisions())
@settings(max_examples=40, deadline=None)
def test_a_second_measurement_never_takes_value_away(asked: Stakes) -> None:
    # Enough draws that a gain of one in some hundred of them is told to a tenth of a cent.
    one = value_usd(asked, (0,), 20_000)
    assert value_usd(asked, (0, 1), 20_000) >= one - 0.01 * max(one, 0.1)


@given(decisions(), st.floats(1.0, 50.0))
@settings(max_examples=40, deadline=None)
def test_value_grows_in_proportion_to_the_horizon(asked: Stakes, hours: float) -> None:
    longer = replace(
        asked,
        total_usd=hours * asked.total_usd,
        quantities=tuple(replace(q, worth_usd=hours * q.worth_usd) for q in asked.quantities),
    )
    assert value_usd(longer, (0,)) == pytest.approx(hours * value_usd(asked, (0,)), rel=1e-6)


@given(decisions())
@settings(max_examples=40, deadline=None)
def test_value_grows_with_what_is_uncertain_and_falls_with_noise(asked: Stakes) -> None:
    (q,) = asked.quantities
    wider = replace(q, variance=4 * q.variance, cross=4 * q.cross, places=4 * q.places)
    noisier = replace(q, noise_var=q.noise_var + 0.5)
    value = value_usd(asked, (0,))
    assert value_usd(replace(asked, quantities=(wider,)), (0,)) >= value - 1e-9
    assert value_usd(replace(asked, quantities=(noisier,)), (0,)) <= value + 1e-9


def test_what_cannot_change_the_choice_is_worth_exactly_nothing() -> None:
    alike = stakes([3.0, 3.0], [0.5, 1.0], np.full((2, 2), 0.09))  # errors of both are one
    far = stakes([9.0, 3.0], [0.0, 2.0], shared(2, 0.05))
    blind = stakes([3.0, 3.0], [0.5, 0.6], shared(2), noise_sd=np.inf)
    for asked in (alike, far, blind):
        assert gains_usd(asked, Belief.empty(asked), every(asked)).tolist() == [0.0, 0.0]
    # The closed form knows the far tail that no draw reaches; it is nothing all the same.
    assert value_usd(far, (0,)) < 1e-12
    assert value_usd(blind, (0,)) == 0.0


def test_shrinking_the_variance_without_moving_the_mean_would_be_worth_nothing() -> None:
    # The paper's rule: intervals shrink, centres stay. The utilities then are what they were.
    asked = stakes([4.0, 4.2], [1.0, 1.3], shared(2, 0.3, 0.2), noise_sd=0.05)
    (q,) = asked.quantities
    frozen = replace(q, cross=np.zeros_like(q.cross))
    assert value_usd(replace(asked, quantities=(frozen,)), (0,)) == 0.0
    assert value_usd(asked, (0,)) > 0.2


def test_answers_repeat_bit_for_bit() -> None:
    asked = stakes([4.0, 4.2, 3.9], [1.0, 1.3, 0.9], shared(3))
    first = gains_usd(asked, Belief.empty(asked).after(asked, 2), every(asked)[:2])
    again = gains_usd(asked, Belief.empty(asked).after(asked, 2), every(asked)[:2])
    assert first.tobytes() == again.tobytes()
    assert base_normals(5, 32) is base_normals(5, 32)


@pytest.mark.parametrize("noise_sd", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_one_probe_agrees_with_simulation(noise_sd: float, correlation: float) -> None:
    asked = stakes(
        [4.0, 4.3, 3.6], [1.0, 1.3, 0.7], shared(3, 0.25, correlation), noise_sd=noise_sd
    )
    for probe in range(3):
        truth = brute_force_usd(asked, (probe,))
        assert value_usd(asked, (probe,)) == pytest.approx(truth, rel=0.02, abs=1e-3)
        draws = gains_usd(asked, Belief.empty(asked), np.array([probe]), 32)
        assert draws[0] == pytest.approx(truth, rel=0.15, abs=5e-3)


def test_several_probes_agree_with_simulation() -> None:
    asked = stakes([4.0, 4.3, 3.6], [1.0, 1.3, 0.7], shared(3, 0.25, 0.3), noise_sd=0.1)
    for probes in ((0, 1), (1, 2), (2, 0, 1)):
        truth = brute_force_usd(asked, probes)
        assert value_usd(asked, probes, 4096) == pytest.approx(truth, rel=0.02)
        assert value_usd(asked, probes) == pytest.approx(truth, rel=0.15)


def limited(penalty: float = 2.0) -> Stakes:
    """Two arms of equal worth: one surely within its limit, one perhaps, and a second quantity."""
    asked = stakes([4.0, 4.3], [1.0, 1.0], shared(2, 0.2), noise_sd=0.05, chosen=0)
    ttft = Quantity(
        "ttft", np.array([0.25, 0.25]), shared(2, 0.5), shared(2, 0.5), np.array([0.01, 0.01]),
        np.zeros(2), np.array([0.02, 0.4]),
    )  # fmt: skip
    total = np.array([3.0, 3.3]) - penalty * np.array([0.02, 0.4])
    return replace(
        asked, quantities=(*asked.quantities, ttft), penalty_usd=penalty, total_usd=total
    )


def test_limits_agree_with_simulation() -> None:
    asked = limited()
    for probes in ((0,), (1,), (0, 1)):
        truth = brute_force_usd(asked, probes)
        assert value_usd(asked, probes, 4096) == pytest.approx(truth, rel=0.03, abs=2e-3)


def test_a_loss_of_one_arm_s_own_agrees_with_simulation() -> None:
    asked = limited()
    throughput, ttft = asked.quantities
    own = replace(ttft, loss_usd=np.array([1.0, 1.6]))
    asked = replace(asked, quantities=(throughput, own))
    for probes in ((1,), (0, 1)):
        truth = brute_force_usd(asked, probes)
        assert value_usd(asked, probes, 4096) == pytest.approx(truth, rel=0.03, abs=2e-3)


def test_a_limit_alone_makes_information_worth_something() -> None:
    asked = limited()
    throughput, ttft = asked.quantities
    surely = replace(throughput, noise_var=np.full(2, np.inf))
    only = replace(asked, quantities=(surely, ttft))
    assert value_usd(only, (1,), 1024) > 0.05
    assert value_usd(replace(only, penalty_usd=0.0, total_usd=np.array([3.4, 3.3])), (1,)) == 0.0


def test_turning_an_abstention_into_a_supported_answer_is_worth_the_better_arm() -> None:
    # The rule takes arm 0; arm 1 is worth 1 USD more, on an axis that only its own probe covers.
    asked = stakes(
        [4.0, 5.0], [1.0, 1.0], 1e-9 * np.eye(2), chosen=0,
        outside=np.array([[True, True]]),
        covers=np.array([[[True, False], [False, True]]]),
    )  # fmt: skip
    asked = replace(asked, allowed=np.array([False, False]))
    assert value_usd(asked, (0,)) == pytest.approx(0.0, abs=1e-4)
    assert value_usd(asked, (1,)) == pytest.approx(1.0, abs=1e-4)
    assert asked.takes((), np.array([0, 1])).T.tolist() == [[True, False], [True, True]]
    assert asked.takes((1,), np.array([0])).T.tolist() == [[True, True]]


def test_the_chance_of_each_arm_to_win_is_that_of_the_simulation() -> None:
    asked = stakes([4.0, 4.3, 1.0], [1.0, 1.3, 0.7], shared(3, 0.25, 0.0))
    wins = win_probability(asked, (1,), 4096)
    assert wins.sum() == pytest.approx(1.0)
    assert wins[0] == pytest.approx(0.55, abs=0.02)  # median of a lognormal of mean 4.3 is 4.17
    assert wins[2] == 0.0
    assert win_probability(asked, ()).tolist() == [1.0, 0.0, 0.0]


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-2, 2)), min_size=1, max_size=6))
@example([(0.0, 0.0), (1.0, 5e-324)])
@example([(1.0, 0.0), (0.0, 5e-324)])
@settings(max_examples=80, deadline=None)
def test_the_linear_form_is_the_integral_of_the_upper_envelope(
    arms: list[tuple[float, float]],
) -> None:
    mean, loading = np.array([a for a, _ in arms]), np.array([b for _, b in arms])
    z = np.linspace(-9, 9, 36_001)
    weight = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    best = (mean[:, None] + loading[:, None] * z).max(axis=0)
    truth = float(np.sum((best - mean.max()) * weight) * (z[1] - z[0]))
    assert knowledge_gradient(mean, loading) == pytest.approx(truth, abs=1e-5)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(-2, 2), st.floats(-1, 1)), min_size=1,
                max_size=5))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_lognormal_form_is_the_integral_of_the_best_arm(
    arms: list[tuple[float, float, float]],
) -> None:
    worth, cost, loading = (np.array(c) for c in zip(*arms, strict=True))
    z = np.linspace(-9, 9, 36_001)
    weight = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    lines = worth[:, None] * np.exp(loading[:, None] * z - loading[:, None] ** 2 / 2)
    best = (lines - cost[:, None]).max(axis=0)
    truth = float(np.sum(best * weight) * (z[1] - z[0]) - (worth - cost).max())
    assert lognormal_gain(worth, cost, loading) == pytest.approx(truth, abs=1e-4)


def test_two_arms_agree_with_their_closed_form() -> None:
    for behind, sd in ((0.0, 1.0), (0.5, 1.0), (2.0, 0.7)):
        exact = knowledge_gradient(np.array([1.0, 1.0 - behind]), np.array([0.0, sd]))
        assert pair_gain(np.array([behind]), np.array([sd]))[0] == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(("n_dims", "n_samples"), [(1, 32), (6, 32), (12, 32), (6, 512)])
def test_base_samples_are_stratified_and_nearly_uncorrelated(n_dims: int, n_samples: int) -> None:
    z = base_normals(n_dims, n_samples)
    assert z.mean(axis=1) == pytest.approx(np.zeros(n_dims), abs=1e-12)
    assert np.all(np.sort(z, axis=1) == np.sort(z[0]))
    if n_dims > 1:
        off = np.corrcoef(z) - np.eye(n_dims)
        assert np.abs(off).max() < 0.25 if n_samples < 100 else np.abs(off).max() < 0.02


def test_too_few_samples_for_the_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="need more than"):
        base_normals(32, 32)


def test_the_normal_distribution_and_its_inverse_agree() -> None:
    p = np.array([1e-6, 0.01, 0.5, 0.9, 1 - 1e-6])
    assert cumulative(quantile(p)) == pytest.approx(p, abs=2e-7)
