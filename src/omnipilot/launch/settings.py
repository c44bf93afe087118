"""What of an engine's command line tells the speeds of one arm's runs apart."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["settings_text", "shares_experts"]

# Flags of "vllm serve" that change how fast an arm is (vLLM, Engine Arguments). Everything else on
# the command line, keys and folders among it, reaches no row.
_FLAGS: Final = frozenset({
    "async-scheduling", "attention-backend", "block-size", "compilation-config", "cpu-offload-gb",
    "cuda-graph-sizes", "data-parallel-size", "disable-custom-all-reduce", "enable-chunked-prefill",
    "enable-dbo", "enable-lora", "enable-prefix-caching", "enforce-eager",
    "long-prefill-token-threshold", "max-num-batched-tokens",
    "max-num-partial-prefills", "max-num-seqs", "max-seq-len-to-capture",
    "no-async-scheduling", "no-enable-chunked-prefill", "no-enable-prefix-caching",
    "num-scheduler-steps", "scheduling-policy", "speculative-config",
})  # fmt: skip
# JSON and paths are left out: the flag alone stands for them.
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:+-]{0,63}", re.ASCII)


def settings_text(arguments: Sequence[str]) -> str:
    """Reduce further arguments of a command line to the flags that change an arm's speed, sorted.

    Example:
        >>> settings_text(["--max-num-seqs", "128", "--api-key=secret", "--enforce-eager"])
        'enforce-eager max-num-seqs=128'
    """
    told = []
    for word, after in pairwise([*_words(arguments), ""]):
        flag = _flag(word)
        if flag not in _FLAGS:
            continue
        value = after if not after.startswith("--") and _PLAIN.fullmatch(after) else ""
        told.append(f"{flag}={value}" if value else flag)
    return " ".join(sorted(told))


def shares_experts(arguments: Sequence[str]) -> bool:
    """Tell whether each GPU is to hold whole experts."""
    return any(_flag(word) == "enable-expert-parallel" for word in _words(arguments))


def _words(arguments: Sequence[str]) -> list[str]:
    return [word for argument in arguments for word in argument.replace("=", " ", 1).split()]


def _flag(word: str) -> str:
    return word[2:].replace("_", "-") if word.startswith("--") else ""
