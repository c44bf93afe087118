"""How fresh the site's own evidence is, and what it says with older rows counting less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnipilot.domain.errors import StateError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import ClusterJob
from omnipilot.domain.telemetry_rows import GpuHealth, GpuWindow
from omnipilot.store.dataset import freshness_weights
from omnipilot.store.log import CLUSTER_LOG_NAME, ReadTally, Store, row_of_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from omnipilot.domain.rows import Row

__all__ = ["MetricEvidence", "one_reading", "site_evidence"]

_TELEMETRY: Final = (b'"kind":"gpu_window"', b'"kind":"gpu_health"')
# The cluster's log is as long as the site's history: its newest part tells how fresh it is.
_TAIL_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class MetricEvidence:
    """The rows of one metric, each weighted by its age.

    Args:
        metric: name of the setting ``freshness_s``.
        value: weighted mean; None where no row counts or no single number tells it.
        unit: of ``value``, with what it is of.
        rows: rows read.
        newest_age_s: age of the newest; None without rows.
        window_s: age at which a row counts half.
        weight: of the newest, in [0, 1].
        total_weight: of all rows; the number of fresh rows that they are worth.
    """

    metric: str
    value: float | None
    unit: str
    rows: int
    newest_age_s: float | None
    window_s: float
    weight: float
    total_weight: float


class _Reading(NamedTuple):
    at_s: float
    value: float


def site_evidence(
    home: Path, *, now_s: float, freshness_s: Mapping[str, float], is_kind: Callable[[str], bool]
) -> list[MetricEvidence]:
    """Weigh a site's telemetry, faults, launches and waits by their age.

    Args:
        home: the site's folder.
        now_s: present time, Unix seconds.
        freshness_s: windows by metric.
        is_kind: tells whether a GPU, as a row names it, is of the kind asked about.

    Returns:
        One item a metric that has rows, in the order of ``freshness_s``.

    Raises:
        StateError: a log cannot be read.
    """
    found: dict[str, list[_Reading]] = {}
    for row in _telemetry(Store(home)):
        if isinstance(row, GpuWindow) and is_kind(row.gpu):
            at_s = row.serve_end_s or row.end_s
            if power_w := row.labels.get("power_mean_w"):
                found.setdefault("power", []).append(_Reading(at_s, power_w / row.n_gpus))
            if (active := row.labels.get("sm_active_frac")) is not None:
                found.setdefault("activity", []).append(_Reading(at_s, active))
        elif isinstance(row, GpuHealth) and is_kind(row.gpu) and row.severity == "hardware":
            found.setdefault("node_health", []).append(_Reading(row.last_s, 1.0))
    for job in _newest_jobs(home / CLUSTER_LOG_NAME):
        found.setdefault("launch_success", []).append(_Reading(float(job.end_s), 0.0))
        if job.queue_wait_s is not None:
            wait = _Reading(float(job.start_s), float(job.queue_wait_s))
            found.setdefault("queue_wait", []).append(wait)
    return [
        _weighed(metric, found[metric], now_s, window_s)
        for metric, window_s in freshness_s.items()
        if metric in found
    ]


_UNITS: Final[Mapping[str, str]] = {
    "power": "W a GPU while serving",
    "activity": "SM activity while serving",
    "node_health": "faults of GPUs that count",
    "queue_wait": "s, mean wait of the newest jobs",
    "launch_success": "",
}


def _weighed(
    metric: str, readings: list[_Reading], now_s: float, window_s: float
) -> MetricEvidence:
    ages_s = np.maximum(now_s - np.array([r.at_s for r in readings]), 0.0)
    weights = freshness_weights(ages_s, window_s)
    total = float(weights.sum())
    values = np.array([r.value for r in readings])
    value: float | None = None
    if metric == "node_health":
        value = total
    elif metric != "launch_success" and total > 0:
        value = float(values @ weights) / total
    return MetricEvidence(
        metric=metric,
        value=value,
        unit=_UNITS[metric],
        rows=len(readings),
        newest_age_s=float(ages_s.min()),
        window_s=window_s,
        weight=float(weights.max()),
        total_weight=total,
    )


def one_reading(
    metric: str, value: float, unit: str, *, age_s: float, window_s: float
) -> MetricEvidence:
    """Weigh a single reading, such as the cluster's present state.

    Example:
        >>> one_reading("gpus_free", 3.0, "GPUs", age_s=60.0, window_s=60.0).weight
        0.5
    """
    weight = float(freshness_weights(np.array([age_s]), window_s)[0])
    return MetricEvidence(metric, value, unit, 1, max(age_s, 0.0), window_s, weight, weight)


def _telemetry(store: Store) -> Iterator[Row]:
    """Read the rows of telemetry; lines of other kinds are passed over undecoded."""
    tally = ReadTally()
    for line in store.lines():
        if line is not None and any(kind in line for kind in _TELEMETRY):
            stored = row_of_line(line, tally)
            if stored is not None:
                yield stored.row


def _newest_jobs(path: Path) -> Iterator[ClusterJob]:
    """Read the jobs in the last few MiB of the cluster's log."""
    try:
        with path.open("rb") as stream:
            start = max(0, path.stat().st_size - _TAIL_BYTES)
            stream.seek(start)
            lines = stream.read(_TAIL_BYTES).splitlines(keepends=True)[1 if start else 0 :]
    except FileNotFoundError:
        return
    except OSError as error:
        raise StateError(f"the store {path} cannot be read: {error.strerror}") from error
    tally = ReadTally()
    for line in lines:
        stored = row_of_line(line, tally)
        if stored is not None and isinstance(stored.row, ClusterJob):
            yield stored.row
