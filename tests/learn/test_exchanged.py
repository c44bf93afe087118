"""Kinds taken for one another: the rate of false alarms by simulation, and what is noticed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from learn_builders import CATALOG, base

from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.costmodel.fit import TrainingSet
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.rows import InferenceRun
from omnipilot.domain.targets import TARGET_NAMES
from omnipilot.learn.cycle import Incumbent, turn
from omnipilot.learn.drift import EXCHANGED, FALSE_ALARM_RATE, Claim, watch
from omnipilot.learn.exchanged import Expected, exchanged, least_log_ratio, relabeller
from omnipilot.learn.local_fit import DECISION_HEAD, Recipe, answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.domain.scenario import Scenario
    from omnipilot.learn.exchanged import Relabel

A, B = "h100-80", "l40s-48"
SWAP = {A: B, B: A}
MODELS = ("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct")
BUILDER = ScenarioBuilder(CATALOG)


def scenarios(
    kinds: Sequence[str] = (A, B),
    models: Sequence[str] = MODELS,
    gpus: Sequence[int] = (1, 2),
    formats: Sequence[str] = ("bf16", "fp8"),
) -> list[Scenario]:
    """Five loads of two lengths on every arm."""
    return [
        BUILDER.scenario(
            InferenceRun(
                source="", model=model, engine="vllm", gpu=kind, n_gpus=n, precision=precision,
                mode="online", status="ok", labels={}, prompt_tokens=prompt, output_tokens=1024.0,
                concurrency=load, stack=StackFingerprint(engine_version="0.11.2"),
            )
        )
        for model in models
        for kind in kinds
        for precision in formats
        for n in gpus
        for load in (4.0, 8.0, 16.0, 32.0, 64.0)
        for prompt in (1024.0, 8192.0)
    ]  # fmt: skip


def drawn(true: Sequence[Scenario], names: Mapping[str, str], seed: int = 0) -> TrainingSet:
    """Throughputs as the base model says that a site's may be, with GPU kinds called otherwise."""
    asked = base().questions(build_frame(true))
    joint = base().joint(asked.frame, asked.prior, DECISION_HEAD)
    root = np.linalg.cholesky(joint.covariance + np.diag(joint.noise_sd**2))
    rate = answer(base(), labelled(true, np.zeros(len(true))))[DECISION_HEAD].log[:, 1]
    rate = rate + root @ np.random.default_rng(seed).standard_normal(len(true))
    return labelled(renamed(true, names), rate)


def renamed(items: Sequence[Scenario], names: Mapping[str, str]) -> list[Scenario]:
    return [replace(s, gpu=CATALOG.gpu(names.get(s.gpu.kind, s.gpu.kind))) for s in items]


def labelled(items: Sequence[Scenario], rate: np.ndarray) -> TrainingSet:
    cells = np.asarray([f"{s.model.base_id} {s.concurrency} {s.prompt_tokens}" for s in items])
    labels = {name: np.full(len(items), np.nan) for name in TARGET_NAMES}
    return TrainingSet(
        build_frame(items), {**labels, "output_tokens_per_s": rate}, cells, np.ones(len(items))
    )


def judged(true: Sequence[Scenario], names: Mapping[str, str], seed: int = 0) -> Claim | None:
    data = drawn(true, names, seed)
    return exchanged(
        base(), data, np.arange(len(true)), relabeller(renamed(true, names).__getitem__)
    )


def lines(rng: np.random.Generator, slope: float, arms: int = 5, rows: int = 4) -> Expected:
    """Rows of some arms along a load, which err by a level of the arm and each by itself."""
    arm = np.repeat(np.arange(arms), rows)
    load = np.tile(np.linspace(0.0, 1.0, rows), arms)
    together = 0.3 * (arm[:, None] == arm) + 0.2 + 0.01 * np.eye(len(arm))
    return Expected(slope * load + 0.1 * rng.standard_normal(len(arm)), together)


def among(rows: np.ndarray, expected: Expected) -> Expected:
    """What is expected of some of the rows."""
    return Expected(expected.centre[rows], expected.covariance[np.ix_(rows, rows)])


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_the_evidence_is_one_at_most_in_expectation_at_any_scale_of_errors(scale: float) -> None:
    rng = np.random.default_rng(7)
    labelled, other = lines(rng, 0.0), lines(rng, 0.15)
    groups = [np.arange(4 * k, 4 * k + 4) for k in range(5)]
    root = scale * np.linalg.cholesky(labelled.covariance)
    found = np.asarray([
        least_log_ratio(labelled.centre + root @ rng.standard_normal(20), labelled, other, groups)
        for _ in range(400)
    ])  # fmt: skip
    assert np.mean(np.exp(found)) <= 1.0
    for alpha in (0.1, 0.01):
        assert np.mean(found >= math.log(1.0 / alpha)) <= alpha


def test_rows_drawn_from_the_exchange_are_evidence_of_it() -> None:
    rng = np.random.default_rng(8)
    labelled, other = lines(rng, 0.0), lines(rng, 1.0)
    groups = [np.arange(4 * k, 4 * k + 4) for k in range(5)]
    root = np.linalg.cholesky(other.covariance)
    found = [
        least_log_ratio(other.centre + root @ rng.standard_normal(20), labelled, other, groups)
        for _ in range(50)
    ]
    assert min(found) > math.log(100.0)


def test_no_single_arm_can_raise_the_alarm() -> None:
    rng = np.random.default_rng(9)
    labelled, other = lines(rng, 0.0), lines(rng, 1.0)
    groups = [np.arange(4 * k, 4 * k + 4) for k in range(5)]
    y = labelled.centre.copy()
    y[groups[2]] = other.centre[groups[2]]
    every = least_log_ratio(y, labelled, other, groups)
    rest = np.concatenate([g for k, g in enumerate(groups) if k != 2])
    parts = among(rest, labelled), among(rest, other)
    # Leaving out in closed form is leaving out.
    assert every <= least_log_ratio(y[rest], parts[0], parts[1], []) + 1e-9
    assert every < 0.0


def test_leaving_out_an_arm_is_the_ratio_of_the_other_rows() -> None:
    rng = np.random.default_rng(10)
    labelled, other = lines(rng, 0.0), lines(rng, 0.5)
    y = other.centre + 0.1 * rng.standard_normal(20)
    left, rest = np.arange(4), np.arange(4, 20)
    parts = among(rest, labelled), among(rest, other)
    whole = least_log_ratio(y, labelled, other, [])
    without = least_log_ratio(y[rest], parts[0], parts[1], [])
    assert least_log_ratio(y, labelled, other, [left]) == pytest.approx(min(whole, without))


def test_kinds_as_they_are_raise_no_alarm_and_exchanged_ones_do() -> None:
    for seed in range(4):
        true = judged(scenarios(), {}, seed)
        assert true is not None
        assert true.wealth < 1.0
    false = judged(scenarios(), SWAP)
    assert false is not None
    assert false.level == f"{A} and {B}"
    assert false.wealth > 1e4


def test_a_claim_is_a_stream_and_takes_its_share_of_the_rate() -> None:
    true = scenarios()
    data = drawn(true, SWAP)
    answers = answer(base(), data)
    claim = exchanged(
        base(), data, np.arange(len(true)), relabeller(renamed(true, SWAP).__getitem__)
    )
    assert claim is not None
    streams = watch(data.frame, answers, claim=claim)
    found = next(s for s in streams if s.kind == EXCHANGED)
    assert found.alarm
    assert (found.rows, found.arms) == (len(true), 16)
    assert found.wealth == claim.wealth
    assert found.limit == watch(data.frame, answers)[0].limit + 1.0 / FALSE_ALARM_RATE
    assert json.dumps(found.wealth, allow_nan=False)
    weak = watch(data.frame, answers, claim=replace(claim, wealth=found.limit - 1.0))
    assert not next(s for s in weak if s.kind == EXCHANGED).alarm


def test_a_turn_of_learning_tells_of_exchanged_kinds_only_where_it_can_exchange_them() -> None:
    true = scenarios()
    data, n = drawn(true, SWAP), len(true)
    start = Incumbent(Recipe(base(), np.zeros(n)), np.zeros(n, dtype=bool), 0, first=True)

    def alarms(relabel: Relabel | None) -> list[str]:
        took = turn(
            data, start, base(), np.ones(n), rng=np.random.default_rng(0), accept=True,
            relabel=relabel,
        )  # fmt: skip
        return [s.kind for s in took.alarms]

    assert EXCHANGED in alarms(relabeller(renamed(true, SWAP).__getitem__))
    assert EXCHANGED not in alarms(None)


def test_one_kind_or_one_arm_of_a_kind_says_nothing() -> None:
    assert judged(scenarios([A]), {}) is None
    one = scenarios([B], MODELS[:1], [1], ["bf16"])
    assert judged([*scenarios([A]), *one], {}) is None


def test_an_exchange_that_no_launch_could_have_run_takes_no_part() -> None:
    # 70 billion parameters in 16 bits are 131 GiB: two parts of 80 GB hold them, two of 48 do not.
    large = scenarios([A], ["meta-llama/Llama-3.1-70B-Instruct"], [2], ["bf16"])
    assert judged([*scenarios(), *large], {}) is None
    three = judged([*scenarios((A, B, "a100-80")), *large], {})
    assert three is not None
    assert three.level != f"{A} and {B}"


def test_rows_beyond_any_measure_leave_a_finite_wealth() -> None:
    true = scenarios(gpus=[1])
    data = drawn(true, SWAP)
    kind = data.frame.category("gpu_kind")
    far = data.labels["output_tokens_per_s"] + np.where(kind == A, 1e4, -1e4)
    found = exchanged(
        base(), labelled(renamed(true, SWAP), far), np.arange(len(true)),
        relabeller(renamed(true, SWAP).__getitem__),
    )  # fmt: skip
    assert found is not None
    assert math.isfinite(found.wealth)


def test_a_relabelled_row_is_the_row_on_the_other_kind() -> None:
    true = scenarios()
    other = next(i for i, s in enumerate(true) if s.gpu.kind == B)
    at = np.asarray([0, other])
    found = relabeller(true.__getitem__)(at, {A: B, B: A})
    assert found is not None
    assert found.category("gpu_kind").tolist() == [B, A]
    same = relabeller(true.__getitem__)(at, {})
    assert same is not None
    assert (same["bandwidth"] == build_frame([true[0], true[other]])["bandwidth"]).all()
