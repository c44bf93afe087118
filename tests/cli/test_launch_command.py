"""``omnipilot launch`` and ``omnipilot bench`` from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import vllm_stand_in

from omnipilot.cli.app import run
from omnipilot.cli.launch_options import Minutes
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "Qwen/Qwen2.5-7B-Instruct"
REQUEST = ["--model", MODEL, "--concurrency", "8", "--context", "4096", "--no-live"]


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program of a scheduler on PATH, bash and its tools only."""
    monkeypatch.setenv("OMNIPILOT_LIVE", "0")
    monkeypatch.setenv("SLURM_CONF", "/nonexistent/slurm.conf")


def test_a_dry_run_prints_the_script_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    code = run(["launch", *REQUEST, "--arm", "h100:2:fp8", "--gres", "gpu:h100:2",
                "--partition", "p", "--time", "1:30:00", "--home", str(home)])  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("#!/bin/bash\n")
    assert "#SBATCH --gres=gpu:h100:2\n" in out
    assert "#SBATCH --time=90\n" in out
    assert "  --tensor-parallel-size 2\n" in out
    assert "  --quantization fp8\n" in out
    assert not home.exists()


def test_without_an_arm_the_best_that_needs_no_checkpoint_is_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--gpus", "h100-80", "--precisions", "awq,bf16", "--gres", "gpu:1",
                 "--home", str(tmp_path), "--format", "json"]  # fmt: skip
    assert run(["launch", *REQUEST, *arguments]) == 0
    chosen = json.loads(capsys.readouterr().out)["arm"]["precision"]
    assert chosen == "bf16"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--arm", "h100-80:2"], "GPU:TP:PRECISION"),
        (["--arm", "h100-80:8:bf16"], "does not start"),
        (["--arm", "h100-80:3:bf16"], "say one of 1, 2, 4, 8"),
        (["--arm", "h100-80:1:awq"], "--checkpoint"),
        (["--arm", "h1000:1:bf16"], "h1000"),
        (["--arm", "h100-80:1:bf16", "--partition", "a b"], "partition"),
        (["--arm", "h100-80:1:bf16", "--image", "x", "--venv", "y"], "not both"),
        (["--arm", "h100-80:1:bf16", "--env", "NOVALUE"], "NAME=VALUE"),
        (["--arm", "h100-80:1:bf16", "--time", "soon"], "no time"),
        (["--stop-after-bench"], "--bench"),
        (["--arm", "h100-80:2:bf16", "--engine-arg=--tensor-parallel-size=4"], "--arm GPU:TP:"),
        (["--dry-run", "--submit"], "--dry-run or --submit, not both"),
        (["--submit", "--dry-run"], "--submit or --dry-run, not both"),
        (["--local", "--submit"], "--local or --submit, not both"),
        (["--engine", "sglang"], "vllm only"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launch", *REQUEST, "--gres", "gpu:1", *arguments, "--home", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert reason in said.err.splitlines()[-1]


def test_a_local_launch_becomes_rows_that_the_next_advice_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = vllm_stand_in.install(tmp_path / "venv")
    home = ["--home", str(tmp_path / "home")]
    arm = ["--arm", "h100-80:1:bf16"]
    code = run(["launch", *REQUEST, *arm, "--local", "--bench", "--num-prompts", "16",
                "--stop-after-bench", "--venv", str(venv), "--format", "json", *home])  # fmt: skip
    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["outcome"], answer["rows"]) == (0, "benchmarked", 3)
    code = run(["launch", *REQUEST, *arm, "--local", "--venv", str(venv), "--env",
                "STAND_IN_FAIL=device_error", "--format", "json", *home])  # fmt: skip
    assert (code, json.loads(capsys.readouterr().out)["outcome"]) == (1, "failed")
    run(["advise", *REQUEST, "--gpus", "h100-80", "--precisions", "bf16", *home])
    text = capsys.readouterr().out
    assert "Measured on this site" in text
    assert "failed: device_error (1 run)" in text
    assert "How to start" in text
    run(
        ["advise", *REQUEST, "--gpus", "h100-80", "--precisions", "bf16", "--format", "json", *home]
    )
    advice = json.loads(capsys.readouterr().out)
    assert {group["status"] for group in advice["site_runs"]} == {"ok", "error"}
    parameters = advice["ranked"][0]["engine_parameters"]
    assert parameters["max_model_len"] == 4096
    assert parameters["arguments"][:2] == ["--dtype", "bfloat16"]
    # Everything was taken in by the scripts already.
    assert run(["bench", "ingest", *home]) == 0
    assert "No run has ended" in capsys.readouterr().out


CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16"}"""
BY_CONFIG = ["--concurrency", "8", "--context", "4096", "--no-live", "--gpus", "h100-80",
             "--precisions", "bf16"]  # fmt: skip


@pytest.mark.parametrize("option", ["--model-config", "--model"])
@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_model_given_by_its_config_is_loaded_from_its_folder_or_a_checkpoint_is_asked_for(
    option: str,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    asked = ["launch", *BY_CONFIG, option, f"own/{name}", "--gres", "gpu:1",
             "--home", str(tmp_path / "home")]  # fmt: skip
    assert run(asked) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--checkpoint" in said.err.splitlines()[-1]
    (folder / "model.safetensors").touch()
    assert run(asked) == 0
    script = capsys.readouterr().out.splitlines()
    assert "model=own" in script
    assert f"checkpoint={folder}" in script
    assert run([*asked, "--checkpoint", "org/own"]) == 0
    assert "checkpoint=org/own" in capsys.readouterr().out.splitlines()


def test_a_grid_loads_a_model_given_by_its_config_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    asked = ["bench", "plan", "--models", "own", "--gpus", "h100-80", "--precisions", "bf16",
             "--concurrency", "2", "--context", "512", "--no-live", "--out", "grid.json",
             "--home", str(tmp_path / "home")]  # fmt: skip
    assert run(asked) == 2
    assert "--checkpoint own:PRECISION=CHECKPOINT" in capsys.readouterr().err
    (folder / "model.safetensors").touch()
    assert run(asked) == 0
    (planned,) = json.loads((tmp_path / "grid.json").read_text())["runs"]
    assert planned["spec"]["checkpoint"] == str(folder)


@pytest.mark.parametrize(
    ("gres", "told"),
    [("gpu:h100:2", "a100-40 bf16 is launched"), ("gpu:1", "2x h100-80 bf16 is launched")],
)
def test_a_grid_of_arms_that_the_gpus_asked_for_cannot_be_is_refused(
    gres: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "grid.json"
    asked = ["bench", "plan", "--models", MODEL, "--gpus", "h100-80,a100-40", "--tp", "1,2",
             "--precisions", "bf16", "--concurrency", "2", "--context", "512", "--no-live",
             "--gres", gres, "--out", str(plan), "--home", str(tmp_path / "home")]  # fmt: skip
    assert run(asked) == 2
    assert told in capsys.readouterr().err
    assert not plan.exists()
    assert run([*asked, "--gpus", "h100-80", "--tp", gres[-1]]) == 0


@pytest.mark.parametrize("version", ["latest", "nightly", "1.0.0"])
def test_a_grid_of_the_newest_release_is_predicted_as_one_without_a_version(
    version: str, tmp_path: Path
) -> None:
    plan = tmp_path / "grid.json"
    asked = ["bench", "plan", "--models", MODEL, "--gpus", "h100-80", "--precisions", "bf16",
             "--concurrency", "2", "--context", "512", "--no-live", "--out", str(plan),
             "--replace", "--home", str(tmp_path / "home")]  # fmt: skip
    hours = []
    for stated in ([], ["--engine-version", version]):
        assert run([*asked, *stated]) == 0
        hours += [planned["node_h"] for planned in json.loads(plan.read_text())["runs"]]
    assert hours[0] == hours[1]


@pytest.mark.parametrize("where", [[], ["--module", "nonexistent-module"]])
def test_a_local_launch_without_the_engine_says_so_and_nothing_of_the_arm(
    where: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    home = ["--home", str(tmp_path / "home")]
    code = run(["launch", *REQUEST, "--arm", "h100-80:1:bf16", "--local", *where, *home])
    said = capfd.readouterr()
    missing = (
        "module nonexistent-module cannot be loaded" if where else "vllm was not found on PATH"
    )
    assert code == 1
    assert missing in said.err
    assert "not started" in said.out
    assert "0 rows" in said.out
    assert list(Store(tmp_path / "home").rows()) == []


def test_a_grid_is_planned_run_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    venv = vllm_stand_in.install(tmp_path / "venv")
    home, plan = ["--home", str(tmp_path / "home")], str(tmp_path / "grid.json")
    arguments = ["bench", "plan", "--models", MODEL, "--gpus", "h100-80", "--precisions", "bf16",
                 "--concurrency", "2,4", "--context", "512", "--venv", str(venv), "--out", plan,
                 *home]  # fmt: skip
    assert run(arguments) == 0
    assert "2 runs of" in capsys.readouterr().out
    assert run(arguments) == 2
    assert "--replace" in capsys.readouterr().err
    assert run(["bench", "run", plan, "--local", "--poll", "0.1", *home]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("2 of 2 ended (2 measured, 0 failed)")
    assert "1 of 2 ended" in told.err
    assert run(["bench", "status", plan, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == 2
    assert run(["bench", "ingest", str(tmp_path / "grid.runs"), "--format", "csv", *home]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "run,outcome,accepted,duplicate,rejected"
    assert [row.split(",")[1:] for row in rows[1:]] == [["benchmarked", "0", "3", "0"]] * 2
    # What is measured is not planned again.
    assert run([*arguments, "--replace", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == {"known": 2}


@pytest.mark.parametrize(
    "option", [["--engine-version", "abc"], ["--axis", "engine_version=0.11.2,abc"],
               ["--concurrency", "0"], ["--concurrency", "x"], ["--axis", "kv_dtype"],
               ["--checkpoint", "a=b"], ["--axis", "enforce_eager=true"]],
)  # fmt: skip
def test_a_grid_s_mistake_is_told_in_one_line(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["bench", "plan", "--models", MODEL, "--gpus", "h100-80", "--precisions", "bf16",
                "--concurrency", "2", "--context", "512", "--out", str(tmp_path / "g.json"),
                "--home", str(tmp_path), *option])  # fmt: skip
    assert code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "g.json").exists()


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("1:30:00", 90), ("0:30", 1), ("90:00", 90), ("1-00", 1440), ("1-02:03:04", 1564)],
)
def test_times_are_read_as_slurm_reads_them(text: str, minutes: int) -> None:
    assert Minutes().convert(text, None, None) == minutes
