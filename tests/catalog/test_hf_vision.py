"""Sizes of the encoders before a decoder."""

from __future__ import annotations

import pytest

from omnipilot.catalog.hf_fields import ConfigFields
from omnipilot.catalog.hf_vision import vision_params

CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}


def test_a_text_model_has_no_vision_tower() -> None:
    assert vision_params(ConfigFields([{}], "c"), 4096) == 0


def test_clip_large_with_its_projector_has_the_published_size() -> None:
    # 303.5 million in CLIP ViT-L/14-336, and 1024*4096 + 4096*4096 with biases behind it
    found = vision_params(ConfigFields([{"vision_config": CLIP}], "c"), 4096)
    assert found == pytest.approx(303.5e6 + 20.98e6, rel=0.01)


def test_a_named_image_processor_stands_for_clip_large() -> None:
    named = vision_params(ConfigFields([{"img_processor": {"name": "clip"}}], "c"), 3072)
    assert named == vision_params(ConfigFields([{"vision_config": CLIP}], "c"), 3072)


def test_audio_encoders_add_to_vision() -> None:
    audio = {"d_model": 64, "encoder_layers": 2, "encoder_ffn_dim": 128}
    both = {"vision_config": CLIP, "audio_config": audio}
    alone = vision_params(ConfigFields([{"audio_config": audio}], "c"), 512)
    assert alone > 0
    assert (
        vision_params(ConfigFields([both], "c"), 512)
        == vision_params(ConfigFields([{"vision_config": CLIP}], "c"), 512) + alone
    )


def test_a_tower_without_widths_counts_nothing() -> None:
    assert vision_params(ConfigFields([{"vision_config": {"patch_size": 14}}], "c"), 512) == 0
