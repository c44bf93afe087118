"""The weight format that a checkpoint is stored in, from its ``quantization_config``.

Methods and keys: Hugging Face transformers ``utils/quantization_config.py``, compressed-tensors,
NVIDIA modelopt ``hf_quant_config.json``, vLLM ``model_executor/layers/quantization``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from omnipilot.catalog.hf_fields import MAX_WIDTH, ConfigFields

if TYPE_CHECKING:
    from collections.abc import Mapping

_DTYPES: Final[dict[str, str]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    # vLLM serves float32 checkpoints in half precision ("auto" of its --dtype).
    "float32": "fp16",
}

_METHODS: Final[dict[str, str]] = {
    "fbgemm_fp8": "fp8",
    "fp8": "fp8",
    "awq": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "awq_marlin": "awq",
    "mxfp4": "mxfp4",
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "bitsandbytes": "bnb-nf4",
}


@dataclass(frozen=True, slots=True)
class Quantization:
    """Stored weight format: a precision name, the method's own name, and the group of one scale."""

    precision: str
    method: str = ""
    group_size: int = 0


def read_quantization(fields: ConfigFields) -> Quantization:
    """Weight format of a config; the data type where it is not quantised.

    Raises:
        BadInputError: a quantization_config that is not a table or holds impossible numbers.
    """
    table = fields.table("quantization_config") or fields.table("compression_config")
    if not table:
        dtype = fields.text("torch_dtype", "dtype", default="bfloat16")
        return Quantization(_DTYPES.get(dtype.removeprefix("torch."), "bf16"))
    quant = ConfigFields([table], fields.where)
    method = quant.text("quant_method", default="unknown").lower()
    group = quant.integer("group_size", "q_group_size", low=-1, high=MAX_WIDTH)
    group = max(group, 0)
    if method == "compressed-tensors":
        return _compressed_tensors(quant, method)
    if method.startswith("modelopt"):
        algo = quant.text("quant_algo", "quant_method").upper()
        precision = "nvfp4" if "FP4" in algo else "fp8"
        return Quantization(precision, method, group or (16 if precision == "nvfp4" else 0))
    if method == "fp8" and quant.listing("weight_block_size"):
        block = quant.integers("weight_block_size", 1, MAX_WIDTH)
        return Quantization("fp8-block", method, block[-1])
    if method == "bitsandbytes":
        return Quantization("int8" if quant.flag("load_in_8bit") else "bnb-nf4", method)
    if method in {"gptq", "awq"}:
        bits = quant.integer("bits", "w_bit", default=4, low=1, high=32)
        return Quantization(f"{method}-int8" if bits == 8 else method, method, group)
    return Quantization(_METHODS.get(method, method), method, group)


def _compressed_tensors(quant: ConfigFields, method: str) -> Quantization:
    """Weights of the first scheme; activations decide between weight-only and w8a8."""
    first: Mapping[str, object] = {}
    for scheme in quant.table("config_groups").values():
        if isinstance(scheme, dict):
            first = scheme
            break
    scheme_fields = ConfigFields([first], quant.where)
    weights = ConfigFields([scheme_fields.table("weights")], quant.where)
    bits = weights.integer("num_bits", default=8, low=1, high=32)
    kind = weights.text("type", default="float")
    group = max(weights.integer("group_size", low=-1, high=MAX_WIDTH), 0)
    if kind == "float" and bits == 8:
        block = weights.text("strategy") == "block"
        return Quantization("fp8-block" if block else "fp8", method, 128 if block else 0)
    if kind == "float":
        return Quantization("nvfp4", method, group or 16)
    if bits == 8:
        return Quantization("int8", method, group)
    # Packed int4 weights run through the same kernels as GPTQ checkpoints.
    return Quantization("gptq", method, group)
