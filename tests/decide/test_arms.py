"""Which arms are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from decide_builders import gpu, model
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.catalog import Catalog
from omnipilot.decide import enumerate_arms, sixteen_bit
from omnipilot.decide.arms import OFFERS, PRECISION_ORDER, SIXTEEN_BIT, default_precisions
from omnipilot.domain import UnknownNameError

if TYPE_CHECKING:
    from omnipilot.domain import GpuSpec

A100 = gpu("a100-80", 8.0, fp8=0.0)
H100 = gpu("h100-80", 9.0)
B200 = gpu("b200", 10.0, fp4=9e15)
V100 = gpu("v100-32", 7.0, bf16=0.0, fp8=0.0, int8=0.0)
T4 = gpu("t4", 7.5, fp8=0.0)
MI300X = gpu("mi300x", 0.0, vendor="amd")
SLICE = gpu("h100-80.mig-3g.40gb", 9.0, parent="h100-80")


def eight(_: str) -> int:
    return 8


def test_a_16_bit_model_is_tried_in_the_papers_four_precisions_on_every_degree() -> None:
    arms = enumerate_arms(model(), [H100], eight).arms
    assert {a.precision for a in arms} == {"bf16", "fp8", "gptq", "awq"}
    assert {a.tensor_parallel for a in arms} == {1, 2, 4, 8}
    assert len(arms) == 4 * 4


def test_degrees_stop_at_the_gpus_of_a_node() -> None:
    arms = enumerate_arms(model(), [H100], lambda _: 4).arms
    assert max(a.tensor_parallel for a in arms) == 4


def test_a_mig_slice_is_never_split() -> None:
    assert {a.tensor_parallel for a in enumerate_arms(model(), [SLICE], eight).arms} == {1}


@pytest.mark.parametrize(
    ("part", "expected"),
    [(A100, "bf16"), (H100, "bf16"), (V100, "fp16"), (T4, "fp16"), (MI300X, "bf16")],
)
def test_16_bit_means_fp16_on_parts_without_bf16(part: GpuSpec, expected: str) -> None:
    assert sixteen_bit(part) == expected


def test_hardware_adds_the_formats_that_its_units_make_worthwhile() -> None:
    assert "nvfp4" in default_precisions(model(), B200)
    assert "nvfp4" not in default_precisions(model(), H100)
    assert "int8" in default_precisions(model(), A100)
    assert "int8" not in default_precisions(model(), H100)
    assert "int8" not in default_precisions(model(), V100)


@pytest.mark.parametrize("native", ["fp8", "mxfp4", "awq", "gptq", "nvfp4", "int8"])
def test_a_quantised_checkpoint_is_tried_as_published_only(native: str) -> None:
    for part in (A100, H100, B200, V100):
        assert default_precisions(model(native), part) == (native,)


@pytest.mark.parametrize("asked", [(), ("fp8",), ("fp8-block",), ("fp8-block", "fp8")])
def test_a_checkpoint_of_block_scaled_fp8_is_one_arm_under_either_name(
    asked: tuple[str, ...],
) -> None:
    found = enumerate_arms(model("fp8-block"), [H100], eight, only_precisions=asked)
    assert [a.precision for a in found.arms] == ["fp8"] * 4
    assert found.ruled_out == ()


def test_16_bit_of_an_fp8_checkpoint_is_tried_when_asked_for() -> None:
    found = enumerate_arms(model("fp8-block"), [H100], eight, only_precisions=["bf16"])
    assert {a.precision for a in found.arms} == {"bf16"}
    assert found.ruled_out == ()


def test_another_format_of_a_4_bit_checkpoint_is_ruled_out_with_the_reason() -> None:
    found = enumerate_arms(model("awq"), [H100], eight, only_precisions=["fp8", "awq"])
    assert {a.precision for a in found.arms} == {"awq"}
    assert {a.reason_code for a in found.ruled_out} == {"precision-not-offered"}
    assert "this checkpoint holds awq weights" in found.ruled_out[0].reason


def test_a_named_precision_is_judged_even_where_the_part_lacks_it() -> None:
    found = enumerate_arms(model(), [V100], eight, only_precisions=["bf16", "nvfp4"])
    assert {a.precision for a in found.arms} == {"bf16", "nvfp4"}


def test_only_the_named_gpu_kinds_are_tried() -> None:
    found = enumerate_arms(model(), [A100, H100], eight, only_gpus=["a100-80"])
    assert {a.gpu_kind for a in found.arms} == {"a100-80"}


def test_an_unknown_gpu_kind_lists_the_sites_kinds() -> None:
    with pytest.raises(UnknownNameError, match="'b300': say one of a100-80, h100-80"):
        enumerate_arms(model(), [A100, H100], eight, only_gpus=["b300"])


def test_engine_and_memory_share_reach_every_arm() -> None:
    found = enumerate_arms(model(), [H100], eight, engine="sglang", memory_utilization_frac=0.8)
    assert {(a.engine, a.memory_utilization_frac) for a in found.arms} == {("sglang", 0.8)}


@given(
    parts=st.lists(st.sampled_from([A100, H100, B200, V100, SLICE]), unique=True, max_size=5),
    size=st.integers(1, 8),
    native=st.sampled_from(["bf16", "fp16", "fp8-block", "mxfp4", "awq"]),
)
def test_arms_are_unique_and_within_the_node(parts: list[GpuSpec], size: int, native: str) -> None:
    found = enumerate_arms(model(native), parts, lambda _: size)
    assert len(set(found.arms)) == len(found.arms)
    assert all(a.tensor_parallel <= size for a in found.arms)
    assert {a.gpu_kind for a in found.arms} == {p.kind for p in parts}


def test_every_format_of_the_catalogue_has_a_place_in_the_order() -> None:
    assert {p.name for p in Catalog.load().precisions()} == set(PRECISION_ORDER)


def test_every_offered_format_has_a_place_in_the_order() -> None:
    named = {n for offer in OFFERS.values() for n in (*offer.default, *offer.on_request)}
    assert named - {SIXTEEN_BIT} <= set(PRECISION_ORDER)
