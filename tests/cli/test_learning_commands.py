"""``omnipilot fit``, ``models`` and ``explain --replay`` from the outside."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from omnipilot.cli import app
from omnipilot.domain.rows import InferenceRun
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

ADVISE = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--concurrency", "64", "--context", "4096",
          "--gpus", "h100-80,l40s-48", "--no-live")  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A site with 24 runs of one model on two kinds."""
    runs = [
        InferenceRun(
            source="ours", model="Qwen/Qwen2.5-7B-Instruct", engine="vllm", gpu=gpu, n_gpus=1,
            gpu_memory_gb=memory, precision="bf16", mode="online", status="ok",
            labels={"output_tokens_per_s": 60.0 * speed * load**0.9}, prompt_tokens=prompt,
            output_tokens=256.0, concurrency=load,
        )
        for gpu, memory, speed in (("h100-80", 80.0, 2.0), ("l40s-48", 48.0, 0.6))
        for prompt in (512.0, 1024.0)
        for load in (1.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    ]  # fmt: skip
    Store(tmp_path).append(runs, now_s=1.7e9)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_site_learns_shows_its_models_and_rolls_back(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = ("--home", str(home))
    code, out, err = call(capsys, "fit", *site)
    assert code == 0
    assert "promoted: it answers now" in out
    assert "regresses by 0.5 points at most" in out
    assert "fold 5 of 5" in err
    code, out, _ = call(capsys, "models", "list", *site, "--format", "json")
    listed = json.loads(out)["models"]
    assert [(m["kind"], m["answers"]) for m in listed] == [("site", True), ("shipped", False)]
    version = listed[0]["version"]
    assert listed[0]["site_rows"] == 24
    assert call(capsys, "models", "list", *site, "--format", "csv")[1].startswith("version,kind")
    assert version in call(capsys, "models", "list", *site)[1]
    code, out, _ = call(capsys, "models", "show", version[:5], *site)
    assert "Conditioned on 24 runs of the site" in out
    assert "the first fit" in out
    assert json.loads(call(capsys, "models", "show", *site, "--format", "json")[1])["ledger"]
    code, out, _ = call(capsys, "models", "diff", "shipped", *site)
    assert "rows: 24 more, 0 fewer" in out
    code, out, _ = call(capsys, "models", "health", *site)
    assert "0 runs measured since, no alarm" in out
    code, out, _ = call(capsys, "models", "rollback", *site, "--format", "json")
    assert json.loads(out) == {"answers": "shipped", "before": version}
    code, out, _ = call(capsys, "models", "promote", version, *site)
    assert f"{version} answers now" in out
    code, out, _ = call(capsys, "models", "withhold", version, *site)
    assert "24 runs taken out of further fits" in out


def test_runs_left_out_for_wrong_units_are_told_with_the_reason(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = InferenceRun(
        source="ours", model="Qwen/Qwen2.5-7B-Instruct", engine="vllm", gpu="h100-80", n_gpus=1,
        gpu_memory_gb=80.0, precision="bf16", mode="online", status="ok",
        labels={"output_tokens_per_s": 2000.0, "tpot_p50_s": 8e-6}, prompt_tokens=512.0,
        output_tokens=256.0, concurrency=20.0,
    )  # fmt: skip
    Store(home).append([bad], now_s=1.7e9)
    code, out, _ = call(capsys, "fit", "--home", str(home))
    assert code == 0
    assert "24 runs of the site, 1 left out: their latencies contradict their rate" in out


def test_a_dry_run_says_what_would_happen(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(
        capsys, "fit", "--home", str(home), "--dry-run", "--retire", "cuda=0.5", "--format", "json"
    )
    answer = json.loads(out)
    assert code == 0
    assert answer["dry_run"] is True
    assert answer["promoted"] is False
    assert not (home / "bundles").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--retire", "engine=0.5"), "engine_minor, cuda, driver"),
        (("--retire", "cuda=2"), "weight from 0 to 1"),
        (("--out", "somewhere"), "--data"),
        (("--data", ".", "--dry-run"), "leave --dry-run"),
        (
            ("--base", "nothing"),
            "no model of the site begins with 'nothing': it has none yet, omnipilot fit makes one",
        ),
    ],
)
def test_a_wrong_fit_is_told_in_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, out, err = call(capsys, "fit", "--home", str(home), *words)
    assert code == 2
    assert out == ""
    assert told in err
    assert len(err.strip().splitlines()) == 1


def test_a_base_model_is_not_written_among_the_versions(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = home / "rows.csv"
    table.write_text(
        "source,model,engine,gpu,gpu_mem_gb,n_gpus,precision,isl,osl,concurrency,status,out_tok_s\n"
        "a,Qwen/Qwen2.5-7B-Instruct,vllm,H100,80,1,bf16,512,128,4,ok,400\n"
    )
    out = home / "bundles" / "current"
    code, _, err = call(capsys, "fit", "--home", str(home), "--data", str(table), "--out", str(out))
    assert code == 2
    assert "kept by the ledger" in err


def test_a_recommendation_names_its_version_and_is_shown_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = ("--home", str(home))
    call(capsys, "fit", *site)
    code, out, _ = call(capsys, "advise", *site, *ADVISE, "--format", "json")
    first = json.loads(out)
    assert code in (0, 3)
    name = first["decision_id"]
    call(capsys, "models", "rollback", *site)
    code, out, _ = call(capsys, "explain", *site, "--replay", name, "--format", "json")
    again = json.loads(out)
    assert again["replay"]["same"] is True
    assert again["model_version"] == first["model_version"]
    assert [a["arm"] for a in again["ranked"]] == [a["arm"] for a in first["ranked"]]
    assert "the numbers on record" in call(capsys, "explain", *site, "--replay", name)[1]
    said = call(capsys, "advise", *site, *ADVISE)[1]
    assert "omnipilot explain --replay" in said


def test_explain_asks_for_what_it_needs_without_a_replay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = call(capsys, "explain", "--model", "Qwen/Qwen2.5-7B-Instruct")
    assert code == 2
    assert "Missing option '--concurrency'" in err


def test_a_fit_tells_the_runs_that_it_cannot_use_by_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = ("--home", str(tmp_path))
    good = InferenceRun(
        source="ours", model="Qwen/Qwen2.5-7B-Instruct", engine="vllm", gpu="h100-80", n_gpus=1,
        precision="bf16", mode="online", status="ok", labels={"output_tokens_per_s": 500.0},
        prompt_tokens=512.0, output_tokens=256.0, concurrency=8.0,
    )  # fmt: skip
    odd = [
        replace(good, gpu="A1000"),
        replace(good, precision="bf61"),
        replace(good, status="oom", labels={}),
        replace(good, concurrency=9.0, labels={}),
    ]
    wanted = {"unresolved": 2, "not_ok": 1, "no_label": 1}
    Store(tmp_path).append(odd, now_s=1.7e9)
    for rows in (0, 1):
        code, out, _ = call(capsys, "fit", *site, "--dry-run", "--format", "json")
        assert code == 0
        report = json.loads(out)
        assert (report["rows"], report["rows_excluded"]) == (rows, wanted)
        said = " ".join(call(capsys, "fit", *site, "--dry-run")[1].split())
        assert f"{rows} runs of the site, 1 left out as failed" in said
        assert "2 left out for a model, GPU or precision that the catalogue does not know" in said
        Store(tmp_path).append([good], now_s=1.7e9)


def test_rows_of_the_site_are_predicted_from_what_it_learned(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(capsys, "fit", "--home", str(home))
    rows = home / "rows.csv"
    line = "Qwen/Qwen2.5-7B-Instruct,vllm,H100,80,1,bf16,512,256,16"
    rows.write_text(
        "source,model,engine,gpu,gpu_mem_gb,n_gpus,precision,isl,osl,concurrency\n"
        f"ours,{line}\n,{line}\nstranger,{line}\n"
    )
    code, out, _ = call(capsys, "predict", "--home", str(home), "--rows", str(rows))
    assert code == 0
    ours, site, stranger = (
        float(row["output_tokens_per_s_q50"]) for row in csv.DictReader(io.StringIO(out))
    )
    assert ours == site != stranger
    assert ours == pytest.approx(60.0 * 2.0 * 16**0.9, rel=0.15)
