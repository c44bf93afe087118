"""``omnipilot probe`` and what ``omnipilot advise`` says of it, from the command line."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
import vllm_stand_in

from omnipilot.cli.app import run

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "Qwen/Qwen2.5-7B-Instruct"
REQUEST = ["--model", MODEL, "--concurrency", "8", "--context", "1024", "--no-live",
           "--gpus", "h100-80,h200-141", "--precisions", "bf16", "--engine-version", "0.11.2",
           "--value-per-token", "1e-6"]  # fmt: skip
A_WEEK = ["--hours", "168"]


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def test_the_answer_has_the_documented_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["probe", *REQUEST, *A_WEEK, "--home", str(tmp_path), "--format", "json"])
    answer = said(capsys)
    assert code == 0
    assert set(answer) == {
        "probes", "stop_reason", "decision_before", "decision_after_expected",
    }  # fmt: skip
    probes = answer["probes"]
    assert isinstance(probes, list)
    assert set(probes[0]) == {"probe", "arm", "voi_usd", "cost_usd", "net_usd", "node_hours"}
    assert set(probes[0]["arm"]) == {"gpu_kind", "tensor_parallel", "precision", "engine"}
    assert probes[0]["net_usd"] > 0


def test_a_table_tells_what_pays_and_why_it_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["probe", *REQUEST, *A_WEEK, "--home", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "Without a probe: " in text
    assert "expected, their cost taken off" in " ".join(text.split())
    assert "Stops here: " in text
    assert run(["probe", *REQUEST, "--hours", "0.001", "--home", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "No probe pays." in text
    assert "below_epsilon" in text


def test_advise_says_whether_a_probe_would_pay_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path)]
    run(["advise", *REQUEST, *A_WEEK, "--probe", *home])
    assert "A probe would pay: " in capsys.readouterr().out
    run(["advise", *REQUEST, "--hours", "0.001", "--probe", *home])
    assert "No probe pays: the best probe, " in capsys.readouterr().out
    run(["advise", *REQUEST, *A_WEEK, "--probe", "--format", "json", *home])
    assert "decision_before" in str(said(capsys)["probe"])
    run(["advise", *REQUEST, *A_WEEK, "--format", "json", *home])
    assert "probe" not in said(capsys)


def test_a_local_probe_updates_the_decision_with_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = vllm_stand_in.install(tmp_path / "venv")
    # At a rate that the GPUs could serve: an impossible one would be screened out.
    code = run(["probe", *REQUEST, *A_WEEK, "--local", "--venv", str(venv), "--env",
                "STAND_IN_REQUEST_S=1.0", "--home", str(tmp_path / "home"), "--format",
                "json"])  # fmt: skip
    answer = said(capsys)
    assert code == 0
    made = answer["run"]
    assert isinstance(made, dict)
    assert made["outcome"] == "benchmarked"
    assert made["rows"] > 0
    updated = answer["updated"]
    assert isinstance(updated, dict)
    # The stand-in serves at a rate of its own: what was told moves the decision's utility.
    assert updated["decision_before"] != answer["decision_before"]


def test_a_probe_is_submitted_with_its_load_and_ends_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text('#!/bin/sh\ncp "$2" "$0.script"\necho 4711\n', encoding="utf-8")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}{os.pathsep}{os.environ['PATH']}")
    code = run(["probe", *REQUEST, *A_WEEK, "--run", "--partition", "p",
                "--home", str(tmp_path / "home"), "--format", "json"])  # fmt: skip
    answer = said(capsys)
    assert code == 0
    made = answer["run"]
    assert isinstance(made, dict)
    assert made["job_id"] == "4711"
    script = sbatch.with_name("sbatch.script").read_text(encoding="utf-8")
    assert "#SBATCH --partition=p\n" in script
    assert "bench serve" in script


def test_nothing_is_submitted_where_nothing_pays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["probe", *REQUEST, "--hours", "0.001", "--run", "--home", str(tmp_path / "home"),
                "--format", "json"])  # fmt: skip
    assert code == 0
    assert "run" not in said(capsys)
    assert not (tmp_path / "home" / "launches").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--depth", "4"], "4 is not in the range"),
        (["--samples", "1"], "1 is not in the range"),
        (["--budget-node-h", "0"], "range"),
        (["--run", "--local"], "--run or --local, not both"),
        (["--gpus", "t4-16", "--context", "500000"], "nothing to probe"),
    ],
)
def test_a_mistake_in_a_probe_is_told_in_one_line(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["probe", *REQUEST, *arguments, "--home", str(tmp_path)]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert reason in out.err.splitlines()[-1]
