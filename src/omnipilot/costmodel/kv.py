"""How many tokens the KV cache holds: blocks, groups of layers, tokens.

The layouts are vLLM's (``vllm/v1/core/kv_cache_utils.py``): layers of one kind form one group; a
model that mixes full attention with sliding-window or recurrent layers has several groups of equal
size that draw blocks of equal bytes from one pool. Engines without such an allocator give every
layer room for the whole context.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.domain.model import ModelArch

BLOCK_TOKENS: Final = 16  # vllm/config/cache.py DEFAULT_BLOCK_SIZE
_SIMILAR_GROUPS: Final = 1.5  # kv_cache_utils: pad to the larger group below this ratio
_STATE_BYTES: Final = 2.0  # recurrent states in 16 bit (mamba_cache_dtype "auto")


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table.

    ``groups`` such tables exist. ``block_tokens`` is 0 for recurrent layers, whose state takes one
    block; ``window_tokens`` is 0 for full attention.
    """

    groups: int
    block_tokens: int
    window_tokens: int = 0


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The cache of one GPU: bytes of a block over the layers of a group, and the groups."""

    block_bytes: float
    groups: tuple[KvGroup, ...]

    @property
    def n_groups(self) -> int:
        """Block tables of one sequence."""
        return sum(g.groups for g in self.groups)

    def blocks(self, room_bytes: float) -> int:
        """Whole blocks in a pool of ``room_bytes``."""
        return max(int(room_bytes // self.block_bytes), 0) if self.block_bytes else 0

    def blocks_per_sequence(self, length_tokens: int, step_tokens: int) -> int:
        """Blocks that one sequence of ``length_tokens`` needs at most.

        A sliding window also holds the tokens of the step under way, and one block because the
        window need not begin at a block's edge.
        """
        total = 0
        for group in self.groups:
            if not group.block_tokens:
                total += group.groups
            elif group.window_tokens:
                held = min(group.window_tokens - 1 + step_tokens, length_tokens)
                total += group.groups * (math.ceil(held / group.block_tokens) + 1)
            else:
                total += group.groups * math.ceil(length_tokens / group.block_tokens)
        return total

    def tokens(self, blocks: int, length_tokens: int, step_tokens: int, report: str) -> int:
        """Tokens that the engine says it holds.

        Args:
            blocks: blocks of the pool.
            length_tokens: ``max_model_len``.
            step_tokens: tokens of one step.
            report: the era's way of counting, see ``engines.toml``.
        """
        single = self.groups[0] if len(self.groups) == 1 else None
        if single is not None and single.groups == 1 and not single.window_tokens:
            return blocks * single.block_tokens
        if report == "concurrency":
            needed = self.blocks_per_sequence(length_tokens, step_tokens)
            return int(blocks / needed * length_tokens) if needed else 0
        smallest = min(
            (g.block_tokens for g in self.groups if g.block_tokens), default=BLOCK_TOKENS
        )
        return blocks // max(self.n_groups, 1) * smallest

    def longest_tokens(self, blocks: int, limit_tokens: int, step_tokens: int) -> int:
        """The longest sequence, up to ``limit_tokens``, that ``blocks`` hold; 0 for none."""
        if self.blocks_per_sequence(limit_tokens, step_tokens) <= blocks:
            return limit_tokens
        low, high = 0, limit_tokens
        while high - low > 1:
            middle = (low + high) // 2
            if self.blocks_per_sequence(middle, step_tokens) <= blocks:
                low = middle
            else:
                high = middle
        return low


def kv_bytes_per_token_full(
    model: ModelArch, tensor_parallel: int, bytes_per_element: float
) -> float:
    """Bytes that one token adds in one full-attention layer of one GPU.

    KV heads are split over the group and replicated beyond one head a GPU; the latent vector of
    multi-head latent attention is never split.
    """
    elements = float(model.kv_elements_per_token_per_full_layer())
    if model.is_mla:
        return elements * bytes_per_element
    return (
        elements
        * bytes_per_element
        / _shards(model.global_kv_heads or model.n_kv_heads, tensor_parallel)
    )


def kv_bytes_per_token_sliding(
    model: ModelArch, tensor_parallel: int, bytes_per_element: float
) -> float:
    """Bytes that one token adds in one sliding-window layer of one GPU."""
    elements = float(model.kv_elements_per_token_per_sliding_layer())
    return elements * bytes_per_element / _shards(model.n_kv_heads, tensor_parallel)


def kv_bytes_per_token(
    model: ModelArch, tensor_parallel: int, bytes_per_element: float, pipeline_parallel: int = 1
) -> float:
    """Bytes that one token inside every window adds on one GPU, all layers of a stage together."""
    full = kv_bytes_per_token_full(model, tensor_parallel, bytes_per_element)
    sliding = kv_bytes_per_token_sliding(model, tensor_parallel, bytes_per_element)
    total = model.n_full_attention_layers * full + model.n_sliding_layers * sliding
    return total / max(pipeline_parallel, 1)


def _shards(heads: int, tensor_parallel: int) -> float:
    return float(min(max(heads, 1), max(tensor_parallel, 1)))


@lru_cache(maxsize=4096)
def kv_layout(
    model: ModelArch,
    tensor_parallel: int,
    pipeline_parallel: int,
    bytes_per_element: float,
    *,
    hybrid: bool,
) -> KvLayout:
    """Lay the cache out on one GPU.

    Args:
        model: the model.
        tensor_parallel: GPUs that share each layer.
        pipeline_parallel: stages that share the layers.
        bytes_per_element: of the cache format.
        hybrid: whether the engine has an allocator for mixed models.
    """
    full = kv_bytes_per_token_full(model, tensor_parallel, bytes_per_element)
    sliding = kv_bytes_per_token_sliding(model, tensor_parallel, bytes_per_element)
    n_full = math.ceil(model.n_full_attention_layers / pipeline_parallel)
    n_sliding = math.ceil(model.n_sliding_layers / pipeline_parallel)
    n_state = math.ceil(model.n_recurrent_layers / pipeline_parallel)
    windowed = n_sliding > 0 and model.sliding_window > 0
    if not hybrid or (not n_state and not (windowed and n_full)):
        window = model.sliding_window if hybrid and windowed and not n_full else 0
        per_token = n_full * full + n_sliding * sliding
        return KvLayout(per_token * BLOCK_TOKENS, (KvGroup(1, BLOCK_TOKENS, window),))
    state = 0.0
    if n_state:
        state = model.recurrent_state_elements / model.n_recurrent_layers * _STATE_BYTES
        state /= tensor_parallel
    # Pages of all groups have equal bytes: smaller ones take more tokens, and attention pages grow
    # to hold one recurrent state.
    page = max(full if n_full else 0.0, sliding if n_sliding else 0.0) * BLOCK_TOKENS
    page = max(page, 1.0)
    page *= max(math.ceil(state / page), 1)
    counts = [n for n in (n_full, n_sliding, n_state) if n]
    size = min(counts)
    if max(counts) < _SIMILAR_GROUPS * size:
        size = max(counts)
    groups = []
    if n_full:
        groups.append(KvGroup(math.ceil(n_full / size), int(page // full)))
    if n_sliding:
        groups.append(
            KvGroup(math.ceil(n_sliding / size), int(page // sliding), model.sliding_window)
        )
    if n_state:
        groups.append(KvGroup(math.ceil(n_state / size), 0))
    return KvLayout(page * size, tuple(groups))
