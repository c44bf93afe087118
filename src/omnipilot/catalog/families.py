"""What a config.json leaves unsaid: the structure that each ``model_type`` implies.

A config states widths and counts; whether the MLP is gated, whether projections have biases and
how many norms a layer has are written in the model's code. One entry a ``model_type``; source of
each: the class of that name in Hugging Face transformers (``models/<type>/modeling_<type>.py``) or
in the model's own repository.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Literal

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Traits:
    """Structure implied by a model type.

    ``family`` is the lineage: vendor and architecture generation, the cost model's one-hot and
    support axis. ``norms`` counts norms of model width in one layer, ``extra_norms`` those outside
    the layers. ``qk_norm``: "head" normalises each head, "full" the whole projection.
    ``learned_positions`` is the offset added to the length of a learned position table, None where
    positions are computed. ``tied`` holds where the config does not say. ``window_layers`` is how a
    bare ``sliding_window`` applies: to all layers, to those from ``max_window_layers`` on when
    ``use_sliding_window`` is set ("late"), to all but each N-th ("pattern"), or never.
    ``defaults`` are values of the class that nested configs leave out.
    """

    family: str
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    centred_norm: bool = False
    norms: int = 2
    extra_norms: int = 1
    qk_norm: Literal["", "head", "full"] = ""
    learned_positions: int | None = None
    tied: bool = False
    window_layers: Literal["all", "late", "pattern", "never"] = "all"
    pattern: int = 0
    multi_query: bool = False
    gated_query: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    dense_beside_experts: bool = False
    encoder_decoder: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)


LLAMA: Final = Traits(
    "llama",
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
)
_MISTRAL: Final = Traits(
    "mistral",
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
    },
)
_QWEN2: Final = Traits("qwen2", qkv_bias=True, window_layers="late")
_QWEN3: Final = Traits("qwen3", qk_norm="head", window_layers="late")
_QWEN3_MOE: Final = replace(_QWEN3, family="qwen3-moe")
_QWEN3_NEXT: Final = replace(_QWEN3, family="qwen3-next", gated_query=True)
_GEMMA: Final = Traits("gemma", tied=True, defaults={"head_dim": 256})
_GEMMA2: Final = replace(_GEMMA, family="gemma2", norms=4, window_layers="pattern", pattern=2)
_GEMMA3: Final = Traits(
    "gemma3",
    norms=4,
    qk_norm="head",
    tied=True,
    window_layers="pattern",
    pattern=6,
    defaults={
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
)
_GEMMA4: Final = replace(
    _GEMMA3, family="gemma4", dense_beside_experts=True, defaults={"head_dim": 256}
)
_DEEPSEEK_V3: Final = Traits("deepseek-v3", router_bias=True)
_BIASED: Final = Traits(
    "gpt",
    gated=False,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    centred_norm=True,
)
_PHI3: Final = Traits("phi3")
_GLM4_MOE: Final = Traits("glm4-moe", router_bias=True)
_T5: Final = Traits("t5", gated=False, tied=True, encoder_decoder=True, window_layers="never")
_NEMOTRON_H: Final = Traits("nemotron-h", gated=False, norms=1, router_bias=True)
_GRANITE: Final = Traits("granite", tied=True)

TRAITS: Final[dict[str, Traits]] = {
    "llama": LLAMA,
    "aquila": replace(LLAMA, family="aquila"),
    "yi": replace(LLAMA, family="yi"),
    "apertus": Traits("apertus", gated=False, qk_norm="head"),
    "arcee": Traits("arcee", gated=False),
    "internlm2": Traits("internlm2"),
    "internlm3": Traits("internlm3"),
    "baichuan": Traits("baichuan"),
    "smollm3": Traits("smollm3", tied=True),
    "deci": Traits("decilm"),
    "nemotron-nas": Traits("nemotron-nas"),
    "llama4_text": Traits("llama4", window_layers="never"),
    "llama4": Traits("llama4", window_layers="never"),
    "chameleon": Traits("chameleon", qk_norm="head"),
    "mistral": _MISTRAL,
    "mistral3": _MISTRAL,
    "ministral": _MISTRAL,
    "ministral3": _MISTRAL,
    "mixtral": Traits("mixtral"),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": replace(_QWEN2, family="qwen2-moe"),
    "qwen3": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": _QWEN3_MOE,
    "qwen3_omni_moe": _QWEN3_MOE,
    "qwen3_omni_moe_text": _QWEN3_MOE,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": replace(_QWEN3_NEXT, family="qwen3.5"),
    "qwen3_5_text": replace(_QWEN3_NEXT, family="qwen3.5"),
    "qwen3_5_moe": replace(_QWEN3_NEXT, family="qwen3.5-moe"),
    "qwen3_5_moe_text": replace(_QWEN3_NEXT, family="qwen3.5-moe"),
    "mimo": replace(_QWEN2, family="mimo"),
    "mimo_v2_flash": Traits("mimo-v2", router_bias=True),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "phi": replace(_BIASED, family="phi", norms=1, head_bias=True),
    "phi3": _PHI3,
    "phi3_v": _PHI3,
    "phi4mm": _PHI3,
    "phi3small": replace(
        _BIASED, family="phi3-small", gated=True, tied=True, window_layers="never"
    ),
    "phimoe": Traits("phi3-moe", qkv_bias=True, out_bias=True, centred_norm=True, head_bias=True),
    "olmo": Traits("olmo", norms=0, extra_norms=0),
    "olmo2": Traits("olmo2", qk_norm="full"),
    "olmo3": Traits("olmo3", qk_norm="full", window_layers="pattern", pattern=4),
    "olmoe": Traits("olmoe", qk_norm="full"),
    "gpt_oss": Traits(
        "gpt-oss",
        qkv_bias=True,
        out_bias=True,
        router_bias=True,
        expert_bias=True,
        window_layers="pattern",
        pattern=2,
    ),
    "deepseek": Traits("deepseek-v1"),
    "deepseek_v2": Traits("deepseek-v2"),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _DEEPSEEK_V3,
    "kimi_k2": replace(_DEEPSEEK_V3, family="kimi-k2"),
    "kimi_k25": replace(_DEEPSEEK_V3, family="kimi-k2"),
    "glm_moe_dsa": replace(_DEEPSEEK_V3, family="glm5"),
    "glm4_moe_lite": replace(_DEEPSEEK_V3, family="glm4-moe-lite"),
    "glm4_moe": _GLM4_MOE,
    "glm": Traits("glm4", qkv_bias=True),
    "glm4": Traits("glm4", qkv_bias=True, norms=4),
    "chatglm": Traits("glm4", qkv_bias=True),
    "minimax_m2": Traits("minimax-m2", qk_norm="full", router_bias=True),
    "granite": _GRANITE,
    "granitemoe": replace(_GRANITE, family="granite-moe"),
    "granitemoehybrid": replace(_GRANITE, family="granite-hybrid"),
    "cohere": Traits("command-r", norms=1, tied=True),
    "cohere2": Traits("command-r", norms=1, tied=True, window_layers="pattern", pattern=4),
    "dbrx": Traits("dbrx"),
    "jamba": Traits("jamba", window_layers="never"),
    "bamba": Traits("bamba"),
    "nemotron": Traits("nemotron", gated=False, centred_norm=True),
    "nemotron_h": _NEMOTRON_H,
    "falcon": replace(
        _BIASED, family="falcon", qkv_bias=False, out_bias=False, mlp_bias=False, tied=True
    ),
    "refinedweb": replace(
        _BIASED, family="falcon", qkv_bias=False, out_bias=False, mlp_bias=False, tied=True
    ),
    "gptj": replace(
        _BIASED, family="gptj", qkv_bias=False, out_bias=False, norms=1, head_bias=True
    ),
    "codegen": replace(
        _BIASED, family="codegen", qkv_bias=False, out_bias=False, norms=1, head_bias=True
    ),
    "gpt2": replace(_BIASED, family="gpt2", tied=True, learned_positions=0),
    "gpt_neox": replace(_BIASED, family="gpt-neox"),
    "gpt_bigcode": replace(
        _BIASED, family="starcoder", tied=True, learned_positions=0, multi_query=True
    ),
    "starcoder2": replace(_BIASED, family="starcoder2", tied=True),
    "stablelm": Traits("stablelm", centred_norm=True),
    "mpt": Traits("mpt", gated=False, tied=True),
    "bloom": replace(_BIASED, family="bloom", tied=True, extra_norms=2),
    "opt": replace(_BIASED, family="opt", tied=True, learned_positions=2),
    "t5": _T5,
    "mt5": replace(_T5, gated=True, tied=False),
    "umt5": replace(_T5, gated=True, tied=False),
}
"""Traits by ``model_type``."""

ARCHITECTURES: Final[dict[str, str]] = {
    "AquilaForCausalLM": "aquila",
    "DeciLMForCausalLM": "nemotron-nas",
    "DeciCoderForCausalLM": "deci",
    "RWForCausalLM": "falcon",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
}
"""``architectures[0]`` to ``model_type``, for configs without a known model type."""


def traits_of(model_type: str, architecture: str) -> tuple[Traits, bool]:
    """Traits of a model, and whether its type is one that the table knows.

    An unknown type is read as a Llama-like decoder (gated MLP, RMSNorm, no biases), the form that
    most new models take; its family is its own type, so that the cost model calls it novel.
    """
    known = TRAITS.get(model_type) or TRAITS.get(model_type.lower())
    if known is None and architecture in ARCHITECTURES:
        known = TRAITS[ARCHITECTURES[architecture]]
    if known is not None:
        return known, True
    name = (model_type or architecture or "unknown").lower().replace("_", "-")
    return replace(LLAMA, family=name, defaults={}), False
