"""The closed-form step-time prior: roofline arithmetic with a few fitted efficiencies.

One decoding step of b sequences reads the weights and the KV cache, multiplies, and synchronises
the tensor-parallel group; a prefill multiplies the prompt. From these follow throughput, latency,
cache occupancy, power and cold start. COSTMODEL §1; the roofline idea is Williams et al. 2009.

The fitted parameters are *effective* values (kernels, scheduling and clocks folded in), not
hardware efficiencies. Each is a base value with ridge-shrunk offsets by engine era, source, GPU
architecture and kernel; see :mod:`omnipilot.costmodel.physics_fit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame


@dataclass(frozen=True, slots=True)
class PhysicsParameter:
    """One effective parameter: its name, unit, starting value and what it stands for.

    ``spread`` is how far its offsets may go, as a share of their group's standard deviation. The
    parameters of experts, latent attention and queues are told apart by few models of a group:
    let loose, they and the bandwidths of dense layers balance each other there, and an unseen
    model pays for it. No effective value exceeds ``most``: where a source's rows leave an
    efficiency open, it must not end at many times what the hardware has.
    """

    name: str
    unit: str
    start: float
    meaning: str
    spread: float = 1.0
    most: float = np.inf

    def bounded(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """The smaller of value and ``most`` without a corner, within 16 % (p-norm of order 4)."""
        if np.isinf(self.most):
            return value
        return np.asarray(value * (1.0 + (value / self.most) ** 4) ** -0.25)


PARAMETERS: tuple[PhysicsParameter, ...] = (
    PhysicsParameter("weight_bandwidth_eff", "fraction", 0.70, "of peak bandwidth, by weights"),
    PhysicsParameter("kv_bandwidth_eff", "fraction", 0.50, "of peak bandwidth, by the KV cache"),
    PhysicsParameter(
        "decode_compute_eff", "fraction", 0.45, "of peak FLOP/s in a decoding step", most=1.0
    ),
    PhysicsParameter(
        "prefill_compute_eff", "fraction", 0.50, "of peak FLOP/s in a prefill", most=1.0
    ),
    PhysicsParameter("layer_overhead_s", "s", 15e-6, "fixed cost of one layer in one step"),
    PhysicsParameter("step_overhead_s", "s", 2e-3, "scheduler and sampler, each step"),
    PhysicsParameter("sequence_overhead_s", "s", 15e-6, "host work for one sequence in one step"),
    PhysicsParameter("allreduce_latency_s", "s", 8e-6, "latency of one all-reduce"),
    PhysicsParameter("link_bandwidth_eff", "fraction", 0.50, "of the GPU-to-GPU link", most=1.0),
    PhysicsParameter("prefill_overhead_s", "s", 5e-3, "fixed cost of one prefill", 0.5),
    PhysicsParameter("media_overhead_s", "s", 30e-3, "reading a request's pictures and sound", 0.5),
    PhysicsParameter("moe_read_frac", "ratio", 1.0, "experts read, uniform routing = 1", 0.2),
    PhysicsParameter("moe_layer_frac", "ratio", 0.5, "extra fixed cost of a MoE layer", 0.2),
    PhysicsParameter("moe_weight_eff", "ratio", 0.8, "experts' bandwidth beside dense layers", 0.2),
    PhysicsParameter("expert_compute_eff", "fraction", 0.40, "of peak FLOP/s in the experts", 0.2),
    PhysicsParameter(
        "gqa_reread_frac", "ratio", 0.05, "of KV reads repeated by query heads that share them", 2.0
    ),
    PhysicsParameter("mla_kv_eff", "ratio", 1.0, "KV bandwidth of latent attention", 0.2),
    PhysicsParameter("allreduce_hop_frac", "ratio", 0.5, "latency added by doubling the GPUs", 0.2),
    PhysicsParameter("tpot_prefill_frac", "ratio", 0.8, "share of prefills that stretch TPOT", 0.2),
    PhysicsParameter("ttft_queue_frac", "ratio", 0.25, "share of the batch prefilled first", 0.2),
    PhysicsParameter("ttft_overhead_s", "s", 15e-3, "request handling before the first token", 0.5),
    PhysicsParameter("kv_wait_frac", "ratio", 0.5, "share of queue wait at the median", 0.2),
    PhysicsParameter("kv_output_frac", "ratio", 0.75, "of its output that a sequence holds", 0.2),
    PhysicsParameter(
        "padded_cache_ratio", "ratio", 4.0, "cache that a sequence of a padded batch reserves", 0.2
    ),
    PhysicsParameter("guessed_prompt_ratio", "ratio", 1.0, "prompt, of that guessed for a task"),
    PhysicsParameter("idle_power_frac", "fraction", 0.25, "of TDP when idle"),
    PhysicsParameter("memory_power_frac", "fraction", 0.45, "of TDP added when memory is busy"),
    PhysicsParameter("compute_power_frac", "fraction", 0.60, "of TDP added when compute is busy"),
)  # fmt: skip
PARAMETER_NAMES = tuple(p.name for p in PARAMETERS)
START_LOG = np.log([p.start for p in PARAMETERS])

# Memory that is not weights or KV cache: activations, CUDA graphs, communicators (GiB per GPU).
# vLLM's measured range is 2 to 8 GiB (launch tables of llm-d); the cost model only needs its order.
RESERVED_GIB = 3.0
NODE_GPUS = 8.0
LOAD_BYTES_PER_S = 1.5e9
ENGINE_INIT_S = 35.0
COMPILE_S_PER_LAYER = 0.6


@dataclass(frozen=True, slots=True)
class Physics:
    """The prior's answer for n scenarios; every array is float64 (n,).

    ``log`` maps target names to natural logs of the prior in the target's unit. ``terms`` holds
    the parts (seconds, tokens, shares) that the residual model takes as features.
    """

    log: dict[str, NDArray[np.float64]]
    terms: dict[str, NDArray[np.float64]]

    def take(self, index: NDArray[np.int64]) -> Physics:
        """Rows selected by ``index``."""
        return Physics(
            {k: v[index] for k, v in self.log.items()},
            {k: v[index] for k, v in self.terms.items()},
        )


def _log_missed(frame: Frame) -> NDArray[np.float64]:
    """Log chance that one token passes an expert by; not a number without experts."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = frame["experts_per_token"] / frame["experts"]
        return np.asarray(np.log1p(-np.minimum(share, 0.999999)))


def _expert_share(
    frame: Frame, batch: NDArray[np.float64], log_missed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Share of the routed experts that a batch of tokens touches under uniform routing."""
    return np.where(frame["experts"] > 1, 1.0 - np.exp(batch * log_missed), 1.0)


def _prompts(frame: Frame, guessed_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Prompt tokens, where they are guessed as their task's rows correct the guess."""
    known = frame["prompt_known"] > 0
    return np.asarray(frame["prompt_tokens"] * np.where(known, 1.0, guessed_ratio))


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(x, 1e-12))


def _smooth_min(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """A minimum without a corner, within 8 % of the true one (p-norm of order 8)."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    return np.asarray(low * (1.0 + (low / high) ** 8) ** (-1.0 / 8.0))


@dataclass(frozen=True, slots=True)
class _Arms:
    """What the prior knows of n arms whatever their load; ``theta`` by name, arrays (n,)."""

    theta: dict[str, NDArray[np.float64]]
    weights: NDArray[np.float64]
    dense_gpu: NDArray[np.float64]
    routed: NDArray[np.float64]
    window: NDArray[np.float64]
    ranks: NDArray[np.float64]
    shards: NDArray[np.float64]
    reread: NDArray[np.float64]
    room_frac: NDArray[np.float64]
    cache_room: NDArray[np.float64]
    held: NDArray[np.float64]
    padding: NDArray[np.float64]
    log_missed: NDArray[np.float64]
    dense_token_s: NDArray[np.float64]
    expert_token_s: NDArray[np.float64]
    twice_layers: NDArray[np.float64]
    per_layer_s: NDArray[np.float64]
    kv_eff: NDArray[np.float64]
    ring: NDArray[np.float64]
    link: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    static: NDArray[np.bool_]
    log_cold: NDArray[np.float64]


def _arms(frame: Frame, log_theta: NDArray[np.float64]) -> _Arms:
    f, n_gpus, layers = frame, frame["n_gpus"], frame["layers"]
    theta = {p.name: p.bounded(np.exp(log_theta[:, j])) for j, p in enumerate(PARAMETERS)}
    embedding_bytes = np.where(f["embeddings_16bit"] > 0, 2.0, f["weight_bytes"])
    body = f["params"] - f["embedding"]
    routed = f["routed"] * f["weight_bytes"]
    shared = (body - f["routed"]) * f["dense_bytes"]
    weights = shared + routed + f["embedding"] * embedding_bytes
    # Attention in data parallel: each GPU is a rank with sequences, host and prefills of its own.
    # Latent attention across more GPUs than a node holds runs so; no engine splits its one KV head.
    in_ranks = (f["attention_dp"] > 0) | ((f["mla"] > 0) & (n_gpus > NODE_GPUS))
    shards = np.where(f["mla"] > 0, 1.0, np.minimum(n_gpus, np.maximum(f["kv_heads"], 1.0)))
    shards = np.where(in_ranks, n_gpus, shards)
    # A kernel may read a KV head again for every query head of the GPU that shares it.
    sharing = f["heads"] * shards / n_gpus / np.maximum(f["kv_heads"], 1.0)
    sharing = np.where(f["mla"] > 0, 1.0, np.maximum(sharing, 1.0))
    held_weights = np.where(in_ranks, weights - routed + routed / n_gpus, weights / n_gpus)
    room = f["memory_bytes"] * f["utilization"] - RESERVED_GIB * 2**30 - held_weights
    active_routed = f["routed"] * f["experts_per_token"] / np.maximum(f["experts"], 1.0)
    active_routed = np.where(f["experts"] > 1, np.minimum(active_routed, 0.95 * f["active"]), 0.0)
    active_dense = f["active"] - active_routed
    doublings = np.log2(np.maximum(n_gpus, 2.0)) - 1.0
    hops = np.where(n_gpus > 1, 2.0 * (1.0 + theta["allreduce_hop_frac"] * doublings), 0.0)
    return _Arms(
        theta=theta,
        weights=weights,
        dense_gpu=(shared + f["head"] * embedding_bytes) / np.where(in_ranks, 1.0, n_gpus),
        routed=routed,
        window=np.where(f["window_tokens"] > 0, f["window_tokens"], np.inf),
        ranks=np.where(in_ranks, n_gpus, 1.0),
        shards=shards,
        reread=1.0 + theta["gqa_reread_frac"] * (sharing - 1.0),
        room_frac=room / f["memory_bytes"],
        cache_room=np.maximum(room, 0.02 * f["memory_bytes"]),
        # Sequences of an online engine are admitted while they are short and at different ages.
        held=np.where(f["static"] > 0, 1.0, theta["kv_output_frac"]),
        padding=np.where(f["padded"] > 0, theta["padded_cache_ratio"], 1.0),
        log_missed=_log_missed(f),
        dense_token_s=2.0 * active_dense / n_gpus / f["flops"],
        expert_token_s=2.0 * active_routed / n_gpus / f["flops"] / theta["expert_compute_eff"],
        twice_layers=2.0 * layers,
        per_layer_s=theta["layer_overhead_s"]
        * (layers + theta["moe_layer_frac"] * f["moe_layers"]),
        kv_eff=theta["kv_bandwidth_eff"] * np.where(f["mla"] > 0, theta["mla_kv_eff"], 1.0),
        ring=2.0 * (n_gpus - 1.0) / n_gpus,
        link=np.where(n_gpus > 1, f["link"], 1.0),
        latency_s=theta["allreduce_latency_s"] * hops,
        static=f["static"] > 0,
        log_cold=_log(ENGINE_INIT_S + weights / LOAD_BYTES_PER_S + COMPILE_S_PER_LAYER * layers),
    )


def evaluate(frame: Frame, log_theta: NDArray[np.float64]) -> Physics:
    """Evaluate the prior.

    Args:
        frame: n scenarios.
        log_theta: natural logs of the parameters, (n, len(PARAMETERS)), one row per scenario.

    Returns:
        Logs of every target and the terms they were made of.
    """
    f = frame
    arms = f.fixed(log_theta, lambda: _arms(f, log_theta))
    theta, n_gpus, weights, per_layer = arms.theta, f["n_gpus"], arms.weights, arms.per_layer_s
    isl, osl = _prompts(f, theta["guessed_prompt_ratio"]), f["output_tokens"]

    # Memory: the cache of one sequence, how many sequences run at once.
    mean_context = isl + osl / 2.0

    def cache_bytes(context: NDArray[np.float64]) -> NDArray[np.float64]:
        full = f["kv_full_elements"] * context
        sliding = f["kv_sliding_elements"] * np.minimum(context, arms.window)
        return np.asarray((full + sliding + f["recurrent_elements"]) * f["kv_bytes"])

    per_sequence = np.maximum(cache_bytes(isl + arms.held * osl) / arms.shards, 1.0) * arms.padding
    capacity = arms.cache_room / per_sequence
    capacity = np.maximum(np.minimum(capacity, f["max_num_seqs"]), 1.0)
    batch = np.maximum(_smooth_min(f["concurrency"], capacity), 1.0)
    pressure = f["concurrency"] / capacity

    # One decoding step of the batch.
    share = _expert_share(f, batch, arms.log_missed)
    read = np.minimum(share * theta["moe_read_frac"], 1.0)
    moved = arms.dense_gpu + arms.routed * read / theta["moe_weight_eff"] / n_gpus
    t_weights = moved / f["bandwidth"] / theta["weight_bandwidth_eff"]
    t_compute = batch * (arms.dense_token_s / theta["decode_compute_eff"] + arms.expert_token_s)
    t_cache = batch * cache_bytes(mean_context) / arms.shards / f["bandwidth"] / arms.kv_eff
    t_kv = t_cache * arms.reread

    def allreduce(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        volume = arms.ring * tokens * f["hidden"] * 2.0 / arms.link / theta["link_bandwidth_eff"]
        return np.asarray(arms.twice_layers * (arms.latency_s + volume))

    turns = batch / arms.ranks
    t_link = allreduce(turns)
    t_host = (theta["step_overhead_s"] + turns * theta["sequence_overhead_s"]) * f["host_factor"]
    step = np.sqrt(t_weights**2 + t_compute**2) + t_kv + per_layer + t_host + t_link

    # Prefill of one request (the vision or cross-attention parts are in the active parameters).
    t_attention = arms.twice_layers * f["hidden"] * isl**2 / n_gpus / f["flops"]
    t_dense = (arms.dense_token_s * isl + t_attention) / theta["prefill_compute_eff"]
    t_prefill = t_dense + arms.expert_token_s * isl
    fixed = theta["prefill_overhead_s"]
    prefill = t_prefill + allreduce(isl) + fixed + f["media"] * theta["media_overhead_s"]

    # Cycle of the closed loop or of the static batch: every request decodes and prefills once.
    decode = osl * step
    starts = np.where(arms.static, 1.0, turns) * fixed
    prefills = batch * t_prefill + turns * (prefill - t_prefill - fixed) + starts
    cycle = decode + prefills
    log_out = np.log(batch) + np.log(osl) - np.log(cycle)
    waves = np.maximum(pressure - 1.0, 0.0)
    first = theta["ttft_overhead_s"] + prefill + step
    ahead = np.where(arms.static, 1.0, theta["ttft_queue_frac"]) * np.maximum(turns - 1.0, 0.0)
    queue = ahead * (prefill - fixed)
    ttft = first + queue + theta["kv_wait_frac"] * waves * cycle

    busy_memory = (t_weights + t_cache) / step
    busy_compute = (t_compute * osl + t_prefill * batch) / cycle
    load = (
        theta["idle_power_frac"]
        + theta["memory_power_frac"] * np.minimum(busy_memory, 1.0) * decode / cycle
        + theta["compute_power_frac"] * np.minimum(busy_compute, 1.0)
    )
    power = n_gpus * f["tdp_w"] * np.minimum(load, 1.1)
    occupancy = np.minimum(1.0, f["concurrency"] / np.maximum(capacity, 1.0))
    device = np.minimum((t_weights + t_compute + t_kv + t_link) / step, 1.0)

    logs = {
        "output_tokens_per_s": log_out,
        "aggregate_tokens_per_s": log_out + np.log((isl + osl) / osl),
        "request_per_s": log_out - np.log(osl),
        "ttft_p50_s": _log(ttft),
        "itl_p50_s": _log(step),
        "tpot_p50_s": _log(
            np.where(arms.static, step, step + theta["tpot_prefill_frac"] * prefills / osl)
        ),
        "cold_start_s": arms.log_cold,
        "kv_cache_peak_frac": _log(occupancy),
        "power_mean_w": _log(power),
        "sm_active_frac": _log(device),
        "tensor_active_frac": _log(np.minimum(busy_compute, 1.0)),
    }
    terms = {
        "batch": batch, "capacity": capacity, "pressure": pressure, "step_s": step,
        "prefill_s": prefill, "cycle_s": cycle, "weights_s": t_weights, "compute_s": t_compute,
        "kv_s": t_kv, "link_s": t_link, "layer_s": per_layer, "host_s": t_host,
        "prefill_share": prefills / cycle, "room_frac": arms.room_frac,
        "weights_bytes": weights, "expert_share": share, "per_sequence_bytes": per_sequence,
        "mean_context": mean_context,
    }  # fmt: skip
    return Physics(log=logs, terms=terms)


def throughput_ceiling(frame: Frame) -> NDArray[np.float64]:
    """Log output tokens/s that no engine can exceed, (n,): COSTMODEL §2.

    Every efficiency is 1, nothing overlaps badly, links are free, the cache holds one byte an
    element in all of the memory and is spread over all GPUs. Rows far above it are physically
    impossible (echoed prompts, contexts that the model does not have) and are screened out.
    """
    f = frame
    isl, osl, n_gpus = f["prompt_tokens"], f["output_tokens"], f["n_gpus"]
    body = f["params"] - f["embedding"] - f["routed"]
    window = np.where(f["window_tokens"] > 0, f["window_tokens"], np.inf)

    def cache_elements(context: NDArray[np.float64]) -> NDArray[np.float64]:
        sliding = f["kv_sliding_elements"] * np.minimum(context, window)
        return np.asarray(f["kv_full_elements"] * context + sliding + f["recurrent_elements"])

    room = n_gpus * f["memory_bytes"] / np.maximum(cache_elements(isl + osl), 1.0)
    batch = np.maximum(np.minimum(f["concurrency"], room), 1.0)
    share = _expert_share(f, batch, _log_missed(f))
    read = (body + f["routed"] * np.minimum(share, 1.0)) * f["weight_bytes"] + f["head"]
    t_memory = (read + batch * cache_elements(isl + osl / 2.0)) / n_gpus / f["bandwidth"]
    t_compute = 2.0 * (f["active"] - f["embedding"]) * batch / n_gpus / f["flops"]
    t_prefill = 2.0 * (f["active"] - f["embedding"]) * isl / n_gpus / f["flops"]
    cycle = osl * np.maximum(t_memory, t_compute) + batch * t_prefill
    return np.asarray(np.log(batch) + np.log(osl) - np.log(cycle))
