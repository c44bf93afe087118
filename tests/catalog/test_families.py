"""The table of what model types imply."""

from __future__ import annotations

import pytest

from omnipilot.catalog.families import ARCHITECTURES, TRAITS, traits_of
from omnipilot.catalog.hf_config import arch_from_config

GENERIC = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize("model_type", TRAITS)
def test_every_model_type_makes_an_architecture_of_its_family(model_type: str) -> None:
    arch = arch_from_config({**GENERIC, "model_type": model_type}, "m")
    assert arch.family == TRAITS[model_type].family
    assert arch.family == arch.family.lower()
    assert arch.source == "config.json"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_name_leads_to_a_known_type(architecture: str) -> None:
    assert traits_of("", architecture)[1]


def test_the_generations_of_llama_are_one_family_and_qwen_are_several() -> None:
    assert TRAITS["llama"].family == "llama"
    assert len({TRAITS[t].family for t in ("qwen2", "qwen3", "qwen3_moe", "qwen3_next")}) == 4


def test_an_unknown_type_is_said_to_be_unknown() -> None:
    traits, known = traits_of("brand_new", "BrandNewForCausalLM")
    assert (traits.family, known) == ("brand-new", False)
