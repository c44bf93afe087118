"""Results of ``vllm bench serve --save-result`` (and of benchmark_serving.py before it).

One JSON object a run; with ``--append-result`` several in a file. Its keys have been stable since
0.6; later versions add some (``failed``, ``rtfx``, ``queue_times``). Pairs given with
``--metadata`` stand beside them: ``version``, ``tp``, ``gpu`` and their like are read where the
caller does not know better.

A result whose numbers contradict one another (rates against totals and duration) is refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from omnipilot.collect.bench_numbers import (
    checked_labels,
    close,
    count_of,
    offered_concurrency,
    ordered,
    status_of,
)
from omnipilot.collect.context import NO_CONTEXT, RunContext, benchmark_run, model_name
from omnipilot.collect.json_values import JSON_LIMITS, decode_json, number_of, read_json_values
from omnipilot.collect.lines import Limits, printable
from omnipilot.collect.row_fault import RowFault
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.domain.rows import InferenceRun

__all__ = ["collect_vllm_bench"]

_WANTED: Final = "a result of 'vllm bench serve --save-result'"
# vLLM divides by its own clock; only rounding by another tool can part these numbers.
_TOLERANCE_FRAC: Final = 0.01

# ``--backend`` values that name the engine; those that name only a protocol ("openai",
# "openai-chat", "vllm-rerank") leave it to the context.
_ENGINE_OF_BACKEND: Final[dict[str, str]] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "tensorrt-llm",
    "tgi": "tgi",
    "lmdeploy": "lmdeploy",
    "llama.cpp": "llama.cpp",
    "deepspeed-mii": "deepspeed-mii",
    "scalellm": "scalellm",
}


class _Result(msgspec.Struct):
    """The members read; all others, such as the lists of single latencies, are passed over."""

    backend: Any = None
    model_id: Any = None
    num_prompts: Any = None
    request_rate: Any = None
    max_concurrency: Any = None
    ramp_up_strategy: Any = None
    duration: Any = None
    completed: Any = None
    failed: Any = None
    total_input_tokens: Any = None
    total_output_tokens: Any = None
    request_throughput: Any = None
    output_throughput: Any = None
    total_token_throughput: Any = None
    median_ttft_ms: Any = None
    p50_ttft_ms: Any = None
    p99_ttft_ms: Any = None
    mean_ttft_ms: Any = None
    std_ttft_ms: Any = None
    median_tpot_ms: Any = None
    p50_tpot_ms: Any = None
    p99_tpot_ms: Any = None
    mean_tpot_ms: Any = None
    std_tpot_ms: Any = None
    median_itl_ms: Any = None
    p50_itl_ms: Any = None
    p99_itl_ms: Any = None
    mean_itl_ms: Any = None
    std_itl_ms: Any = None
    spec_decode_acceptance_rate: Any = None
    # --metadata pairs, always text.
    version: Any = None
    vllm_version: Any = None
    tp: Any = None
    tensor_parallel_size: Any = None
    n_gpus: Any = None
    gpu: Any = None
    precision: Any = None


def collect_vllm_bench(
    path: Path, *, context: RunContext = NO_CONTEXT, limits: Limits = JSON_LIMITS
) -> Iterator[InferenceRun | Rejection]:
    """Read the results of one file.

    The mode follows from how the load was driven: a finite ``request_rate`` is "poisson"; an
    infinite one with ``max_concurrency`` a closed loop, "online"; without it, or with one that
    ``num_prompts`` does not exceed, all requests start together, "static". Prompt and output
    lengths are the means of the requests that completed.

    Args:
        path: a JSON file, plain or gzip-compressed.
        context: what the file does not tell (GPU, precision, the model behind a served name).
        limits: what the file may cost.

    Yields:
        One item a result, in file order: the run, or why the result is none.

    Raises:
        BadInputError: the file is no JSON text or too large.
    """
    for value in read_json_values(path, _WANTED, limits):
        if isinstance(value, Rejection):
            yield value
            continue
        result = decode_json(value, _Result)
        if isinstance(result, Rejection):
            yield result
            continue
        try:
            yield _run(result, context)
        except RowFault as fault:
            yield Rejection(value.line, str(fault), fault.code)


def _run(result: _Result, context: RunContext) -> InferenceRun:
    if result.completed is None and result.duration is None:
        raise RowFault("not a result", f"has neither completed nor duration: give {_WANTED}")
    completed = count_of("completed", result.completed)
    failed = _failed(result, completed)
    status, note = status_of(completed, failed)
    labels: dict[str, float] = {}
    prompt_tokens = output_tokens = 0.0
    if completed:
        total_in = count_of("total_input_tokens", result.total_input_tokens)
        total_out = count_of("total_output_tokens", result.total_output_tokens)
        if not total_out:
            raise RowFault("no output tokens", "no tokens were generated: not a serving run")
        prompt_tokens, output_tokens = total_in / completed, total_out / completed
        labels = _labels(result, completed, total_in, total_out)
    elif not failed:
        raise RowFault("no requests", "no request was sent")
    mode, concurrency, rate_note = _load(result)
    speculative = "" if result.spec_decode_acceptance_rate is None else "speculative decoding"
    return benchmark_run(
        context,
        # A model or number of GPUs that the caller names need not be told by the result.
        model=context.model or _model(result.model_id),
        engine=_ENGINE_OF_BACKEND.get(_text(result.backend), "vllm"),
        version=_text(result.version) or _text(result.vllm_version),
        gpu=_text(result.gpu),
        n_gpus=context.n_gpus or _n_gpus(result),
        precision=_text(result.precision),
        mode=mode,
        status=status,
        labels=labels,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        notes=(note, rate_note, speculative),
    )


def _failed(result: _Result, completed: float) -> float:
    """Count failed requests: told since 0.11, else those that did not complete."""
    if result.failed is not None:
        return count_of("failed", result.failed)
    if result.num_prompts is None:
        return 0.0
    return max(count_of("num_prompts", result.num_prompts) - completed, 0.0)


def _labels(
    result: _Result, completed: float, total_in: float, total_out: float
) -> dict[str, float]:
    duration_s = number_of(result.duration)
    if duration_s is None or not 0 < duration_s < 1e9:
        raise RowFault("out of range", f"duration {printable(str(result.duration))} is no time")
    rates = {
        "aggregate_tokens_per_s": (result.total_token_throughput, total_in + total_out),
        "output_tokens_per_s": (result.output_throughput, total_out),
        "request_per_s": (result.request_throughput, completed),
    }
    for name, (told, amount) in rates.items():
        close(name, number_of(told), amount / duration_s, _TOLERANCE_FRAC)
    for name in ("ttft", "tpot", "itl"):
        statistics = ("median", "p50", "p99", "mean", "std")
        ordered(name, {s: number_of(getattr(result, f"{s}_{name}_ms")) for s in statistics})
    labels = checked_labels(
        {
            # Old versions do not tell all rates: they are the same quotients.
            **{
                name: amount / duration_s if told is None else told
                for name, (told, amount) in rates.items()
            },
            "ttft_p50_s": result.median_ttft_ms,
            "itl_p50_s": result.median_itl_ms,
            "tpot_p50_s": result.median_tpot_ms,
        }
    )
    # A request cannot have waited longer for its first token than the whole run took.
    if labels.get("ttft_p50_s", 0.0) > duration_s * (1 + _TOLERANCE_FRAC):
        raise RowFault("contradiction", "the median TTFT is above the duration of the run")
    return labels


def _load(result: _Result) -> tuple[str, float, str]:
    """Tell mode, concurrency and, for open arrivals, a note with the rate."""
    if result.ramp_up_strategy is not None:
        # vLLM writes request_rate "inf" then, which would look like one batch.
        raise RowFault("unknown mode", "the rate of requests was ramped up: measure at one rate")
    concurrency = 0.0
    if result.max_concurrency is not None:
        concurrency = count_of("max_concurrency", result.max_concurrency, 1e6)
    rate = math.inf if result.request_rate is None else number_of(result.request_rate)
    if rate is None or not rate > 0:
        shown = printable(str(result.request_rate))
        raise RowFault("out of range", f"request_rate '{shown}' is no rate")
    prompts = 0.0
    if result.num_prompts is not None:
        prompts = count_of("num_prompts", result.num_prompts, 1e6)
    if math.isfinite(rate):
        in_flight = offered_concurrency(rate, concurrency, prompts)
        return "poisson", in_flight, f"{rate:g} requests/s offered"
    if not concurrency or 0 < prompts <= concurrency:  # the limit never held a request back
        return "static", prompts, ""
    return "online", concurrency, ""


def _n_gpus(result: _Result) -> int:
    told = next((v for v in (result.n_gpus, result.tensor_parallel_size, result.tp) if v), None)
    return 0 if told is None else int(count_of("n_gpus", told, 1e5))


def _model(value: Any) -> str:  # noqa: ANN401 - any JSON
    model = model_name(value) if isinstance(value, str) else ""
    if not model:
        raise RowFault("model missing", "model_id is missing or no name")
    return model


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON
    """Give a short text member, "" where it is none; paths are no value of these members."""
    if isinstance(value, str) and len(value) <= 128 and value.isprintable() and "/" not in value:
        return value.strip()
    return ""
