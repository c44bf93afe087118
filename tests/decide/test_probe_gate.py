"""Which probes are made, and why no more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from voi_builders import brute_force_usd, shared, stakes

from omnipilot.decide.gate import GateSettings, plan_probes
from omnipilot.decide.voi import value_usd

if TYPE_CHECKING:
    from omnipilot.decide.stakes import Stakes

ONE = GateSettings(depth=1)


def close(probe_cost: float = 0.02, **fields: object) -> Stakes:
    """Three close arms, each with one probe."""
    return stakes(
        [4.0, 4.3, 3.6], [1.0, 1.3, 0.7], shared(3, 0.25, 0.2), noise_sd=0.05,
        probe_cost=probe_cost, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_first_probe_is_the_one_that_brute_force_finds_best() -> None:
    plan = plan_probes(close(), ONE)
    truth = [brute_force_usd(close(), (p,)) for p in range(3)]
    assert plan.probes[0].probe == int(np.argmax(truth))
    assert plan.gain_usd == pytest.approx(max(truth), rel=0.03)


def noisy_pair() -> Stakes:
    """One rival and two poor probes of it: neither alone can turn the decision, both can."""
    asked = stakes([5.0, 4.0], [1.0, 1.0], np.diag([1e-8, 0.02]), probe_cost=0.0)
    (q,) = asked.quantities
    places = np.full((2, 2), 0.02)
    cross = np.array([[0.0, 0.0], [0.02, 0.02]])
    quantity = replace(q, cross=cross, places=places, noise_var=np.full(2, 0.02))
    return replace(asked, quantities=(quantity,))


def test_looking_ahead_finds_what_one_step_does_not() -> None:
    asked = noisy_pair()
    alone, both = value_usd(asked, (0,)), value_usd(asked, (0, 1), 4096)
    assert both > 2.2 * alone  # not concave: the second adds more than the first
    asked = replace(asked, cost_usd=np.full(2, 0.5 * (alone + both / 2)))
    few = GateSettings(depth=1, epsilon_usd=0.0, final_samples=4096)
    plan = plan_probes(asked, few)
    assert plan.probes == ()
    assert plan.stop == "negative_net_value"
    plan = plan_probes(asked, replace(few, depth=2))
    assert [p.probe for p in plan.probes] == [0, 1]
    assert all(p.net_usd > 0 for p in plan.probes)


@pytest.mark.parametrize(
    ("change", "settings_", "stop"),
    [
        ({"probe_cost": 50.0}, GateSettings(), "negative_net_value"),
        ({}, GateSettings(epsilon_usd=50.0), "below_epsilon"),
        ({"node_h": 0.3}, GateSettings(), "budget"),
        ({}, GateSettings(depth=1), "depth_reached"),
        ({}, GateSettings(epsilon_usd=0.0), "menu_exhausted"),
    ],
)
def test_every_stop_has_its_reason(
    change: dict[str, float], settings_: GateSettings, stop: str
) -> None:
    plan = plan_probes(close(**{"probe_cost": 1e-6, **change}), settings_)
    assert plan.stop == stop
    if stop in ("negative_net_value", "below_epsilon"):
        assert plan.probes == ()
        assert plan.rejected is not None
        assert plan.rejected.voi_usd > 0
        assert plan.rejected.net_usd == plan.rejected.voi_usd - plan.rejected.cost_usd


def test_an_empty_menu_is_exhausted() -> None:
    asked = close()
    (q,) = asked.quantities
    bare = replace(
        asked, arm=asked.arm[:0], place=asked.place[:0], cost_usd=asked.cost_usd[:0],
        node_h=asked.node_h[:0],
        quantities=(replace(q, noise_var=q.noise_var[:0]),),
    )  # fmt: skip
    plan = plan_probes(bare)
    assert (plan.probes, plan.stop, plan.rejected) == ((), "menu_exhausted", None)


@given(
    seed=st.integers(0, 1000),
    budget=st.floats(0.01, 0.3),
    cost=st.floats(0.0, 1.0),
    depth=st.integers(1, 3),
)
@example(seed=1, budget=0.3, cost=0.05, depth=3)  # two probes that pay in another order only
@example(seed=13, budget=0.15, cost=0.05, depth=2)  # a second one that does not
@example(seed=461, budget=0.3, cost=0.2, depth=3)  # a first one that does not
@settings(max_examples=40, deadline=None)
def test_a_plan_keeps_to_its_budget_and_every_probe_of_it_pays(
    seed: int, budget: float, cost: float, depth: int
) -> None:
    rng = np.random.default_rng(seed)
    n = 4
    root = rng.normal(size=(n, n))
    asked = stakes(
        rng.uniform(3, 5, n).tolist(), rng.uniform(0, 2, n).tolist(), 0.03 * root @ root.T,
        noise_sd=0.1, probe_cost=cost, node_h=0.06,
    )  # fmt: skip
    plan = plan_probes(asked, GateSettings(depth=depth, budget_node_h=budget))
    assert len(plan.probes) <= depth
    assert sum(p.node_h for p in plan.probes) <= budget + 1e-9
    assert plan.wins.sum() == pytest.approx(1.0)
    if plan.probes:
        assert plan.gain_usd >= 0.05
        assert plan.gain_usd > plan.cost_usd
        assert all(p.net_usd > 0 for p in plan.probes)
        assert plan.probes[0].net_usd == pytest.approx(plan.gain_usd - plan.cost_usd, abs=1e-9)


def test_plans_repeat_bit_for_bit() -> None:
    first, again = plan_probes(close()), plan_probes(close())
    assert first.probes == again.probes
    assert first.wins.tobytes() == again.wins.tobytes()


def test_one_probe_serves_several_decisions_and_their_gains_add_up() -> None:
    one = close()
    (q,) = one.quantities
    twice = replace(
        q, variance=np.tile(q.variance, 2), cross=np.tile(q.cross, (2, 1)),
        worth_usd=np.tile(q.worth_usd, 2),
    )  # fmt: skip
    two = replace(
        one, quantities=(twice,), total_usd=np.tile(one.total_usd, 2),
        decision=np.repeat([0, 1], 3), taken=np.array([one.taken[0], 3 + one.taken[0]]),
        allowed=np.ones(6, dtype=bool),
    )  # fmt: skip
    for probes in ((1,), (0, 1)):
        assert value_usd(two, probes) == pytest.approx(2 * value_usd(one, probes), rel=1e-9)
    assert plan_probes(two).gain_usd == pytest.approx(2 * plan_probes(one).gain_usd, rel=1e-6)
    assert plan_probes(two).wins.sum() == pytest.approx(2.0)
