"""Layouts of attention and experts over the layers."""

from __future__ import annotations

from typing import Any

import pytest

from omnipilot.catalog.families import TRAITS, Traits, traits_of
from omnipilot.catalog.hf_fields import ConfigFields
from omnipilot.catalog.hf_layers import block_letters, read_mixers, read_window
from omnipilot.catalog.hf_moe import moe_layers
from omnipilot.domain.errors import BadInputError

S, F, R = "sliding", "full", "recurrent"


def _mixers(config: dict[str, Any], model_type: str, n_layers: int) -> list[str]:
    fields = ConfigFields([config], "c")
    traits, _ = traits_of(model_type, "")
    window = read_window(fields, traits, 8192)
    return list(read_mixers(fields, traits, n_layers, window))


@pytest.mark.parametrize(
    ("model_type", "config", "layout"),
    [
        ("llama", {}, [F, F, F, F]),
        ("mistral", {"sliding_window": 4096}, [S, S, S, S]),
        ("mistral", {"sliding_window": None}, [F, F, F, F]),
        ("mistral", {"sliding_window": 8192}, [F, F, F, F]),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, [F, F, F, F]),
        ("qwen2", {"sliding_window": 4096}, [F, F, F, F]),
        (
            "qwen2",
            {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 3},
            [F, F, F, S],
        ),
        ("gemma2", {"sliding_window": 4096}, [S, F, S, F]),
        ("gpt_oss", {"sliding_window": 128}, [S, F, S, F]),
        ("gemma3_text", {"sliding_window": 512, "sliding_window_pattern": 3}, [S, S, F, S]),
        ("cohere2", {"sliding_window": 4096}, [S, S, S, F]),
        ("llama4_text", {"attention_chunk_size": 4096}, [S, S, S, F]),
        ("qwen3_next", {"full_attention_interval": 2}, [R, F, R, F]),
        ("bamba", {"attn_layer_indices": [1, 3]}, [R, F, R, F]),
        ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [4]}}, [R, R, R, F]),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 2}, [R, R, F, R]),
        ("mimo_v2_flash", {"sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 0]},
         [F, S, S, F]),
        ("llama", {"attn_type_list": [0, 0, 1, 0]}, [R, R, F, R]),
        (
            "gpt_oss",
            {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2},
            [S, F, S, F],
        ),
        ("granitemoehybrid", {"layer_types": ["mamba", "attention"] * 2}, [R, F, R, F]),
        ("nemotron_h", {"hybrid_override_pattern": "M-*E"}, [R, "none", F, "none"]),
    ],
)  # fmt: skip
def test_each_form_of_a_layout_is_read(
    model_type: str, config: dict[str, Any], layout: list[str]
) -> None:
    assert _mixers(config, model_type, 4) == layout


@pytest.mark.parametrize("pattern", ["MX", "M", "M*-E-"])
def test_a_pattern_of_other_letters_or_length_is_refused(pattern: str) -> None:
    with pytest.raises(BadInputError, match="hybrid_override_pattern"):
        _mixers({"hybrid_override_pattern": pattern}, "nemotron_h", 2)


def test_a_pattern_in_words_gives_the_letters() -> None:
    fields = ConfigFields([{"layers_block_type": ["mamba", "moe", "attention", "mlp"]}], "c")
    assert block_letters(fields, TRAITS["nemotron_h"]) == "ME*-"
    assert block_letters(fields, Traits("other")) == ""


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({}, "1111"),
        ({"first_k_dense_replace": 1}, "0111"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "0010"),
        ({"moe_layer_start_index": 1}, "0111"),
        ({"moe_layer_freq": [0, 1, 0, 1]}, "0101"),
        ({"moe_layers": [1, 3]}, "0101"),
        ({"interleave_moe_layer_step": 2}, "0101"),
        ({"expert_layer_period": 2, "expert_layer_offset": 0}, "1010"),
        ({"decoder_sparse_step": 2}, "0101"),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0]}, "0111"),
    ],
)
def test_each_form_of_naming_expert_layers_is_read(config: dict[str, Any], experts: str) -> None:
    flags = moe_layers(ConfigFields([config], "c"), 4)
    assert "".join("1" if flag else "0" for flag in flags) == experts
