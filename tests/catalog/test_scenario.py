"""Measured rows as scenarios."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omnipilot.catalog.catalog import Catalog
from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.errors import AmbiguousNameError, UnknownNameError
from omnipilot.domain.rows import InferenceRun

CATALOG = Catalog.load()
RUN = InferenceRun(
    source="alpha", model="meta-llama/Llama-3.1-8B-Instruct", engine="vllm", gpu="H100",
    gpu_memory_gb=80.0, n_gpus=2, precision="fp8", mode="static", status="ok", labels={},
    prompt_tokens=512.0, output_tokens=128.0, concurrency=16.0, kv_dtype="fp8",
    max_model_len=4096, workload="chat", stack=StackFingerprint(engine_version="0.8.5"),
)  # fmt: skip
BARE = RUN.model.partition("/")[2]


def precision_of(**changes: Any) -> str:
    return ScenarioBuilder(CATALOG).scenario(replace(RUN, **changes)).precision.name


def test_every_field_of_a_row_reaches_its_scenario() -> None:
    s = ScenarioBuilder(CATALOG).scenario(RUN)
    assert s.model.model_id == RUN.model
    assert (s.gpu.kind, s.precision.name, s.n_gpus) == ("h100-80", "fp8", 2)
    assert (s.prompt_tokens, s.output_tokens, s.concurrency) == (512.0, 128.0, 16.0)
    assert (s.mode, s.kv_dtype, s.engine, s.engine_version) == ("static", "fp8", "vllm", "0.8.5")
    assert (s.max_model_len, s.source, s.workload) == (4096, "alpha", "chat")


def test_what_a_row_leaves_out_takes_the_scenarios_default() -> None:
    s = ScenarioBuilder(CATALOG).scenario(replace(RUN, mode="", kv_dtype=""))
    assert (s.mode, s.kv_dtype) == ("online", "auto")


@pytest.mark.parametrize(("memory_gb", "kind"), [(40.0, "a100-40"), (80.0, "a100-80")])
def test_the_memory_size_tells_parts_of_one_name_apart(memory_gb: float, kind: str) -> None:
    run = replace(RUN, gpu="A100", gpu_memory_gb=memory_gb)
    assert ScenarioBuilder(CATALOG).scenario(run).gpu.kind == kind


def test_a_part_whose_name_fits_several_is_refused_without_its_size() -> None:
    builder = ScenarioBuilder(CATALOG)
    builder.scenario(replace(RUN, gpu="A100", gpu_memory_gb=40.0))
    with pytest.raises(AmbiguousNameError):
        builder.scenario(replace(RUN, gpu="A100", gpu_memory_gb=0.0))


def test_a_precision_not_told_is_the_models_own() -> None:
    assert precision_of(precision="") == "bf16"
    assert precision_of(precision="", model="openai/gpt-oss-20b") == "mxfp4"


@pytest.mark.parametrize("told", ["", "fp8", "fp8-block", "Block FP8"])
def test_block_scaled_fp8_of_a_model_so_published_is_fp8(told: str) -> None:
    assert precision_of(precision=told, model="deepseek-ai/DeepSeek-V3") == "fp8"
    assert precision_of(precision=told, model="Qwen/Qwen3-235B-A22B-FP8") == "fp8"


def test_block_scaled_fp8_of_another_model_is_a_format_of_its_own() -> None:
    assert precision_of(precision="fp8-block") == "fp8-block"
    assert precision_of(precision="fp8-block", model=f"RedHatAI/{BARE}-FP8") == "fp8-block"


def test_a_precision_not_told_is_fp16_on_a_part_without_bf16() -> None:
    assert precision_of(precision="", gpu="V100", gpu_memory_gb=32.0) == "fp16"


def test_fp4_of_a_model_released_in_mxfp4_is_mxfp4() -> None:
    assert precision_of(precision="fp4", model="openai/gpt-oss-20b") == "mxfp4"
    assert precision_of(precision="fp4") == "nvfp4"


def test_a_second_format_that_nobody_knows_is_left_out() -> None:
    assert precision_of(precision="bf16/unknown") == "bf16"
    assert precision_of(precision=" FP8/unknown") == "fp8"


@pytest.mark.parametrize(
    "changes", [{"model": "nobody/nothing-7b"}, {"gpu": "Z9000"}, {"precision": "int3.7"}]
)
def test_a_name_without_an_entry_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(UnknownNameError):
        ScenarioBuilder(CATALOG).scenario(replace(RUN, **changes))  # type: ignore[arg-type]


def test_the_same_names_give_the_same_objects() -> None:
    builder = ScenarioBuilder(CATALOG)
    a, b = builder.scenario(RUN), builder.scenario(replace(RUN, concurrency=99.0))
    assert a.model is b.model
    assert a.gpu is b.gpu
    assert a.precision is b.precision
