"""Figures of the service for Prometheus, in its text format 0.0.4."""

from __future__ import annotations

import math
import os
import threading
from bisect import bisect_left
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["METRICS", "Metric", "Metrics"]

_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, kind, labels and what it means."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str


METRICS: Final[tuple[Metric, ...]] = (
    Metric("omnipilot_requests_total", "counter", ("route", "method", "status"),
           "requests answered"),
    Metric("omnipilot_request_seconds", "histogram", ("route",),
           "time from a request's head to the end of its answer"),
    Metric("omnipilot_requests_in_flight", "gauge", (), "requests being answered"),
    Metric("omnipilot_advice_total", "counter", ("outcome", "gpu_kind"),
           "advice given, by outcome (recommended, abstained, nothing_fits) and GPU kind"),
    Metric("omnipilot_abstention_axes_total", "counter", ("axis",),
           "abstentions, by the axis that was outside what was measured"),
    Metric("omnipilot_answers_cached_total", "counter", (), "answers given a second time"),
    Metric("omnipilot_refused_total", "counter", ("problem",), "requests refused, by problem"),
    Metric("omnipilot_rows_ingested_total", "counter", ("outcome",),
           "rows taken in over HTTP: accepted, duplicate, rejected"),
    Metric("omnipilot_model_info", "gauge", ("version", "origin"),
           "1 for the cost model that answers"),
    Metric("omnipilot_model_loaded_seconds", "gauge", (),
           "when the cost model that answers was loaded, Unix seconds"),
    Metric("omnipilot_reloads_total", "counter", ("outcome",),
           "changes of the site's folder taken over, or refused"),
    Metric("omnipilot_cluster_age_seconds", "gauge", (),
           "age of the cluster's state; absent where it is not known"),
    Metric("omnipilot_gpus", "gauge", ("gpu_kind", "state"), "GPUs of the cluster: free, total"),
    Metric("omnipilot_gpus_pending", "gauge", (), "GPUs that jobs in the queue wait for"),
    Metric("omnipilot_nodes_withheld", "gauge", ("why",), "nodes closed, or faulty"),
)  # fmt: skip
_COUNTERS: Final = frozenset(metric.name for metric in METRICS if metric.kind == "counter")
_ADDED: Final = _COUNTERS | {"omnipilot_requests_in_flight"}


class State(msgspec.Struct):
    """The values of one worker."""

    values: list[tuple[str, tuple[str, ...], float]]
    histograms: list[tuple[str, tuple[str, ...], list[int], float]]


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS_S) + 1))
    total: float = 0.0


class Metrics:
    """The values of :data:`METRICS`; safe to use from several threads."""

    def __init__(self, shared: Path | None = None) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[tuple[str, tuple[str, ...]], _Histogram] = {}

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Count up."""
        with self._lock:
            values = self._values.setdefault(name, {})
            values[labels] = values.get(labels, 0.0) + by

    def put(self, name: str, values: dict[tuple[str, ...], float]) -> None:
        """Replace all values of a gauge."""
        with self._lock:
            self._values[name] = dict(values)

    def observe(self, name: str, *labels: str, value: float) -> None:
        """Count one value of a histogram."""
        with self._lock:
            histogram = self._histograms.setdefault((name, labels), _Histogram())
            histogram.counts[bisect_left(_BUCKETS_S, value)] += 1
            histogram.total += value

    def value(self, name: str, *labels: str) -> float:
        """One value; 0 where nothing was counted."""
        with self._lock:
            return self._values.get(name, {}).get(labels, 0.0)

    def publish(self) -> None:
        """Let the other workers know the values; a folder that is full is no error."""
        if self._shared is None:
            return
        path = self._shared / f"{os.getpid()}.json"
        beside = path.with_suffix(".next")
        with suppress(OSError):
            beside.write_bytes(msgspec.json.encode(self._state()))
            beside.replace(path)

    def bury(self, process: int) -> None:
        """Keep of a worker that died what it counted, and none of its gauges."""
        if self._shared is None:
            return
        path = self._shared / f"{process}.json"
        with suppress(OSError, msgspec.MsgspecError):
            last = msgspec.json.decode(path.read_bytes(), type=State)
            last.values = [value for value in last.values if value[0] in _COUNTERS]
            path.write_bytes(msgspec.json.encode(last))

    def _state(self) -> State:
        with self._lock:
            return State(
                [(name, labels, value) for name, found in self._values.items()
                 for labels, value in found.items()],
                [(name, labels, list(found.counts), found.total)
                 for (name, labels), found in self._histograms.items()],
            )  # fmt: skip

    def _states(self) -> list[State]:
        """This worker's values, and those that the others published last."""
        states = [self._state()]
        for path in sorted(self._shared.glob("*.json")) if self._shared else ():
            if path.stem != str(os.getpid()):
                with suppress(OSError, msgspec.MsgspecError):
                    states.append(msgspec.json.decode(path.read_bytes(), type=State))
        return states

    def page(self) -> str:
        """The text that Prometheus reads; of all workers together."""
        values: dict[str, dict[tuple[str, ...], float]] = {}
        histograms: dict[tuple[str, tuple[str, ...]], _Histogram] = {}
        for state in self._states():
            for name, labels, value in state.values:
                found = values.setdefault(name, {})
                # Workers see one cluster and one model: what is no count is not added up.
                added = name in _ADDED
                found[labels] = found.get(labels, 0.0) + value if added else value
            for name, labels, counts, total in state.histograms:
                histogram = histograms.setdefault((name, labels), _Histogram())
                histogram.counts = [a + b for a, b in zip(histogram.counts, counts, strict=True)]
                histogram.total += total
        lines = []
        for metric in METRICS:
            lines.append(f"# HELP {metric.name} {metric.meaning}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            for labels, value in sorted(values.get(metric.name, {}).items()):
                lines.append(f"{metric.name}{_labels(metric, labels)} {_number(value)}")
            for (name, labels), histogram in sorted(histograms.items()):
                if name == metric.name:
                    lines += _histogram_lines(metric, labels, histogram)
        return "\n".join(lines) + "\n"


def _histogram_lines(metric: Metric, labels: tuple[str, ...], found: _Histogram) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*_BUCKETS_S, math.inf), found.counts, strict=True):
        below += count
        where = _labels(metric, labels, ("le", _number(bound)))
        lines.append(f"{metric.name}_bucket{where} {below}")
    plain = _labels(metric, labels)
    return [
        *lines, f"{metric.name}_sum{plain} {_number(found.total)}",
        f"{metric.name}_count{plain} {below}",
    ]  # fmt: skip


def _labels(metric: Metric, values: tuple[str, ...], *more: tuple[str, str]) -> str:
    pairs = [*zip(metric.labels, values, strict=True), *more]
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.15g}"
