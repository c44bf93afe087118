"""Spellings of names, and formats that names carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog.model_names import key_of, split_owner, split_variant, strip_remark
from omnipilot.catalog.precisions import load_precisions


@pytest.mark.parametrize(
    ("name", "base", "precision"),
    [
        ("a/b-FP8", "a/b", "fp8"),
        ("Qwen/b-FP8", "Qwen/b", "fp8-block"),
        ("a/b-FP8-KV", "a/b", "fp8"),
        ("a/b-AWQ-INT4", "a/b", "awq"),
        ("a/b-GPTQ-Int4", "a/b", "gptq"),
        ("a/b-NVFP4", "a/b", "nvfp4"),
        ("a/b-FP4", "a/b", "nvfp4"),
        ("a/b-quantized.w4a16", "a/b", "gptq"),
        ("a/b-quantized.w8a8", "a/b", "int8"),
        ("a/b-unsloth-bnb-4bit", "a/b", "bnb-nf4"),
        ("a/b-BF16", "a/b", "bf16"),
        ("a/b-Instruct", "a/b-Instruct", ""),
        ("FP8", "FP8", ""),
    ],
)
def test_a_format_is_taken_off_the_end_of_a_name(name: str, base: str, precision: str) -> None:
    variant = split_variant(name)
    assert (variant.base, variant.precision) == (base, precision)
    assert not precision or load_precisions().resolve(precision).name == precision


def test_case_and_separators_do_not_matter() -> None:
    assert key_of(" Mistral  7B") == key_of("mistral-7b") == key_of("MISTRAL_7b")


def test_the_owner_is_what_stands_before_the_slash() -> None:
    assert split_owner("a/b") == ("a", "b")
    assert split_owner("b") == ("", "b")


@given(st.text(max_size=80))
def test_names_are_taken_apart_without_crashing(text: str) -> None:
    assert len(split_variant(strip_remark(text)).base) <= len(text)
