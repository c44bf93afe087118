"""What of an engine's command line is the arm's, and what tells one arm's runs apart."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_arguments", "settings_text", "shares_experts"]

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
_ARM: Final = "choose another arm with --arm GPU:TP:PRECISION (bench plan: --tp, --precisions)"
_MODEL: Final = "name the model with --model and its files with --checkpoint"
_STAGE: Final = "leave it out, an arm has one stage"
_SCRIPT: Final = "leave it out, the script sets it"
# Arguments that would make the server another one than the arm, the request and so the rows say, in
# vLLM's spellings, with what to do instead.
_TAKEN: Final[dict[str, str]] = {
    "--tensor-parallel-size": _ARM, "-tp": _ARM, "--quantization": _ARM, "-q": _ARM,
    "--dtype": _ARM, "--pipeline-parallel-size": _STAGE, "-pp": _STAGE,
    "--max-model-len": "say the length with --context",
    "--kv-cache-dtype": "measure it with bench plan --axis kv_dtype=VALUE",
    "--model": _MODEL, "--served-model-name": _MODEL, "--host": _SCRIPT, "--port": _SCRIPT,
}  # fmt: skip
# JSON and paths are left out: the flag alone stands for them.
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:+-]{0,63}", re.ASCII)


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse further arguments that say what the arm, the request or the script says already.

    Raises:
        BadInputError: naming the argument and what to do instead.
    """
    for argument in arguments:
        word = argument.partition("=")[0].split(maxsplit=1)[:1]
        flag = word[0].replace("_", "-") if word and word[0].startswith("-") else ""
        # vLLM takes the beginning of a long flag for the whole.
        taken = [
            name for name in _TAKEN
            if flag == name or (len(flag) > 3 and flag.startswith("--") and name.startswith(flag))
        ]  # fmt: skip
        if taken:
            raise BadInputError(
                f"--engine-arg={flag} contradicts what is launched: {_TAKEN[taken[0]]}"
            )


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
