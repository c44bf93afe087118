"""Parameter counts of a model's parts, from its structure.

Each function counts the weights of one part of one layer, in parameters. Sources: the layer
definitions published with the models (Hugging Face transformers, vLLM ``model_executor/models``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

Mixer = Literal["full", "sliding", "recurrent", "shared", "none"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: how it keeps its past and how many parameters each part has.

    ``mixer``: "full" attention, "sliding" window, "recurrent" state, "shared" (attends to another
    layer's cache), "none" (a block with a feed-forward part alone). ``ffn_params`` are used by
    every token (dense MLP, shared experts, router); ``routed_params`` are all routed experts.
    """

    mixer: Mixer
    mixer_params: int
    ffn_params: int
    routed_params: int
    norm_params: int
    state_elements: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over the layers of a decoder.

    ``total`` and ``active`` are in parameters. Active counts what one text token passes through:
    all parameters but the vision tower and the experts that the token is not routed to (the
    embedding table and the head are counted).
    """

    total: int
    active: int
    routed: int
    n_full: int
    n_sliding: int
    n_recurrent: int
    n_shared: int
    n_moe: int
    state_elements: int


def count(
    layers: Sequence[Layer], outside_params: int, vision_params: int, n_experts: int, top_k: int
) -> Counts:
    """Sum a decoder.

    Args:
        layers: one entry a layer.
        outside_params: embeddings, head, final norm, encoder; everything but layers and vision.
        vision_params: encoders of other modalities with their projectors.
        n_experts: routed experts of one MoE layer, 0 for dense models.
        top_k: routed experts that one token passes through.
    """
    routed = sum(layer.routed_params for layer in layers)
    always = outside_params + sum(
        layer.mixer_params + layer.ffn_params + layer.norm_params for layer in layers
    )
    kinds = [layer.mixer for layer in layers]
    return Counts(
        total=always + routed + vision_params,
        active=always + (routed * top_k // n_experts if n_experts else 0),
        routed=routed,
        n_full=kinds.count("full"),
        n_sliding=kinds.count("sliding"),
        n_recurrent=kinds.count("recurrent"),
        n_shared=kinds.count("shared"),
        n_moe=sum(1 for layer in layers if layer.routed_params),
        state_elements=sum(layer.state_elements for layer in layers),
    )


def linear(n_in: int, n_out: int, *, bias: bool = False) -> int:
    """A matrix, with its bias."""
    return n_in * n_out + (n_out if bias else 0)


def attention_params(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    v_dim: int = 0,
    qkv_bias: bool = False,
    out_bias: bool = False,
    gated_query: bool = False,
    key_is_value: bool = False,
    own_kv: bool = True,
) -> int:
    """Multi-head attention with grouped keys and values.

    Args:
        hidden: model width.
        heads: query heads.
        kv_heads: key (and value) heads.
        head_dim: width of a query or key head.
        v_dim: width of a value head where it differs.
        qkv_bias: biases on the three input projections.
        out_bias: bias on the output projection.
        gated_query: the query projection also yields an output gate (Qwen3-Next).
        key_is_value: one projection serves as key and value (Gemma 4, full layers).
        own_kv: False where the layer reads another layer's cache.
    """
    v_dim = v_dim or head_dim
    query = linear(hidden, heads * head_dim * (2 if gated_query else 1), bias=qkv_bias)
    key = linear(hidden, kv_heads * head_dim, bias=qkv_bias)
    value = 0 if key_is_value else linear(hidden, kv_heads * v_dim, bias=qkv_bias)
    out = linear(heads * v_dim, hidden, bias=out_bias)
    return query + out + (key + value if own_kv else 0)


def mla_params(
    hidden: int,
    heads: int,
    q_lora_rank: int,
    kv_lora_rank: int,
    qk_nope_dim: int,
    qk_rope_dim: int,
    v_dim: int,
) -> int:
    """Multi-head latent attention (DeepSeek-V2): low-rank query (rank 0: full) and key-value."""
    qk_dim = qk_nope_dim + qk_rope_dim
    if q_lora_rank:
        query = hidden * q_lora_rank + q_lora_rank + q_lora_rank * heads * qk_dim
    else:
        query = hidden * heads * qk_dim
    latent = hidden * (kv_lora_rank + qk_rope_dim) + kv_lora_rank
    expand = kv_lora_rank * heads * (qk_nope_dim + v_dim)
    return query + latent + expand + heads * v_dim * hidden


def indexer_params(hidden: int, q_lora_rank: int, heads: int, head_dim: int) -> int:
    """Lightning indexer of DeepSeek sparse attention: query, key with its norm, head weights."""
    return q_lora_rank * heads * head_dim + hidden * head_dim + 2 * head_dim + hidden * heads


def delta_net_params(
    hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, conv: int
) -> tuple[int, int]:
    """Gated delta net (Qwen3-Next): parameters and state elements of one sequence."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    projections = hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden
    params = projections + channels * conv + 2 * value_heads + value_dim
    return params, value_heads * key_dim * value_dim + channels * max(conv - 1, 0)


def mamba2_params(
    hidden: int, heads: int, head_dim: int, groups: int, state: int, conv: int
) -> tuple[int, int]:
    """Mamba-2 mixer: parameters and state elements of one sequence."""
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    params = hidden * (inner + channels + heads) + channels * (conv + 1) + 3 * heads
    params += inner + inner * hidden
    return params, inner * state + channels * max(conv - 1, 0)


def mamba1_params(hidden: int, inner: int, state: int, dt_rank: int, conv: int) -> tuple[int, int]:
    """Mamba-1 mixer (Jamba): parameters and state elements of one sequence."""
    params = hidden * 2 * inner + inner * (conv + 1) + inner * (dt_rank + 2 * state)
    params += dt_rank * inner + inner + inner * state + inner + inner * hidden
    return params, inner * state + inner * max(conv - 1, 0)


def mlp_params(hidden: int, inner: int, *, gated: bool, bias: bool = False) -> int:
    """A feed-forward part: three matrices where gated (SwiGLU), else two."""
    ups = 2 if gated else 1
    return ups * linear(hidden, inner, bias=bias) + linear(inner, hidden, bias=bias)


def norm_params(width: int, *, centred: bool) -> int:
    """A norm: a scale (RMSNorm), with a shift where centred (LayerNorm)."""
    return width * (2 if centred else 1)
