"""Turning points: the crossings of straight lines, in round numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.advisor.turning import price_turning_points, value_turning_points
from omnipilot.decide.economics import DecisionWeights
from omnipilot.domain import Arm, FitVerdict, RankedArm, SupportVerdict, UtilityTerms

SUPPORT = SupportVerdict(True, (), "seen", 0.0, "high")
FIT = FitVerdict("fits", "fits", "fits")
EQUAL = DecisionWeights()


def ranked(kind: str, n: int, value_usd: float, compute_usd: float) -> RankedArm:
    total = value_usd - compute_usd
    terms = UtilityTerms(value_usd, compute_usd, 0, 0, 0, 0, 0, total, total, total)
    return RankedArm(Arm(kind, n, "bf16"), {}, terms, SUPPORT, "high", FIT, compute_usd, 0.0, "")


# At 2e-7 USD a token: 3 - 1 = 2, 6 - 5 = 1, 1 - 0.5 = 0.5.
CHEAP = ranked("cheap", 1, 3.0, 1.0)
FAST = ranked("fast", 2, 6.0, 5.0)
TINY = ranked("tiny", 1, 1.0, 0.5)
PRICES = {"cheap": 1.0, "fast": 2.5, "tiny": 0.5}


def test_a_faster_arm_wins_from_the_value_at_which_its_tokens_pay_its_price() -> None:
    (point,) = value_turning_points([CHEAP, FAST], 2e-7, EQUAL)
    # 3 more tokens' worth per 2e-7 must pay 4 USD more: 4/3 of today's value.
    assert point.at == pytest.approx(2e-7 * 4 / 3)
    assert point.winner == FAST.arm


def test_a_cheaper_arm_wins_below_and_a_faster_one_above() -> None:
    below, above = value_turning_points([CHEAP, FAST, TINY], 2e-7, EQUAL)
    # 2 fewer tokens' worth save 0.5 USD: a quarter of today's value.
    assert below.winner == TINY.arm
    assert below.at == pytest.approx(2e-7 / 4)
    assert above.winner == FAST.arm


def test_weights_move_the_value_that_turns_the_answer() -> None:
    (point,) = value_turning_points([CHEAP, FAST], 2e-7, DecisionWeights())
    doubled = [
        ranked("cheap", 1, 3.0, 2.0),
        ranked("fast", 2, 6.0, 10.0),
    ]  # what a compute weight of 2 makes of the totals
    (weighted,) = value_turning_points(doubled, 2e-7, DecisionWeights(compute=2.0))
    assert weighted.at == pytest.approx(2 * point.at)


def test_equal_throughput_never_turns_on_the_value_of_a_token() -> None:
    other = ranked("other", 1, 3.0, 1.5)
    assert value_turning_points([CHEAP, other], 2e-7, EQUAL) == ()


def test_the_winner_loses_when_its_kind_gets_dearer_by_the_gap() -> None:
    rise, *falls = price_turning_points([CHEAP, FAST, TINY], PRICES, 1.0, EQUAL)
    assert rise.winner == FAST.arm
    assert rise.at == pytest.approx(2.0)
    # The gap of 1 USD over 2 GPUs is 0.50 a GPU; tiny would have to be given away.
    assert [p.winner for p in falls] == [FAST.arm]
    assert falls[0].at == pytest.approx(2.0)


def test_longer_hours_need_a_smaller_change_of_price() -> None:
    rise, fall = price_turning_points([CHEAP, FAST], PRICES, 10.0, EQUAL)
    assert rise.at == pytest.approx(1.1)
    assert fall.at == pytest.approx(2.45)


@pytest.mark.parametrize("arms", [[], [CHEAP]])
def test_fewer_than_two_arms_have_no_turning_point(arms: list[RankedArm]) -> None:
    assert value_turning_points(arms, 2e-7, EQUAL) == ()
    assert price_turning_points(arms, PRICES, 1.0, EQUAL) == ()


@given(
    st.lists(
        st.tuples(st.floats(0.1, 100), st.floats(0.1, 100), st.sampled_from([1, 2, 4, 8])),
        min_size=2, max_size=6,
    )
)  # fmt: skip
def test_at_the_turning_value_winner_and_loser_are_worth_the_same(
    numbers: list[tuple[float, float, int]],
) -> None:
    arms = [ranked(f"k{i}", n, value, cost) for i, (value, cost, n) in enumerate(numbers)]
    arms.sort(key=lambda a: -a.utility.total_usd)
    now = 2e-7

    def worth(arm: RankedArm, value: float) -> float:
        return arm.utility.serving_value_usd * value / now - arm.utility.compute_usd

    for point in value_turning_points(arms, now, EQUAL):
        winner = next(a for a in arms if a.arm == point.winner)
        best = max(worth(a, point.at) for a in arms)
        assert worth(winner, point.at) == pytest.approx(best, rel=1e-6, abs=1e-6)
        assert worth(arms[0], point.at) == pytest.approx(best, rel=1e-6, abs=1e-6)
