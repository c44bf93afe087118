"""How a simulated engine starts: what it loads in what time, or the class of its failure.

The stages are an engine's own, in its order: configuration, weights (streamed from storage that
other jobs also read), the profile run, the KV cache, graph capture, ready.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.domain.frozen import dataclass
from omnipilot.simulate.deployment import BLOCK_TOKENS
from omnipilot.simulate.kernels import KernelTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from omnipilot.simulate.deployment import Deployment

__all__ = ["NODE_FAULTS", "Started", "StorageState", "fault", "start"]

GIB: Final = float(2**30)

# Formats without a kernel, by family or model. AWQ's plain kernel takes 16-bit floats of the IEEE
# kind only (vllm/model_executor/layers/quantization/awq.py), which vLLM refuses for Gemma 2
# (vllm/config/model.py); GPTQ of the 27B one is the paper's example.
_UNSUPPORTED: Final = frozenset({("gemma2", "awq"), ("google/gemma-2-27b-it", "gptq")})
_GROUP: Final = {"awq": 128, "gptq": 128}

# (class, share of the faults, stage that it strikes in)
NODE_FAULTS: Final = (
    ("device_error", 0.4, "config"),
    ("engine_dead", 0.35, "ready"),
    ("port_in_use", 0.15, "config"),
    ("memory_not_free", 0.1, "profiling"),
)

_IMPORT_S: Final = 13.0
_GROUP_S: Final = (2.6, 0.7)  # communicators: once, and for each GPU
_SHARD_BYTES: Final = 4.9e9
_SHARD_OPEN_S: Final = 0.18
_STREAM_BYTES_PER_S: Final = 0.85e9  # one reader of a parallel file system
_TO_DEVICE_BYTES_PER_S: Final = 11e9
_COMPILE_S: Final = (9.0, 0.31)  # once, and for each layer
_CAPTURED_GRAPHS: Final = 67
_CONTEXT_GIB: Final = 0.55
_GROUP_GIB: Final = 0.62
_LOGIT_BYTES: Final = 34.0


class StorageState(NamedTuple):
    """What the storage has to give at the time.

    Args:
        node_bytes_per_s: all that one node can draw.
        load_frac: share of it that other jobs take.
        cached_frac: share of the weights that the node's memory still holds.
    """

    node_bytes_per_s: float = 4.0e9
    load_frac: float = 0.3
    cached_frac: float = 0.0


@dataclass(frozen=True, slots=True)
class Started:
    """A start, up to being ready or to its failure.

    ``failure`` is "" or a class of :data:`omnipilot.domain.labels.FAILURES`, ``stage`` how far it
    came, ``labels`` what an engine's log would tell, named as
    :data:`omnipilot.domain.labels.STARTUP_LABELS`.
    """

    failure: str
    stage: str
    kv_blocks: int = 0
    labels: dict[str, float] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether it came up."""
        return not self.failure


class _Plan(NamedTuple):
    """GiB on one GPU."""

    usable: float
    weights: float
    activation: float
    other: float

    @property
    def cache(self) -> float:
        return self.usable - self.weights - self.activation - self.other


def start(deployment: Deployment, storage: StorageState | None = None) -> Started:
    """Start an engine.

    Args:
        deployment: what is launched.
        storage: state of the storage that the weights come from.

    Returns:
        The start; a failure is a value.
    """
    plan = _plan(deployment)
    for check in _CHECKS:
        found = check(deployment, plan)
        if found:
            stage, labels = _STAGE_OF[found], _labels_of_failure(deployment, plan)
            return Started(found, stage, 0, labels if stage != "config" else {})
    blocks = int(plan.cache * GIB / (deployment.kv_bytes_per_token * BLOCK_TOKENS))
    times = _times(deployment, plan, storage or StorageState())
    return Started(
        "",
        "ready",
        blocks,
        {
            "weights_gib": plan.weights,
            "activation_gib": plan.activation,
            "non_torch_gib": plan.other,
            "kv_cache_gib": plan.cache,
            "kv_cache_tokens": float(blocks * BLOCK_TOKENS),
            "max_concurrency": blocks * BLOCK_TOKENS / deployment.max_model_len,
            **times,
        },
    )


def fault(rng: np.random.Generator) -> Started:
    """Draw a failure that has nothing to do with the configuration."""
    at = rng.choice(len(NODE_FAULTS), p=[share for _, share, _ in NODE_FAULTS])
    name, _, stage = NODE_FAULTS[int(at)]
    return Started(name, stage)


def _plan(deployment: Deployment) -> _Plan:
    model, gpu, split = deployment.model, deployment.gpu, deployment.tensor_parallel
    stored = deployment.precision.bytes_per_param
    outer = 2.0 if deployment.precision.embeddings_16bit else stored
    inner = model.total_params - model.embedding_params
    weights = (inner * stored + model.embedding_params * outer) / split / GIB
    tokens = deployment.token_limit
    forward = 2.0 * tokens * (2.0 * model.intermediate_size / split + 6.0 * model.hidden_size)
    sampler = _LOGIT_BYTES * deployment.sequence_limit * model.vocab_size
    activation = max(forward, sampler) / GIB
    other = _CONTEXT_GIB + (_GROUP_GIB if split > 1 else 0.0) + 0.004 * model.n_layers
    usable = gpu.memory_gib * deployment.memory_utilization_frac
    return _Plan(usable, weights, activation, other)


def _divisible(deployment: Deployment) -> str:
    model, split = deployment.model, deployment.tensor_parallel
    group = _GROUP.get(deployment.precision.name, 1)
    heads = model.n_kv_heads
    misfit = (
        model.n_heads % split
        or (heads % split and split % heads)
        or model.intermediate_size % (split * group)
    )
    return "divisibility" if misfit else ""


def _supported(deployment: Deployment) -> str:
    name = deployment.precision.name
    known = _UNSUPPORTED.isdisjoint(
        {(deployment.model.family, name), (deployment.model.base_id, name)}
    )
    capable = deployment.gpu.compute_capability >= deployment.precision.min_compute_capability
    return "" if known and capable else "unsupported"


def _length(deployment: Deployment) -> str:
    limit = deployment.model.max_position
    return "max_model_len" if limit and deployment.max_model_len > limit else ""


def _weights_fit(plan: _Plan) -> str:
    return "oom_weights" if plan.weights > plan.usable else ""


def _profile_fits(plan: _Plan) -> str:
    return "oom_profiling" if plan.cache <= 0.0 else ""


def _cache_fits(deployment: Deployment, plan: _Plan) -> str:
    needed = deployment.max_model_len * deployment.kv_bytes_per_token / GIB
    return "kv_too_small" if plan.cache < needed else ""


_CHECKS: Final[tuple[Callable[[Deployment, _Plan], str], ...]] = (
    lambda deployment, _: _supported(deployment),
    lambda deployment, _: _divisible(deployment),
    lambda deployment, _: _length(deployment),
    lambda _, plan: _weights_fit(plan),
    lambda _, plan: _profile_fits(plan),
    _cache_fits,
)
_STAGE_OF: Final = {
    "unsupported": "config",
    "divisibility": "config",
    "max_model_len": "config",
    "oom_weights": "weights",
    "oom_profiling": "profiling",
    "kv_too_small": "kv_cache",
}


def _labels_of_failure(deployment: Deployment, plan: _Plan) -> dict[str, float]:
    labels = {"gpu_total_gib": deployment.gpu.memory_gib}
    if plan.weights <= plan.usable:
        labels |= {"weights_gib": plan.weights, "activation_gib": plan.activation}
    if plan.cache > 0.0:
        per_token = deployment.kv_bytes_per_token / GIB
        labels |= {
            "kv_available_gib": plan.cache,
            "kv_needed_gib": deployment.max_model_len * per_token,
            "max_model_len_possible": float(int(plan.cache / per_token)),
        }
    return labels


def _times(deployment: Deployment, plan: _Plan, storage: StorageState) -> dict[str, float]:
    """Seconds of the stages, and their sum ``cold_start_s``."""
    model, split = deployment.model, deployment.tensor_parallel
    total = plan.weights * GIB * split
    shards = max(math.ceil(total / _SHARD_BYTES), 1)
    # Workers read different shards at the same time until the node's share of the storage is used
    # up; what comes first is copied to the device while the rest streams in.
    wanted = min(split, shards) * _STREAM_BYTES_PER_S
    rate = min(wanted, storage.node_bytes_per_s) * (1.0 - storage.load_frac)
    read = shards * _SHARD_OPEN_S / min(split, shards)
    read += total * (1.0 - storage.cached_frac) / rate
    copied_last = plan.weights * GIB / shards / _TO_DEVICE_BYTES_PER_S
    load = read + copied_last + (0.02 * model.n_layers if model.is_moe else 0.0)
    timer = KernelTimer(deployment)
    profile = 3.0 * timer.mixed(0, 0.0, [(deployment.token_limit, 0)]).seconds
    compiled = _COMPILE_S[0] + _COMPILE_S[1] * model.n_layers
    capture = _CAPTURED_GRAPHS * (0.1 + 3.0 * timer.decode(256, 256.0 * BLOCK_TOKENS).seconds)
    group = _GROUP_S[0] + _GROUP_S[1] * split if split > 1 else 0.0
    initialised = profile + compiled + capture + 1.5
    return {
        "weights_read_s": read,
        "weights_load_s": load,
        "compile_s": compiled,
        "graph_capture_s": capture,
        "engine_init_s": initialised,
        "cold_start_s": _IMPORT_S + group + load + initialised,
    }
