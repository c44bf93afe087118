"""The gate: each criterion alone decides, and every verdict shows its numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.learn.gate import Comparison, Verdict, judge, judge_cards
from omnipilot.learn.local_fit import Answered

N = 200
CELLS = np.asarray([f"cell {i // 4}" for i in range(N)])
Y = np.log(np.linspace(100.0, 5000.0, N))


def answered(error: float, half_width: float = 0.3, y: np.ndarray = Y) -> Answered:
    """Predictions off by ``error`` (a fraction), up and down in turn."""
    off = np.log1p(error * np.where(np.arange(len(y)) % 2, 1.0, -1.0))
    centre = y + off
    log = centre[:, None] + half_width * np.array([-0.8, 0.0, 0.8, -1.0, 1.0])
    return Answered(y, log, y, np.ones(len(y)))


def compared(candidate: Answered, incumbent: Answered, **changes: object) -> Comparison:
    both = Comparison(
        {"throughput": candidate}, {"throughput": incumbent}, CELLS, np.zeros(N, dtype=bool),
        rows_candidate=460, rows_incumbent=447,
    )  # fmt: skip
    return replace(both, **changes)  # type: ignore[arg-type]


def verdict(both: Comparison) -> Verdict:
    return judge(both, np.random.default_rng(0))


def failed(found: Verdict) -> list[str]:
    return [c.name for c in found.criteria if not c.passed]


def test_half_a_point_of_error_more_is_let_through_and_more_is_not() -> None:
    # The paper's cycle: 447 to 460 rows, 5.89 to 6.19 %.
    assert verdict(compared(answered(0.0619), answered(0.0589))).promoted
    assert verdict(compared(answered(0.0638), answered(0.0589))).promoted
    found = verdict(compared(answered(0.0645), answered(0.0589)))
    assert not found.promoted
    assert failed(found) == ["mape"]
    assert "0.0645 against 0.0589" in found.reason


def test_fewer_rows_are_rejected() -> None:
    assert failed(verdict(compared(answered(0.05), answered(0.06), rows_candidate=446))) == ["rows"]
    assert verdict(compared(answered(0.05), answered(0.06), rows_candidate=447)).promoted


def test_the_first_fit_is_promoted_and_says_what_it_would_have_failed() -> None:
    found = verdict(compared(answered(0.2), answered(0.1), first=True))
    assert found.promoted
    assert found.first
    assert "mape" in found.reason


def test_intervals_that_cover_too_little_are_rejected_unless_they_cover_more_than_before() -> None:
    narrow, narrower = answered(0.1, 0.05), answered(0.1, 0.04)
    assert failed(verdict(compared(narrow, answered(0.1)))) == ["coverage"]
    assert verdict(compared(narrow, narrower)).promoted


def test_an_exploding_interval_of_any_head_is_rejected() -> None:
    both = compared(answered(0.05), answered(0.05))
    wide = replace(
        both,
        candidate={**both.candidate, "tpot": answered(0.05, 0.46)},
        incumbent={**both.incumbent, "tpot": answered(0.05, 0.30)},
    )
    assert failed(verdict(wide)) == ["width of tpot"]


def test_rows_that_contradict_known_ones_are_rejected() -> None:
    # Better on average, and twice as bad where the incumbent was right.
    known = np.arange(N) < N // 2
    ours, theirs = answered(0.1), answered(0.05)
    theirs.log[~known] += 0.5
    assert failed(verdict(compared(ours, theirs, known=known))) == ["mape of known rows"]


def with_tpot(ours: Answered, theirs: Answered, known: np.ndarray) -> Comparison:
    both = compared(answered(0.05), answered(0.05), known=known)
    return replace(
        both,
        candidate={**both.candidate, "tpot": ours}, incumbent={**both.incumbent, "tpot": theirs},
    )  # fmt: skip


def off(factor: float, rows: np.ndarray, half_width: float = 0.3) -> Answered:
    """Predictions off by 5 %, and ``factor`` times the measured value on ``rows``."""
    found = answered(0.05, half_width)
    found.log[rows] += np.log(factor)
    return found


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_latencies_that_contradict_known_ones_are_rejected_though_the_rest_gets_better(
    factor: float,
) -> None:
    known = np.arange(N) < 60
    # New rows in other units: the incumbent is far off there, the candidate on the rows before.
    both = with_tpot(off(factor, known), off(factor, ~known), known)
    assert failed(verdict(both)) == ["known rows of tpot"]


def test_latencies_may_fit_twice_as_badly_as_they_did() -> None:
    known = np.ones(N, dtype=bool)
    assert verdict(with_tpot(answered(0.35, 0.9), answered(0.2, 0.9), known)).promoted
    found = verdict(with_tpot(answered(0.55, 0.9), answered(0.2, 0.9), known))
    assert failed(found) == ["known rows of tpot"]


def test_a_handful_of_known_latencies_decides_nothing() -> None:
    few = np.arange(N) < 4
    assert verdict(with_tpot(off(9.0, few), answered(0.05), few)).promoted
    five = np.arange(N) < 5
    assert not verdict(with_tpot(off(9.0, five), answered(0.05), five)).promoted


def test_intervals_of_latencies_that_cover_less_than_half_as_often_are_rejected() -> None:
    unknown = np.zeros(N, dtype=bool)
    half = np.arange(N) % 2 == 0
    assert verdict(with_tpot(off(9.0, half), answered(0.05), unknown)).promoted
    found = verdict(with_tpot(off(9.0, half | (np.arange(N) < 20)), answered(0.05), unknown))
    assert failed(found) == ["coverage of tpot"]


def test_higher_regret_is_rejected_only_beyond_noise() -> None:
    both = compared(answered(0.05), answered(0.05, 0.31))
    costs = {id(both.candidate["throughput"]): np.full(30, 0.5),
             id(both.incumbent["throughput"]): np.full(30, 0.1)}  # fmt: skip
    rng = np.random.default_rng(0)
    found = judge(both, rng, lambda a: costs[id(a)])
    assert failed(found) == ["decision regret"]
    one_cell = np.r_[0.3, np.zeros(29)]
    costs[id(both.candidate["throughput"])] = costs[id(both.incumbent["throughput"])] + one_cell
    assert judge(both, rng, lambda a: costs[id(a)]).promoted


def test_the_bootstrap_tells_noise_from_difference() -> None:
    rng = np.random.default_rng(1)
    ours = answered(0.05)
    theirs = answered(0.05)
    theirs.log[:] += 0.05 * rng.standard_normal(N)[:, None]
    theirs2 = answered(0.2)
    note = {c.name: c.note for c in verdict(compared(ours, theirs2)).criteria}["mape"]
    assert "no noise" in note
    same = {c.name: c.note for c in verdict(compared(ours, answered(0.05))).criteria}["mape"]
    assert "may be noise" in same


@given(st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_a_verdict_is_exactly_what_its_criteria_say(ours: float, theirs: float) -> None:
    found = verdict(compared(answered(ours), answered(theirs)))
    assert found.promoted == all(c.passed for c in found.criteria)
    mape = next(c for c in found.criteria if c.name == "mape")
    assert mape.passed == (mape.candidate - mape.incumbent <= 0.005)  # type: ignore[operator]


def test_no_row_to_judge_on_leaves_the_row_count_alone() -> None:
    nothing = Comparison({}, {}, CELLS[:0], np.zeros(0, dtype=bool), 3, 2)
    assert [c.name for c in verdict(nothing).criteria] == ["rows"]


def test_base_models_are_compared_by_their_cards() -> None:
    def card(mape: float, rows: int, coverage: float = 0.8) -> dict[str, object]:
        seen = {"mape": mape, "nested_coverage": coverage}
        return {"rows": rows, "held_out": {"throughput": {"seen": seen}}}

    assert judge_cards(card(0.104, 10_300), card(0.1, 10_200)).promoted
    assert failed(judge_cards(card(0.106, 10_300), card(0.1, 10_200))) == ["mape"]
    assert failed(judge_cards(card(0.1, 10_100), card(0.1, 10_200))) == ["rows"]
    assert failed(judge_cards(card(0.1, 10_300, 0.7), card(0.1, 10_200))) == ["coverage"]
    assert failed(judge_cards({"rows": 5, "held_out": {}}, card(0.1, 4))) == ["mape", "coverage"]


@pytest.mark.parametrize("n", [1, 3])
def test_a_handful_of_rows_can_be_judged(n: int) -> None:
    y = Y[:n]
    both = Comparison(
        {"throughput": answered(0.05, 0.3, y)}, {"throughput": answered(0.1, 0.3, y)}, CELLS[:n],
        np.zeros(n, dtype=bool), 5, 5,
    )  # fmt: skip
    assert verdict(both).promoted
