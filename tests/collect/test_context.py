"""What the caller of a collector knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog import Catalog
from omnipilot.collect.context import RunContext, model_name, precision_name
from omnipilot.domain import BadInputError, StackFingerprint


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("  gpt2 ", "gpt2"),
        ("/data/alice/Qwen2.5-7B/", "Qwen2.5-7B"),
        ("~/models/Qwen2.5-7B", "Qwen2.5-7B"),
        ("./Qwen2.5-7B", "Qwen2.5-7B"),
        ("../alice/Qwen2.5-7B", "Qwen2.5-7B"),
        ("C:\\Users\\alice\\Qwen2.5-7B", "Qwen2.5-7B"),
        ("$HOME/Qwen2.5-7B", "Qwen2.5-7B"),
        ("s3://bucket/alice/Qwen2.5-7B", "Qwen2.5-7B"),
        ("/x/hub/models--Qwen--Qwen2.5-7B/snapshots/" + "0a" * 20, "Qwen/Qwen2.5-7B"),
        ("/scratch/alice/Qwen2.5-7B/checkpoint-500", "Qwen2.5-7B"),
        ("alice@example.org", ""),
        ("a\x1b[31m", ""),
        ("x" * 1000, ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_of_a_path_only_the_model_s_own_name_is_kept(text: str, name: str) -> None:
    assert model_name(text) == name


@given(text=st.text(max_size=200))
def test_no_name_holds_a_path(text: str) -> None:
    name = model_name(text)
    assert name.count("/") <= 1
    assert not name.startswith(("/", "."))
    assert "\\" not in name
    assert "@" not in name


@pytest.mark.parametrize(
    ("quantization", "dtype", "name"),
    [
        ("None", "torch.bfloat16", "bf16"),
        ("", "half", "fp16"),
        ("fp8", "torch.bfloat16", "fp8"),
        ("awq_marlin", "torch.float16", "awq"),
        ("gptq_marlin", "torch.float16", "gptq"),
        ("modelopt_fp4", "torch.bfloat16", "nvfp4"),
        ("compressed-tensors", "torch.bfloat16", ""),
        ("", "auto", ""),
    ],
)
def test_precisions_are_named_as_the_catalogue_does(
    quantization: str, dtype: str, name: str
) -> None:
    assert precision_name(quantization, dtype) == name
    if name:
        assert Catalog.load().precision(name).name == name


def test_what_the_caller_knows_of_the_software_wins() -> None:
    stack = StackFingerprint(engine_version="0.9.0", cuda="12.8")
    assert RunContext(stack=stack).with_version("0.11.2") == stack
    assert RunContext().with_version("0.11.2") == StackFingerprint(engine_version="0.11.2")


@pytest.mark.parametrize(
    "facts", [{"gpu": "H100"}, {"n_gpus": -1}, {"gpu_memory_gb": -80.0}, {"max_model_len": -1}]
)
def test_facts_that_cannot_be_are_told(facts: dict[str, float]) -> None:
    with pytest.raises(BadInputError):
        RunContext(**facts)  # type: ignore[arg-type]
