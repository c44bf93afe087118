"""From a config's fields to its decoder layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.catalog import arch
from omnipilot.catalog.hf_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields
from omnipilot.catalog.hf_moe import moe_layers
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.catalog.arch import Layer, Mixer
    from omnipilot.catalog.families import Traits

_LAYER_TYPES: Final[dict[str, Mixer]] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
}
"""Words of ``layer_types`` and ``layers_block_type``."""

_BLOCK_WORDS: Final = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""Nemotron 3.5 spells the same pattern as a list of words."""

_HYBRID_LETTERS: Final[dict[str, Mixer]] = {
    "*": "full",
    "M": "recurrent",
    "-": "none",
    "E": "none",
}
"""Letters of Nemotron-H's ``hybrid_override_pattern``: attention, Mamba-2, MLP, experts."""

_LLAMA4_FULL_EVERY: Final = 4
"""Llama 4: each fourth layer attends without RoPE to everything, the others to a chunk."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths and counts that every layer of a decoder shares; see :class:`ModelArch`."""

    n_layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    global_kv_heads: int
    global_head_dim: int
    window: int
    n_experts: int
    top_k: int
    expert_inner: int
    n_shared_experts: int
    shared_inner: int


def read_window(fields: ConfigFields, traits: Traits, max_position: int) -> int:
    """Sliding window in tokens; 0 where the model attends to everything.

    A window as long as the context is none: Phi-4-mini states 262144 for a context of 131072.
    """
    if traits.window_layers == "never" and fields.raw("attention_chunk_size")[1] is None:
        return 0
    if not fields.flag("use_sliding_window", default=True):
        return 0
    window = fields.integer("sliding_window", "attention_chunk_size", high=MAX_WIDTH)
    late = traits.window_layers == "late"
    if late and fields.raw("use_sliding_window")[1] is None and not fields.raw("layer_types")[1]:
        return 0
    return 0 if window >= max_position else window


def read_mixers(
    fields: ConfigFields, traits: Traits, n_layers: int, window: int
) -> tuple[Mixer, ...]:
    """How each layer keeps its past, from whichever form the config uses.

    Raises:
        BadInputError: a layout of another length than the decoder, or with unknown words.
    """
    letters = block_letters(fields, traits)
    if letters:
        if len(letters) != n_layers:
            raise fields.refuse("hybrid_override_pattern", f"{n_layers} letters", letters)
        return tuple(_HYBRID_LETTERS[c] for c in letters)
    words = fields.listing("layer_types", "layers_block_type", length=n_layers)
    if words:
        return tuple(_mixer_of_word(fields, word, window) for word in words)
    if flags := fields.listing("hybrid_layer_pattern", length=n_layers):
        return tuple("sliding" if flag == 1 and window else "full" for flag in flags)
    if kinds := fields.listing("attn_type_list", length=n_layers):
        return tuple("full" if kind == 1 else "recurrent" for kind in kinds)
    if full := _listed_full(fields, n_layers):
        return tuple("full" if i in full else "recurrent" for i in range(n_layers))
    return tuple(_rule(fields, traits, n_layers, window))


def _listed_full(fields: ConfigFields, n_layers: int) -> frozenset[int]:
    """Full-attention layers that a hybrid lists: Bamba from 0, Kimi Linear from 1."""
    linear = ConfigFields([fields.table("linear_attn_config")], fields.where)
    from_one = linear.integers("full_attn_layers", 1, n_layers)
    from_zero = fields.integers("attn_layer_indices", 0, n_layers - 1)
    return frozenset((*from_zero, *(n - 1 for n in from_one)))


def block_letters(fields: ConfigFields, traits: Traits) -> str:
    """Nemotron-H's pattern of half layers, one letter a block; "" for other models.

    Raises:
        BadInputError: letters or words that stand for no block.
    """
    letters = fields.text_long("hybrid_override_pattern", MAX_LAYERS)
    if not letters and traits.family == "nemotron-h":
        words = fields.listing("layers_block_type")
        letters = "".join(_BLOCK_WORDS.get(word, "?") for word in words if isinstance(word, str))
        if len(letters) != len(words):
            raise fields.refuse("layers_block_type", "a list of words", words[0])
    if any(letter not in _HYBRID_LETTERS for letter in letters):
        raise fields.refuse("hybrid_override_pattern", "letters out of M * - E", letters)
    return letters


def _mixer_of_word(fields: ConfigFields, word: object, window: int) -> Mixer:
    mixer = _LAYER_TYPES.get(word) if isinstance(word, str) else None
    if mixer is None:
        raise fields.refuse("layer_types", f"one of {', '.join(_LAYER_TYPES)}", word)
    return "full" if mixer == "sliding" and not window else mixer


def _rule(fields: ConfigFields, traits: Traits, n_layers: int, window: int) -> list[Mixer]:
    """Layouts that configs give as a period."""
    interval = fields.integer("full_attention_interval", high=MAX_LAYERS)
    if interval:
        return ["recurrent" if (i + 1) % interval else "full" for i in range(n_layers)]
    period = fields.integer("attn_layer_period", high=MAX_LAYERS)
    if period:
        offset = fields.integer("attn_layer_offset", high=MAX_LAYERS)
        return ["full" if i % period == offset else "recurrent" for i in range(n_layers)]
    if not window:
        return ["full"] * n_layers
    if fields.raw("attention_chunk_size")[1] is not None:
        every = _LLAMA4_FULL_EVERY
    elif traits.window_layers == "pattern":
        every = fields.integer(
            "sliding_window_pattern", "_sliding_window_pattern", default=traits.pattern,
            low=1, high=MAX_LAYERS,
        )  # fmt: skip
    elif traits.window_layers == "late":
        first = fields.integer("max_window_layers", default=0, high=MAX_LAYERS)
        return ["full" if i < first else "sliding" for i in range(n_layers)]
    else:
        return ["sliding"] * n_layers
    return ["sliding" if (i + 1) % every else "full" for i in range(n_layers)]


class LayerBuilder:
    """Counts one decoder layer after another.

    Args:
        fields: the config.
        traits: structure implied by the model type.
        shape: widths and counts.
    """

    def __init__(self, fields: ConfigFields, traits: Traits, shape: Shape) -> None:
        self._fields = fields
        self._traits = traits
        self._shape = shape
        bias = fields.raw("attention_bias", "add_qkv_bias", "qkv_bias")[1]
        self._qkv_bias = traits.qkv_bias if bias is None else bool(bias)
        self._out_bias = traits.out_bias
        self._mlp_bias = fields.flag("mlp_bias", default=traits.mlp_bias)
        self._kv_per_layer = fields.integers("num_key_value_heads_per_layer", 1, shape.heads)
        self._gated_query = fields.flag("attn_output_gate", default=traits.gated_query)
        self._letters = block_letters(fields, traits)
        self._recurrent = self._recurrent_counts()

    def build(self, mixers: tuple[Mixer, ...]) -> list[Layer]:
        """All layers, in order; layers of one kind are counted once."""
        routed = self._routed()
        shared_from = self._first_shared_layer()
        cache: dict[tuple[object, ...], Layer] = {}
        layers = []
        for i, mixer in enumerate(mixers):
            kv_heads = self._kv_per_layer[i] if i < len(self._kv_per_layer) else 0
            letter = self._letters[i] if self._letters else ""
            key = (mixer, routed[i], i >= shared_from, kv_heads, letter)
            if key not in cache:
                cache[key] = self._layer(*key)
            layers.append(cache[key])
        return layers

    def _routed(self) -> tuple[bool, ...]:
        n_layers = self._shape.n_layers
        if not self._shape.n_experts:
            return (False,) * n_layers
        if self._letters:
            return tuple(letter == "E" for letter in self._letters)
        return moe_layers(self._fields, n_layers)

    def _first_shared_layer(self) -> int:
        shared = self._fields.integer("num_kv_shared_layers", high=self._shape.n_layers)
        return self._shape.n_layers - shared

    def _layer(
        self, mixer: Mixer, routed: bool, shares_kv: bool, kv_heads: int, letter: str
    ) -> Layer:
        shape, traits = self._shape, self._traits
        state = 0
        if mixer == "recurrent":
            mixer_params, state = self._recurrent
        elif mixer == "none":
            mixer_params = 0
        else:
            mixer_params = self._attention(mixer, shares_kv, kv_heads)
        # Blocks of a lettered pattern are half layers: a mixer or a feed-forward part, not both.
        has_ffn = letter in {"", "-", "E"}
        ffn, experts = self._feed_forward(routed) if has_ffn else (0, 0)
        norms = traits.norms * arch.norm_params(shape.hidden, centred=traits.centred_norm)
        if traits.qk_norm and mixer in {"full", "sliding"}:
            heads = shape.heads + shape.kv_heads
            norms += shape.head_dim * (2 if traits.qk_norm == "head" else heads)
        kind: Mixer = "shared" if shares_kv and mixer in {"full", "sliding"} else mixer
        return arch.Layer(kind, mixer_params, ffn, experts, norms, state)

    def _attention(self, mixer: Mixer, shares_kv: bool, kv_heads: int) -> int:
        shape, fields = self._shape, self._fields
        latent = fields.integer("kv_lora_rank", high=MAX_WIDTH)
        if latent:
            rank = fields.integer("q_lora_rank", high=MAX_WIDTH)
            params = arch.mla_params(
                shape.hidden,
                shape.heads,
                rank,
                latent,
                fields.need("qk_nope_head_dim", high=MAX_WIDTH),
                fields.need("qk_rope_head_dim", high=MAX_WIDTH),
                fields.need("v_head_dim", high=MAX_WIDTH),
            )
            index_heads = fields.integer("index_n_heads")
            if index_heads:
                index_dim = fields.need("index_head_dim", high=MAX_WIDTH)
                params += arch.indexer_params(shape.hidden, rank, index_heads, index_dim)
            return params
        full = mixer == "full"
        return arch.attention_params(
            shape.hidden,
            shape.heads,
            kv_heads or (full and shape.global_kv_heads) or shape.kv_heads,
            (full and shape.global_head_dim) or shape.head_dim,
            v_dim=fields.integer("v_head_dim", high=MAX_WIDTH),
            qkv_bias=self._qkv_bias,
            out_bias=self._out_bias,
            gated_query=self._gated_query,
            key_is_value=full and fields.flag("attention_k_eq_v"),
            own_kv=not shares_kv,
        )

    def _feed_forward(self, routed: bool) -> tuple[int, int]:
        """(parameters that every token uses, parameters of all routed experts)."""
        shape, traits, fields = self._shape, self._traits, self._fields
        dense_inner = fields.integer("intermediate_size_mlp", default=shape.inner, high=MAX_WIDTH)
        dense = arch.mlp_params(shape.hidden, dense_inner, gated=traits.gated, bias=self._mlp_bias)
        if not routed:
            return dense, 0
        latent = fields.integer("moe_latent_size", high=MAX_WIDTH)
        expert = arch.mlp_params(
            latent or shape.hidden, shape.expert_inner, gated=traits.gated, bias=traits.expert_bias
        )
        always = arch.linear(shape.hidden, shape.n_experts, bias=traits.router_bias)
        always += 2 * shape.hidden * latent
        if shape.shared_inner:
            always += arch.mlp_params(shape.hidden, shape.shared_inner, gated=traits.gated)
            if fields.raw("shared_expert_intermediate_size")[1] is not None:
                always += shape.hidden  # Qwen gates its shared expert
        if traits.dense_beside_experts:
            always += dense + 3 * shape.hidden
        return always, expert * shape.n_experts

    def _recurrent_counts(self) -> tuple[int, int]:
        """(parameters, state elements) of one recurrent layer; zeros where the model has none."""
        fields, hidden = self._fields, self._shape.hidden
        width = MAX_WIDTH
        conv = fields.integer("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv", default=4)
        value_heads = fields.integer("linear_num_value_heads")
        if value_heads:
            return arch.delta_net_params(
                hidden,
                fields.need("linear_num_key_heads"),
                value_heads,
                fields.need("linear_key_head_dim", high=width),
                fields.need("linear_value_head_dim", high=width),
                conv,
            )
        if linear := fields.table("linear_attn_config"):
            part = ConfigFields([linear], fields.where)
            heads, dim = part.need("num_heads"), part.need("head_dim", high=width)
            conv = part.integer("short_conv_kernel_size", default=4)
            state = heads * dim * dim + 3 * heads * dim * max(conv - 1, 0)
            return arch.attention_params(hidden, heads, heads, dim), state
        heads = fields.integer("mamba_num_heads", "mamba_n_heads")
        if heads:
            return arch.mamba2_params(
                hidden,
                heads,
                fields.need("mamba_head_dim", "mamba_d_head", high=width),
                fields.integer("n_groups", "mamba_n_groups", default=1),
                fields.need("ssm_state_size", "mamba_d_state", high=width),
                conv,
            )
        state = fields.integer("mamba_d_state", high=width)
        if state:
            inner = hidden * fields.integer("mamba_expand", default=2)
            rank = fields.integer("mamba_dt_rank", default=-(-hidden // 16), high=width)
            return arch.mamba1_params(hidden, inner, state, rank, conv)
        shape = self._shape
        params = arch.attention_params(hidden, shape.heads, shape.heads, shape.head_dim)
        return params, shape.heads * shape.head_dim * shape.head_dim


def block_config_layers(fields: ConfigFields, shape: Shape) -> tuple[list[Layer], int]:
    """Layers of a searched architecture (Nemotron NAS): attention or MLP may be absent.

    Returns:
        (layers, widest MLP).

    Raises:
        BadInputError: a block that is not a table, or has numbers out of range.
    """
    layers, widest = [], 0
    for block in fields.listing("block_configs", length=shape.n_layers):
        if not isinstance(block, dict):
            raise fields.refuse("block_configs", "a list of tables", block)
        part = type(fields)([block], fields.where)
        attention = type(fields)([part.table("attention")], fields.where)
        ffn = type(fields)([part.table("ffn")], fields.where)
        mixer: Mixer = "full"
        params = shape.hidden * shape.hidden
        if attention.flag("no_op"):
            mixer, params = "none", 0
        elif attention.flag("replace_with_linear"):
            mixer = "none"
        else:
            group = attention.need("n_heads_in_group", high=shape.heads)
            kv_heads = max(1, shape.heads // group)
            params = arch.attention_params(shape.hidden, shape.heads, kv_heads, shape.head_dim)
        if ffn.flag("no_op"):
            mlp = 0
        elif ffn.flag("replace_with_linear"):
            mlp = shape.hidden * shape.hidden
        else:
            wide = int(2 * ffn.number("ffn_mult", 0.0, 0.0, 1000.0) * shape.hidden / 3)
            wide = -(-wide // 256) * 256
            widest = max(widest, wide)
            mlp = arch.mlp_params(shape.hidden, wide, gated=True)
        layers.append(arch.Layer(mixer, params, mlp, 0, 2 * shape.hidden))
    return layers, widest
