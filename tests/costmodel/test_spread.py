"""The spread of held-out errors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import made, prior_of, scenarios

from omnipilot.costmodel import spread as module
from omnipilot.costmodel.conformal import NOMINAL_COVERAGE, interval
from omnipilot.costmodel.features import numeric_features
from omnipilot.costmodel.folds import group_folds
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.quantiles import Forest
from omnipilot.costmodel.spread import Spread, Spreads, fit_spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytest.importorskip("catboost", reason="training needs catboost (extra 'fit')")


def simulated(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Errors with a fixed effect of each group and noise three times as wide at high load."""
    frame = made().data.frame
    rng = np.random.default_rng(seed)
    wide = 0.05 + 0.15 * (frame["concurrency"] > 32)
    shift = 0.05 * rng.standard_normal(10_000)
    group = np.unique(made().data.cells, return_inverse=True)[1]
    return shift[group] + wide * rng.standard_normal(frame.n)


@cache
def fitted(*, by_source: bool = True) -> Spread:
    frame = made().data.frame
    return fit_spread(
        frame, prior_of(frame), simulated(1), made().data.cells, ("model",),
        by_source=by_source, seed=0,
    )  # fmt: skip


def test_new_groups_are_covered_at_the_nominal_level_where_errors_are_narrow_and_wide() -> None:
    frame = made().data.frame
    spread = fitted()
    q, _ = spread.quantiles(frame, prior_of(frame))
    lower, upper = interval(q, spread.offsets(frame))
    busy = frame["concurrency"] > 32
    covered = []
    for seed in range(20, 40):
        error = simulated(seed)  # groups that the fit never saw
        covered.append((error >= lower) & (error <= upper))
    share = np.mean(covered, axis=0)
    assert share.mean() == pytest.approx(NOMINAL_COVERAGE, abs=0.06)
    assert share[busy].mean() == pytest.approx(NOMINAL_COVERAGE, abs=0.1)
    assert share[~busy].mean() == pytest.approx(NOMINAL_COVERAGE, abs=0.1)
    width = upper - lower
    assert width[busy].mean() > 2 * width[~busy].mean()


def test_spreads_asked_together_say_what_each_says_alone() -> None:
    frame = made().data.frame
    prior = prior_of(frame)
    first, second = fitted(), fitted(by_source=False)
    few = Forest(
        second.forest.features[:7, :2], second.forest.thresholds[:7, :2],
        second.forest.leaves[:7, :4], second.forest.bias + 1.0,
    )  # fmt: skip
    alone = [first, second, replace(second, forest=few)]
    q, crossed = Spreads.of(tuple(alone)).quantiles(frame, prior, numeric_features(frame, prior))
    for spread, own, own_crossed in zip(alone, q, crossed, strict=True):
        expected, expected_crossed = spread.quantiles(frame, prior)
        assert own.tobytes() == expected.tobytes()
        assert (own_crossed == expected_crossed).all()


def test_the_figures_of_the_fit_are_those_of_held_out_groups() -> None:
    spread = fitted()
    assert spread.n_rows == made().data.frame.n
    assert spread.n_groups == len(np.unique(made().data.cells))
    assert spread.nested_coverage == pytest.approx(NOMINAL_COVERAGE, abs=0.08)
    assert 0 <= spread.crossing_rate < 0.2
    assert 0.02 < spread.median_ape < spread.mape < 0.2


def test_a_source_with_enough_rows_has_its_own_offset() -> None:
    spread = fitted()
    assert set(spread.source_offsets) == {"alpha", "beta"}
    frame = build_frame([replace(s, source="gamma") for s in scenarios()[:2]] + [scenarios()[0]])
    assert spread.offsets(frame).tolist() == [
        spread.offset, spread.offset, spread.source_offsets["alpha"]
    ]  # fmt: skip
    assert fitted(by_source=False).source_offsets == {}


def test_a_source_with_few_rows_takes_the_common_offset() -> None:
    frame = made().data.frame
    keep = (frame.category("source") == "alpha") | (np.arange(frame.n) % 7 == 0)
    part = frame.take(keep)
    spread = fit_spread(
        part, prior_of(part), simulated(1)[keep], made().data.cells[keep], (),
        by_source=True, seed=0,
    )  # fmt: skip
    assert set(spread.source_offsets) == {"alpha"}


@pytest.mark.parametrize(("n_groups", "n_folds"), [(9, 3), (10, 10), (40, 10)])
def test_few_groups_are_not_left_out_one_by_one(
    monkeypatch: pytest.MonkeyPatch, n_groups: int, n_folds: int
) -> None:
    frame = made().data.frame.take(np.arange(120))
    groups = (np.arange(120) % n_groups).astype(str)
    used: list[int] = []

    def folds(groups: NDArray[np.str_], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        used.append(n)
        return group_folds(groups, n, rng)

    monkeypatch.setattr(module, "group_folds", folds)
    fit_spread(
        frame, prior_of(frame), simulated(1)[:120], groups, ("model",), by_source=False, seed=0
    )
    assert used == [n_folds]


def test_one_group_alone_still_gives_a_spread() -> None:
    frame = made().data.frame.take(np.arange(40))
    spread = fit_spread(
        frame, prior_of(frame), simulated(1)[:40], np.full(40, "one"), (),
        by_source=True, seed=0,
    )  # fmt: skip
    assert spread.n_groups == 1
    assert np.isfinite(spread.offset)


def test_withheld_categories_are_not_in_the_trees() -> None:
    assert not any(name.startswith("model=") for name in fitted().space.names)
    assert any(name.startswith("gpu_kind=") for name in fitted().space.names)
