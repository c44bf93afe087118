"""The normalised columns: their bounds, and the words that sources use in them."""

from __future__ import annotations

from typing import Final, NamedTuple

from omnipilot.domain.scenario import MODES
from omnipilot.domain.targets import TARGETS

__all__ = [
    "DEFAULT_MODE", "DESIGNED_COLUMNS", "MODE_OF_SCENARIO", "MODE_OF_SOURCE", "MODE_OF_TEXT",
    "NUMBER_COLUMNS", "STATUSES", "TEXT_COLUMNS", "VERSION_OF_SOURCE", "Bounds",
]  # fmt: skip


class Bounds(NamedTuple):
    """What a numeric column may hold; the ends belong to it."""

    low: float
    high: float
    whole: bool = False


_RATE: Final = Bounds(0.0, 1e9)
_LATENCY_MS: Final = Bounds(0.0, 1e9)
_FRACTION: Final = Bounds(0.0, 1.0)

# Bounds far beyond any system that exists: a value outside is a wrong unit or damage, not a
# measurement. (Whether a value is physically possible for its arm is the cost model's screen.)
NUMBER_COLUMNS: Final[dict[str, Bounds]] = {
    "gpu_mem_gb": Bounds(0.0, 1e5),
    "n_gpus": Bounds(1.0, 1e5, whole=True),
    "max_model_len": Bounds(1.0, 1e9, whole=True),
    "isl": Bounds(0.0, 1e8),
    "osl": Bounds(0.0, 1e8),
    "concurrency": Bounds(0.0, 1e6),
    "num_prompts": Bounds(0.0, 1e9),
    "request_rate": _RATE,
    "attn_dp": Bounds(0.0, 1e5, whole=True),
    "ep": Bounds(0.0, 1e5, whole=True),
    "moe_ep": Bounds(0.0, 1e5, whole=True),
    "pp": Bounds(0.0, 1e5, whole=True),
    "agg_tok_s": _RATE,
    "out_tok_s": _RATE,
    "req_s": _RATE,
    "ttft_p50_ms": _LATENCY_MS,
    "ttft_p99_ms": _LATENCY_MS,
    "itl_p50_ms": _LATENCY_MS,
    "tpot_p50_ms": _LATENCY_MS,
    "e2e_p50_ms": _LATENCY_MS,
    "cold_start_s": Bounds(0.0, 1e6),
    "kv_usage_peak": _FRACTION,
    "power_avg_w": Bounds(0.0, 1e7),
    "sm_active": _FRACTION,
    "tensor_active": _FRACTION,
}
# A label may also stand under its target's own name and in that one's unit.
NUMBER_COLUMNS.update({
    t.name: Bounds(of.low * t.column_scale, of.high * t.column_scale)
    for t in TARGETS
    if t.name not in NUMBER_COLUMNS
    for of in (NUMBER_COLUMNS[t.column],)
})  # fmt: skip

# Columns that the experimenter sets, so that few values stand in many rows.
DESIGNED_COLUMNS: Final = frozenset(
    {
        "gpu_mem_gb", "n_gpus", "max_model_len", "isl", "osl", "concurrency", "num_prompts",
        "request_rate", "attn_dp", "ep", "moe_ep", "pp",
    }
)  # fmt: skip

# Most characters of each text column. ``task`` and ``payload`` are read where ``workload`` is
# empty, ``scenario`` where ``mode`` is, ``config`` where ``engine_settings`` is.
TEXT_COLUMNS: Final[dict[str, int]] = {
    "source": 128,
    "model": 512,
    "engine": 64,
    "engine_version": 128,
    "gpu": 128,
    "precision": 64,
    "kv_dtype": 64,
    "status": 32,
    "mode": 64,
    "scenario": 64,
    "workload": 128,
    "task": 128,
    "payload": 128,
    "parallelism": 64,
    "engine_settings": 512,
    "config": 512,
    "cuda": 64,
    "driver": 64,
    "image_digest": 256,
    "notes": 4096,
}

# "ok_some_oom": a few requests of an otherwise good run failed for memory.
STATUSES: Final = ("ok", "ok_some_oom", "oom", "error", "unsupported", "crash", "timeout")

# The load modes of domain.scenario, by the words that sources use for them. Closed loops are
# online whether throughput was measured or derived.
MODE_OF_TEXT: Final[dict[str, str]] = {
    **{mode: mode for mode in MODES},
    "static_batch": "static",
    "online_closed": "online",
    "online_closed_derived": "online",
    "online_closed_loop_disagg": "online",
    "online_saturated": "saturated",
    "max_load_inflight": "saturated",
    "low_latency_bs1": "lowlat",
    "online_poisson": "poisson",
}

# MLPerf Inference scenarios (inference rules, "Scenarios"): Server and Interactive send Poisson
# arrivals, Offline gives all queries at once, SingleStream one after another.
MODE_OF_SCENARIO: Final[dict[str, str]] = {
    "offline": "saturated",
    "server": "poisson",
    "interactive": "poisson",
    "singlestream": "lowlat",
}

# How each public source drove its load, for files without a ``mode`` column (their READMEs).
MODE_OF_SOURCE: Final[dict[str, str]] = {
    "llm_pilot": "online",
    "llm_inference_bench": "static",
    "inferencex_silicon": "online",
    "inferencex_token_position": "online",
    "fmbench": "online",
    "mlenergy_v2": "saturated",
    "mlenergy_v3": "saturated",
    "mlperf_inference": "saturated",
    "trtllm_perf_docs": "static",
    "dstack_benchmarks": "static",
}
# Engine versions that a source tells of all its rows, by source and engine (their READMEs).
VERSION_OF_SOURCE: Final[dict[tuple[str, str], str]] = {
    ("llm_inference_bench", "vllm"): "0.5.3",
    ("dstack_benchmarks", "vllm"): "0.6.4",  # development builds of 0.6.3 and 0.6.4
}
# A site's own benchmark is a closed loop of clients unless it says otherwise.
DEFAULT_MODE: Final = "online"
