"""Weight formats as repositories state them."""

from __future__ import annotations

from typing import Any

import pytest

from omnipilot.catalog.hf_fields import ConfigFields
from omnipilot.catalog.hf_quantization import read_quantization
from omnipilot.domain.errors import BadInputError


def _scheme(activations: dict[str, object] | None = None, **weights: object) -> dict[str, object]:
    group = {"weights": weights, "input_activations": activations, "targets": ["Linear"]}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("table", "precision", "group"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block", 128),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", 0),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq", 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "gptq", 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq-int8", 0),
        ({"quant_method": "mxfp4"}, "mxfp4", 0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 0),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 64}, "awq", 64),
        ({"quant_method": "modelopt", "quant_algo": "INT8_SQ"}, "int8", 0),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "gptq", 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-nf4", 0),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 0),
        (_scheme(num_bits=4, type="int", group_size=32), "gptq", 32),
        (_scheme(num_bits=8, type="int", strategy="channel"), "gptq-int8", 0),
        (_scheme({"num_bits": 8, "type": "int"}, num_bits=8, type="int"), "int8", 0),
        (_scheme(num_bits=8, type="float", strategy="channel"), "fp8", 0),
        (_scheme(num_bits=8, type="float", strategy="block"), "fp8-block", 128),
        (_scheme(num_bits=4, type="float", group_size=16), "nvfp4", 16),
    ],
)
def test_a_quantised_checkpoint_names_its_format(
    table: dict[str, Any], precision: str, group: int
) -> None:
    found = read_quantization(ConfigFields([{"quantization_config": table}], "c"))
    assert (found.precision, found.group_size) == (precision, group)
    assert found.method


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float16"}, "fp16"),
        ({"torch_dtype": "float32"}, "fp16"),
        ({}, "bf16"),
    ],
)
def test_a_plain_checkpoint_is_served_in_half_precision(
    config: dict[str, Any], precision: str
) -> None:
    assert read_quantization(ConfigFields([config], "c")).precision == precision


@pytest.mark.parametrize(
    "table",
    [
        {"quant_method": 5},
        {"quant_method": "gptq", "bits": "four"},
        {"quant_method": "fp8", "weight_block_size": ["a"]},
        {"quant_method": "compressed-tensors", "config_groups": []},
    ],
)
def test_a_malformed_scheme_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        read_quantization(ConfigFields([{"quantization_config": table}], "c"))
