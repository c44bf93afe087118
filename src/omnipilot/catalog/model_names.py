"""Spellings of model names: what is a variant in another weight format, what is another model."""

from __future__ import annotations

import re
from typing import Final

from omnipilot.domain.frozen import dataclass

_REMARK: Final = re.compile(r"\s*\([^)]*\)\s*$")
_SEPARATORS: Final = re.compile(r"[\s_]+")

SUFFIXES: Final[tuple[tuple[str, str, int], ...]] = (
    (r"fp8[-.]static[-.]pertensor", "fp8", 0),
    (r"fp8[-.](?:dynamic|kv|static|w8a16|torchao)", "fp8", 0),
    (r"(?:fp8[-.]block|block[-.]fp8)", "fp8-block", 128),
    (r"fp8", "fp8", 0),
    (r"(?:nvfp4a16|nvfp4|fp4)", "nvfp4", 16),
    (r"mxfp4", "mxfp4", 32),
    (r"(?:quantized\.|int8-)?w8a8(?:-int8)?", "int8", 0),
    (r"awq(?:-int4|-4bit|-marlin|-w4a16)?", "awq", 128),
    (r"int4-awq", "awq", 128),
    (r"gptq-int8", "gptq-int8", 128),
    (r"gptq(?:-int4|-4bit|-marlin)?", "gptq", 128),
    (r"(?:quantized\.)?w4a16", "gptq", 128),
    (r"(?:quantized\.)?w8a16", "gptq-int8", 128),
    (r"int4(?:-w4a16)?", "gptq", 128),
    (r"(?:unsloth-)?bnb-4bit", "bnb-nf4", 64),
    (r"bf16", "bf16", 0),
    (r"fp16", "fp16", 0),
)
"""Endings of quantised repositories: pattern, precision, group of one scale.

Conventions of RedHatAI (llm-compressor), NVIDIA (modelopt), Qwen, TheBloke and unsloth.
"""

BLOCK_FP8_OWNERS: Final = frozenset({"qwen", "deepseek-ai", "minimaxai", "stepfun-ai"})
"""Owners whose ``-FP8`` repositories scale blocks of 128 × 128 (``weight_block_size``)."""

REUPLOADERS: Final = frozenset(
    {
        "nvidia", "redhatai", "neuralmagic", "nm-testing", "thebloke", "unsloth", "amd", "intel",
        "cognitivecomputations", "casperhansen", "hugging-quants", "nousresearch", "sgl-project",
        "lmsys", "modelcloud", "quanttrio", "thudm", "zhipuai", "coherelabs", "eleutherai",
    }
)  # fmt: skip
"""Owners that publish other owners' models under the same name."""

_SUFFIX_PATTERNS: Final = tuple(
    (re.compile(rf"^(?P<base>.+?)[-._](?:{pattern})$", re.IGNORECASE), precision, group)
    for pattern, precision, group in SUFFIXES
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A name without its weight format, and that format ("" where the name says none)."""

    base: str
    precision: str
    group_size: int


def strip_remark(text: str) -> str:
    """Leave out a closing remark in parentheses and outer blanks.

    Example:
        >>> strip_remark("Qwen2.5-7B (4-bit)")
        'Qwen2.5-7B'
    """
    return _REMARK.sub("", text.strip())


def key_of(text: str) -> str:
    """Form in which two spellings of one name are equal.

    Example:
        >>> key_of("Mistral 7B") == key_of("mistral-7b")
        True
    """
    return _SEPARATORS.sub("-", text.strip().lower())


def split_owner(text: str) -> tuple[str, str]:
    """(owner, name) of ``owner/name``; the owner is empty where there is none."""
    owner, slash, name = text.partition("/")
    return (owner, name) if slash else ("", text)


def split_variant(text: str) -> Variant:
    """Take the weight format off a repository's name.

    Example:
        >>> split_variant("Qwen/Qwen3-8B-FP8")
        Variant(base='Qwen/Qwen3-8B', precision='fp8-block', group_size=128)
    """
    for pattern, precision, group in _SUFFIX_PATTERNS:
        match = pattern.match(text)
        if match and precision == "fp8" and text.lower().endswith("fp8"):
            blocks = split_owner(text)[0].lower() in BLOCK_FP8_OWNERS
            return Variant(match["base"], "fp8-block" if blocks else "fp8", 128 if blocks else 0)
        if match:
            return Variant(match["base"], precision, group)
    return Variant(text, "", 0)
