"""What a vLLM server counted over a window of serving, from its ``/metrics`` page.

One snapshot tells the life of the server so far; with earlier snapshots the counters and
histograms are differences between the first and the last, and peaks the largest of all. Metrics
have had several names: the first of a row of the tables below that the page holds is read (vLLM
docs/design/metrics.md and v1/metrics/loggers.py; ``time_per_output_token_seconds`` counts single
gaps between tokens, so it is ITL under its old name).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from omnipilot.collect.context import NO_CONTEXT, RunContext, model_name
from omnipilot.collect.lines import Limits, printable
from omnipilot.collect.prometheus_text import EXPOSITION_LIMITS, Histogram, Sample, read_samples
from omnipilot.collect.row_fault import RowFault
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.rows import ServingWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["collect_vllm_metrics"]

_WANTED: Final = "the /metrics page of a vLLM server"
_Names = tuple[str, ...]

_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_RUNNING: Final = ("vllm:num_requests_running",)
_WAITING: Final = ("vllm:num_requests_waiting",)
_COUNTERS: Final[tuple[tuple[str, _Names], ...]] = (
    ("preemptions", ("vllm:num_preemptions_total", "vllm:num_preemptions")),
    ("prompt_tokens", ("vllm:prompt_tokens_total",)),
    ("output_tokens", ("vllm:generation_tokens_total",)),
)
_PREFIX_HITS: Final = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_PREFIX_QUERIES: Final = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_ENDED: Final = ("vllm:request_success_total",)
_ENDED_BADLY: Final = ("abort", "error")
_HISTOGRAMS: Final[tuple[tuple[str, _Names], ...]] = (
    ("ttft", ("vllm:time_to_first_token_seconds",)),
    ("itl", ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")),
    ("tpot", ("vllm:request_time_per_output_token_seconds",)),
    ("e2e", ("vllm:e2e_request_latency_seconds",)),
    ("queue", ("vllm:request_queue_time_seconds",)),
)
_REQUIRED: Final = (_RUNNING, *(names for key, names in _COUNTERS if key != "preemptions"))
_QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_CONFIG: Final = "vllm:cache_config_info"
_STARTED: Final = "process_start_time_seconds"
_EARLIEST_S, _LATEST_S = 946_684_800, 4_102_444_800  # 2000 and 2100

_COUNTED: Final = (
    *(name for _, names in _COUNTERS for name in names), *_ENDED, *_PREFIX_HITS, *_PREFIX_QUERIES,
)  # fmt: skip
_VALUES: Final = frozenset((*_KV_USAGE, *_RUNNING, *_WAITING, *_COUNTED))
_PARTS: Final = {
    f"{name}_{part}": (name, part)
    for _, names in _HISTOGRAMS
    for name in names
    for part in ("bucket", "sum", "count")
}
_READ: Final = frozenset((*_VALUES, *_PARTS, _CONFIG, _STARTED))
# Labels of one model that are summed over; a page of many series is no page of one server.
_MOST_SERIES: Final = 100_000

_Series = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Model:
    """The readings of one model in one snapshot, by metric and series (without the model)."""

    values: dict[str, dict[_Series, float]] = field(default_factory=dict)
    histograms: dict[str, dict[_Series, Histogram]] = field(default_factory=dict)
    counts: dict[str, dict[_Series, float]] = field(default_factory=dict)

    def first(self, names: _Names) -> str:
        """Give the first name that there are readings of, "" where there is none."""
        return next((n for n in names if n in self.values or n in self.histograms), "")


@dataclass(slots=True)
class _Snapshot:
    models: dict[str, _Model] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    started_s: float = 0.0


def collect_vllm_metrics(
    path: Path,
    *,
    earlier: Sequence[Path] = (),
    start_s: float = 0.0,
    end_s: float = 0.0,
    context: RunContext = NO_CONTEXT,
    limits: Limits = EXPOSITION_LIMITS,
) -> Iterator[ServingWindow | Rejection]:
    """Read the window that ends with the snapshot ``path``.

    Percentiles are interpolated within histogram buckets
    (:meth:`omnipilot.collect.prometheus_text.Histogram.quantile`), so they are as coarse as the
    buckets. ``kv_cache_peak_frac`` is left out where no snapshot was taken under load. Rates need
    ``start_s`` and ``end_s``.

    Args:
        path: exposition text, plain or gzip-compressed.
        earlier: snapshots before it, oldest first; the first begins the window.
        start_s: when the window began, Unix seconds; 0 where not known.
        end_s: when it ended.
        context: what the page does not tell; its model names the page's, where there is one.
        limits: what one file may cost.

    Yields:
        Refused lines, then one window a model, or why there is none; a histogram or counter that
        contradicts itself is refused alone.

    Raises:
        BadInputError: a file is no text, is too large or holds no vLLM metrics.
    """
    snapshots = []
    for file in (*earlier, path):
        snapshot = _Snapshot()
        for item in read_samples(file, _READ, _WANTED, limits):
            refused = item if isinstance(item, Rejection) else _take(snapshot, item)
            if refused is not None:
                yield refused
        if not snapshot.models:
            raise BadInputError(f"{file} holds no vLLM metrics: give {_WANTED}")
        snapshots.append(snapshot)
    for model in snapshots[-1].models:
        yield from _window(model, snapshots, start_s, end_s, context)


def _take(snapshot: _Snapshot, sample: Sample) -> Rejection | None:
    if sample.name == _STARTED:
        return _take_start(snapshot, sample)
    if sample.name == _CONFIG:
        snapshot.config = snapshot.config or sample.labels
        return None
    labels = dict(sample.labels)
    model = snapshot.models.setdefault(labels.pop("model_name", ""), _Model())
    if sample.name in _VALUES:
        return _put(model.values.setdefault(sample.name, {}), labels, sample)
    name, part = _PARTS[sample.name]
    if part == "count":
        return _put(model.counts.setdefault(name, {}), labels, sample)
    bound = _bound(labels.pop("le", "")) if part == "bucket" else None
    histogram = model.histograms.setdefault(name, {}).setdefault(_series(labels), Histogram())
    if part == "sum" and histogram.sum is None:
        histogram.sum = sample.value
    elif bound is not None and bound not in histogram.cumulative:
        histogram.cumulative[bound] = sample.value
    else:
        return _repeated(sample)
    return None


def _take_start(snapshot: _Snapshot, sample: Sample) -> Rejection | None:
    if not _EARLIEST_S <= sample.value < _LATEST_S:
        reason = f"{_STARTED} lies before 2000 or after 2100"
        return Rejection(sample.line, reason, "time out of range")
    snapshot.started_s = sample.value
    return None


def _put(
    readings: dict[_Series, float], labels: dict[str, str], sample: Sample
) -> Rejection | None:
    series = _series(labels)
    if series in readings or len(readings) >= _MOST_SERIES:
        return _repeated(sample)
    readings[series] = sample.value
    return None


def _repeated(sample: Sample) -> Rejection:
    reason = f"{sample.name} repeats a series or has no bound"
    return Rejection(sample.line, reason, "repeated series")


def _series(labels: dict[str, str]) -> _Series:
    return tuple(sorted(labels.items()))


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound > 0 else None


def _window(
    name: str, snapshots: Sequence[_Snapshot], start_s: float, end_s: float, context: RunContext
) -> Iterator[ServingWindow | Rejection]:
    only = len(snapshots[-1].models) == 1
    model = (context.model if only else "") or model_name(name)
    first, last = (snapshots[end].models.get(name) for end in (0, -1))
    readings = [s.models[name] for s in snapshots if name in s.models]
    if not model or first is None or last is None or not all(map(last.first, _REQUIRED)):
        reason = f"'{printable(name)}' lacks a name or the counts that every server has"
        yield Rejection(0, reason, "model incomplete")
        return
    before = first if len(snapshots) > 1 else None
    labels = _peaks(readings)
    parts: list[Callable[[], dict[str, float]]] = [partial(_counts, last, before)]
    parts += [partial(_latencies, key, names, last, before) for key, names in _HISTOGRAMS]
    if len({snapshot.started_s for snapshot in snapshots if snapshot.started_s}) > 1:
        reason = f"the server of {model} was restarted between the snapshots"
        yield Rejection(0, reason, "counter reset")
        return
    if fell := _fallen(readings):
        yield Rejection(0, f"{model}: {fell} fell: was the server restarted?", "counter reset")
        return
    for part in parts:
        try:
            labels.update(part())
        except RowFault as fault:
            yield Rejection(0, f"{model}: {fault}", fault.code)
    if not start_s and before is None:
        start_s = snapshots[-1].started_s
    elif 0 < start_s < end_s:
        labels.update(_rates(labels, end_s - start_s))
    config = snapshots[-1].config
    labels.update(_kv_tokens(config))
    yield ServingWindow(
        source=context.source,
        model=model,
        engine=context.engine or "vllm",
        gpu=context.gpu,
        n_gpus=context.n_gpus,
        precision=context.precision,
        labels=labels,
        n_engines=len(last.values[last.first(_RUNNING)]),
        n_snapshots=len(snapshots),
        start_s=start_s,
        end_s=end_s,
        kv_dtype=context.kv_dtype or _plain(config.get("cache_dtype", "")),
        max_model_len=context.max_model_len,
        memory_utilization_frac=_fraction(config.get("gpu_memory_utilization", "")),
        gpu_memory_gb=context.gpu_memory_gb,
        stack=context.stack,
    )


def _peaks(models: Sequence[_Model]) -> dict[str, float]:
    """Largest readings of the gauges: summed over engines, of the KV cache the fullest engine."""
    labels: dict[str, float] = {}
    for key, names in (("running_peak", _RUNNING), ("waiting_peak", _WAITING)):
        sums = [
            sum(readings.values()) for m in models if (readings := m.values.get(m.first(names)))
        ]
        if sums:
            labels[key] = max(sums)
    usage = [max(r.values()) for m in models if (r := m.values.get(m.first(_KV_USAGE)))]
    # A page read while the server idles says nothing about how full the cache was under load.
    if usage and max(usage) <= 1 and (labels.get("running_peak") or max(usage) > 0):
        labels["kv_cache_peak_frac"] = max(usage)
    return labels


def _fallen(models: Sequence[_Model]) -> str:
    """Name a counter that fell from one reading to the next, "" where none did."""
    highest: dict[tuple[str, _Series], float] = {}
    for model in models:
        for name in _COUNTED:
            for series, value in model.values.get(name, {}).items():
                if value < highest.get((name, series), 0.0):
                    return name
                highest[name, series] = value
    return ""


def _added(names: _Names, last: _Model, before: _Model | None) -> dict[_Series, float] | None:
    """Count what the window added to a counter; None where it is not told at both ends."""
    name = last.first(names)
    if not name:
        return None
    now = last.values[name]
    if before is None:
        return now
    then = before.values.get(name, {})
    if then.keys() != now.keys():
        return None
    return {series: now[series] - then[series] for series in now}


def _counts(last: _Model, before: _Model | None) -> dict[str, float]:
    labels: dict[str, float] = {}
    for key, names in _COUNTERS:
        added = _added(names, last, before)
        if added is not None:
            labels[key] = sum(added.values())
    ended = _added(_ENDED, last, before)
    if ended is not None:
        reasons = [(dict(series).get("finished_reason", ""), n) for series, n in ended.items()]
        labels["requests"] = sum(n for _, n in reasons)
        labels["requests_failed"] = sum(n for reason, n in reasons if reason in _ENDED_BADLY)
    hits, queries = (_added(names, last, before) for names in (_PREFIX_HITS, _PREFIX_QUERIES))
    if hits is not None and queries is not None:
        asked, found = sum(queries.values()), sum(hits.values())
        if asked > 0 and found <= asked:
            labels["prefix_cache_hit_frac"] = found / asked
    return labels


def _latencies(key: str, names: _Names, last: _Model, before: _Model | None) -> dict[str, float]:
    """Percentiles and mean of one histogram, all engines together."""
    name = last.first(names)
    if not name:
        return {}
    whole: Histogram | None = None
    for series, now in last.histograms[name].items():
        count = last.counts.get(name, {}).get(series, now.count)
        fault = now.fault() or ("" if count == now.count else "contradicts its own count")
        if fault:
            raise RowFault("inconsistent histogram", f"{name} {fault}")
        added: Histogram | None = now
        if before is not None:
            then = before.histograms.get(name, {}).get(series)
            added = None if then is None or then.fault() else now.since(then)
        whole = added if whole is None or added is None else whole.plus(added)
        if whole is None or whole.fault():
            raise RowFault("inconsistent histogram", f"{name} does not continue the earlier one")
    if whole is None or not whole.count:
        return {}
    told = {f"{key}_{word}_s": whole.quantile(q) for word, q in _QUANTILES}
    told[f"{key}_mean_s"] = None if whole.sum is None else whole.sum / whole.count
    return {label: value for label, value in told.items() if value is not None}


def _rates(labels: dict[str, float], window_s: float) -> dict[str, float]:
    sums = {
        "aggregate_tokens_per_s": ("prompt_tokens", "output_tokens"),
        "output_tokens_per_s": ("output_tokens",),
        "request_per_s": ("requests",),
    }
    return {
        rate: sum(labels[part] for part in parts) / window_s
        for rate, parts in sums.items()
        if all(part in labels for part in parts)
    }


def _kv_tokens(config: dict[str, str]) -> dict[str, float]:
    """Size of the KV cache: told since 0.2x, before that blocks times tokens a block."""
    told = config.get("kv_cache_size_tokens", "")
    if told.isdecimal() and len(told) < 16:
        return {"kv_cache_tokens": float(told)}
    blocks, block = config.get("num_gpu_blocks", ""), config.get("block_size", "")
    if blocks.isdecimal() and block.isdecimal() and max(len(blocks), len(block)) < 12:
        return {"kv_cache_tokens": float(blocks) * float(block)}
    return {}


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and 0 <= value <= 1 else 0.0


def _plain(text: str) -> str:
    return text if len(text) <= 32 and text.replace("_", "").isalnum() else ""
