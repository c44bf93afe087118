from __future__ import annotations

import contextlib
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog.precisions import DATA_FILE, _key, load_precisions
from omnipilot.domain.errors import AmbiguousNameError, UnknownNameError, UsageError

PRECISIONS = load_precisions()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bf16", "bf16"),
        ("bfloat16", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("fp16/bf16", "bf16"),
        ("bf16/unknown", "bf16"),
        ("half", "fp16"),
        ("FP8", "fp8"),
        ("fp8 (on load)", "fp8"),
        ("fp8 w8a16 (MoE)", "fp8"),
        ("fp8_block", "fp8-block"),
        ("w8a8", "int8"),
        ("int4", "gptq"),
        ("w4a16", "gptq"),
        ("gptq-int4", "gptq"),
        ("4-bit", "awq"),
        ("awq_marlin", "awq"),
        ("fp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
        ("bnb", "bnb-nf4"),
    ],
)
def test_a_spelling_people_meet_finds_its_format(text: str, name: str) -> None:
    assert PRECISIONS.resolve(text).name == name


@pytest.mark.parametrize("text", ["fp8/nvfp4", "fp8+fp4", "awq, gptq"])
def test_two_formats_at_once_are_refused_with_both(text: str) -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        PRECISIONS.resolve(text)
    assert len(caught.value.candidates) == 2


@pytest.mark.parametrize("text", ["", "any", "fp7", "fp8+fp7", "(on load)"])
def test_an_unknown_format_is_refused_with_the_valid_ones(text: str) -> None:
    with pytest.raises(UnknownNameError, match="valid are bf16, fp16"):
        PRECISIONS.resolve(text)


@given(st.text(max_size=30))
def test_any_text_gives_a_format_or_a_refusal(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert PRECISIONS.resolve(text).name in PRECISIONS.weights


def test_no_spelling_belongs_to_two_formats() -> None:
    data = tomllib.loads(DATA_FILE.read_text(encoding="utf-8"))
    for section in ("weights", "kv"):
        keys = [_key(s) for n, t in data[section].items() for s in {n, *t["aliases"]}]
        assert len(keys) == len(set(keys))


def test_stored_bits_count_scales_and_zero_points() -> None:
    bits = {name: spec.effective_bits for name, spec in PRECISIONS.weights.items()}
    assert bits["fp8-block"] == pytest.approx(8 + 32 / 128**2, abs=1e-3)
    assert bits["awq"] == bits["gptq"] == 4 + (16 + 4) / 128
    assert bits["gptq-int8"] == 8 + (16 + 8) / 128
    assert bits["mxfp4"] == 4 + 8 / 32
    assert bits["nvfp4"] == 4 + 8 / 16
    assert bits["bnb-nf4"] == 4 + 32 / 64
    for spec in PRECISIONS.weights.values():
        assert spec.bytes_per_param * 8 == spec.effective_bits
        assert spec.compute in {"bf16", "fp16", "fp32", "fp8", "int8", "fp4"}
        assert spec.source


def test_only_mxfp4_leaves_all_but_the_experts_in_16_bit() -> None:
    assert [n for n, s in PRECISIONS.weights.items() if s.experts_only] == ["mxfp4"]


@pytest.mark.parametrize(
    ("text", "name", "bytes_per_element"),
    [
        ("", "auto", 2.0),
        ("auto", "auto", 2.0),
        ("bf16", "bfloat16", 2.0),
        ("float16", "float16", 2.0),
        ("fp8", "fp8", 1.0),
        ("fp8_e4m3", "fp8", 1.0),
        ("FP8_E5M2", "fp8_e5m2", 1.0),
        ("int8", "int8", 1.0),
        ("nvfp4", "nvfp4", 0.5625),
    ],
)
def test_a_cache_type_has_its_size(text: str, name: str, bytes_per_element: float) -> None:
    kv = PRECISIONS.resolve_kv(text)
    assert (kv.name, kv.bytes_per_element) == (name, bytes_per_element)


def test_an_unknown_cache_type_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnknownNameError, match="valid are auto, bfloat16"):
        PRECISIONS.resolve_kv("fp7")
