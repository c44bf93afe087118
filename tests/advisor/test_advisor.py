"""The use cases with a stand-in cost model in round numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from stand_in import StandInModel

from omnipilot.advisor import Advisor, Launch, Question
from omnipilot.domain import (
    TARGET_NAMES,
    AmbiguousNameError,
    BadInputError,
    ServingRequest,
    UnknownNameError,
)

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "Qwen/Qwen2.5-7B-Instruct"
ACME = """
[acme-48]
vendor = "nvidia"
architecture = "ada"
compute_capability = 8.9
memory_gib = 47.4
bandwidth_bytes_per_s = 960e9
bf16_flops = 180e12
fp8_flops = 360e12
tdp_w = 300
source = "made up for this test"
"""


def ask(model_id: str = MODEL, **changes: object) -> Question:
    request = ServingRequest(model_id, 200, 4096, 3072, 1024)
    own = {k: v for k, v in changes.items() if k in ServingRequest.__slots__}
    rest = {k: v for k, v in changes.items() if k not in own}
    return Question(request=replace(request, **own), **rest)  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def advisor(home: Path) -> Advisor:
    return Advisor(home, model=StandInModel())


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_arms_are_ranked_by_utility_and_every_target_is_answered(advisor: Advisor) -> None:
    ranked = advisor.advise(ask()).recommendation.ranked
    totals = [arm.utility.total_usd for arm in ranked]
    assert totals == sorted(totals, reverse=True)
    assert all(tuple(arm.targets) == TARGET_NAMES for arm in ranked)


def test_one_question_is_one_question_to_the_cost_model(home: Path) -> None:
    model = StandInModel()
    advice = Advisor(home, model=model).advise(ask())
    assert model.asked == [len(advice.recommendation.ranked)]


def test_every_arm_is_either_ranked_or_refused_with_a_reason(advisor: Advisor) -> None:
    recommendation = advisor.advise(ask()).recommendation
    ranked = {arm.arm for arm in recommendation.ranked}
    refused = {arm.arm for arm in recommendation.infeasible}
    assert ranked
    assert refused
    assert not ranked & refused
    assert all(arm.reason and arm.reason_code for arm in recommendation.infeasible)
    # 28 attention heads cannot be split by 8.
    assert {arm.tensor_parallel for arm in refused} == {8}


def test_a_gpu_kind_added_by_one_file_has_arms(home: Path, advisor: Advisor) -> None:
    before = {arm.arm.gpu_kind for arm in advisor.advise(ask()).recommendation.ranked}
    written(home / "gpus" / "acme.toml", ACME)
    site = Advisor(home, model=StandInModel())
    after = {arm.arm.gpu_kind for arm in site.advise(ask()).recommendation.ranked}
    assert after - before == {"acme-48"}


def test_a_site_that_lists_its_kinds_gets_arms_of_these_only(home: Path) -> None:
    written(home / "settings.toml", 'gpu_kinds = ["h100-80", "a100-40"]\n')
    ranked = Advisor(home, model=StandInModel()).advise(ask()).recommendation.ranked
    assert {arm.arm.gpu_kind for arm in ranked} == {"h100-80", "a100-40"}


def test_kinds_and_precisions_are_taken_in_any_spelling(advisor: Advisor) -> None:
    question = ask(gpus=("NVIDIA H100 80GB HBM3",), precisions=("bfloat16", "FP8"))
    ranked = advisor.advise(question).recommendation.ranked
    assert {(a.arm.gpu_kind, a.arm.precision) for a in ranked} == {
        ("h100-80", "bf16"), ("h100-80", "fp8"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("question", "error", "words"),
    [
        (ask("no-such/model"), UnknownNameError, "--model-config"),
        (ask(gpus=("abacus",)), UnknownNameError, "abacus"),
        (ask(gpus=("A100",)), AmbiguousNameError, "a100-80"),
        (ask(precisions=("int3",)), UnknownNameError, "int3"),
        (ask(profile="greedy"), UnknownNameError, "cost-conscious"),
        (ask(weights={"hope": 1.0}), UnknownNameError, "hope"),
        (ask(engine="steam"), UnknownNameError, "vllm"),
    ],
)
def test_what_nobody_knows_is_refused_with_what_is_known(
    question: Question, error: type[Exception], words: str, advisor: Advisor
) -> None:
    with pytest.raises(error, match=words):
        advisor.advise(question)


CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16"}"""


def test_a_config_json_stands_in_for_an_unknown_model(tmp_path: Path, advisor: Advisor) -> None:
    config = written(tmp_path / "config.json", CONFIG)
    advice = advisor.advise(ask("our/own", model_config=config))
    assert advice.recommendation.request.model_id == "our/own"
    assert 7.9e9 < advice.model.total_params < 8.1e9


def test_a_doubt_of_a_model_given_by_its_config_names_a_command_that_works(
    tmp_path: Path, home: Path
) -> None:
    folder = tmp_path / "a model"
    folder.mkdir()
    config = written(folder / "config.json", CONFIG)
    advisor = Advisor(home, model=StandInModel(measured=()))

    def probe() -> str:
        abstention = advisor.advise(ask("", model_config=config)).recommendation.abstention
        return abstention.probe if abstention else ""

    assert f"omnipilot launch --model-config '{config}' --concurrency" in probe()
    assert "--model " not in probe()
    assert probe().endswith("--checkpoint must name its weights")
    (folder / "model.safetensors").touch()
    assert probe().endswith("omnipilot fit")


def test_a_config_that_is_a_list_is_bad_input(tmp_path: Path, advisor: Advisor) -> None:
    config = written(tmp_path / "config.json", "[1, 2]")
    with pytest.raises(BadInputError):
        advisor.advise(ask(model_config=config))


def test_unmeasured_arms_only_make_the_advisor_abstain_with_a_fallback(home: Path) -> None:
    advice = Advisor(home, model=StandInModel(measured=())).advise(ask())
    abstention = advice.recommendation.abstention
    assert abstention is not None
    assert abstention.fallback is not None
    assert advice.recommendation.ranked[0].confidence == "low"


@pytest.mark.parametrize(("precision", "lacks"), [("gptq", True), ("bf16", False)])
def test_the_probe_says_which_checkpoint_its_launch_lacks(
    home: Path, precision: str, lacks: bool
) -> None:
    advice = Advisor(home, model=StandInModel(measured=())).advise(ask(precisions=(precision,)))
    abstention = advice.recommendation.abstention
    assert abstention is not None
    assert f":{precision} --bench" in abstention.probe
    assert ("--checkpoint must name a checkpoint" in abstention.probe) is lacks


def test_where_nothing_starts_the_abstention_names_the_nearest_miss(advisor: Advisor) -> None:
    advice = advisor.advise(ask("Qwen/Qwen2.5-72B-Instruct", gpus=("t4-16",)))
    abstention = advice.recommendation.abstention
    assert advice.recommendation.ranked == ()
    assert abstention is not None
    assert abstention.fallback is None
    assert "t4-16" in abstention.reason


def test_the_request_s_own_value_and_weights_override_the_profile(advisor: Advisor) -> None:
    advice = advisor.advise(
        ask(profile="throughput-first", value_per_token_usd=5e-8, weights={"compute": 3.0})
    )
    assert advice.economics.value_per_token_usd == 5e-8
    assert advice.weights.compute == 3.0


def test_a_question_s_own_tariffs_replace_the_site_s(advisor: Advisor) -> None:
    tariffs: dict[str, Any] = {
        "electricity_usd_per_kwh": 1.25, "wait_cost_usd_per_h": 7.5, "slo_penalty_usd_per_h": 3.0,
    }  # fmt: skip
    economics = advisor.advise(ask(**tariffs)).economics
    assert {name: getattr(economics, name) for name in tariffs} == tariffs
    plain = advisor.advise(ask()).economics
    assert plain.electricity_usd_per_kwh == advisor.settings.electricity_usd_per_kwh


def test_a_dearer_gpu_falls_behind(home: Path, advisor: Advisor) -> None:
    first = advisor.advise(ask()).recommendation.ranked[0].arm.gpu_kind
    written(home / "settings.toml", f"[price_usd_per_gpu_h]\n{first} = 9000.0\n")
    dear = Advisor(home, model=StandInModel()).advise(ask()).recommendation.ranked
    assert dear[0].arm.gpu_kind != first


def test_beyond_the_turning_price_the_named_arm_wins(home: Path, advisor: Advisor) -> None:
    points = advisor.advise(ask(gpus=("h100-80", "a100-40"))).turning_points
    point = next(p for p in points if p.quantity == "price_usd_per_gpu_h" and p.at > p.now)
    for price, wins in ((point.at * 0.97, False), (point.at * 1.03, True)):
        written(home / "settings.toml", f"[price_usd_per_gpu_h]\n{point.gpu_kind} = {price}\n")
        site = Advisor(home, model=StandInModel())
        best = site.advise(ask(gpus=("h100-80", "a100-40"))).recommendation.ranked[0].arm
        assert (best == point.winner) == wins


def test_below_the_turning_value_the_named_arm_wins(advisor: Advisor) -> None:
    points = advisor.advise(ask()).turning_points
    point = next(p for p in points if p.quantity == "value_per_token_usd")
    for factor, wins in ((1.02, False), (0.98, True)):
        advice = advisor.advise(ask(value_per_token_usd=point.at * factor))
        assert (advice.recommendation.ranked[0].arm == point.winner) == wins


def test_explain_gives_evidence_and_who_wins_at_other_loads(advisor: Advisor) -> None:
    explanation = advisor.explain(ask(gpus=("h100-80",)))
    assert [cell.source for cell in explanation.evidence] == ["round_numbers"] * 2
    assert [change.label.split()[0] for change in explanation.loads] == ["50", "100", "400", "800"]


@pytest.mark.parametrize(
    ("launch", "verdict"),
    [
        (Launch(MODEL, "h100-80", max_model_len=4096), "fits"),
        (Launch(MODEL, "h100-80", tensor_parallel=3), "unsupported"),
        (Launch("Qwen/Qwen2.5-32B-Instruct", "a100-40"), "oom"),
        (Launch(MODEL, "h100-80", precision="any", max_model_len=4096), "fits"),
        (Launch(MODEL, "v100-16", precision="any", max_model_len=4096), "oom"),
    ],
)
def test_fits_judges_a_launch_in_words(launch: Launch, verdict: str, advisor: Advisor) -> None:
    assert advisor.fits(launch).verdict == verdict


def test_a_site_s_own_node_shape_limits_a_launch(home: Path) -> None:
    launch = Launch("meta-llama/Llama-3.1-8B-Instruct", "h100-80", tensor_parallel=8)
    assert Advisor(home).fits(launch).verdict == "fits"
    written(home / "settings.toml", "[gpus_per_node]\nh100-80 = 4\n")
    assert Advisor(home).fits(launch).verdict == "unsupported"
    assert Advisor(home).fits(replace(launch, gpus_per_node=8)).verdict == "fits"
