"""``omnipilot collect``, ``prior`` and ``data compact`` from the outside."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from slurm_stand_in import StandInSlurm

from omnipilot.cli import app

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (
    "JobID|JobIDRaw|Cluster|User|Account|Partition|State|ExitCode|Submit|Eligible|Start|End|"
    "ElapsedRaw|TimelimitRaw|NNodes|NCPUS|AllocTRES|ReqTRES|Restarts|AdminComment|JobName"
)
BEGIN_S = 1_790_000_000


def accounting(n: int, *, failed: int = 0) -> str:
    lines = [HEADER]
    for job in range(1, n + 1):
        state = "FAILED" if job <= failed else "COMPLETED"
        start_s = BEGIN_S + 1000 * job
        tres = "cpu=4,gres/gpu:h100=2,gres/gpu=2" if job % 2 else "cpu=4,gres/gpu=1"
        lines.append(
            f"{job}|{job}|lab|eve|acct|gpu|{state}|0:0|{start_s - 90}|{start_s - 60}|{start_s}|"
            f"{start_s + 500}|500|60|1|4|{tres}|{tres}|0|JS1:Short|vllm"
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "sacct.txt"
    path.write_text(accounting(20, failed=4))
    return path


def run_json(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    assert app.run([*map(str, args), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list_names_every_source_and_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["collect", "--list", "--format", "json"]) == 0
    listed = {entry["name"]: entry["log"] for entry in json.loads(capsys.readouterr().out)}
    assert listed["sacct"] == listed["jobstats"] == "cluster_history.jsonl"
    assert listed["vllm-bench"] == listed["guidellm"] == "history.jsonl"
    assert app.run(["collect", "--list"]) == 0
    assert "vllm-metrics" in capsys.readouterr().out


def test_a_running_slurm_is_harvested(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = StandInSlurm(tmp_path / "bin")
    slurm.holds(accounting(20))
    monkeypatch.setenv("PATH", slurm.path)
    since = ("--since", "2026-09-20")
    report = run_json(capsys, "collect", "sacct", *since, "--home", home)
    assert (report["accepted"], report["cluster"]) == (20, "lab")
    assert report["covered_until_s"] > BEGIN_S
    assert run_json(capsys, "collect", "sacct", "--home", home)["accepted"] == 0
    assert app.run(["collect", "sacct", "--home", str(home), *since, "--again"]) == 0
    assert "0 new, 20 stored already, 0 refused" in capsys.readouterr().out
    slurm.fails("slurmdbd is away")
    assert app.run(["collect", "sacct", "--home", str(home)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.strip().splitlines()[-1].startswith("omnipilot: error: sacct failed")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--since", "yesterday"], "is no time such as"),
        (["--since", "1960-01-01"], "lies before 1970"),
        (["--since", "2026-02-01", "--until", "2026-01-01"], "exchange them"),
        (["--timezone", "Mars/Olympus", "x"], "is no time zone"),
        (["no-such-file"], "no-such-file"),
    ],
)
def test_a_mistake_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    assert app.run(["collect", "sacct", "--home", str(home), *args]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line


def test_without_slurm_the_missing_program_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert app.run(["collect", "sacct", "--home", str(home), "--since", "7d"]) == 1
    assert "scontrol is not on PATH" in capsys.readouterr().err


def test_files_are_taken_and_refused_by_reason(
    home: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text(HEADER + "\nnonsense\n")
    report = run_json(capsys, "collect", "sacct", text, bad, "--home", home)
    assert (report["accepted"], report["rejected"]) == (20, 1)
    assert report["rejections"][0]["file"] == str(bad)
    assert app.run(["collect", "sacct", str(bad), "--home", str(home)]) == 2
    assert "Refused, by reason" in capsys.readouterr().out
    assert app.run(["collect", "sacct", str(bad), "--home", str(home), "--format", "csv"]) == 2
    assert capsys.readouterr().out.startswith("file,line,reason\n")


def test_what_the_file_does_not_tell_is_given(
    home: Path, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = shared_dir / "captures" / "vllm-0.11.2" / "bench_serve_c4.json"
    given = ("--gpu", "h100-80", "--n-gpus", 2, "--precision", "fp8", "--workload", "chat")
    for command in ("vllm-bench", "vllm"):
        report = run_json(capsys, "collect", command, bench, *given, "--home", home)
        assert report["accepted"] + report["duplicate"] == 1
        assert [(n["column"], n["name"]) for n in report["unknown_names"]] == [("model", "tiny")]
    assert run_json(capsys, "data", "stats", "--home", home)["by_gpu"] == {"h100-80": 1}
    odd = (*given[:-2], "--model", "Qwen/Qwen2.5-7B-Instrukt")
    report = run_json(capsys, "collect", "vllm-bench", bench, *odd, "--home", home)
    (unknown,) = report["unknown_names"]
    assert (unknown["column"], unknown["rows"]) == ("model", 1)
    assert unknown["close"][0] == "Qwen/Qwen2.5-7B-Instruct"


def test_prior_counts_shrinks_and_shows_how_much_that_matters(
    home: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_json(capsys, "collect", "sacct", text, "--home", home)
    home.joinpath("settings.toml").write_text('[gpu_kind_of_partition]\ngpu = "a100"\n')
    prior = run_json(capsys, "prior", "--home", home)
    assert set(prior) == {
        "definition", "level", "pooled_rate", "strength", "strengths", "configurations",
        "wait_quantiles", "waits", "jobs", "untyped", "without_gpus", "damaged", "outcomes",
    }  # fmt: skip
    by_name = {(c["gpu"], c["n_gpus"]): c for c in prior["configurations"]}
    assert set(by_name) == {("h100", 2), ("a100", 1)}
    h100 = by_name["h100", 2]
    assert set(h100) == {
        "gpu", "n_gpus", "jobs", "launches", "attempts", "successes", "excluded", "demand_frac",
        "raw_rate", "shrunk_rate", "low", "high", "sensitivity",
    }  # fmt: skip
    assert (h100["jobs"], h100["successes"], h100["raw_rate"]) == (10, 8, 0.8)
    assert h100["low"] < h100["shrunk_rate"] < h100["high"]
    assert len(h100["sensitivity"]) == len(prior["strengths"])
    assert {(w["partition"], w["n_gpus"], w["mean_s"]) for w in prior["waits"]} == {
        ("gpu", 1, 60.0), ("gpu", 2, 60.0),
    }  # fmt: skip
    assert prior["outcomes"] == [
        {"state": "COMPLETED", "outcome": "success", "runs": 16},
        {"state": "FAILED", "outcome": "failure", "runs": 4},
    ]


def test_what_a_launch_is_can_be_set_by_the_site_and_by_options(
    home: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_json(capsys, "collect", "sacct", text, "--home", home)

    def came_up(*options: object) -> float:
        prior = run_json(capsys, "prior", "--home", home, *options)
        return float(sum(c["successes"] for c in prior["configurations"]))

    assert came_up() == 16
    assert came_up("--min-runtime-s", 501) == 0
    assert came_up("--outcome", "FAILED=success") == 20
    assert came_up("--job-class", "other") == 0
    home.joinpath("settings.toml").write_text(
        'launch_min_runtime_s = 501\n[launch_outcomes]\nFAILED = "success"\n'
    )
    assert came_up() == 0
    assert came_up("--min-runtime-s", 0) == 20
    assert app.run(["prior", "--home", str(home), "--outcome", "FAILED=maybe"]) == 2
    capsys.readouterr()
    assert app.run(["prior", "--home", str(home), "--outcome", "TIMOUT=failure"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "'TIMOUT', did you mean TIMEOUT?" in said.err


def test_the_answer_is_the_same_over_the_compacted_history(
    home: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_json(capsys, "collect", "sacct", text, "--home", home)
    before = run_json(capsys, "prior", "--home", home)
    report = run_json(capsys, "data", "compact", "--home", home)
    assert (report["rows"], report["parts"]) == (20, 1)
    assert run_json(capsys, "prior", "--home", home) == before
    assert app.run(["data", "compact", "--home", str(home)]) == 0
    assert "0 jobs copied; 20 in 1 Parquet files" in capsys.readouterr().out


def test_the_tables_and_the_csv_hold_the_figures(
    home: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["prior", "--home", str(home)]) == 0
    assert "No GPU job is known" in capsys.readouterr().out
    run_json(capsys, "collect", "sacct", text, "--home", home)
    assert app.run(["prior", "--home", str(home)]) == 0
    shown = capsys.readouterr().out
    assert "h100 × 2" in shown
    assert "80.0%" in shown
    assert "of a kind that Slurm does not tell" in shown
    assert app.run(["prior", "--home", str(home), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["jobs"] for row in rows] == ["10", "10"]
