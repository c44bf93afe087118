"""The use case "probe" on the shipped cost model: the paper's scenarios and brute force."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from voi_builders import brute_force_usd

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.launching import prepare_launch
from omnipilot.advisor.probing import ProbeReport, probe, probe_data, probe_order, stop_words
from omnipilot.decide.gate import GateSettings
from omnipilot.decide.probes import load_menu
from omnipilot.decide.voi import Belief, gains_usd, value_usd
from omnipilot.domain import BadInputError, InferenceRun, ServingRequest, StackFingerprint
from omnipilot.domain.cluster import ClusterNode, ClusterState, GpuCount, Partition
from omnipilot.launch.spec import Software
from omnipilot.store import Store, import_items

if TYPE_CHECKING:
    from omnipilot.decide.probes import Expense
    from omnipilot.domain import RankedArm

QWEN_7B, QWEN_32B = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-32B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
CLOSE = ("h100-80", "h200-141")
# The paper's three operating points, on close arms and on far ones.
SCENARIOS = (
    (QWEN_7B, 1000, 4096, "cost-conscious", CLOSE),
    (QWEN_7B, 1000, 4096, "throughput-first", CLOSE),
    (QWEN_7B, 1000, 4096, "slo-constrained", CLOSE),
    (QWEN_32B, 200, 8192, "cost-conscious", ("a100-80", "h100-80")),
    (QWEN_32B, 200, 8192, "slo-constrained", ("a100-80", "h100-80")),
    (LLAMA_70B, 64, 8192, "throughput-first", ("h100-80", "b200-180")),
    (LLAMA_70B, 64, 8192, "cost-conscious", ("a100-80", "mi300x-192")),
    (QWEN_7B, 4, 2048, "cost-conscious", ("t4-16", "b200-180")),
)


def ask(
    model: str = QWEN_7B,
    concurrency: int = 1000,
    context: int = 4096,
    profile: str | None = None,
    gpus: tuple[str, ...] = CLOSE,
    hours: float = 24.0,
    **fields: object,
) -> Question:
    prompt = context * 3 // 4
    request = ServingRequest(
        model, concurrency, context, prompt, context - prompt, hours, engine_version="0.11.0"
    )
    return Question(request, gpus=gpus, profile=profile, **fields)  # type: ignore[arg-type]


def advisor() -> Advisor:
    return Advisor(Path("no-such-site"))


@cache
def answer(i: int) -> ProbeReport:
    model, concurrency, context, profile, gpus = SCENARIOS[i]
    return probe(advisor(), ask(model, concurrency, context, profile, gpus))


@pytest.mark.parametrize("i", range(len(SCENARIOS)))
def test_a_scenario_has_value_exactly_where_brute_force_finds_it(i: int) -> None:
    stakes = answer(i).situation.stakes
    stride = max(stakes.n_probes // 6, 1)
    for p in range(0, stakes.n_probes, stride):
        truth = brute_force_usd(stakes, (p,), 20_000)
        value = value_usd(stakes, (p,), 4096)
        scale = max(float(np.abs(stakes.total_usd[stakes.taken[0]])), 1.0)
        assert value == pytest.approx(truth, rel=0.12, abs=2e-3 * scale)
        if truth > 1e-3 * scale:
            assert value > 0
        if value == 0.0:
            assert truth < 1e-6 * scale


@pytest.mark.parametrize("i", range(len(SCENARIOS)))
def test_the_gate_says_what_it_plans_what_it_leaves_and_why(i: int) -> None:
    report = answer(i)
    data = probe_data(report)
    assert set(data) == {
        "probes", "stop_reason", "decision_before", "decision_after_expected",
    }  # fmt: skip
    for entry in data["probes"]:
        assert set(entry) == {"probe", "arm", "voi_usd", "cost_usd", "net_usd", "node_hours"}
        assert entry["voi_usd"] >= 0
        assert entry["net_usd"] == pytest.approx(entry["voi_usd"] - entry["cost_usd"])
    plan = report.plan
    assert sum(p.node_h for p in plan.probes) <= 0.2
    assert data["stop_reason"].startswith(f"{plan.stop}: ")
    before, after = data["decision_before"], data["decision_after_expected"]
    best: RankedArm = report.advice.recommendation.ranked[0]
    assert before["utility_usd"] == best.utility.total_usd
    assert after["utility_usd"] >= before["utility_usd"]
    if plan.probes:
        assert after["net_utility_usd"] > before["utility_usd"]
    json.dumps(data)


def test_close_arms_of_a_7b_at_concurrency_1000_are_worth_probing() -> None:
    # The paper's gate found zero here.
    report = answer(0)
    assert report.plan.probes
    assert report.plan.probes[0].voi_usd > 1.0
    assert max(report.plan.wins) < 0.95


def test_the_value_grows_with_the_hours_and_short_services_are_not_worth_a_probe() -> None:
    gains = [probe(advisor(), ask(hours=h)).plan.gain_usd for h in (0.01, 1.0, 24.0)]
    assert gains[0] == 0.0
    assert gains[1] < gains[2]


def test_a_probe_s_node_hours_are_those_of_the_cluster_s_own_nodes(tmp_path: Path) -> None:
    def of_two(total: int) -> Expense:
        node = ClusterNode("n1", ("IDLE",), ("gpu",), (GpuCount("h100", total),))
        path = tmp_path / f"{total}.json"
        path.write_bytes(msgspec.json.encode(ClusterState(1e9, (node,), (Partition("gpu"),))))
        report = probe(advisor(), ask(gpus=("h100",), state_file=path, now_s=1e9))
        ranked = report.advice.recommendation.ranked
        return next(
            o.expense
            for o in report.situation.options
            if (ranked[o.arm].arm.tensor_parallel, ranked[o.arm].arm.precision) == (2, "bf16")
        )

    small, large = of_two(4), of_two(8)
    assert small.node_h == pytest.approx(2 * large.node_h)
    assert small.cost_usd == pytest.approx(large.cost_usd)


def test_answers_repeat_bit_for_bit() -> None:
    first, again = (probe_data(probe(advisor(), ask())) for _ in range(2))
    assert first == again


def test_a_budget_that_reaches_nothing_is_the_reason_to_stop() -> None:
    report = probe(advisor(), ask(), GateSettings(budget_node_h=1e-5))
    assert report.plan.probes == ()
    assert stop_words(report).startswith("budget: no further probe fits")


def test_an_abstention_has_a_value_in_the_arms_that_a_probe_brings_into_support(
    tmp_path: Path,
) -> None:
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "acme.toml").write_text(
        '[acme-96]\nvendor = "nvidia"\narchitecture = "hopper"\ncompute_capability = 9.0\n'
        "memory_gib = 94.0\nbandwidth_bytes_per_s = 4.0e12\nbf16_flops = 9.9e14\n"
        'fp8_flops = 1.98e15\ntdp_w = 700\nsource = "made up for this test"\n',
        encoding="utf-8",
    )
    report = probe(Advisor(tmp_path), ask(gpus=("acme-96",)))
    assert report.advice.recommendation.abstention is not None
    data = probe_data(report)
    assert data["decision_before"]["rule"] == "smallest-fit-with-headroom"
    stakes = report.situation.stakes
    assert stakes.takes((), np.arange(stakes.n_probes)).any(axis=1).sum() > 1
    assert report.plan.probes
    # The smoke test measures no rate: it brings nothing into support.
    smoke = [i for i, o in enumerate(report.situation.options) if o.probe.name == "launch-smoke"]
    others = [i for i, o in enumerate(report.situation.options) if o.probe.name == "full-cell"]
    empty = Belief.empty(stakes)
    assert gains_usd(stakes, empty, np.array(others)).max() > 0
    if smoke:
        assert not stakes.takes((), np.array(smoke)).any(axis=1).sum() > 1


def test_rows_of_the_site_count_at_once_and_a_known_arm_is_worth_less_to_probe(
    tmp_path: Path,
) -> None:
    site = Advisor(tmp_path)
    before = probe(site, ask())
    first = before.plan.probes[0]
    option, arm = before.option(first), before.arm(first)
    predicted = before.advice.recommendation.ranked[option.arm].targets["output_tokens_per_s"].q50
    run = InferenceRun(
        source="site", model=QWEN_7B, engine="vllm", gpu=arm.gpu_kind, n_gpus=arm.tensor_parallel,
        precision=arm.precision, concurrency=float(option.load.concurrency),
        prompt_tokens=float(option.load.prompt_tokens),
        output_tokens=float(option.load.output_tokens), status="ok", mode="online",
        max_model_len=4096, labels={"output_tokens_per_s": 0.5 * predicted},
        stack=StackFingerprint(engine_version="0.11.0"),
    )  # fmt: skip
    import_items(Store.open(tmp_path), [run], now_s=1.0)
    after = probe(Advisor(tmp_path), ask())
    assert after.own_rows == 1
    told = {r.arm: r for r in after.advice.recommendation.ranked}[arm]
    assert told.targets["output_tokens_per_s"].q50 < 0.8 * predicted
    same = next(
        i
        for i, o in enumerate(after.situation.options)
        if o.probe is option.probe and after.advice.recommendation.ranked[o.arm].arm == arm
    )
    again = value_usd(after.situation.stakes, (same,))
    assert again < 0.1 * value_usd(before.situation.stakes, (first.probe,))


def test_the_first_probe_becomes_a_launch_of_its_own_load_that_ends_after_it(
    tmp_path: Path,
) -> None:
    report = probe(Advisor(tmp_path), ask(precisions=("bf16", "fp8")))
    planned = report.plan.probes[0]
    order = probe_order(report, planned, Software(), ask_slurm=False)
    prepared = prepare_launch(Advisor(tmp_path), order, "run-1")
    option = report.option(planned)
    bench = prepared.spec.bench
    assert bench is not None
    assert (bench.concurrency, bench.prompt_tokens, bench.output_tokens) == (
        option.load.concurrency, option.load.prompt_tokens, option.load.output_tokens,
    )  # fmt: skip
    assert bench.num_prompts == option.num_prompts
    assert prepared.spec.stop_after_bench
    assert prepared.spec.arm.gpu_kind == report.arm(planned).gpu_kind
    assert prepared.spec.context_tokens == 4096


def test_what_cannot_start_or_tell_is_refused_in_words() -> None:
    with pytest.raises(BadInputError, match="nothing to probe"):
        probe(advisor(), ask(LLAMA_70B, gpus=("t4-16",)))


def test_a_smoke_test_is_rejected_where_launches_never_fail(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("launch_success_prob = 1.0\n", encoding="utf-8")
    report = probe(Advisor(tmp_path), ask())
    assert [r.probe.name for r in report.situation.rejected] == ["launch-smoke"]
    assert "cold_start_s" in report.situation.rejected[0].reason
    names = {o.probe.name for o in report.situation.options}
    assert names == {p.name for p in load_menu()} - {"launch-smoke"}
