"""What the site measured of a model is found in its store, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnipilot.advisor import Advisor
from omnipilot.advisor.site_runs import site_runs
from omnipilot.advisor.words import site_line
from omnipilot.domain import InferenceRun
from omnipilot.store import Store

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "Qwen/Qwen2.5-7B-Instruct"


def measured(**changes: Any) -> InferenceRun:
    values: dict[str, Any] = {
        "source": "site", "model": MODEL, "engine": "vllm", "gpu": "H100 80GB", "n_gpus": 1,
        "precision": "bf16", "mode": "online", "status": "ok",
        "labels": {"aggregate_tokens_per_s": 1000.0}, "prompt_tokens": 1536.0,
        "output_tokens": 512.0, "concurrency": 8.0,
    } | changes  # fmt: skip
    return InferenceRun(**values)


def found(home: Path, *runs: InferenceRun) -> list[tuple[str, int, str, float | None]]:
    for when, run in enumerate(runs):
        Store(home).append([run], float(when))
    advisor = Advisor(home)
    return [
        (g.gpu_kind, g.n_runs, g.status, g.tokens_per_s)
        for g in site_runs(advisor, advisor.resolve_model(MODEL))
    ]


def test_runs_of_one_arm_and_load_are_one_line_with_their_median(tmp_path: Path) -> None:
    rates = [{"labels": {"aggregate_tokens_per_s": v}} for v in (900.0, 1000.0, 2000.0)]
    assert found(tmp_path, *(measured(**r) for r in rates)) == [("h100-80", 3, "ok", 1000.0)]


def test_runs_with_other_flags_or_experts_shared_otherwise_are_lines_of_their_own(
    tmp_path: Path,
) -> None:
    told: list[dict[str, Any]] = [
        {},
        {"engine_settings": "enforce-eager max-num-seqs=8"},
        {"expert_parallel": True},
    ]
    for when, changes in enumerate(told):
        Store(tmp_path).append([measured(**changes)], float(when))
    advisor = Advisor(tmp_path)
    lines = [site_line(g) for g in site_runs(advisor, advisor.resolve_model(MODEL))]
    assert [line.partition(", 8 at once")[0] for line in lines] == [
        "1x h100-80 bf16 with expert parallel",
        "1x h100-80 bf16 with enforce-eager, max-num-seqs=8",
        "1x h100-80 bf16",
    ]


def test_other_models_are_left_out_and_other_spellings_are_not(tmp_path: Path) -> None:
    assert found(
        tmp_path,
        measured(model="Qwen2.5-7B-Instruct"),
        measured(model="Qwen/Qwen2.5-7B"),
        measured(model="meta-llama/Llama-3.1-8B-Instruct"),
        measured(model="no/such-Qwen2.5-7B-Instruct-model"),
        measured(gpu="no such part"),
    ) == [("h100-80", 1, "ok", 1000.0)]


def test_a_failed_run_shows_its_status_and_no_rate_newest_first(tmp_path: Path) -> None:
    assert found(
        tmp_path, measured(), measured(status="oom", labels={}, notes="failed: oom_weights")
    ) == [("h100-80", 1, "oom", None), ("h100-80", 1, "ok", 1000.0)]


def test_an_empty_site_has_measured_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) == []
