"""The fixed joint draws."""

from __future__ import annotations

import numpy as np
import pytest
from decide_builders import candidate, predictions
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.decide.sampling import (
    CORRELATIONS,
    SAMPLED_TARGETS,
    copula_normals,
    correlation_matrix,
    sample_log_targets,
    stack_predictions,
)
from omnipilot.domain import TARGET_NAMES


def test_every_sampled_target_is_a_target() -> None:
    assert set(SAMPLED_TARGETS) <= set(TARGET_NAMES)


def test_the_correlation_matrix_is_positive_definite() -> None:
    assert np.linalg.eigvalsh(correlation_matrix()).min() > 0.05


@pytest.mark.parametrize("n_samples", [256, 300, 512])
def test_the_draws_have_the_stated_correlations(n_samples: int) -> None:
    drawn = np.corrcoef(copula_normals(n_samples))
    assert np.abs(drawn - correlation_matrix()).max() < 0.03
    assert len(CORRELATIONS) == 5


def test_every_margin_is_the_same_stratified_normal() -> None:
    margins = np.sort(copula_normals(256), axis=1)
    assert np.array_equal(margins, np.broadcast_to(margins[0], margins.shape))
    assert margins.mean() == pytest.approx(0.0, abs=1e-12)
    assert margins[0].std() == pytest.approx(1.0, abs=0.01)


def test_the_base_draws_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        copula_normals(256)[0, 0] = 0.0


@given(lower=st.floats(0.1, 1.0), upper=st.floats(1.0, 10.0))
def test_eight_draws_in_ten_lie_within_the_conformal_interval(lower: float, upper: float) -> None:
    tables = predictions()
    tables["ttft_p50_s"] = np.array([[0.9, 1.0, 1.1, lower, upper]])
    drawn = np.exp(sample_log_targets(tables)["ttft_p50_s"])
    inside = (drawn >= lower - 1e-9) & (drawn <= upper + 1e-9)
    assert inside.mean() >= 0.79
    assert np.median(drawn) == pytest.approx(1.0, rel=0.01)


def test_an_interval_that_misses_the_median_is_cut_at_it() -> None:
    tables = predictions()
    tables["ttft_p50_s"] = np.array([[0.9, 1.0, 1.1, 1.2, 1.5]])
    drawn = np.exp(sample_log_targets(tables)["ttft_p50_s"])
    assert drawn.min() == pytest.approx(1.0)


def test_fractions_never_exceed_one() -> None:
    drawn = sample_log_targets(predictions(kv_cache_peak_frac=0.95, spread=3.0))
    assert drawn["kv_cache_peak_frac"].max() == 0.0
    assert drawn["aggregate_tokens_per_s"].max() > 0.0


def test_a_zero_prediction_stays_zero() -> None:
    drawn = sample_log_targets(predictions(kv_cache_peak_frac=0.0))
    assert np.exp(drawn["kv_cache_peak_frac"]).max() < 1e-9


def test_a_missing_target_is_named() -> None:
    tables = predictions()
    del tables["power_mean_w"]
    with pytest.raises(ValueError, match="power_mean_w"):
        sample_log_targets(tables)


@pytest.mark.parametrize("bad", [np.full((1, 5), np.nan), np.full((1, 5), -1.0), np.ones((1, 3))])
def test_unusable_predictions_are_refused(bad: np.ndarray) -> None:
    tables = predictions()
    tables["ttft_p50_s"] = bad
    with pytest.raises(ValueError, match="ttft_p50_s"):
        sample_log_targets(tables)


def test_stacking_keeps_arms_in_order_with_quantiles_then_interval() -> None:
    arms = [candidate(spread=2.0, ttft_p50_s=1.0), candidate(ttft_p50_s=3.0)]
    stacked = stack_predictions([a.targets for a in arms])
    assert tuple(stacked) == SAMPLED_TARGETS
    assert stacked["ttft_p50_s"].tolist() == [[0.5, 1.0, 2.0, 0.5, 2.0], [3.0] * 5]


def test_stacking_no_arms_gives_empty_tables() -> None:
    assert stack_predictions([])["ttft_p50_s"].shape == (0, 5)


def test_a_target_is_drawn_alike_whichever_others_are_drawn() -> None:
    every = sample_log_targets(predictions())
    some = sample_log_targets(predictions(), only=("power_mean_w", "cold_start_s"))
    assert some.keys() == {"power_mean_w", "cold_start_s"}
    assert all(some[name].tobytes() == every[name].tobytes() for name in some)
