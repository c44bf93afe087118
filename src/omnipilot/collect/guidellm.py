"""Reports of GuideLLM (``benchmarks.json``): one run a benchmark of the sweep.

Shapes: 0.8 (``config.spec``, ``config.strategy`` of each benchmark) and, by shape only, 0.2 to 0.5
(``args``; 0.2 and 0.3 name the model in each benchmark's ``worker``). GuideLLM's words differ from
the targets':

- its ``inter_token_latency_ms`` is a request's mean time per token after the first, which is TPOT
  here (its median is taken over tokens, each with its request's mean);
- its ``time_per_output_token_ms`` counts the first token's wait too and is no target;
- single gaps between tokens are not kept, so a report has no ITL label: the median of means hides
  the stalls that the median gap does not have and the mean does.
"""

from __future__ import annotations

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
from omnipilot.collect.json_values import (
    JSON_LIMITS,
    JsonValue,
    decode_json,
    number_of,
    read_json_values,
)
from omnipilot.collect.lines import Limits, printable
from omnipilot.collect.row_fault import RowFault
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.domain.rows import InferenceRun

__all__ = ["collect_guidellm"]

_WANTED: Final = "a JSON report of GuideLLM"
# Rates are means over the measured time, lengths over requests: they meet but for the requests
# cut by the ends of the measurement.
_TOLERANCE_FRAC: Final = 0.1

# Strategies by the load modes of domain.scenario. A constant rate is an open arrival as a Poisson
# one is; "throughput" keeps as many requests in flight as the tool can.
_MODES: Final[dict[str, str]] = {
    "synchronous": "online",
    "concurrent": "online",
    "throughput": "saturated",
    "constant": "poisson",
    "poisson": "poisson",
}

_Members = dict[str, Any]


class _Report(msgspec.Struct):
    benchmarks: list[msgspec.Raw]
    config: Any = None
    args: Any = None


class _Benchmark(msgspec.Struct):
    metrics: _Members
    config: Any = None
    args: Any = None
    worker: Any = None


def collect_guidellm(
    path: Path, *, context: RunContext = NO_CONTEXT, limits: Limits = JSON_LIMITS
) -> Iterator[InferenceRun | Rejection]:
    """Read the benchmarks of one report.

    Args:
        path: a JSON file, plain or gzip-compressed.
        context: what the report does not tell (GPU, precision, the model behind a served name;
            the engine, vLLM where not said).
        limits: what the file may cost.

    Yields:
        One item a benchmark, in file order: the run, or why the benchmark is none.

    Raises:
        BadInputError: the file is no JSON text or too large.
    """
    for value in read_json_values(path, _WANTED, limits):
        report = value if isinstance(value, Rejection) else decode_json(value, _Report)
        if isinstance(report, Rejection):
            yield report
            continue
        if not report.benchmarks:
            yield Rejection(value.line, "the report holds no benchmark", "no requests")
        for n, raw in enumerate(report.benchmarks, start=1):
            yield _item(n, JsonValue(value.line, bytes(raw)), report, context)


def _item(
    n: int, value: JsonValue, report: _Report, context: RunContext
) -> InferenceRun | Rejection:
    benchmark = decode_json(value, _Benchmark)
    if isinstance(benchmark, Rejection):
        return Rejection(value.line, f"benchmark {n}: {benchmark.reason}", benchmark.code)
    try:
        return _run(benchmark, report, context)
    except RowFault as fault:
        return Rejection(value.line, f"benchmark {n}: {fault}", fault.code)


def _run(benchmark: _Benchmark, report: _Report, context: RunContext) -> InferenceRun:
    metrics = benchmark.metrics
    completed = count_of("successful requests", _at(metrics, "request_totals", "successful"))
    errored = count_of("errored requests", _at(metrics, "request_totals", "errored") or 0)
    status, note = status_of(completed, errored)
    if not completed and not errored:
        raise RowFault("no requests", "no request was completed")
    labels: dict[str, float] = {}
    prompt_tokens = output_tokens = 0.0
    if completed:
        prompt_tokens = _mean(metrics, "prompt_token_count") or 0.0
        output_tokens = _mean(metrics, "output_token_count") or 0.0
        if not 0 < output_tokens < 1e8 or not 0 <= prompt_tokens < 1e8:
            raise RowFault("no output tokens", "no tokens were generated: not a serving run")
        labels = _labels(metrics, prompt_tokens, output_tokens)
    mode, concurrency, rate_note = _load(benchmark)
    return benchmark_run(
        context,
        # A model that the caller names need not be told by the report.
        model=context.model or _model(report, benchmark),
        mode=mode,
        status=status,
        labels=labels,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        notes=(note, rate_note),
    )


def _labels(metrics: _Members, prompt_tokens: float, output_tokens: float) -> dict[str, float]:
    request_per_s = _mean(metrics, "requests_per_second")
    told = {
        "aggregate_tokens_per_s": _mean(metrics, "tokens_per_second"),
        "output_tokens_per_s": _mean(metrics, "output_tokens_per_second"),
    }
    if request_per_s is not None:
        tokens = prompt_tokens + output_tokens
        close("tokens_per_second", told["aggregate_tokens_per_s"], request_per_s * tokens,
              _TOLERANCE_FRAC)  # fmt: skip
        close("output_tokens_per_second", told["output_tokens_per_s"],
              request_per_s * output_tokens, _TOLERANCE_FRAC)  # fmt: skip
    for name in ("time_to_first_token_ms", "inter_token_latency_ms"):
        ordered(name, {
            "median": _statistic(metrics, name, "median"),
            "p50": number_of(_at(metrics, name, "successful", "percentiles", "p50")),
            "p99": number_of(_at(metrics, name, "successful", "percentiles", "p99")),
            "mean": _mean(metrics, name),
            "std": _statistic(metrics, name, "std_dev"),
        })  # fmt: skip
    return checked_labels(
        {
            **told,
            "request_per_s": request_per_s,
            "ttft_p50_s": _statistic(metrics, "time_to_first_token_ms", "median"),
            "tpot_p50_s": _statistic(metrics, "inter_token_latency_ms", "median"),
        }
    )


def _load(benchmark: _Benchmark) -> tuple[str, float, str]:
    """Tell mode, concurrency and, for open arrivals, a note with the rate."""
    strategy = _at(benchmark.config, "strategy") or _at(benchmark.args, "strategy")
    kind = _at(strategy, "type_")
    mode = _MODES.get(kind) if isinstance(kind, str) else None
    if mode is None:
        shown = printable(str(kind))
        raise RowFault("unknown mode", f"strategy '{shown}' is none of {', '.join(_MODES)}")
    if kind == "synchronous":
        return mode, 1.0, ""
    if mode == "online":
        return mode, count_of("streams", _at(strategy, "streams"), 1e6), ""
    most = _at(strategy, "max_concurrency")
    concurrency = count_of("max_concurrency", most, 1e6) if most is not None else 0.0
    rate = number_of(_at(strategy, "rate"))
    if mode == "poisson" and rate and rate > 0:
        in_flight = offered_concurrency(rate, concurrency)
        return mode, in_flight, f"{rate:g} requests/s offered"
    return mode, concurrency, ""


def _model(report: _Report, benchmark: _Benchmark) -> str:
    places = (
        _at(report.config, "spec", "backend", "model"),
        _at(report.config, "model"),
        _at(report.args, "model"),
        _at(benchmark.worker, "backend_model"),
    )
    named = (model_name(place) for place in places if isinstance(place, str))
    model = next((name for name in named if name), "")
    if not model:
        raise RowFault("model missing", "the report does not tell the model: give it")
    return model


def _mean(metrics: _Members, name: str) -> float | None:
    return _statistic(metrics, name, "mean")


def _statistic(metrics: _Members, name: str, statistic: str) -> float | None:
    """Read a statistic over the requests that succeeded."""
    return number_of(_at(metrics, name, "successful", statistic))


def _at(members: Any, *names: str) -> Any:  # noqa: ANN401 - any JSON
    """Follow names into nested objects; None where one is missing."""
    for name in names:
        if not isinstance(members, dict):
            return None
        members = members.get(name)
    return members
