"""One serving run joined with what its log, metrics, telemetry and job told: one labelled row.

Each source must belong to the run: the same model, engine, GPUs and job as far as both tell them.
What does not is left out with the reason. A label counts by the time between its source and the
run (:func:`omnipilot.store.freshness_weights`), so that telemetry of the run itself counts whole
and that of an hour before counts half.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import (
    ClusterJob,
    InferenceRun,
    JobStatistics,
    LabelledRun,
    ServingWindow,
    StartupRun,
)
from omnipilot.domain.telemetry_rows import GpuWindow
from omnipilot.store.dataset import freshness_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["METRIC_OF_LABEL", "RunTime", "Source", "join_run"]

Source: TypeAlias = StartupRun | ServingWindow | GpuWindow | ClusterJob | JobStatistics

# What each label's age is judged as, by the names of the setting freshness_s; the labels of the
# run itself do not age against it.
METRIC_OF_LABEL: Final[Mapping[str, str]] = {
    "power_mean_w": "power",
    "job_queue_wait_s": "queue_wait",
}
_OTHER_LABELS: Final = "activity"
# In order of precedence: what measured the run itself, then what watched it, then its job.
_SOURCES: Final[tuple[tuple[type[Source], str], ...]] = (
    (ServingWindow, "metrics"),
    (StartupRun, "log"),
    (GpuWindow, "dcgm"),
    (ClusterJob, "jobstats"),
    (JobStatistics, "jobstats"),
)


@dataclass(frozen=True, slots=True)
class RunTime:
    """Which job a run was and when it served; what is not known is left at its default.

    Args:
        job_id: as the scheduler shows it.
        start_s: begin of serving, Unix seconds.
        end_s: its end.
    """

    job_id: str = ""
    cluster: str = ""
    start_s: float = 0.0
    end_s: float = 0.0


class _Interval(NamedTuple):
    start_s: float
    end_s: float


def join_run(
    run: InferenceRun,
    run_hash: str,
    sources: Iterable[Source],
    when: RunTime,
    freshness_s: Mapping[str, float],
    *,
    same_gpu: Callable[[str, str], bool] = lambda _one, _other: True,
) -> LabelledRun:
    """Join one run with other rows.

    Args:
        run: the run; its own labels win over all others.
        run_hash: its content hash.
        sources: rows of its log, metrics, telemetry and job; of several of one kind the nearest
            in time that tells a label gives it.
        when: its job and serving window; the window of the telemetry or metrics where not told.
        freshness_s: windows by metric, such as ``Settings.freshness_s``.
        same_gpu: tells whether two spellings may be one GPU kind.

    Returns:
        The labelled row, with the reason for each source that was left out.

    Example:
        >>> run = InferenceRun(source="site", model="m", engine="vllm", gpu="h100-80", n_gpus=1,
        ...     precision="fp8", mode="online", status="ok", labels={"ttft_p50_s": 0.2})
        >>> dcgm = GpuWindow(source="dcgm", job_id="7", gpu="H100", n_gpus=1,
        ...     labels={"power_mean_w": 189.0}, job_labels={}, serve_start_s=100, serve_end_s=200)
        >>> when = RunTime("7", start_s=3800, end_s=3900)
        >>> row = join_run(run, "0" * 64, [dcgm], when, {"power": 3600.0, "activity": 3600.0})
        >>> row.labels["power_mean_w"], row.label_weights["power_mean_w"]
        (189.0, 0.5)
    """
    given = list(sources)
    for row in given:
        if not _mismatch(run, row, when, same_gpu):
            when = _with_window(when, row)
    labels = dict(run.labels)
    origins = dict.fromkeys(labels, "run")
    weights = dict.fromkeys(labels, 1.0)
    left_out: list[str] = []
    for kind, name in _SOURCES:
        rows = [row for row in given if isinstance(row, kind)]
        for row in sorted(rows, key=lambda r: _age_s(_interval(r), when)):
            told = _labels_of(row)
            reason = _mismatch(run, row, when, same_gpu) or ("" if told else _WITHOUT_LABELS[kind])
            if reason:
                left_out.append(f"{name}: {reason}")
                continue
            age_s = _age_s(_interval(row), when)
            for label, value in told.items():
                if label not in labels:
                    labels[label], origins[label] = value, name
                    weights[label] = _weight(label, age_s, freshness_s)
    shared = {f.name: getattr(run, f.name) for f in fields(InferenceRun) if f.name not in _OWN}
    return LabelledRun(
        **shared,
        labels=labels,
        label_sources=origins,
        label_weights=weights,
        run_hash=run_hash,
        left_out=tuple(left_out),
        cluster=when.cluster,
        job_id=when.job_id,
        serve_start_s=when.start_s,
        serve_end_s=when.end_s,
    )


_OWN: Final = frozenset({"labels", "kind", "schema_version"})
_WITHOUT_LABELS: Final[Mapping[type[Source], str]] = {
    ServingWindow: "it holds no figure",
    StartupRun: "it holds no figure",
    GpuWindow: "it has averages of the whole job only, which the start-up pulls down",
    ClusterJob: "no record of jobstats",
    JobStatistics: "no GPU in the record",
}


def _with_window(when: RunTime, row: Source) -> RunTime:
    """Fill in the serving window and the job's number where a row of the run knows them."""
    job_id, cluster, start_s, end_s = when.job_id, when.cluster, when.start_s, when.end_s
    if isinstance(row, GpuWindow | ServingWindow) and not end_s:
        start_s, end_s = _interval(row)
    if isinstance(row, GpuWindow | ClusterJob):
        job_id, cluster = job_id or row.job_id, cluster or row.cluster
    return RunTime(job_id, cluster, start_s, end_s)


def _interval(row: Source) -> _Interval:
    match row:
        case GpuWindow():
            return _Interval(row.serve_start_s, row.serve_end_s)
        case ServingWindow() | ClusterJob():
            return _Interval(float(row.start_s), float(row.end_s))
        case _:
            return _Interval(0.0, 0.0)


def _age_s(interval: _Interval, when: RunTime) -> float:
    """Seconds between a source and the run; 0 where they overlap or either time is not known."""
    if not interval.end_s or not when.end_s:
        return 0.0
    return max(interval.start_s - when.end_s, when.start_s - interval.end_s, 0.0)


def _weight(label: str, age_s: float, freshness_s: Mapping[str, float]) -> float:
    window_s = freshness_s[METRIC_OF_LABEL.get(label, _OTHER_LABELS)]
    return float(freshness_weights(np.array([age_s]), window_s)[0])


def _labels_of(row: Source) -> dict[str, float]:
    if isinstance(row, StartupRun):
        return dict(row.labels) if row.status == "ok" else {}
    if isinstance(row, ServingWindow):
        return dict(row.labels)
    if isinstance(row, GpuWindow):
        return dict(row.labels)
    labels: dict[str, float] = {}
    if row.gpu_utilization_frac:
        mean = sum(row.gpu_utilization_frac) / len(row.gpu_utilization_frac)
        labels["job_gpu_utilization_frac"] = mean
    if row.gpu_memory_used_gib:
        labels["job_gpu_memory_peak_gib"] = max(row.gpu_memory_used_gib)
    if isinstance(row, ClusterJob) and row.queue_wait_s is not None:
        labels["job_queue_wait_s"] = float(row.queue_wait_s)
    return labels


def _mismatch(
    run: InferenceRun, row: Source, when: RunTime, same_gpu: Callable[[str, str], bool]
) -> str:
    """Say why a row is not of this run; "" where nothing speaks against it."""
    job_id, cluster = getattr(row, "job_id", ""), getattr(row, "cluster", "")
    n_gpus = len(row.gpu_utilization_frac) if isinstance(row, JobStatistics) else row.n_gpus
    gpu = getattr(row, "gpu", "")
    checks = [
        (job_id and when.job_id and job_id != when.job_id, f"of job {job_id}"),
        (cluster and when.cluster and cluster != when.cluster, f"of cluster {cluster}"),
        (n_gpus and run.n_gpus and n_gpus != run.n_gpus, f"of {n_gpus} GPUs, not {run.n_gpus}"),
        (gpu and run.gpu and not same_gpu(gpu, run.gpu), f"of GPU {gpu}, not {run.gpu}"),
    ]
    if isinstance(row, StartupRun | ServingWindow):
        other = row.model and run.model and _short(row.model) != _short(run.model)
        checks += [
            (row.engine and run.engine and row.engine != run.engine, f"of engine {row.engine}"),
            (other, f"of model {row.model}"),
        ]
    if isinstance(row, StartupRun):
        checks.append((row.status != "ok", "of a start that did not get ready"))
    return next((reason for is_other, reason in checks if is_other), "")


def _short(model: str) -> str:
    return model.rsplit("/", 1)[-1].lower()
