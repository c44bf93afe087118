"""Local rows, their weights, what conditioning on them gives, and one whole turn of learning."""

from __future__ import annotations

from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learn_builders import CATALOG, FASTER, base, local, runs, stored

from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.rows import LabelledRun
from omnipilot.learn.cycle import Incumbent, hold_back, turn
from omnipilot.learn.gate import figures
from omnipilot.learn.local_fit import Recipe, answer, cell_folds
from omnipilot.learn.local_rows import local_set, stored_runs
from omnipilot.learn.recalibrate import Scale, adapted, left_out_scale, rescaled, widened
from omnipilot.learn.retirement import version_key, weigh
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.costmodel.fit import TrainingSet
    from omnipilot.learn.cycle import Turn

YEAR_S = 365 * 86_400.0


def fresh(data: TrainingSet) -> Incumbent:
    n = data.frame.n
    return Incumbent(Recipe(base(), np.zeros(n)), np.zeros(n, dtype=bool), 0, first=True)


def turned(data: TrainingSet, incumbent: Incumbent | None = None, **rest: object) -> Turn:
    return turn(
        data, incumbent or fresh(data), base(), np.ones(data.frame.n),
        rng=np.random.default_rng(0), **rest,  # type: ignore[arg-type]
    )  # fmt: skip


# Rows


def test_own_rows_answer_the_site_s_own_questions_and_keep_their_source_in_the_count() -> None:
    found = local(runs())
    assert set(found.data.frame.levels["source"]) == {""}
    assert found.sources == {"ours": 48}
    assert found.n == 48


def test_rows_that_the_base_model_has_learned_are_left_out_and_counted() -> None:
    own = runs()
    public = [replace(r, source="llm_pilot") for r in own[:10]]
    found = local([*own, *public], learned=frozenset({"llm_pilot"}))
    assert (found.n, found.learned) == (48, 10)
    assert local(public, learned=frozenset({"llm_pilot"})).dataset is None


def test_withheld_rows_take_no_part() -> None:
    rows = stored(runs())
    out = frozenset(r.row_hash for r in rows[:5])
    found = local_set(rows, CATALOG, learned=frozenset(), policy={}, window_s=YEAR_S, withheld=out)
    assert (found.n, found.withheld) == (43, 5)
    assert not out & set(found.hashes.tolist())


def test_the_digest_of_rows_does_not_depend_on_their_order() -> None:
    one, other = local(runs()), local(list(reversed(runs())))
    assert one.digest == other.digest
    assert one.digest != local(runs()[1:]).digest


def test_a_joined_run_counts_once_with_its_joined_labels(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = runs()[0]
    store.append([run], now_s=1e9)
    (bare,) = stored_runs(store)
    shared = {n: getattr(run, n) for n in (
        "source", "model", "engine", "gpu", "n_gpus", "precision", "mode", "status",
        "prompt_tokens", "output_tokens", "concurrency", "gpu_memory_gb", "stack",
    )}  # fmt: skip
    labels = {**run.labels, "power_mean_w": 400.0}
    store.append(
        [LabelledRun(**shared, labels=labels, label_sources={}, label_weights={},
                     run_hash=bare.row_hash)],
        now_s=2e9,
    )  # fmt: skip
    (joined,) = stored_runs(store)
    assert joined.run.labels["power_mean_w"] == 400.0
    assert (joined.row_hash, joined.at_s) == (bare.row_hash, 1e9)


# Retirement


def test_older_software_weighs_what_the_policy_says() -> None:
    rows = runs()[:4]
    versions = ("0.11.2", "0.11.0", "0.10.1", "")
    rows = [
        replace(r, stack=StackFingerprint(engine_version=v))
        for r, v in zip(rows, versions, strict=True)
    ]
    found = weigh(rows, ["h100-80"] * 4, np.zeros(4), {"engine_minor": 0.25}, YEAR_S)
    assert found.weight.tolist() == [1.0, 1.0, 0.25, 1.0]
    gone = weigh(rows, ["h100-80"] * 4, np.zeros(4), {"engine_minor": 0.0}, YEAR_S)
    assert gone.retired == 1
    assert {g.engine_version: g.weight for g in gone.groups}["0.10.1"] == 0.0


def test_cuda_and_driver_are_compared_within_a_gpu_kind() -> None:
    stacks = (("12.8", "570.1"), ("12.4", "550.5"), ("12.4", "550.5"))
    rows = [
        replace(r, stack=StackFingerprint(cuda=c, driver=d))
        for r, (c, d) in zip(runs()[:3], stacks, strict=True)
    ]
    kinds = ["h100-80", "h100-80", "a100-80"]
    found = weigh(rows, kinds, np.zeros(3), {"cuda": 0.5, "driver": 0.5}, YEAR_S)
    assert found.weight.tolist() == [1.0, 0.25, 1.0]


def test_a_row_counts_half_after_a_window_and_ages_from_the_newest() -> None:
    rows = runs()[:3]
    at_s = np.array([0.0, YEAR_S, 2 * YEAR_S]) + 1e9
    assert weigh(rows, ["k"] * 3, at_s, {}, YEAR_S).weight.tolist() == [0.25, 0.5, 1.0]
    assert weigh(rows, ["k"] * 3, at_s + 1e8, {}, YEAR_S).weight.tolist() == [0.25, 0.5, 1.0]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_versions_are_ordered_by_their_numbers(parts: list[int]) -> None:
    text = ".".join(map(str, parts))
    assert version_key(text) == tuple(parts)
    assert version_key(f"v{text}+cu128") == tuple(parts)


# Interval factors


def test_factors_grow_with_misses_and_shrink_with_hits() -> None:
    far, near = np.zeros(100), np.ones(100)
    none, every = np.zeros(100, dtype=bool), np.ones(100, dtype=bool)
    assert adapted(Scale(), none, near).near > 1.0 > adapted(Scale(), every, near).near
    assert adapted(Scale(), none, near).far == 1.0
    assert adapted(Scale(), none, far).near == 1.0
    exact = np.arange(100) < 80
    assert adapted(Scale(), exact, near) == Scale()


@given(st.lists(st.booleans(), max_size=200), st.floats(0.5, 4.0))
def test_factors_stay_within_their_bounds(inside: list[bool], factor: float) -> None:
    hit = np.asarray(inside, dtype=bool)
    found = adapted(Scale(factor, factor), hit, np.ones(len(hit)))
    assert 0.5 <= found.near <= 4.0
    assert found.far == factor


def test_left_out_rows_size_the_intervals_to_four_of_five() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal(2000)
    log = np.array([-0.3, 0.0, 0.3, -0.4, 0.4]) * np.ones((2000, 1))
    near = np.ones(2000)
    scale = left_out_scale(y, log, near)
    wide = widened(log, near, scale)
    inside = (y >= wide[:, 3]) & (y <= wide[:, 4])
    assert inside.mean() == pytest.approx(0.8, abs=0.01)
    assert np.array_equal(wide[:, 1], log[:, 1])
    # Too wide ones are narrowed to nine of ten.
    narrow = widened(10 * log, near, left_out_scale(y, 10 * log, near))
    assert ((y >= narrow[:, 3]) & (y <= narrow[:, 4])).mean() == pytest.approx(0.9, abs=0.01)


def test_a_rescaled_model_keeps_its_centres_and_multiplies_its_widths() -> None:
    data = local(runs()).data
    model = Recipe(base(), np.ones(data.frame.n)).model(data)
    wide = rescaled(model, {"throughput": Scale(2.0, 2.0)})
    a, b = answer(model, data)["throughput"], answer(wide, data)["throughput"]
    assert b.log[:, 1] == pytest.approx(a.log[:, 1])
    assert b.log[:, 4] - b.log[:, 1] == pytest.approx(2.0 * (a.log[:, 4] - a.log[:, 1]))
    assert answer(wide, data)["tpot"].log == pytest.approx(answer(model, data)["tpot"].log)


# Conditioning


def test_local_rows_move_the_answer_to_what_the_site_measures() -> None:
    data = local(runs()).data
    before = answer(base(), data)["throughput"]
    after = answer(Recipe(base(), np.ones(data.frame.n)).model(data), data)["throughput"]
    assert np.exp(np.median(before.y - before.log[:, 1])) == pytest.approx(FASTER, rel=0.02)
    assert figures(after).mape < 0.05 < figures(before).mape
    assert figures(after).log_width < figures(before).log_width


def test_cross_validation_predicts_no_row_by_its_own_cell() -> None:
    data = local(runs()).data
    fold = cell_folds(data.cells)
    for cell in np.unique(data.cells):
        assert len(np.unique(fold[data.cells == cell])) == 1
    recipe = Recipe(base(), np.ones(data.frame.n))
    plain, _ = recipe.cross_validate(data, fold)
    # Whatever the rows of one fold say, their own predictions stay.
    test = fold == 0
    moved = {k: np.where(test, v + 3.0, v) for k, v in data.labels.items()}
    other, _ = recipe.cross_validate(replace(data, labels=moved), fold)
    centre = [a["throughput"].log[test, 1] for a in (plain, other)]
    assert centre[0] == pytest.approx(centre[1])
    assert not np.allclose(plain["throughput"].log[~test, 1], other["throughput"].log[~test, 1])


def test_a_recipe_without_rows_is_the_base_model() -> None:
    data = local(runs()).data
    recipe = Recipe(base(), np.zeros(data.frame.n))
    assert recipe.is_base
    assert recipe.model(data).local == {}


# Turns


def test_a_turn_on_honest_rows_holds_nothing_back_and_is_promoted() -> None:
    data = local(runs()).data
    took = turned(data)
    assert took.verdict.promoted
    assert not took.held.any()
    assert figures(took.candidate["throughput"]).mape < 0.06


def falsified(data: TrainingSet, factor: float, rows: np.ndarray) -> TrainingSet:
    labels = dict(data.labels)
    name = "output_tokens_per_s"
    labels[name] = np.where(rows, labels[name] + np.log(factor), labels[name])
    return replace(data, labels=labels)


def many(n: int = 4) -> TrainingSet:
    """Rows on enough arms for the screen: the made-up runs on several GPU counts."""
    wide = [replace(r, n_gpus=2**i) for r in runs(factor=1.0) for i in range(n)]
    data = local(wide).data
    predicted = answer(base(), data)["throughput"].log[:, 1]
    labels = dict(data.labels)
    labels["output_tokens_per_s"] = predicted.copy()
    labels["tpot_p50_s"] = np.full(data.frame.n, np.nan)
    return replace(data, labels=labels)


def test_rows_told_four_times_too_slow_are_held_back() -> None:
    data = many()
    every = np.ones(data.frame.n, dtype=bool)
    held, why = hold_back(base(), falsified(data, 1 / 8, every), every)
    assert held.all()
    assert why
    assert not hold_back(base(), data, every)[0].any()


def test_only_the_kind_that_is_wrong_is_held_back() -> None:
    data = many()
    wrong = data.frame.category("gpu_kind") == "a100-80"
    every = np.ones(data.frame.n, dtype=bool)
    held, why = hold_back(base(), falsified(data, 1 / 12, wrong), every)
    assert held.tolist() == wrong.tolist()
    assert [s.level for s in why] == ["a100-80"]


def with_latencies(data: TrainingSet, factor: float, rows: np.ndarray) -> TrainingSet:
    """As predicted, the latencies of ``rows`` times ``factor``."""
    labels = dict(data.labels)
    for head, name in (("ttft", "ttft_p50_s"), ("tpot", "tpot_p50_s")):
        labels[name] = answer(base(), data)[head].log[:, 1] + np.where(rows, np.log(factor), 0.0)
    return replace(data, labels=labels)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_latencies_in_wrong_units_are_held_back_though_the_throughput_is_right(
    factor: float,
) -> None:
    data = many()
    every = np.ones(data.frame.n, dtype=bool)
    wrong = data.frame.category("gpu_kind") == "a100-80"
    held, why = hold_back(base(), with_latencies(data, factor, wrong), every)
    assert held.tolist() == wrong.tolist()
    assert {s.head for s in why} <= {"ttft", "tpot"}
    assert {s.level for s in why} == {"a100-80"}


@pytest.mark.parametrize("factor", [1 / 8, 8.0])
def test_latencies_that_differ_as_sites_do_are_learned(factor: float) -> None:
    data = many()
    every = np.ones(data.frame.n, dtype=bool)
    assert not hold_back(base(), with_latencies(data, factor, every), every)[0].any()


def test_throughput_is_screened_alike_whatever_else_the_rows_tell() -> None:
    data = many()
    every = np.ones(data.frame.n, dtype=bool)
    wrong = data.frame.category("gpu_kind") == "a100-80"
    bad = falsified(data, 1 / 12, wrong)
    held, why = hold_back(base(), bad, every)
    also, reasons = hold_back(base(), with_latencies(bad, 1.0, every), every)
    assert (also.tolist(), reasons) == (held.tolist(), why)


def test_a_candidate_whose_latencies_contradict_the_known_rows_is_rejected() -> None:
    data = local(runs()).data
    n = data.frame.n
    old = np.arange(n) % 2 == 0
    start = Incumbent(Recipe(base(), old.astype(float)), old, n // 2, first=False)
    assert turned(data, start).verdict.promoted
    took = turned(with_latencies(data, 1e-3, ~old), start, accept=True)
    assert not took.verdict.promoted
    failed = {c.name for c in took.verdict.criteria if not c.passed}
    assert failed >= {"known rows of ttft", "known rows of tpot"}
    assert not failed & {"mape", "rows", "mape of known rows", "coverage"}


def test_rows_held_back_are_not_learned_unless_accepted() -> None:
    data = many()
    wrong = data.frame.category("gpu_kind") == "a100-80"
    bad = falsified(data, 1 / 12, wrong)
    took = turned(bad)
    assert took.recipe.weight[wrong].max() == 0.0
    assert not took.judged[wrong].any()
    assert turned(bad, accept=True).recipe.weight.tolist() == [1.0] * data.frame.n


def test_a_second_turn_without_new_rows_changes_nothing() -> None:
    data = local(runs()).data
    first = turned(data)
    n = data.frame.n
    again = turned(
        data, Incumbent(first.recipe, np.ones(n, dtype=bool), n, first=False), base_rows=0
    )
    assert again.drift == ()
    assert again.recipe.scales == first.recipe.scales
    assert again.recipe.widths == first.recipe.widths
    assert np.array_equal(again.recipe.weight, first.recipe.weight)


def test_widths_alone_adapt_without_a_row_learned() -> None:
    data = local(runs()).data
    n = data.frame.n
    old = np.arange(n) < n // 2
    start = Incumbent(Recipe(base(), old.astype(float)), old, n // 2, first=False)
    took = turned(falsified(data, 1.6, ~old), start, widths_only=True, accept=True)
    assert np.array_equal(took.recipe.weight, old.astype(float))
    assert took.recipe.scales["throughput"] != Scale()
    before, after = (answer(r.model(data), data)["throughput"] for r in (start.recipe, took.recipe))
    assert after.log[:, 1] == pytest.approx(before.log[:, 1])


def test_the_same_rows_give_the_same_candidate_bit_for_bit() -> None:
    data = local(runs()).data
    one, other = (answer(r.recipe.model(data), data) for r in starmap(turned, [(data,), (data,)]))
    for head in one:
        assert np.array_equal(one[head].log, other[head].log)
