"""Conformal offsets and intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from omnipilot.costmodel.conformal import (
    MIN_WIDTH_LOG,
    NOMINAL_COVERAGE,
    conformal_offset,
    conformity_scores,
    interval,
    repair_quantiles,
)

logs = st.floats(-20, 20)
triples = arrays(np.float64, st.tuples(st.integers(1, 20), st.just(3)), elements=logs)


def brute_offset(scores: list[float], nominal: float) -> float:
    """Smallest score that at least (n + 1) nominal of the n scores reach; the largest if none."""
    for s in sorted(scores):
        if sum(x <= s for x in scores) >= (len(scores) + 1) * nominal - 1e-9:
            return s
    return max(scores)


@given(
    scores=st.lists(st.floats(-5, 5), min_size=1, max_size=60),
    nominal=st.sampled_from((0.5, 0.8, 0.9)),
)
def test_the_offset_is_the_finite_sample_quantile(scores: list[float], nominal: float) -> None:
    assert conformal_offset(np.array(scores), nominal) == brute_offset(scores, nominal)


def test_nine_scores_at_80_percent_give_the_eighth() -> None:
    # ceil((9 + 1) x 0.8) = 8
    assert conformal_offset(np.array([9.0, 1, 8, 2, 7, 3, 6, 4, 5]), 0.8) == 8.0


def test_too_few_scores_give_the_largest() -> None:
    assert conformal_offset(np.array([0.1, 0.7]), 0.9) == 0.7


def test_coverage_of_exchangeable_rows_reaches_the_nominal_level() -> None:
    # Each trial: 19 calibration rows and one test row of the same law. Exact coverage is
    # ceil(20 x 0.8)/20 = 0.8; 4,000 trials have a standard error of 0.0063.
    rng = np.random.default_rng(8)
    trials, hits = 4000, 0
    band = np.array([[-0.1, 0.0, 0.15]])  # too narrow on purpose: the offset must repair it
    for _ in range(trials):
        y = 0.3 * rng.standard_normal(20) + 0.1 * rng.exponential(size=20)
        offset = conformal_offset(conformity_scores(y[:19], np.repeat(band, 19, axis=0)))
        lower, upper = interval(band, offset)
        hits += int(lower[0] <= y[19] <= upper[0])
    error = math.sqrt(NOMINAL_COVERAGE * (1 - NOMINAL_COVERAGE) / trials)
    assert hits / trials == pytest.approx(NOMINAL_COVERAGE, abs=3 * error)


def test_scores_are_distances_outside_the_band_in_units_of_its_width() -> None:
    q = np.array([[1.0, 2.0, 3.0]] * 4)
    y = np.array([3.5, 0.0, 2.0, 1.0])
    assert conformity_scores(y, q).tolist() == [0.25, 0.5, -0.5, 0.0]


def test_very_narrow_bands_count_as_the_least_width() -> None:
    q = np.array([[1.0, 1.0, 1.0]])
    assert conformity_scores(np.array([1.0 + MIN_WIDTH_LOG]), q) == pytest.approx([1.0])
    lower, upper = interval(q, 0.5)
    assert upper - lower == pytest.approx([MIN_WIDTH_LOG])


@given(raw=triples)
def test_repaired_quantiles_are_in_order_and_the_crossed_rows_are_told(
    raw: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> None:
    q, crossed = repair_quantiles(raw)
    assert (np.diff(q, axis=1) >= 0).all()
    assert (np.sort(raw, axis=1) == q).all()
    assert crossed.tolist() == [not row[0] <= row[1] <= row[2] for row in raw.tolist()]


@given(raw=triples, offset=st.floats(-3, 3))
def test_bounds_are_in_order_with_the_median_inside(
    raw: np.ndarray[tuple[int, int], np.dtype[np.float64]], offset: float
) -> None:
    q, _ = repair_quantiles(raw)
    lower, upper = interval(q, offset)
    assert (lower <= q[:, 1]).all()
    assert (q[:, 1] <= upper).all()


@given(raw=triples, low=st.floats(-3, 3), more=st.floats(0, 3))
def test_a_larger_offset_never_narrows(
    raw: np.ndarray[tuple[int, int], np.dtype[np.float64]], low: float, more: float
) -> None:
    q, _ = repair_quantiles(raw)
    narrow, wide = interval(q, low), interval(q, low + more)
    assert (wide[0] <= narrow[0]).all()
    assert (wide[1] >= narrow[1]).all()


@given(raw=triples, seed=st.integers(0, 2**16))
def test_a_row_is_covered_exactly_when_its_score_is_within_the_offset(
    raw: np.ndarray[tuple[int, int], np.dtype[np.float64]], seed: int
) -> None:
    q, _ = repair_quantiles(raw)
    rng = np.random.default_rng(seed)
    y = q[:, 1] + rng.standard_normal(len(q))
    offset = float(rng.uniform(0, 2))
    lower, upper = interval(q, offset)
    score = conformity_scores(y, q)
    clear = np.abs(score - offset) > 1e-9
    assert (((y >= lower) & (y <= upper)) == (score <= offset))[clear].all()


def test_each_row_may_have_its_own_offset() -> None:
    q = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    lower, upper = interval(q, np.array([0.0, 0.5]))
    assert lower.tolist() == [0.0, -1.0]
    assert upper.tolist() == [2.0, 3.0]
