"""AIConfigurator as a rival: what it answered is replayed, and it is asked itself where it is."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from decision_builders import cell
from made_rows import AGG, CATALOG, made, right_answers

from omnipilot.domain.arm import Arm
from omnipilot.domain.errors import ToolError, UsageError
from omnipilot.evaluate import decision_report
from omnipilot.evaluate.aiconfigurator import (
    NAME,
    VARIABLE,
    PeerAnswers,
    ask_aiconfigurator,
    find_python,
)
from omnipilot.evaluate.decision_report import document, gather
from omnipilot.evaluate.decisions import OperatingPoint
from omnipilot.evaluate.holdout import Holdout
from omnipilot.evaluate.prices import PRICES_USD_PER_GPU_H

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.evaluate.decision_cells import DecisionCell
    from omnipilot.evaluate.holdout import HeldOut
    from omnipilot.learn.dataset import Dataset

ARMS = (
    Arm("h100-80", 1, "bf16"), Arm("h100-80", 2, "bf16"), Arm("a100-40", 1, "bf16"),
    Arm("a100-40", 2, "bf16"), Arm("h100-80", 1, "fp8"), Arm("a100-40", 1, "fp8"),
)  # fmt: skip
# What 0.12.0 answered for Llama-3.1-8B under vLLM, 1,024 + 256 tokens, 32 requests at once.
CAPTURED: list[dict[str, Any]] = [
    {"request_per_s": 11.485655609094895, "ttft_s": 0.08291299372532626,
     "tpot_s": 0.010600670161465695},
    {"request_per_s": 18.299405832284634, "ttft_s": 0.06902855309303765,
     "tpot_s": 0.006586910209778145},
    {"request_per_s": 5.348373952625047, "ttft_s": 0.1564025174741544,
     "tpot_s": 0.02284989949003672},
    {"request_per_s": 9.071323886389532, "ttft_s": 0.11438068705396051,
     "tpot_s": 0.013385172850424981},
    {"request_per_s": 13.827604945960646, "ttft_s": 0.0824735063263087,
     "tpot_s": 0.008751913024738866},
    {"refused": "MissingSystemFlopsError: missing system flops: quant mode 'fp8' needs"},
]  # fmt: skip


def decision(*arms: Arm, model: str = "meta-llama/Llama-3.1-8B") -> DecisionCell:
    made_up = cell(arms, [10_000.0] * len(arms), model=model, params=8e9)
    return replace(made_up, likeness=np.log([8e9, 8e9, 32.0, 1024.0, 256.0]))


def rows(*, aggregate: bool) -> Any:
    labels = {AGG: np.full(99, 1.0 if aggregate else np.nan)}
    return SimpleNamespace(data=SimpleNamespace(labels=labels))


@pytest.fixture
def replayed(tmp_path: Path) -> str:
    """A program in place of that Python, which keeps the questions and gives the answers."""
    (tmp_path / "said").write_text(json.dumps({"version": "0.12.0", "answers": CAPTURED}))
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat >{tmp_path}/asked\ncat {tmp_path}/said\n")
    program.chmod(0o755)
    return str(program)


def test_every_arm_is_asked_about_in_its_words(replayed: str, tmp_path: Path) -> None:
    ask_aiconfigurator(replayed, [decision(*ARMS)], rows(aggregate=True), CATALOG)
    asked = json.loads((tmp_path / "asked").read_text())
    assert [(q["system"], q["tensor_parallel"], q["gemm"]) for q in asked] == [
        ("h100_sxm", 1, ""), ("h100_sxm", 2, ""), ("a100_sxm", 1, ""), ("a100_sxm", 2, ""),
        ("h100_sxm", 1, "fp8"), ("a100_sxm", 1, "fp8"),
    ]  # fmt: skip
    assert {(q["model"], q["backend"], q["moe"]) for q in asked} == {
        ("meta-llama/Meta-Llama-3.1-8B", "vllm", "")
    }
    assert {(q["concurrency"], q["prompt_tokens"], q["output_tokens"]) for q in asked} == {
        (32, 1024, 256)
    }


@pytest.mark.parametrize(("aggregate", "tokens"), [(True, 1280), (False, 256)])
def test_requests_become_the_tokens_that_the_cell_counts(
    replayed: str, aggregate: bool, tokens: int
) -> None:
    it = decision(*ARMS)
    found = ask_aiconfigurator(replayed, [it], rows(aggregate=aggregate), CATALOG)
    first = found.by_cell[it.name]["h100-80", 1, "bf16"]
    assert first.tokens_per_s == pytest.approx(11.485655609 * tokens)
    assert first.ttft_p50_s == pytest.approx(0.0829, rel=0.01)
    # By its figures a second A100 gives 70 % more tokens: at 5e-8 USD a token it does not pay.
    (judged,) = found.answered([it])
    assert judged.arms == ARMS[:5]
    cheap = OperatingPoint("cheap", 5e-8)
    assert judged.arms[found.pick(judged, cheap)] in {ARMS[2], ARMS[4]}
    dear = OperatingPoint("dear", 1e-5)
    assert judged.arms[found.pick(judged, dear)] == ARMS[1]
    fast = OperatingPoint("fast", 1e-9, ttft_limit_s=0.075, tpot_limit_s=1.0)
    assert judged.arms[found.pick(judged, fast)] == ARMS[1]


def test_refusals_are_counted_and_leave_the_decision(replayed: str) -> None:
    it = decision(*ARMS)
    found = ask_aiconfigurator(replayed, [it], rows(aggregate=True), CATALOG)
    assert found.refused_frac([it]) == pytest.approx(1 / 6)
    assert found.reasons == {"MissingSystemFlopsError": 1}
    assert found.error_frac(found.answered([it])) == pytest.approx(
        np.median([abs(a["request_per_s"] * 1280 / 1e4 - 1) for a in CAPTURED[:5]])
    )
    alone = it.take([4, 5])
    assert found.answered([alone]) == []


@pytest.mark.parametrize(
    ("arm", "model", "why"),
    [
        (Arm("mi300x-192", 1, "bf16"), "meta-llama/Llama-3.1-8B", "no tables of mi300x-192"),
        (Arm("h100-80", 1, "bf16", "tgi"), "meta-llama/Llama-3.1-8B", "no tables of tgi"),
        (Arm("h100-80", 1, "bf16"), "bigscience/bloom-7b1", "model not covered"),
        (Arm("h100-80", 1, "int8"), "meta-llama/Llama-3.1-8B", "format int8 not covered"),
        (Arm("h100-80", 1, "bf16"), "nobody/knows-this", "model unknown"),
    ],
)
def test_what_it_has_no_tables_of_is_refused_unasked(
    arm: Arm, model: str, why: str, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho \'{"version": "0", "answers": []}\'\n')
    program.chmod(0o755)
    it = replace(decision(Arm("h100-80", 1, "bf16"), model=model), arms=(arm,), measured=np.ones(1))
    found = ask_aiconfigurator(str(program), [it], rows(aggregate=True), CATALOG)
    assert found.reasons == {why: 1}
    assert found.refused_frac([it]) == 1.0


def test_a_dense_model_that_it_does_not_bring_is_asked_with_our_config(
    replayed: str, tmp_path: Path
) -> None:
    it = decision(*ARMS, model="mistralai/Mistral-7B-v0.1")
    ask_aiconfigurator(replayed, [it], rows(aggregate=True), CATALOG)
    config = json.loads((tmp_path / "asked").read_text())[0]["config"]
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_key_value_heads"]) == (4096, 8)


@pytest.mark.parametrize("said", ["", "{}", "[" * 5000, '{"version": "0", "answers": []}'])
def test_what_is_no_answer_is_one_line(said: str, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(said)
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/said\n")
    program.chmod(0o755)
    with pytest.raises(ToolError) as told:
        ask_aiconfigurator(str(program), [decision(*ARMS)], rows(aggregate=True), CATALOG)
    assert "\n" not in str(told.value)


THEIR_API = """
class Found:
    ttft, tpot = 80.0, 10.0
def cli_estimate(model, system, **given):
    print("chatter")
    if given["tp_size"] == 8:
        raise RuntimeError("OOM: too large\\nfor this")
    found = Found()
    found.raw = {"request_rate": given["batch_size"] / 4 + (given.get("moe_tp_size") or 0)}
    return found
"""


def test_the_worker_runs_under_a_python_that_has_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys  # noqa: PLC0415 - only here

    files = {
        "aiconfigurator/__init__.py": "", "aiconfigurator/cli/__init__.py": "",
        "aiconfigurator/sdk/__init__.py": "", "aiconfigurator/cli/api.py": THEIR_API,
        "aiconfigurator/sdk/perf_database.py":
            "def get_latest_database_version(system, backend):\n"
            "    return None if system == 'l40s' else '1'\n",
        "aiconfigurator-9.9.dist-info/METADATA": "Name: aiconfigurator\nVersion: 9.9\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    arms = (Arm("h100-80", 1, "bf16"), Arm("h100-80", 8, "bf16"), Arm("l40s-48", 1, "bf16"))
    it = replace(
        decision(*(ARMS[0],) * 3, model="mistralai/Mixtral-8x7B-v0.1"),
        arms=arms, measured=np.ones(3),
    )  # fmt: skip
    found = ask_aiconfigurator(sys.executable, [it], rows(aggregate=False), CATALOG)
    assert found.version == "9.9"
    assert found.by_cell[it.name]["h100-80", 1, "bf16"].tokens_per_s == 256 * (32 / 4 + 1)
    assert found.reasons == {
        "does not fit by its arithmetic": 1, "no tables of l40s for vllm": 1,
    }  # fmt: skip


def test_it_is_asked_only_where_it_is_named_or_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_python(sys.executable) == sys.executable
    with pytest.raises(UsageError, match="/a/python"):
        find_python("/a/python")
    assert bool(find_python()) == (importlib.util.find_spec(NAME) is not None)
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert find_python() == sys.executable


def test_the_document_shows_it_beside_everybody_on_the_same_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(dataset: Dataset, question: Holdout, home: object, say: object) -> HeldOut:
        del home, say
        return right_answers(dataset, question, lambda _: None)

    def ask(_: str, cells: tuple[DecisionCell, ...], *__: object) -> PeerAnswers:
        # It takes the worse arm of every cell but the first, of which it knows one arm only.
        from omnipilot.evaluate.aiconfigurator import _Answer  # noqa: PLC0415 - made up here

        known = {c.name: {("h100-80", 1, "bf16"): _Answer(1.0, 1.0, 1.0)} for c in cells}
        for c in cells[1:]:
            worse = int(np.argmin(c.measured))
            known[c.name] = c.by_arm(np.where(np.arange(2) == worse, 1e9, 1.0))  # type: ignore[assignment]
            known[c.name] = {k: _Answer(v, 1.0, 1.0) for k, v in known[c.name].items()}  # type: ignore[arg-type]
        return PeerAnswers("0", known)

    monkeypatch.setattr(decision_report, "held_out", answer)
    monkeypatch.setattr(decision_report, "ask_aiconfigurator", ask)
    question = Holdout(AGG, "cell", ("alpha",))
    evidence = gather(
        made(), question, PRICES_USD_PER_GPU_H, None, trees=False, peer=("python", CATALOG)
    )
    found = document(evidence, question, 1e-6)["peers"][NAME]
    assert found["cells"] == 9
    assert found["cells_refused_frac"] == pytest.approx(0.1)
    assert found["arms_refused_frac"] == pytest.approx(1 / 20)
    assert found["top1"] < found["same_decisions"]["omnipilot"]["top1"] == 1.0
    assert found["same_decisions"]["cheapest-fit"]["cells"] == 9
    without = gather(made(), question, PRICES_USD_PER_GPU_H, None, trees=False)
    assert document(without, question, 1e-6)["peers"] == {}


def test_the_installed_package_answers_an_arm() -> None:
    python = find_python()
    if not python:
        pytest.skip(f"AIConfigurator is not installed; {VARIABLE} names a Python that has it")
    it = decision(*ARMS[:2])
    found = ask_aiconfigurator(python, [it], rows(aggregate=True), CATALOG)
    one, two = (found.by_cell[it.name][arm.gpu_kind, n, "bf16"].tokens_per_s
                for n, arm in enumerate(ARMS[:2], start=1))  # fmt: skip
    assert 0 < one < two
