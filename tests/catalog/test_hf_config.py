"""Configs as published, altered and hostile."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from cache_elements import cache_elements
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnipilot.catalog.hf_config import arch_from_config, read_config
from omnipilot.domain.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

Config = dict[str, Any]

LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}
DEEPSEEK: Config = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GEMMA3_4B: Config = {  # as published: heads, head width and vocabulary are the class's defaults
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    },
}
NEMOTRON: Config = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 131072,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
ERNIE: Config = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 54,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "moe_num_experts": 64,
    "moe_k": 8,
    "moe_intermediate_size": 3584,
    "moe_layer_start_index": 3,
    "moe_num_shared_experts": 0,
    "tie_word_embeddings": False,
}
BAMBA: Config = LLAMA | {
    "architectures": ["BambaForCausalLM"],
    "model_type": "bamba",
    "attn_layer_indices": [9, 18, 27],
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
}
QWEN35: Config = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_size": 4096,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": 1024,
        "num_attention_heads": 32,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 60,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 1024,
        "vocab_size": 248320,
    },
    "tie_word_embeddings": False,
}
T5: Config = {  # FLAN-T5-XL
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "d_ff": 5120,
    "d_kv": 64,
    "d_model": 2048,
    "feed_forward_proj": "gated-gelu",
    "is_encoder_decoder": True,
    "n_positions": 512,
    "num_decoder_layers": 24,
    "num_heads": 32,
    "num_layers": 24,
    "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False,
    "vocab_size": 32128,
}
FALCON_7B: Config = {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "bias": False,
    "hidden_size": 4544,
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "vocab_size": 65024,
}
PUBLISHED = [
    pytest.param(LLAMA, 8_030_261_248, id="Llama-3.1-8B"),
    pytest.param(DEEPSEEK, 671_026_419_200, id="DeepSeek-V3"),
    pytest.param(GEMMA3_4B, 4_300_079_472, id="Gemma-3-4B"),
    pytest.param(NEMOTRON, 31_577_937_344, id="Nemotron-3-Nano"),
    pytest.param(QWEN35, 396.35e9, id="Qwen3.5-397B, text alone"),
    pytest.param(T5, 2_849_757_184, id="FLAN-T5-XL"),
    pytest.param(FALCON_7B, 6_921_720_704, id="Falcon-7B"),
    pytest.param(
        {
            "model_type": "gpt_bigcode",
            "n_embd": 6144,
            "n_head": 48,
            "n_inner": 24576,
            "n_layer": 40,
            "n_positions": 8192,
            "multi_query": True,
            "vocab_size": 49152,
        },
        15_517_456_384,
        id="StarCoder",
    ),
    pytest.param(
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_inner": None,
            "n_layer": 28,
            "n_positions": 2048,
            "tie_word_embeddings": False,
            "vocab_size": 50400,
        },
        6_050_882_784,
        id="GPT-J",
    ),
    pytest.param(
        {
            "model_type": "mpt",
            "d_model": 4096,
            "expansion_ratio": 4,
            "max_seq_len": 2048,
            "n_heads": 32,
            "n_layers": 32,
            "no_bias": True,
            "vocab_size": 50432,
            "attn_config": {"alibi": True, "attn_type": "multihead_attention"},
        },
        6_649_286_656,
        id="MPT-7B",
    ),
    pytest.param(
        {
            "model_type": "bloom",
            "hidden_size": 4096,
            "n_head": 32,
            "n_layer": 30,
            "vocab_size": 250880,
        },
        7_069_016_064,
        id="BLOOM-7B1",
    ),
    pytest.param(
        {
            "model_type": "opt",
            "hidden_size": 768,
            "ffn_dim": 3072,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": 768,
            "vocab_size": 50272,
        },
        125_239_296,
        id="OPT-125M",
    ),
    pytest.param(
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "max_seq_len": 32768,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
        131_596_523_520,
        id="DBRX",
    ),
    pytest.param(
        {
            "model_type": "chatglm",
            "add_qkv_bias": True,
            "ffn_hidden_size": 13696,
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_layers": 40,
            "padded_vocab_size": 151552,
            "seq_length": 131072,
        },
        9_399_951_360,
        id="GLM-4-9B",
    ),
    pytest.param(
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "text_config": {
                "_name_or_path": "lmsys/vicuna-7b-v1.5",
                "max_position_embeddings": 4096,
                "model_type": "llama",
                "vocab_size": 32064,
            },
            "vision_config": {
                "hidden_size": 1024,
                "image_size": 336,
                "intermediate_size": 4096,
                "model_type": "clip_vision_model",
                "num_hidden_layers": 24,
                "patch_size": 14,
            },
        },
        7_063_427_072,
        id="LLaVA-1.5-7B",
    ),
    pytest.param(
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_attention_heads": 24,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "vocab_size": 200064,
            "max_position_embeddings": 131072,
            "sliding_window": 262144,
            "tie_word_embeddings": True,
        },
        3_836_021_760,
        id="Phi-4-mini",
    ),
    pytest.param(
        {
            "model_type": "apertus",
            "hidden_act": "xielu",
            "hidden_size": 4096,
            "intermediate_size": 21504,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 131072,
        },
        8.05e9,
        id="Apertus-8B",
    ),
    pytest.param(
        {
            "model_type": "arcee",
            "hidden_act": "relu2",
            "hidden_size": 2560,
            "intermediate_size": 18432,
            "num_hidden_layers": 36,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 128004,
        },
        4.62e9,
        id="AFM-4.5B",
    ),
    pytest.param(ERNIE, 300e9, id="ERNIE-4.5-300B-A47B"),
    pytest.param(BAMBA, 9.78e9, id="Bamba-9B"),
]


@pytest.mark.parametrize(("config", "published"), PUBLISHED)
def test_an_unaltered_config_gives_the_published_size(config: Config, published: float) -> None:
    assert arch_from_config(config, "m").total_params == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("positions", "scaling", "longest"),
    [
        (4096, {"type": "linear", "factor": 4.0}, 16384),  # vicuna-13b-v1.5-16k
        (32768, {"type": "dynamic", "factor": 2.0}, 65536),  # InternLM2.5-7B
        (
            32768,
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            131072,  # Qwen2.5 as its card has it
        ),
        (
            163840,
            {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            163840,  # DeepSeek-V3
        ),
        (131072, {"rope_type": "llama3", "factor": 8.0}, 131072),
        (131072, {"rope_type": "longrope", "factor": 32.0}, 131072),
        (32768, {"type": "mrope", "mrope_section": [16, 24, 24]}, 32768),
        (32768, None, 32768),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rotary_scaling_stretches_the_positions_as_the_engine_has_it(
    positions: int, scaling: Config | None, longest: int, key: str
) -> None:
    config = LLAMA | {"rope_scaling": None, "max_position_embeddings": positions, key: scaling}
    assert arch_from_config(config, "m").max_position == longest


def test_the_length_of_command_r_is_not_that_of_its_positions() -> None:
    config = LLAMA | {"max_position_embeddings": 8192, "model_max_length": 131072}
    assert arch_from_config(config, "m").max_position == 131072


def test_gemma_3_states_the_stretched_length() -> None:
    assert arch_from_config(GEMMA3_4B, "m").max_position == 131072


def test_shared_experts_of_ernie_are_counted() -> None:
    arch = arch_from_config(ERNIE | {"moe_num_shared_experts": 2}, "m")
    assert (arch.n_shared_experts, arch.n_moe_layers) == (2, 51)
    assert arch.total_params - arch_from_config(ERNIE, "m").total_params == 51 * 2 * 3 * 8192 * 3584


def test_kimi_linear_caches_the_latent_vector_of_its_full_layers_alone() -> None:
    linear = {"full_attn_layers": [4, 8], "num_heads": 32, "head_dim": 128}
    arch = arch_from_config(DEEPSEEK | {"linear_attn_config": linear}, "m")
    assert (arch.n_full_attention_layers, arch.n_recurrent_layers) == (2, 59)
    assert arch.recurrent_state_elements == 59 * (32 * 128 * 128 + 3 * 32 * 128 * 3)


def test_a_config_stays_as_it_was() -> None:
    before = copy.deepcopy(QWEN35)
    arch_from_config(QWEN35, "m")
    assert before == QWEN35


def test_latent_attention_caches_one_vector_a_layer() -> None:
    arch = arch_from_config(DEEPSEEK, "m")
    assert arch.is_mla
    assert cache_elements(arch, 10) == 61 * 576 * 10
    assert arch.native_precision == "fp8-block"
    assert arch.quant_group_size == 128
    assert (arch.n_moe_layers, arch.n_shared_experts) == (58, 1)


def test_multi_query_attention_has_one_key_head() -> None:
    assert arch_from_config(FALCON_7B, "m").n_kv_heads == 1


def test_a_block_pattern_in_words_means_the_same_as_in_letters() -> None:
    words = {"M": "mamba", "E": "moe", "*": "attention"}
    listed = {k: v for k, v in NEMOTRON.items() if k != "hybrid_override_pattern"}
    listed["layers_block_type"] = [words[c] for c in NEMOTRON["hybrid_override_pattern"]]
    listed["num_hidden_layers"] = None
    assert arch_from_config(listed, "m") == arch_from_config(NEMOTRON, "m")


def test_a_searched_architecture_counts_the_blocks_it_kept() -> None:
    attention = {"n_heads_in_group": 4, "no_op": False, "replace_with_linear": False}
    none = {"no_op": True, "replace_with_linear": False, "n_heads_in_group": None}
    config = {
        **LLAMA,
        "model_type": "nemotron-nas",
        "num_hidden_layers": 2,
        "intermediate_size": None,
        "num_key_value_heads": None,
        "block_configs": [
            {"attention": attention, "ffn": {"ffn_mult": 5.25, "no_op": False}},
            {"attention": none, "ffn": {"ffn_mult": 1.0, "no_op": False}},
        ],
    }
    arch = arch_from_config(config, "m")
    # 2*5.25*4096/3 = 14336; 2*4096/3 = 2730 -> 2816; attention 4096*(4096*2+1024*2)
    layers = 41_943_040 + 3 * 4096 * (14336 + 2816) + 4 * 4096
    assert arch.total_params == layers + 2 * 128256 * 4096 + 4096
    assert arch.n_full_attention_layers == 1
    assert arch.intermediate_size == 14336


def test_jamba_alternates_attention_mamba_and_experts() -> None:
    config = {
        **LLAMA,
        "model_type": "jamba",
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_dt_rank": 256,
        "mamba_expand": 2,
        "vocab_size": 65536,
    }
    arch = arch_from_config(config, "m")
    assert (arch.n_full_attention_layers, arch.n_recurrent_layers) == (4, 28)
    assert arch.n_moe_layers == 16
    assert arch.total_params == pytest.approx(51.57e9, rel=0.01)  # Jamba-v0.1
    assert arch.active_params == pytest.approx(12.1e9, rel=0.03)


def test_layers_that_share_a_cache_hold_none_of_their_own() -> None:
    config = {**LLAMA, "num_kv_shared_layers": 12}
    arch = arch_from_config(config, "m")
    assert (arch.n_full_attention_layers, arch.kv_shared_layers) == (20, 12)


def test_an_unknown_type_is_read_as_llama_like_and_is_its_own_family() -> None:
    arch = arch_from_config({**LLAMA, "model_type": "brand_new", "architectures": ["X"]}, "m")
    assert arch.total_params == 8_030_261_248
    assert arch.family == "brand-new"
    assert "unknown model type" in arch.source


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -3}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"hidden_size": float("inf")}, "hidden_size"),
        ({"hidden_size": [4096]}, "hidden_size"),
        ({"hidden_size": 4097}, "hidden_size"),
        ({"num_key_value_heads": 64}, "num_key_value_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"vocab_size": None}, "vocab_size"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["quantum"] * 32}, "layer_types"),
        ({"layer_types": [{}] * 32}, "layer_types"),
        ({"model_type": 7}, "model_type"),
        ({"architectures": [7]}, "architectures"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"quantization_config": []}, "quantization_config"),
        ({"hidden_size": 10**8, "num_hidden_layers": 2000}, "hidden_size"),
    ],
)
def test_a_hostile_value_is_refused_in_one_line_that_names_the_key(
    change: Config, key: str
) -> None:
    with pytest.raises(BadInputError) as refusal:
        arch_from_config({**LLAMA, **change}, "m")
    assert f"'{key}'" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("value", [[], "text", 3, None, [{}]])
def test_a_config_that_is_no_table_is_refused(value: Any) -> None:
    with pytest.raises(BadInputError, match="table"):
        arch_from_config(value, "m")


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(-2, 100), st.text(max_size=4), st.none()), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(-2, 100), max_size=3),
)


def _paths(config: Config, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in config.items():
        found.append((*prefix, key))
        if isinstance(value, dict):
            found += _paths(value, (*prefix, key))
    return found


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_config_is_read_or_refused_but_never_crashes(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(PUBLISHED)).values[0]
    assert isinstance(base, dict)
    config = copy.deepcopy(base)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(_paths(config)))
        target: Any = config
        for key in path[:-1]:
            target = target.get(key) if isinstance(target, dict) else None
        if isinstance(target, dict):
            target[path[-1]] = data.draw(JUNK)
    _read_or_refused(config)


EXTRA_KEYS = (
    "layer_types", "hybrid_override_pattern", "hybrid_layer_pattern", "attn_type_list",
    "block_configs", "full_attention_interval", "attn_layer_period", "sliding_window",
    "sliding_window_pattern", "attention_chunk_size", "moe_layer_freq", "moe_layers",
    "expert_layer_period", "interleave_moe_layer_step", "mlp_only_layers", "decoder_sparse_step",
    "num_key_value_heads_per_layer", "num_kv_shared_layers", "quantization_config",
    "vision_config", "audio_config", "text_config", "thinker_config", "attn_config",
    "num_experts", "num_experts_per_tok", "mamba_d_state", "mamba_num_heads", "v_head_dim",
    "kv_lora_rank", "index_n_heads", "moe_latent_size", "multi_query", "img_processor",
    "word_embed_proj_dim", "swa_num_key_value_heads", "global_head_dim", "max_window_layers",
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(extra=st.dictionaries(st.sampled_from(EXTRA_KEYS), JUNK, min_size=1, max_size=4))
def test_junk_under_any_known_key_is_read_or_refused_but_never_crashes(extra: Config) -> None:
    _read_or_refused({**LLAMA, **extra})


def _read_or_refused(config: Config) -> None:
    try:
        arch = arch_from_config(config, "m")
    except BadInputError as refusal:
        assert "\n" not in str(refusal)  # noqa: PT017 - a refusal is one of two right outcomes
        return
    assert 0 < arch.active_params <= arch.total_params <= 10**15
    assert arch.n_layers >= 1
    assert cache_elements(arch, 100) >= 0


def test_a_file_and_its_folder_read_alike(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    assert read_config(file) == read_config(tmp_path) == LLAMA


def test_the_format_is_read_from_beside_the_config_where_nvidia_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    scheme = {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(scheme))
    assert arch_from_config(read_config(tmp_path), "m").native_precision == "nvfp4"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[1, 2]", "list"),
        (b'"text"', "not the table"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"\x00\xff\xfe\x80 binary", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b" " * (5 * 1024 * 1024 + 1), "over 5 MB"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
    ids=["list", "text", "cut", "empty", "binary", "deep list", "deep table", "huge", "long int"],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(BadInputError, match=reason) as refusal:
        read_config(file)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["missing.json", "no/such/folder", "nul\0byte"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInputError, match="cannot read"):
        read_config(tmp_path / name)
