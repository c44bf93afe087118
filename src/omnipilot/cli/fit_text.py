"""A fit verdict in sentences: shared by ``fits`` and ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnipilot.cli.output import number

if TYPE_CHECKING:
    from omnipilot.domain import FitVerdict


def fit_lines(fit: FitVerdict) -> list[str]:
    """Sentences of a verdict: the reason, the sizes, the room, what was assumed."""
    sizes = (
        ("weights", fit.weights_gib_per_gpu),
        ("activation", fit.activation_gib),
        ("graphs", fit.graph_gib),
        ("KV cache", fit.kv_gib_per_gpu),
    )
    known = [f"{name} {number(size)} GiB" for name, size in sizes if size is not None]
    lines = [f"On each GPU: {', '.join(known)}."] if known else []
    if fit.kv_cache_tokens is not None:
        room = f"The KV cache holds {fit.kv_cache_tokens:,} tokens"
        if fit.max_concurrency is not None:
            room += f": {number(fit.max_concurrency)} requests of the full context at once"
        lines.append(f"{room}.")
    return [fit.reason, *lines, *(f"Assumed: {text}" for text in fit.assumptions)]
