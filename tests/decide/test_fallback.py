"""The rule used where the model abstains."""

from __future__ import annotations

from decide_builders import fit
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.decide import FitOption, demanded_kv_tokens, smallest_fit_with_headroom
from omnipilot.domain import Arm


def option(
    kind: str, n: int, precision: str, kv: int | None, price: float, verdict: str = "fits"
) -> FitOption:
    return FitOption(Arm(kind, n, precision), fit(verdict, kv_cache_tokens=kv), price)


def test_the_demand_is_running_requests_times_context() -> None:
    assert demanded_kv_tokens(200, 4096) == 819_200
    assert demanded_kv_tokens(200, 4096, max_num_seqs=100) == 409_600


def test_fewer_gpus_beat_a_lower_price() -> None:
    options = [option("a100-80", 2, "bf16", 500, 0.5), option("h100-80", 1, "bf16", 500, 3.0)]
    chosen = smallest_fit_with_headroom(options, 100)
    assert chosen == Arm("h100-80", 1, "bf16")


def test_among_equal_sizes_the_cheapest_is_taken() -> None:
    options = [option("h100-80", 1, "bf16", 500, 3.0), option("a100-80", 1, "bf16", 500, 1.5)]
    chosen = smallest_fit_with_headroom(options, 100)
    assert chosen == Arm("a100-80", 1, "bf16")


def test_twenty_percent_head_room_is_asked_for() -> None:
    options = [option("l4", 1, "bf16", 119, 0.5), option("a100-80", 1, "bf16", 120, 1.5)]
    chosen = smallest_fit_with_headroom(options, 100)
    assert chosen == Arm("a100-80", 1, "bf16")


def test_equal_prices_go_to_the_format_closest_to_16_bit() -> None:
    options = [option("h100-80", 1, name, 500, 3.0) for name in ("awq", "fp8", "bf16")]
    chosen = smallest_fit_with_headroom(options, 100)
    assert chosen == Arm("h100-80", 1, "bf16")


def test_without_head_room_anywhere_the_largest_cache_is_taken() -> None:
    options = [option("l4", 1, "bf16", 50, 0.5), option("h100-80", 8, "fp8", 90, 3.0)]
    chosen = smallest_fit_with_headroom(options, 100)
    assert chosen == Arm("h100-80", 8, "fp8")


def test_arms_that_do_not_fit_are_never_chosen() -> None:
    options = [
        option("l4", 1, "bf16", 500, 0.5, "oom"),
        option("t4", 1, "bf16", 500, 0.2, "unknown"),
    ]
    assert smallest_fit_with_headroom(options, 100) is None
    assert smallest_fit_with_headroom([], 100) is None


options_strategy = st.lists(
    st.builds(
        option,
        st.sampled_from(["a100-80", "h100-80", "l4"]),
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from(["bf16", "fp8", "awq", "odd"]),
        st.sampled_from([None, 50, 119, 120, 500]),
        st.sampled_from([0.5, 1.0, 2.0]),
        st.sampled_from(["fits", "oom"]),
    ),
    max_size=8,
    unique_by=lambda o: o.arm,
)


@given(options=options_strategy, data=st.data())
def test_the_order_of_the_options_does_not_matter(
    options: list[FitOption], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(options))
    assert smallest_fit_with_headroom(options, 100) == smallest_fit_with_headroom(shuffled, 100)
