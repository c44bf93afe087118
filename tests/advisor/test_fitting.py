"""Verdicts on measured rows: what a row leaves open is settled in its favour."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from stand_in import StandInModel

from omnipilot.advisor.fitting import default_utilization_frac, judge_row
from omnipilot.advisor.predict import RowPredictor
from omnipilot.catalog import Catalog
from omnipilot.domain import Scenario

if TYPE_CHECKING:
    from pathlib import Path

CATALOG = Catalog.load()


def scenario(model: str, gpu: str, n_gpus: int, precision: str, **rest: object) -> Scenario:
    base = Scenario(
        CATALOG.model(model), CATALOG.gpu(gpu), CATALOG.precision(precision), n_gpus,
        prompt_tokens=1024, output_tokens=1024, concurrency=8,
    )  # fmt: skip
    return replace(base, **rest)  # type: ignore[arg-type]


def test_gpus_that_no_tensor_split_covers_are_judged_with_pipeline_stages() -> None:
    # 1536 expert columns over 8 leave 192, no multiple of the 128 of the format's blocks.
    row = scenario("Qwen/Qwen3-235B-A22B-FP8", "h100-80", 8, "fp8-block")
    assert judge_row(row).verdict == "fits"
    assert judge_row(replace(row, n_gpus=1)).verdict == "oom"


def test_a_stated_memory_share_is_not_raised() -> None:
    row = scenario("openai/gpt-oss-120b", "h100-80", 1, "mxfp4")
    tight = next(
        frac / 100
        for frac in range(50, 100)
        if judge_row(replace(row, memory_utilization_frac=frac / 100)).verdict == "fits"
    )
    below = replace(row, memory_utilization_frac=tight - 0.01)
    assert judge_row(below).verdict == "oom"


def test_lengths_beyond_the_model_s_positions_do_not_refuse_a_measured_row() -> None:
    row = scenario("EleutherAI/gpt-j-6b", "h100-80", 1, "fp16", engine="trtllm")
    assert row.model.max_position == 2048
    assert judge_row(replace(row, output_tokens=2048)).verdict == "fits"


def test_concurrency_never_decides_the_verdict() -> None:
    row = scenario("Qwen/Qwen2.5-32B-Instruct", "a100-80", 1, "bf16")
    verdicts = {judge_row(replace(row, concurrency=n)).verdict for n in (1, 100, 1e6)}
    assert verdicts == {"fits"}


@pytest.mark.parametrize(
    ("engine", "version", "frac"), [("vllm", "0.11.0", 0.9), ("vllm", "martian 1.0", 0.9)]
)
def test_the_memory_share_of_an_engine_version(engine: str, version: str, frac: float) -> None:
    assert default_utilization_frac(engine, version) == frac


def test_measured_runs_of_known_engines_are_hardly_ever_refused(shared_dir: Path) -> None:
    path = shared_dir / "data" / "combined" / "serving_rows.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    answers = [
        verdict.verdict
        for batch in RowPredictor(CATALOG, StandInModel(), judge_row).file(path)
        for verdict in batch.verdicts
    ]
    assert len(answers) == len(rows)
    counts = Counter(
        verdict
        for verdict, row in zip(answers, rows, strict=True)
        if row["status"] == "ok" and row["engine"] in ("vllm", "sglang", "trtllm")
    )
    refused = counts["oom"] + counts["unsupported"] + counts["unknown"]
    # What is left asks more tokens than the model has positions, or tells one GPU of a pair.
    assert refused / counts.total() < 0.025
