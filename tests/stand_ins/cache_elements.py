"""Elements that a sequence keeps in the KV cache, added up from a model's facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnipilot.domain import ModelArch


def cache_elements(model: ModelArch, context_tokens: int) -> int:
    """Count them before any sharding.

    Sliding layers stop growing at the window; recurrent layers hold a constant state.
    """
    full = model.n_full_attention_layers * model.kv_elements_per_token_per_full_layer()
    window = min(context_tokens, model.sliding_window or context_tokens)
    sliding = model.n_sliding_layers * model.kv_elements_per_token_per_sliding_layer()
    return full * context_tokens + sliding * window + model.recurrent_state_elements
