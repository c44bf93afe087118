"""How long the kernels of one step take on one GPU.

The cost is built up from single kernel calls: matrix products cut into tiles that fill the
multiprocessors in rounds, attention cut into pieces of the cache, launches, and two ways to sum
over the group of GPUs. It is written apart from the cost model's closed form and shares nothing
with it, so that a model fitted to simulated rows has something to learn.

The shares and times in the tables are round figures of the kernels' order of size, not
measurements.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.simulate.deployment import Deployment

__all__ = ["KERNELS", "KernelFormat", "KernelTimer", "StepCost", "kernel_format"]


@dataclass(frozen=True, slots=True)
class KernelFormat:
    """One way to multiply by weights of a number format.

    Args:
        unit: peak that it runs against: "bf16", "fp8".
        tensor_share: of that peak, reached by a full round of tiles.
        stream_share: of the memory's peak, reached while weights are read.
        requantise: activations are converted before each product.
        unpack_rows: rows from which weights are unpacked to 16 bit in a pass of their own.
        packed_share: of the peak below ``unpack_rows``.
    """

    unit: str
    tensor_share: float
    stream_share: float
    requantise: bool = False
    unpack_rows: int = 0
    packed_share: float = 0.0


# By format; "fp8" also by whether the part has the unit. AWQ's plain kernel unpacks the weights in
# a pass of its own from 256 rows (vllm/model_executor/layers/quantization/awq.py) and wastes most
# of the tensor cores below, which makes it slower than its 4 bits suggest; Marlin (GPTQ, and fp8 on
# parts without the unit) does neither.
KERNELS: Final[dict[str, KernelFormat]] = {
    "bf16": KernelFormat("bf16", 0.71, 0.86),
    "fp16": KernelFormat("bf16", 0.71, 0.86),
    "fp8": KernelFormat("fp8", 0.58, 0.83, requantise=True),
    "fp8-marlin": KernelFormat("bf16", 0.62, 0.80),
    "gptq": KernelFormat("bf16", 0.60, 0.76),
    "awq": KernelFormat("bf16", 0.66, 0.44, unpack_rows=256, packed_share=0.17),
}

_LAUNCH_S: Final = {"graph": 0.9e-6, "eager": 5.4e-6}
_KERNELS_PER_LAYER: Final = 12
_DRAM_FILL_S: Final = 1.3e-6
_TILE_COLUMNS: Final = 128
_TILE_ROWS: Final = (16, 32, 64, 128)
_MAX_SPLIT: Final = 8
_MIN_SPLIT_DEPTH: Final = 512
_PIECE_TOKENS: Final = 512
_PIECES_PER_SM: Final = 2
_PIECE_RATE: Final = 2.6  # times its equal share of the memory that one piece can draw
_ATTENTION_STREAM: Final = 0.79
_ATTENTION_ACTIVE: Final = 0.78  # share of the multiprocessors that attention keeps in use
# (chunk below, share of the peak) of attention over a chunk of a prompt.
_PROMPT_ATTENTION: Final = ((256, 0.22), (1024, 0.38), (1 << 62, 0.53))
_GRAPH_SIZES: Final = 512  # largest batch with a captured graph, vllm/config
_HOST_S: Final = 0.95e-3
_HOST_PER_SEQUENCE_S: Final = 4.6e-6
_HOST_PROMPT_S: Final = 0.35e-3
_HOST_GROUP_S: Final = 0.22e-3

# Power while on but idle in between (W), and energy of one byte and one operation (J).
_ENERGY: Final = {
    "ampere": (88.0, 95e-12, 0.86e-12),
    "hopper": (128.0, 92e-12, 0.55e-12),
}
_ENERGY_ELSE: Final = (105.0, 90e-12, 0.7e-12)
_FP8_ENERGY: Final = 0.56  # of a 16-bit operation


class StepCost(NamedTuple):
    """One step of the engine on each of its GPUs.

    ``seconds`` includes the host's work, ``busy_s`` is the device's share of it, ``active_s`` the
    same weighted by the share of multiprocessors in use, ``tensor_s`` the time that the operations
    would take at the part's peak, ``joules`` the energy of one GPU.
    """

    seconds: float
    busy_s: float
    active_s: float
    tensor_s: float
    joules: float


class _Work(NamedTuple):
    """Device work: time, the same by multiprocessors in use, at the peak, operations, bytes."""

    seconds: float
    active_s: float
    tensor_s: float
    operations: float
    bytes: float


def kernel_format(deployment: Deployment) -> KernelFormat:
    """The kernel that a deployment's format runs on.

    Raises:
        BadInputError: a format that the simulator has no kernel for.
    """
    name = deployment.precision.name
    if name == "fp8" and deployment.gpu.fp8_flops <= 0:
        name = "fp8-marlin"
    if name not in KERNELS:
        raise BadInputError(
            f"precision {name} cannot be simulated: take one of bf16, fp16, fp8, gptq, awq"
        )
    return KERNELS[name]


class KernelTimer:
    """Times the steps of one deployment; the products are remembered by the number of rows."""

    def __init__(self, deployment: Deployment) -> None:
        self._d = deployment
        self._format = kernel_format(deployment)
        gpu, model = deployment.gpu, deployment.model
        self._bandwidth = gpu.bandwidth_bytes_per_s
        self._bf16 = gpu.bf16_flops or gpu.fp16_flops
        self._peak = gpu.fp8_flops if self._format.unit == "fp8" else self._bf16
        self._static_w, self._byte_j, self._operation_j = _ENERGY.get(
            gpu.architecture, _ENERGY_ELSE
        )
        self._product_j = self._operation_j * (_FP8_ENERGY if self._format.unit == "fp8" else 1.0)
        self._products: dict[tuple[int, int, bool], _Work] = {}
        self._token_bytes = 4 * deployment.kv_heads_per_gpu * model.head_dim
        self._heads = max(model.n_heads // deployment.tensor_parallel, 1)
        self._n_windowed = model.n_sliding_layers if model.sliding_window else 0
        self._n_full = model.n_layers - self._n_windowed

    def decode(self, sequences: int, context_tokens: float) -> StepCost:
        """Time a step that generates one token for each sequence.

        Args:
            sequences: running requests, at least 1.
            context_tokens: their lengths, summed.
        """
        rows, captured = _padded(sequences)
        work = self._all_products(rows, sequences, captured)
        return self._step(work, sequences, *self._cache_read(sequences, context_tokens), 0)

    def mixed(
        self, sequences: int, context_tokens: float, chunks: list[tuple[int, int]]
    ) -> StepCost:
        """Time a step that also takes in pieces of prompts.

        Args:
            sequences: requests that generate, may be 0.
            context_tokens: their lengths, summed.
            chunks: (tokens, tokens already in the cache) of each piece.
        """
        rows = sequences + sum(tokens for tokens, _ in chunks)
        padded = math.ceil(rows / 16) * 16
        sampled = math.ceil((sequences + len(chunks)) / 16) * 16
        work = self._all_products(padded, sampled, captured=False)
        read_s, read_bytes = self._cache_read(sequences, context_tokens)
        operations = 0.0
        for tokens, before in chunks:
            seconds, done = self._prompt_attention(tokens, before)
            read_s += seconds
            operations += done
        return self._step(work, sequences, read_s, read_bytes, len(chunks), operations)

    def _step(
        self,
        work: _Work,
        sequences: int,
        read_s: float,
        read_bytes: float,
        n_chunks: int,
        attention_operations: float = 0.0,
    ) -> StepCost:
        deployment = self._d
        busy = work.seconds + read_s
        # What the board's power limit does to the clocks, told by energy.
        dynamic = (work.bytes + read_bytes) * self._byte_j
        dynamic += work.operations * self._product_j + attention_operations * self._operation_j
        busy = max(busy, dynamic / (deployment.gpu.tdp_w - self._static_w))
        host = _HOST_S + sequences * _HOST_PER_SEQUENCE_S + (_HOST_PROMPT_S if n_chunks else 0.0)
        if deployment.tensor_parallel > 1:
            host += _HOST_GROUP_S
        seconds = busy + host
        tensor = work.tensor_s + attention_operations / self._bf16
        active = work.active_s + _ATTENTION_ACTIVE * read_s
        return StepCost(seconds, busy, active, tensor, dynamic + seconds * self._static_w)

    def _all_products(self, rows: int, sampled: int, captured: bool) -> _Work:
        key = (rows, sampled if not captured else rows, captured)
        found = self._products.get(key)
        if found is None:
            found = self._products[key] = self._time_products(rows, max(sampled, 1), captured)
        return found

    def _time_products(self, rows: int, sampled: int, captured: bool) -> _Work:
        deployment, model = self._d, self._d.model
        split, hidden = deployment.tensor_parallel, model.hidden_size
        heads_width = self._heads * model.head_dim
        kv_width = 2 * deployment.kv_heads_per_gpu * model.head_dim
        width = max(model.intermediate_size // split, 1)
        shapes = [(rows, heads_width + kv_width, hidden), (rows, hidden, heads_width)]
        if model.is_moe:
            used = model.experts_per_token
            expert = max((model.moe_intermediate_size or model.intermediate_size) // split, 1)
            # Experts in use grow with the rows, less than in step, up to all of them.
            touched = min(model.n_experts, max(used, math.ceil(used * rows**0.85)))
            each = math.ceil(rows * used / touched)
            shapes += [(each, 2 * expert * touched, hidden), (each, hidden * touched, expert)]
        else:
            shapes += [(rows, 2 * width, hidden), (rows, hidden, width)]
        seconds = active_s = tensor_s = operations = moved = 0.0
        for shape in shapes:
            product = self._product(*shape, self._format)
            seconds += product.seconds
            active_s += product.active_s
            tensor_s += product.tensor_s
            operations += product.operations
            moved += product.bytes
        pointwise = 2.0 * rows * (9 * hidden + 3 * width)
        seconds += pointwise / (0.68 * self._bandwidth)
        gap = _KERNELS_PER_LAYER * _LAUNCH_S["graph" if captured else "eager"]
        seconds = seconds + gap if captured else max(seconds, gap)
        seconds += 2.0 * self._sum_over_group(2.0 * rows * hidden)
        layers = model.n_layers
        head = self._product(sampled, max(model.vocab_size // split, 1), hidden, KERNELS["bf16"])
        logits = 14.0 * sampled * model.vocab_size / self._bandwidth
        return _Work(
            layers * seconds + head.seconds + logits,
            layers * active_s + head.active_s,
            layers * tensor_s + head.tensor_s,
            layers * operations + head.operations,
            layers * (moved + pointwise) + head.bytes,
        )

    def _product(self, rows: int, columns: int, depth: int, form: KernelFormat) -> _Work:
        """One matrix product (rows × depth) · (depth × columns)."""
        n_sms = self._d.gpu.n_sms
        peak = self._peak if form is self._format else self._bf16
        stored = self._d.precision.bytes_per_param if form is self._format else 2.0
        share, extra_s, weight_bytes = form.tensor_share, 0.0, columns * depth * stored
        stream = form.stream_share
        if form.unpack_rows and rows >= form.unpack_rows:
            extra_s = columns * depth * (stored + 2.0) / (0.8 * self._bandwidth)
            weight_bytes, stream = columns * depth * 2.0, KERNELS["bf16"].stream_share
        elif form.packed_share:
            share = form.packed_share
        if form.requantise:
            extra_s += 3.0 * rows * depth / (0.6 * self._bandwidth) + _LAUNCH_S["graph"]
        tile = next((t for t in _TILE_ROWS if rows <= t), _TILE_ROWS[-1])
        tiles = math.ceil(rows / tile) * math.ceil(columns / _TILE_COLUMNS)
        parts = 1
        while (
            parts < _MAX_SPLIT
            and 2 * tiles * parts <= n_sms
            and (depth // (2 * parts) >= _MIN_SPLIT_DEPTH)
        ):
            parts *= 2
        rounds = math.ceil(tiles * parts / n_sms)
        tile_s = 2.0 * tile * _TILE_COLUMNS * depth / parts / (peak / n_sms * share)
        moved = weight_bytes + 2.0 * rows * (depth + columns)
        memory_s = moved / (stream * self._bandwidth) + _DRAM_FILL_S
        operations = 2.0 * rows * columns * depth
        seconds = max(rounds * tile_s, memory_s) + extra_s
        in_use = tiles * parts / (rounds * n_sms)
        return _Work(seconds, seconds * in_use, operations / peak, operations, moved)

    def _cache_read(self, sequences: int, context_tokens: float) -> tuple[float, float]:
        """Seconds and bytes of attention over the cache, all layers."""
        if not sequences:
            return 0.0, 0.0
        full_s, full_bytes = self._cache_layer(sequences, context_tokens)
        seconds, moved = self._n_full * full_s, self._n_full * full_bytes
        if self._n_windowed:
            seen = min(context_tokens, float(sequences * self._d.model.sliding_window))
            windowed_s, windowed_bytes = self._cache_layer(sequences, seen)
            seconds += self._n_windowed * windowed_s
            moved += self._n_windowed * windowed_bytes
        return seconds, moved

    def _cache_layer(self, sequences: int, context_tokens: float) -> tuple[float, float]:
        slots = _PIECES_PER_SM * self._d.gpu.n_sms
        pieces = (context_tokens / _PIECE_TOKENS + 0.5 * sequences) * self._d.kv_heads_per_gpu
        moved = context_tokens * self._token_bytes
        piece_bytes = min(_PIECE_TOKENS, context_tokens / sequences) * 4.0 * self._d.model.head_dim
        one_s = piece_bytes / (_PIECE_RATE * self._bandwidth / slots)
        bound_s = math.ceil(pieces / slots) * one_s
        return max(moved / (_ATTENTION_STREAM * self._bandwidth), bound_s) + 2.2e-6, moved

    def _prompt_attention(self, tokens: int, before: int) -> tuple[float, float]:
        """Seconds and operations of attention of one piece of a prompt, all layers."""
        model = self._d.model
        padded = math.ceil(tokens / _TILE_COLUMNS) * _TILE_COLUMNS
        share = next(share for limit, share in _PROMPT_ATTENTION if tokens < limit)
        pairs = padded * (before + padded / 2.0)
        window = model.sliding_window or 1 << 62
        windowed = padded * min(before + padded / 2.0, float(window))
        each = 4.0 * model.head_dim * self._heads
        operations = each * (self._n_full * pairs + self._n_windowed * windowed)
        return operations / (share * self._bf16), operations

    def _sum_over_group(self, message_bytes: float) -> float:
        """Seconds to sum a message over the group: every GPU reads all peers, or a tree."""
        n = self._d.tensor_parallel
        if n == 1:
            return 0.0
        link = self._d.gpu.link_bytes_per_s
        one_shot = 4.4e-6 + 0.75e-6 * (n - 1) + message_bytes * (n - 1) / (0.82 * link)
        depth = math.ceil(math.log2(n))
        tree = 8.5e-6 + 3.7e-6 * 2 * depth + 2.0 * message_bytes / (0.66 * link)
        return min(one_shot, tree)


def _padded(sequences: int) -> tuple[int, bool]:
    """Rows that a decoding step computes, and whether a captured graph runs it."""
    if sequences <= 4:
        return 1 << (sequences - 1).bit_length(), True
    if sequences <= _GRAPH_SIZES:
        return math.ceil(sequences / 8) * 8, True
    return math.ceil(sequences / 16) * 16, False
