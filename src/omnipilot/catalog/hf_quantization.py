"""The weight format that a checkpoint is stored in, from its ``quantization_config``.

Methods and keys: Hugging Face transformers ``utils/quantization_config.py``, compressed-tensors,
NVIDIA modelopt ``hf_quant_config.json``, vLLM ``model_executor/layers/quantization``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.catalog.hf_fields import MAX_WIDTH, ConfigFields
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_DTYPES: Final[dict[str, str]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    # vLLM serves float32 checkpoints in half precision ("auto" of its --dtype).
    "float32": "fp16",
}

_METHODS: Final[dict[str, str]] = {
    "fbgemm_fp8": "fp8",
    "gptq_marlin": "gptq",
    "awq_marlin": "awq",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
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
    reader = _READERS.get("modelopt" if method.startswith("modelopt") else method)
    if reader is not None:
        return reader(quant, method)
    return Quantization(_METHODS.get(method, method), method, _group(quant))


def _group(quant: ConfigFields) -> int:
    """Weights of one scale; -1 means the whole channel, which is 0 here."""
    return max(quant.integer("group_size", "q_group_size", low=-1, high=MAX_WIDTH), 0)


def _modelopt(quant: ConfigFields, method: str) -> Quantization:
    algorithm = quant.text("quant_algo", "quant_method").upper()
    if "FP4" in algorithm:
        return Quantization("nvfp4", method, _group(quant) or 16)
    if algorithm.startswith(("W4", "INT4")):
        return Quantization("awq", method, _group(quant) or 128)
    return Quantization("int8" if algorithm.startswith("INT8") else "fp8", method)


def _fp8(quant: ConfigFields, method: str) -> Quantization:
    block = quant.integers("weight_block_size", 1, MAX_WIDTH)
    return Quantization("fp8-block" if block else "fp8", method, block[-1] if block else 0)


def _bitsandbytes(quant: ConfigFields, method: str) -> Quantization:
    return Quantization("int8" if quant.flag("load_in_8bit") else "bnb-nf4", method)


def _grouped_int(quant: ConfigFields, method: str) -> Quantization:
    bits = quant.integer("bits", "w_bit", default=4, low=1, high=32)
    kernels = "awq" if method == "awq" else "gptq"
    return Quantization("gptq-int8" if bits == 8 else kernels, method, _group(quant))


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
        both = scheme_fields.table("input_activations")
        return Quantization("int8" if both else "gptq-int8", method, group)
    # Packed int4 weights run through the same kernels as GPTQ checkpoints.
    return Quantization("gptq", method, group)


_READERS: Final[dict[str, Callable[[ConfigFields, str], Quantization]]] = {
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
    "gptq": _grouped_int,
    "auto-round": _grouped_int,
    "intel/auto-round": _grouped_int,
    "awq": _grouped_int,
}
"""Readers of the methods whose table decides more than the name does."""
