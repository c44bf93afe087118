"""Size of the encoders that a multimodal model puts before its decoder.

An estimate from the structure that the config states: transformer blocks, patch embedding,
positions and projector. It matters for weights in memory; a text token passes through none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.catalog import arch
from omnipilot.catalog.hf_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIP_L_336: Final[Mapping[str, object]] = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}
"""openai/clip-vit-large-patch14-336, which Phi-3-vision names instead of describing it."""

_GATED: Final = frozenset({"pixtral", "qwen2_5_vl", "gemma4_vision", "c-radio-gated"})
"""Vision towers with three-matrix MLPs."""

_PROJECTOR_LINEAR: Final = frozenset(
    {"siglip_vision_model", "gemma4_vision", "llama4_vision_model"}
)
"""Towers whose projector is one matrix (Gemma 3 and 4, Llama 4)."""


def vision_params(fields: ConfigFields, text_hidden: int) -> int:
    """Parameters of all vision and audio encoders with their projectors; 0 for text models.

    Raises:
        BadInputError: widths or counts out of range.
    """
    table = fields.table("vision_config")
    if not table and fields.raw("img_processor")[1] is not None:
        table = _CLIP_L_336
    total = _tower(ConfigFields([table], fields.where), text_hidden) if table else 0
    audio = fields.table("audio_config")
    if audio:
        total += _tower(ConfigFields([audio], fields.where), text_hidden)
    return total


def _tower(fields: ConfigFields, text_hidden: int) -> int:
    kind = fields.text("model_type")
    stated = fields.integer("parameter_count", high=100 * MAX_WIDTH)
    if stated:
        return stated
    layers = fields.integer(
        "num_hidden_layers", "depth", "vt_num_hidden_layers", "layers", "encoder_layers",
        high=MAX_LAYERS,
    )  # fmt: skip
    hidden = fields.integer(
        "embed_dim", "vt_hidden_size", "hidden_size", "d_model", "width", high=MAX_WIDTH
    )
    if not layers or not hidden:
        return 0
    ratio = fields.number("mlp_ratio", 4.0, 0.1, 100.0)
    inner = fields.integer(
        "intermediate_size", "vt_intermediate_size", "encoder_ffn_dim",
        default=int(ratio * hidden), high=MAX_WIDTH,
    )  # fmt: skip
    gated = kind in _GATED
    block = arch.attention_params(hidden, 1, 1, hidden, qkv_bias=not gated, out_bias=not gated)
    block += arch.mlp_params(hidden, inner, gated=gated, bias=not gated)
    block += 2 * arch.norm_params(hidden, centred=not gated)
    patch = fields.integer("patch_size", "spatial_patch_size", default=14, high=MAX_WIDTH)
    frames = fields.integer("temporal_patch_size", default=1)
    image = fields.integer("image_size", default=0, high=MAX_WIDTH)
    positions = fields.integer(
        "num_position_embeddings", "position_embedding_size",
        default=(image // patch) ** 2 if patch else 0, high=MAX_WIDTH,
    )  # fmt: skip
    total = layers * block + 3 * frames * patch**2 * hidden + positions * hidden
    return total + _projector(fields, kind, hidden, text_hidden)


def _projector(fields: ConfigFields, kind: str, hidden: int, text_hidden: int) -> int:
    if kind in _PROJECTOR_LINEAR:
        wide = fields.integer("projector_output_dim", default=hidden, high=MAX_WIDTH)
        inner = fields.integer("projector_input_dim", high=MAX_WIDTH)
        adapter = fields.integer("intermediate_size", high=MAX_WIDTH) * inner + inner * wide
        return wide * text_hidden + (adapter if inner else 0)
    merge = fields.integer("spatial_merge_size", default=1, low=1, high=64)
    wide = hidden * merge**2
    mergers = 1 + len(fields.listing("deepstack_visual_indexes"))
    if merge == 1:
        return arch.linear(hidden, text_hidden, bias=True) + arch.linear(
            text_hidden, text_hidden, bias=True
        )
    return mergers * (
        arch.linear(wide, wide, bias=True) + arch.linear(wide, text_hidden, bias=True)
    )
