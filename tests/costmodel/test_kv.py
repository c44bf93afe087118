"""KV-cache layouts against the token counts that vLLM printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.catalog.catalog import Catalog
from omnipilot.costmodel.kv import KvGroup, KvLayout, kv_bytes_per_token, kv_layout

if TYPE_CHECKING:
    from omnipilot.domain.model import ModelArch

CATALOG = Catalog.load()
MODELS = tuple(
    CATALOG.model(name)
    for name in (
        "meta-llama/Llama-3.1-8B-Instruct", "google/gemma-4-31B-it", "openai/gpt-oss-20b",
        "Qwen/Qwen3.5-27B", "deepseek-ai/DeepSeek-R1", "google/gemma-2-9b",
    )
)  # fmt: skip


def test_plain_attention_is_one_group_of_16_token_blocks() -> None:
    layout = kv_layout(MODELS[0], 2, 1, 2.0, hybrid=True)
    # 32 layers x 2 x 4 KV heads x 128 x 2 bytes x 16 tokens
    assert layout == KvLayout(32 * 2 * 4 * 128 * 2 * 16, (KvGroup(1, 16),))
    assert layout.tokens(3852, 40000, 2048, "blocks") == 61632


@pytest.mark.parametrize(
    ("model", "pool_gib", "printed"),
    [("openai/gpt-oss-120b", 5.38, 78384), ("google/gemma-4-31B-it", 24.54, 26800)],
)
def test_mixed_models_print_blocks_over_groups(model: str, pool_gib: float, printed: int) -> None:
    layout = kv_layout(CATALOG.model(model), 1, 1, 2.0, hybrid=True)
    tokens = layout.tokens(layout.blocks(pool_gib * 2**30), 1, 8192, "groups")
    assert tokens == pytest.approx(printed, rel=0.002)


@pytest.mark.parametrize(("pool_gib", "printed"), [(37.68, 365231), (92.27, 894418)])
def test_newer_versions_print_concurrency_times_length(pool_gib: float, printed: int) -> None:
    layout = kv_layout(CATALOG.model("google/gemma-4-31B-it"), 1, 1, 2.0, hybrid=True)
    tokens = layout.tokens(layout.blocks(pool_gib * 2**30), 262144, 8192, "concurrency")
    assert tokens == pytest.approx(printed, rel=0.0005)


def test_groups_of_different_head_sizes_share_pages_of_equal_bytes() -> None:
    # Gemma 4 31B: 10 full layers (4 heads of 512), 50 sliding (16 heads of 256)
    layout = kv_layout(CATALOG.model("google/gemma-4-31B-it"), 1, 1, 2.0, hybrid=True)
    assert layout.groups == (KvGroup(1, 32), KvGroup(5, 16, 1024))
    assert layout.block_bytes == 10 * 16 * 2 * 16 * 256 * 2


def test_latent_attention_is_not_split_by_tensor_parallelism() -> None:
    deepseek = CATALOG.model("deepseek-ai/DeepSeek-R1")
    # 61 layers x (512 + 64) x 2 bytes
    assert kv_bytes_per_token(deepseek, 1, 2.0) == 61 * 576 * 2
    assert kv_bytes_per_token(deepseek, 8, 2.0) == 61 * 576 * 2


def test_kv_heads_split_until_one_a_gpu() -> None:
    qwen = CATALOG.model("Qwen/Qwen3-235B-A22B")  # 4 KV heads
    sizes = [kv_bytes_per_token(qwen, n, 2.0) for n in (1, 2, 4, 8)]
    assert sizes[0] == 4 * sizes[2]
    assert sizes[2] == sizes[3] == 94 * 2 * 128 * 2


def test_without_the_hybrid_allocator_sliding_layers_keep_the_whole_context() -> None:
    layout = kv_layout(CATALOG.model("openai/gpt-oss-120b"), 1, 1, 2.0, hybrid=False)
    assert layout.blocks_per_sequence(131072, 8192) * layout.block_bytes == 131072 * 36 * 2048


def test_recurrent_layers_take_one_block_however_long_the_context() -> None:
    layout = kv_layout(CATALOG.model("Qwen/Qwen3.5-27B"), 1, 1, 2.0, hybrid=True)
    states = [g for g in layout.groups if not g.block_tokens]
    assert [g.groups for g in states] == [3]  # 48 recurrent layers over 16 full ones


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MODELS), st.sampled_from([1, 2, 4]), st.integers(1, 200000),
    st.integers(0, 5000), st.sampled_from([512, 2048, 8192]), st.booleans(),
)  # fmt: skip
def test_the_longest_sequence_fits_and_one_token_more_does_not(
    model: ModelArch, degree: int, limit: int, blocks: int, step: int, hybrid: bool
) -> None:
    layout = kv_layout(model, degree, 1, 2.0, hybrid=hybrid)
    longest = layout.longest_tokens(blocks, limit, step)
    assert 0 <= longest <= limit
    if longest:
        assert layout.blocks_per_sequence(longest, step) <= blocks
    if longest < limit:
        assert layout.blocks_per_sequence(longest + 1, step) > blocks
