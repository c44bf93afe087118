"""Figures and settings in the lines that vLLM prints while it starts.

Texts from vLLM's v1/worker/gpu_model_runner.py and gpu_worker.py, worker/model_runner.py (V0),
v1/core/kv_cache_utils.py, v1/engine/core.py, compilation/monitor.py and engine/arg_utils.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CONFIG", "Setting", "config_of", "figures_of", "gpu_of"]

_N: Final = r"(\d[\d,]{0,20}(?:\.\d{1,12})?)"
_GIB: Final = r" ?Gi?B"


class _Figure(NamedTuple):
    """One label: a word that its lines hold, its forms, and whether the smallest worker counts."""

    name: str
    pattern: re.Pattern[str]
    smallest: bool = False


def _figure(name: str, pattern: str, *, smallest: bool = False) -> _Figure:
    return _Figure(name, re.compile(pattern), smallest)


# vLLM printed "GB" for GiB until 0.7.
_FIGURES: Final[tuple[_Figure, ...]] = (
    _figure("weights_gib", rf"(?:Model loading|Loading model weights) took {_N}{_GIB}"),
    _figure("weights_gib", rf"model weights take {_N}{_GIB}"),
    _figure("weights_load_s", rf"Model loading took [\d.]{{1,20}}{_GIB}(?: memory)? and {_N} sec"),
    _figure("weights_read_s", rf"Loading weights took {_N} sec"),
    _figure("compile_s", rf"torch\.compile (?:takes|took) {_N} s"),
    _figure("compile_s", rf"init engine \(profile.{{0,60}}\(compilation: {_N} s"),
    _figure("activation_gib", rf"PyTorch activation peak memory takes {_N}{_GIB}"),
    _figure("activation_gib", rf"torch peak memory increase: {_N}{_GIB}"),
    _figure("non_torch_gib", rf"non_torch_memory takes {_N}{_GIB}"),
    _figure("non_torch_gib", rf"non-torch forward increase memory: {_N}{_GIB}"),
    _figure("kv_cache_gib", rf"Available KV cache memory: {_N}{_GIB}", smallest=True),
    _figure("kv_cache_gib", rf"reserved for KV Cache is {_N}{_GIB}", smallest=True),
    _figure("kv_cache_gib", rf"Explicitly set \({_N}/[\d.]{{1,20}}\) GiB for KV", smallest=True),
    _figure("kv_cache_tokens", rf"KV cache size: {_N} tokens", smallest=True),
    _figure("max_concurrency", rf"tokens per request: {_N}x", smallest=True),
    _figure("graph_capture_s", rf"Graph capturing finished in {_N} sec"),
    _figure("graph_capture_gib", rf"Graph capturing finished in \d{{1,9}} secs?, took {_N}{_GIB}"),
    _figure("engine_init_s", rf"init engine \(profile[^)]{{0,80}}\) took {_N} s"),
)
# Most lines hold none of these words and are not searched further.
_HINT: Final = re.compile(
    r"took|takes|finished in|KV [cC]ache|tokens per request|increase|blocks: "
)
# V0 tells the size of the KV cache in blocks, and what a request of full length takes of it.
_BLOCKS: Final = re.compile(r"# (?:GPU|cuda|CUDA|hpu|rocm) blocks: (\d{1,9})")
_BLOCK_TOKENS: Final = 16.0  # block_size of V0 on GPUs (0.6 config.py, CacheConfig)


def figures_of(text: str) -> Iterator[tuple[str, float, bool]]:
    """Find the labels that a line tells: name, value, and whether the smallest counts."""
    if _HINT.search(text) is None:
        return
    for figure in _FIGURES:
        found = figure.pattern.search(text)
        if found:
            value = float(found[1].replace(",", ""))
            if 0 < value < 1e12:
                yield figure.name, value, figure.smallest
    blocks = _BLOCKS.search(text)
    if blocks and int(blocks[1]):
        yield "kv_cache_tokens", int(blocks[1]) * _BLOCK_TOKENS, True


class Setting(NamedTuple):
    """One setting of the engine: how its lines spell it and what a value looks like."""

    spelling: str
    value: str
    whole: bool = False


_WHOLE: Final = r"(\d{1,9})\b"
_GPUS: Final = r"(\d{1,4})\b"
_TEXT: Final = r"'([^']{1,2000})'"
_WORD: Final = r"'?([\w.]{1,40})'?"

CONFIG: Final[dict[str, Setting]] = {
    "model": Setting("model", _TEXT),
    "dtype": Setting("dtype", _WORD),
    "quantization": Setting("quantization", _WORD),
    "tensor_parallel": Setting("tensor_parallel_size", _GPUS, whole=True),
    "pipeline_parallel": Setting("pipeline_parallel_size", _GPUS, whole=True),
    "data_parallel": Setting("data_parallel_size", _GPUS, whole=True),
    "max_model_len": Setting("max_(?:model|seq)_len", _WHOLE, whole=True),
    "kv_dtype": Setting("kv_cache_dtype", _WORD),
    "memory_utilization": Setting("gpu_memory_utilization", r"(0?\.\d{1,6}|1\.0|0\.0|1)\b"),
}
# "key=value" in the engine's line and in Namespace(...), "'key': value" in the dictionary.
_SETTINGS: Final = {
    key: re.compile(rf"(?<![\w.])'?{setting.spelling}'?(?:=|: ){setting.value}")
    for key, setting in CONFIG.items()
}
_CONFIG_LINE: Final = re.compile(
    r"non-default args: \{|args: Namespace\(|LLM engine \(v[^)]{1,60}\) with config: "
)
_DEVICE_FILE: Final = re.compile(r"device_name=([\w-]{1,80})")


def config_of(text: str) -> dict[str, str]:
    """Find the settings that a line tells; none but those of :data:`CONFIG`, and "api_server"."""
    opening = _CONFIG_LINE.search(text, 0, 4096)
    if opening is None:
        return {}
    found = {key: pattern.search(text, opening.start()) for key, pattern in _SETTINGS.items()}
    settings = {key: match[1] for key, match in found.items() if match}
    if "args" in opening[0]:
        settings["api_server"] = "yes"
    return settings


def gpu_of(text: str) -> str:
    """Find the GPU's name where vLLM names the file of tuned kernels for it; "" elsewhere."""
    found = _DEVICE_FILE.search(text)
    return found[1].replace("_", " ") if found else ""
