"""The quantities and failure classes of rows read from logs, metrics and telemetry.

Where a name is also a target's (``cold_start_s``, ``kv_cache_peak_frac``, ``ttft_p50_s``, …) it
means the same in the same unit. A label that the source does not print is absent from its row.
"""

from __future__ import annotations

from typing import Final

from omnipilot.domain.frozen import dataclass

__all__ = [
    "FAILURES", "FAILURE_BY_NAME", "FAILURE_LABELS", "GPU_LABELS", "JOB_LABELS", "PROBE_LABELS",
    "RECOVERY_LABELS", "STARTUP_LABELS", "TRAINING_LABELS", "WINDOW_LABELS", "Failure", "RowLabel",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowLabel:
    """One quantity of a row."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Failure:
    """One class of failed starts.

    ``status`` is the coarser word that serving runs use for it; "unfinished" for a start that
    neither failed nor got ready, which says nothing about the configuration.
    """

    name: str
    status: str
    meaning: str


_OF_FAILURES: Final = (
    RowLabel("kv_needed_gib", "GiB", "KV cache that one request of full length needs (failed)"),
    RowLabel("kv_available_gib", "GiB", "KV cache that there was room for (failed)"),
    RowLabel("max_model_len_possible", "tokens", "longest length that would have started (failed)"),
    RowLabel("allocation_gib", "GiB", "the allocation that failed (failed)"),
    RowLabel("gpu_free_gib", "GiB", "free memory of the GPU then (failed)"),
    RowLabel("gpu_total_gib", "GiB", "whole memory of the GPU (failed)"),
)
FAILURE_LABELS: Final = frozenset(label.name for label in _OF_FAILURES)
"""Labels that only the error of a failed start tells."""

STARTUP_LABELS: Final[tuple[RowLabel, ...]] = (
    RowLabel("cold_start_s", "s", "first line of the log until the server is ready"),
    RowLabel("weights_gib", "GiB", "weights on one GPU, the largest of the workers"),
    RowLabel("weights_load_s", "s", "loading the model, the slowest worker"),
    RowLabel("weights_read_s", "s", "reading the weight files, the slowest worker"),
    RowLabel("compile_s", "s", "torch.compile, the slowest worker"),
    RowLabel("activation_gib", "GiB", "peak activation memory found by profiling"),
    RowLabel("non_torch_gib", "GiB", "memory outside PyTorch found by profiling"),
    RowLabel("kv_cache_gib", "GiB", "memory for the KV cache on one GPU, the smallest worker"),
    RowLabel("kv_cache_tokens", "tokens", "size of the KV cache of one engine"),
    RowLabel("max_concurrency", "requests", "requests of full length that the KV cache holds"),
    RowLabel("graph_capture_s", "s", "capturing graphs, the slowest worker"),
    RowLabel("graph_capture_gib", "GiB", "memory of captured graphs on one GPU"),
    RowLabel("engine_init_s", "s", "profiling, KV cache and warm-up, after the weights"),
    *_OF_FAILURES,
)

WINDOW_LABELS: Final[tuple[RowLabel, ...]] = (
    RowLabel("kv_cache_peak_frac", "fraction", "largest share of the KV cache in use seen"),
    RowLabel("running_peak", "requests", "most requests running at once seen"),
    RowLabel("waiting_peak", "requests", "most requests waiting at once seen"),
    RowLabel("kv_cache_tokens", "tokens", "size of the KV cache of one engine"),
    RowLabel("preemptions", "events", "preemptions in the window"),
    RowLabel("requests", "requests", "requests finished in the window"),
    RowLabel("requests_failed", "requests", "requests that ended in an error or were aborted"),
    RowLabel("prompt_tokens", "tokens", "prompt tokens processed in the window"),
    RowLabel("output_tokens", "tokens", "tokens generated in the window"),
    RowLabel("prefix_cache_hit_frac", "fraction", "prompt tokens found in the prefix cache"),
    *(
        RowLabel(f"{name}_{statistic}_s", "s", f"{meaning}, {words}")
        for name, meaning in (
            ("ttft", "time to first token"),
            ("itl", "inter-token latency"),
            ("tpot", "time per output token after the first"),
            ("e2e", "whole latency of a request"),
            ("queue", "wait of a request before it is scheduled"),
        )
        for statistic, words in (
            ("p50", "median"),
            ("p90", "90th percentile"),
            ("p99", "99th percentile"),
            ("mean", "mean"),
        )
    ),
    RowLabel("aggregate_tokens_per_s", "tok/s", "input + output tokens a second over the window"),
    RowLabel("output_tokens_per_s", "tok/s", "output tokens a second over the window"),
    RowLabel("request_per_s", "req/s", "finished requests a second over the window"),
)

GPU_LABELS: Final[tuple[RowLabel, ...]] = (
    RowLabel("power_mean_w", "W", "mean power of all GPUs together"),
    RowLabel("sm_active_frac", "fraction", "share of time that the SMs were active"),
    RowLabel("tensor_active_frac", "fraction", "share of time that the tensor cores were active"),
    RowLabel("dram_active_frac", "fraction", "share of time that device memory moved data"),
    RowLabel("gpu_utilization_frac", "fraction", "share of time that any kernel ran"),
    RowLabel("fb_used_mean_gib", "GiB", "mean memory in use on one GPU"),
    RowLabel("fb_used_peak_gib", "GiB", "largest memory in use seen on one GPU"),
)

JOB_LABELS: Final[tuple[RowLabel, ...]] = (
    RowLabel("job_gpu_utilization_frac", "fraction", "mean over GPUs and the whole job"),
    RowLabel("job_gpu_memory_peak_gib", "GiB", "largest memory in use on one GPU, whole job"),
    RowLabel("job_queue_wait_s", "s", "eligible to start"),
)

TRAINING_LABELS: Final[tuple[RowLabel, ...]] = (
    RowLabel("tokens_per_s", "tok/s", "tokens trained on a second, all GPUs"),
    RowLabel("step_s", "s", "mean time of one step"),
    RowLabel("flop_utilization_frac", "fraction", "model FLOPs over the GPUs' peak"),
    RowLabel("memory_peak_gib", "GiB", "largest memory in use on one GPU"),
    RowLabel("checkpoint_write_s", "s", "writing one checkpoint"),
    RowLabel("power_mean_w", "W", "mean power of all GPUs together"),
)

RECOVERY_LABELS: Final[tuple[RowLabel, ...]] = (
    RowLabel("detect_s", "s", "the fault until it is noticed"),
    RowLabel("queue_wait_s", "s", "waiting for nodes again"),
    RowLabel("restore_s", "s", "reading the checkpoint"),
    RowLabel("lost_work_s", "s", "work since the last checkpoint, done again"),
    RowLabel("downtime_s", "s", "the fault until work goes on"),
)

PROBE_LABELS: Final[tuple[RowLabel, ...]] = (
    RowLabel("flops_per_s", "FLOP/s", "matrix products of one GPU"),
    RowLabel("flop_utilization_frac", "fraction", "the same over the GPU's peak"),
    RowLabel("memory_bytes_per_s", "B/s", "device memory of one GPU"),
    RowLabel("link_bytes_per_s", "B/s", "between two GPUs of the node"),
    RowLabel("write_bytes_per_s", "B/s", "checkpoint to storage"),
    RowLabel("read_bytes_per_s", "B/s", "checkpoint from storage"),
    RowLabel("temperature_c", "°C", "hottest GPU"),
    RowLabel("duration_s", "s", "the probe itself"),
)

FAILURES: Final[tuple[Failure, ...]] = (
    Failure("oom_weights", "oom", "GPU memory ran out while the weights were loaded"),
    Failure("oom_profiling", "oom", "GPU memory ran out in the profiling run"),
    Failure("oom_kv_cache", "oom", "GPU memory ran out while the KV cache was allocated"),
    Failure("oom_graph_capture", "oom", "GPU memory ran out while graphs were captured"),
    Failure("oom_serving", "oom", "GPU memory ran out after the server was ready"),
    Failure("oom_host", "oom", "the node's main memory, or the job's share of it, ran out"),
    Failure("kv_too_small", "oom", "the KV cache does not hold one request of full length"),
    Failure("memory_not_free", "error", "another process held the GPU's memory"),
    Failure("unsupported", "unsupported", "the format, type, model or kernel cannot run there"),
    Failure("divisibility", "unsupported", "the model does not divide among the GPUs"),
    Failure("max_model_len", "unsupported", "the length asked for is above the model's own"),
    Failure("no_such_model", "error", "the model cannot be found, read or downloaded"),
    Failure("too_few_gpus", "error", "more GPUs asked for than there are"),
    Failure("port_in_use", "error", "the port is taken"),
    Failure("bad_arguments", "error", "the command line is wrong"),
    Failure("device_error", "error", "the driver, a GPU or the link between GPUs failed"),
    Failure("engine_dead", "crash", "the engine died for a reason that it does not tell"),
    Failure("error", "error", "an error of no class above"),
    Failure("terminated", "unfinished", "stopped from outside before it was ready"),
    Failure("cut_off", "unfinished", "the log ends before the server is ready, without an error"),
)
FAILURE_BY_NAME: Final[dict[str, Failure]] = {f.name: f for f in FAILURES}
