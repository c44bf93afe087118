"""A model's architecture from an unaltered Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.catalog import arch
from omnipilot.catalog.families import traits_of
from omnipilot.catalog.hf_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields, one_line, shorten
from omnipilot.catalog.hf_layers import (
    LayerBuilder,
    Shape,
    block_config_layers,
    block_letters,
    read_mixers,
    read_window,
)
from omnipilot.catalog.hf_quantization import read_quantization
from omnipilot.catalog.hf_vision import vision_params
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.model import ModelArch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from omnipilot.catalog.families import Traits

MAX_CONFIG_BYTES: Final = 5 * 1024 * 1024
"""Largest config read; published ones are below 200 KB."""

_MAX_PARAMS: Final = 10**15
"""A quadrillion parameters: beyond it the numbers of a config contradict one another."""

_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys under which multimodal models keep the decoder's config."""

_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN: Final = ("hidden_size", "n_embd", "d_model", "model_dim")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_INNER: Final = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff")
_KV_HEADS: Final = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "kv_n_heads",
    "multi_query_group_num",
)
_POSITIONS: Final = (
    "model_max_length",  # over all others, as vLLM has it: Command R states 8192 positions too
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
)
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TOP_K: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
)


def read_config(path: Path) -> dict[str, object]:
    """Read a config from a file or from a model's folder.

    Older NVIDIA repositories keep the weight format beside it in ``hf_quant_config.json``; it is
    read from there where the config says nothing.

    Raises:
        BadInputError: missing, over 5 MB, binary, not JSON, nested too deeply, or not a table.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _read_table(file)
    beside = file.with_name("hf_quant_config.json")
    if file.name == "config.json" and "quantization_config" not in config and beside.is_file():
        scheme = _read_table(beside).get("quantization")
        if isinstance(scheme, dict):
            config["quantization_config"] = {"quant_method": "modelopt", **scheme}
    return config


def _read_table(file: Path) -> dict[str, object]:
    """Decode one JSON file that holds a table."""
    shown = one_line(file)
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_CONFIG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(
            f"cannot read {shown}: {one_line(reason)}: give a model's config.json or a folder that "
            "holds one"
        ) from None
    if len(data) > MAX_CONFIG_BYTES:
        raise BadInputError(f"{shown} is over 5 MB: not a config.json")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else "not JSON"
        raise BadInputError(f"{shown} is {detail}: give the model's own config.json") from None
    if not isinstance(value, dict):
        raise BadInputError(f"{shown} holds {shorten(value)}, not the table of a config.json")
    return value


def arch_from_config(config: Mapping[str, object], model_id: str) -> ModelArch:
    """Compute a model's architecture.

    Args:
        config: the decoded config.json.
        model_id: name for the model; its base is the same name (no precision is stripped here).

    Raises:
        BadInputError: a key is missing, of the wrong type or out of range; the text names it.
    """
    where = f"config of {shorten(model_id, 80)}" if model_id else "config"
    if not isinstance(config, dict):
        raise BadInputError(f"{where}: expected a table, got {shorten(config)}")
    top = ConfigFields([config], where)
    tables = [*_decoder_tables(top, config), config]
    stated = ConfigFields(tables, where)
    architectures = top.listing("architectures")
    architecture = architectures[0] if architectures else ""
    if not isinstance(architecture, str):
        raise top.refuse("architectures", "a list of names", architecture)
    model_type = stated.text("model_type")
    traits, known = traits_of(model_type, architecture)
    if not known and len(tables) > 1:
        traits, known = traits_of(top.text("model_type"), architecture)
    nested = len(tables) > 1
    tables += [t for key in ("attn_config", "ffn_config") if (t := stated.table(key))]
    fields = ConfigFields([*tables, traits.defaults] if nested else tables, where)
    return _assemble(fields, traits, known, model_id, architecture or model_type)


def _decoder_tables(top: ConfigFields, config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The nested tables that describe the decoder, most specific first."""
    for key in _NESTED:
        if isinstance(config.get(key), dict):
            outer = top.table(key)
            inner = outer.get("text_config")
            return [inner, outer] if isinstance(inner, dict) else [outer]
    return []


def _shape(fields: ConfigFields, traits: Traits, max_position: int) -> Shape:
    names = ("num_decoder_layers", *_LAYERS) if traits.encoder_decoder else _LAYERS
    n_layers = len(block_letters(fields, traits)) or fields.need(*names, high=MAX_LAYERS)
    hidden = fields.need(*_HIDDEN, high=MAX_WIDTH)
    heads = fields.need(*_HEADS)
    head_dim = fields.integer("head_dim", "d_kv", "kv_channels", "attention_head_dim",
                              high=MAX_WIDTH)  # fmt: skip
    if not head_dim:
        if hidden % heads:
            raise BadInputError(
                f"{fields.where}: 'hidden_size' {hidden} is not a multiple of "
                f"'num_attention_heads' {heads} and no 'head_dim' is given"
            )
        head_dim = hidden // heads
    if rope := fields.integer("qk_rope_head_dim", high=MAX_WIDTH):
        head_dim = rope + fields.integer("qk_nope_head_dim", high=MAX_WIDTH)
    kv_heads = _kv_heads(fields, traits, heads)
    swa_kv = fields.integer("swa_num_key_value_heads")
    ratio = fields.integer("expansion_ratio", default=4, low=1, high=1000)
    inner = fields.integer(*_INNER, default=ratio * hidden, high=MAX_WIDTH)
    n_experts = fields.integer(*_EXPERTS)
    expert_inner = fields.integer("moe_intermediate_size", "expert_dim", default=inner,
                                  high=MAX_WIDTH) if n_experts > 1 else 0  # fmt: skip
    n_shared, shared_inner = _shared_experts(fields, traits, expert_inner) if n_experts else (0, 0)
    window = read_window(fields, traits, max_position)
    return Shape(
        n_layers=n_layers,
        hidden=hidden,
        inner=inner,
        heads=heads,
        kv_heads=swa_kv or kv_heads,
        head_dim=head_dim,
        global_kv_heads=fields.integer("num_global_key_value_heads")
        or (kv_heads if swa_kv and swa_kv != kv_heads else 0),
        global_head_dim=fields.integer("global_head_dim", high=MAX_WIDTH),
        window=window,
        n_experts=n_experts if n_experts > 1 else 0,
        top_k=_top_k(fields, n_experts) if n_experts > 1 else 0,
        expert_inner=expert_inner,
        n_shared_experts=n_shared,
        shared_inner=shared_inner,
    )


def _kv_heads(fields: ConfigFields, traits: Traits, heads: int) -> int:
    per_layer = fields.integers("num_key_value_heads_per_layer", 1, heads)
    if per_layer:
        # vLLM pads every layer to the widest one (model_executor/models/decilm.py).
        return max(per_layer)
    multi_query = fields.raw("multi_query")[1]
    old_falcon = traits.family == "falcon" and not fields.flag("new_decoder_architecture")
    one = fields.flag("multi_query", default=traits.multi_query)
    if one and (old_falcon or traits.family == "starcoder"):
        return 1
    if old_falcon and multi_query is not None:
        return heads
    name, value = fields.raw(*_KV_HEADS)
    return heads if value is None else fields.checked_int(name, value, 1, heads)


def _top_k(fields: ConfigFields, n_experts: int) -> int:
    name, value = fields.raw(*_TOP_K)
    if isinstance(value, list):  # one entry a layer, all alike in published models
        value = value[0] if value else None
    if value is None:
        return fields.need(*_TOP_K, high=n_experts)
    return fields.checked_int(name, value, 1, n_experts)


def _shared_experts(fields: ConfigFields, traits: Traits, expert_inner: int) -> tuple[int, int]:
    """(shared experts, their width together)."""
    width = fields.integer("shared_expert_intermediate_size", "shared_intermediate_size",
                           "moe_shared_expert_intermediate_size", high=MAX_WIDTH)  # fmt: skip
    n_shared = fields.integer("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    if width:
        return max(n_shared, 1), width * max(n_shared, 1)
    if traits.family == "llama4":
        return 1, expert_inner
    return n_shared, n_shared * expert_inner


def _encoder_params(fields: ConfigFields, traits: Traits, shape: Shape, gated: bool) -> int:
    """Encoder of an encoder-decoder model, with the decoder's cross-attention."""
    hidden = shape.hidden
    attention = arch.attention_params(hidden, shape.heads, shape.heads, shape.head_dim)
    n_encoder = _encoder_layers(fields, traits)
    encoder = attention + arch.mlp_params(hidden, shape.inner, gated=gated) + 2 * hidden
    buckets = fields.integer("relative_attention_num_buckets", default=32)
    return (
        n_encoder * encoder
        + shape.n_layers * (attention + hidden)
        + 2 * buckets * shape.heads
        + hidden
    )


def _encoder_layers(fields: ConfigFields, traits: Traits) -> int:
    return fields.need(*_LAYERS, high=MAX_LAYERS) if traits.encoder_decoder else 0


def _outside_params(
    fields: ConfigFields, traits: Traits, shape: Shape, vocab: int, tied: bool, positions: int
) -> tuple[int, int]:
    """(embeddings with head, everything else outside the layers)."""
    hidden = shape.hidden
    embedding = vocab * hidden * (1 if tied else 2)
    width = fields.integer("word_embed_proj_dim", default=hidden, high=MAX_WIDTH)
    if width != hidden:  # OPT-350m projects a narrower embedding
        embedding = vocab * width + 2 * width * hidden
    other = traits.extra_norms * arch.norm_params(hidden, centred=traits.centred_norm)
    if traits.head_bias:
        other += vocab
    if traits.learned_positions is not None:
        other += (positions + traits.learned_positions) * hidden
    return embedding, other


def _positions(fields: ConfigFields, traits: Traits) -> int:
    """Longest context in tokens, as vLLM derives it (config/model.py, _get_and_verify_max_len).

    A factor of rotary scaling stretches the positions that the config states, or for YaRN those
    that the model was trained on; Llama 3, LongRoPE and Gemma 3 state the stretched length.
    """
    stated = fields.integer(*_POSITIONS, default=2048, low=1, high=MAX_WIDTH * 10)
    table = fields.table("rope_scaling") or fields.table("rope_parameters")
    rope = ConfigFields([table], fields.where)
    kind = rope.text("rope_type", "type")
    if kind in {"llama3", "longrope", "su"} or traits.family.startswith("gemma3"):
        return stated
    if kind in {"yarn", "deepseek_yarn"}:
        stated = rope.integer("original_max_position_embeddings", default=stated, high=MAX_WIDTH)
    return int(stated * rope.number("factor", 1.0, 1.0, 10_000.0))


def _assemble(
    fields: ConfigFields, traits: Traits, known: bool, model_id: str, architecture: str
) -> ModelArch:
    max_position = _positions(fields, traits)
    shape = _shape(fields, traits, max_position)
    vocab = fields.need("vocab_size", "padded_vocab_size", high=MAX_WIDTH)
    tied = fields.flag("tie_word_embeddings", default=traits.tied)
    widest = shape.inner
    if fields.raw("block_configs")[1] is not None:
        layers, widest = block_config_layers(fields, shape)
    else:
        mixers = read_mixers(fields, traits, shape.n_layers, shape.window)
        layers = LayerBuilder(fields, _gating(fields, traits), shape).build(mixers)
    embedding, outside = _outside_params(fields, traits, shape, vocab, tied, max_position)
    if traits.encoder_decoder:
        gated = _gating(fields, traits).gated
        outside += _encoder_params(fields, traits, shape, gated)
    vision = vision_params(fields, shape.hidden)
    sums = arch.count(layers, embedding + outside, vision, shape.n_experts, shape.top_k)
    if sums.total > _MAX_PARAMS:
        raise BadInputError(
            f"{fields.where}: its numbers make {sums.total:.1e} parameters; check "
            "'hidden_size', 'num_hidden_layers' and the expert counts"
        )
    quant = read_quantization(fields)
    return ModelArch(
        model_id=model_id,
        base_id=model_id,
        family=traits.family,
        architecture=architecture,
        n_layers=shape.n_layers,
        hidden_size=shape.hidden,
        intermediate_size=widest,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=vocab,
        max_position=max_position,
        tied_embeddings=tied,
        total_params=sums.total,
        active_params=sums.active,
        embedding_params=embedding,
        native_precision=quant.precision,
        n_full_attention_layers=sums.n_full,
        n_sliding_layers=sums.n_sliding,
        sliding_window=shape.window if sums.n_sliding else 0,
        n_recurrent_layers=sums.n_recurrent,
        recurrent_state_elements=sums.state_elements,
        global_kv_heads=shape.global_kv_heads,
        global_head_dim=shape.global_head_dim,
        kv_shared_layers=sums.n_shared,
        kv_lora_rank=fields.integer("kv_lora_rank", high=MAX_WIDTH),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim", high=MAX_WIDTH),
        n_experts=shape.n_experts,
        experts_per_token=shape.top_k,
        n_shared_experts=shape.n_shared_experts,
        moe_intermediate_size=shape.expert_inner,
        n_moe_layers=sums.n_moe,
        routed_expert_params=sums.routed,
        n_encoder_layers=_encoder_layers(fields, traits),
        vision_params=vision,
        quant_method=quant.method,
        quant_group_size=quant.group_size,
        torch_dtype=fields.text("torch_dtype", "dtype", default="bfloat16"),
        source="config.json" if known else "config.json; unknown model type read as Llama-like",
    )


def _gating(fields: ConfigFields, traits: Traits) -> Traits:
    """T5 tells in ``feed_forward_proj`` whether its MLP is gated."""
    projection = fields.text("feed_forward_proj")
    if not traits.encoder_decoder or not projection:
        return traits
    return replace(traits, gated=projection.startswith("gated"))
