"""GPU telemetry of dcgm-exporter, from what a Prometheus server recorded: rows of jobs and faults.

A job's averages are taken over its serving window and, beside them, over all of its readings:
loading weights and idling pull the latter down (PAPER, Telemetry: 21 % to 51 % SM activity).
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from omnipilot.collect.dcgm_metrics import FAULT_BY_METRIC, GAUGE_BY_METRIC, GAUGES, METRICS
from omnipilot.collect.dcgm_series import GpuKey, Readings, Track, usual_step_s
from omnipilot.collect.json_values import JSON_LIMITS, read_json_values
from omnipilot.collect.lines import Limits, open_lines, printable
from omnipilot.collect.prometheus_json import Series, series_of
from omnipilot.collect.prometheus_text import EXPOSITION_LIMITS, read_samples
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.gpu_health import GPU_EVENTS, xid_severity
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.telemetry_rows import GpuHealth, GpuSnapshot, GpuWindow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["NO_TELEMETRY", "Telemetry", "Window", "collect_dcgm", "rows_of_series"]

_WANTED: Final = "recorded answers of Prometheus, or a page of dcgm-exporter"
_SOURCE: Final = "dcgm"
_FEW_STEPS: Final = 4
_Tracks: TypeAlias = "dict[str, dict[GpuKey, Track]]"
_SEVERITY: Final = {event.name: event.severity for event in GPU_EVENTS}


class Window(NamedTuple):
    """When a job served, Unix seconds, both ends included."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What the caller knows of the telemetry.

    Args:
        windows: serving windows by job.
        cluster: name of the cluster.
        job_label: label that names the job that held a GPU.
        at_s: when an exporter's page was read, Unix seconds; 0 where not known.

    Raises:
        BadInputError: a window that ends before it begins.
    """

    windows: Mapping[str, Window] = field(default_factory=dict)
    cluster: str = ""
    job_label: str = "hpc_job"
    at_s: float = 0.0

    def __post_init__(self) -> None:
        for job, window in self.windows.items():
            if not 0 <= window.start_s < window.end_s < np.inf:
                raise BadInputError(f"the serving window of job {job} must end after it begins")


NO_TELEMETRY: Final = Telemetry()


def collect_dcgm(
    path: Path, *, telemetry: Telemetry = NO_TELEMETRY, limits: Limits = JSON_LIMITS
) -> Iterator[GpuWindow | GpuHealth | GpuSnapshot | Rejection]:
    """Read a recorded dump: answers of ``query_range`` or ``query``, or an exporter's page.

    Answers that cover several instants give a row a job and one a fault; answers of one instant,
    and a page, give a snapshot a GPU kind and one row a fault.

    Args:
        path: the file, plain or gzip-compressed; several answers may follow one another.
        telemetry: what the file does not tell.
        limits: what the file may cost.

    Yields:
        Refused series first, then rows of jobs, faults, snapshots.

    Raises:
        BadInputError: the file is neither, is too large or holds no DCGM metric.
    """
    with open_lines(path, limits, _WANTED) as lines:
        is_json = lines.peek().lstrip()[:1] in {b"{", b"["}
    found: Iterable[Series | Rejection] = _answers(path, limits) if is_json else _page(path)
    seen = False
    for item in rows_of_series(found, telemetry):
        seen = True
        yield item
    if not seen:
        raise BadInputError(f"{path} holds no metric of dcgm-exporter: give {_WANTED}")


def _answers(path: Path, limits: Limits) -> Iterator[Series | Rejection]:
    for value in read_json_values(path, _WANTED, limits):
        if isinstance(value, Rejection):
            yield value
        else:
            yield from series_of(value)


def _page(path: Path) -> Iterator[Series | Rejection]:
    # DCGM's "not recorded" of integers is above all that a count or time can be.
    for sample in read_samples(path, frozenset(METRICS), _WANTED, EXPOSITION_LIMITS, most=np.inf):
        if isinstance(sample, Rejection):
            yield sample
        else:
            at = np.zeros(1)
            yield Series(sample.line, sample.name, sample.labels, at, np.array([sample.value]))


def rows_of_series(
    items: Iterable[Series | Rejection], telemetry: Telemetry = NO_TELEMETRY
) -> Iterator[GpuWindow | GpuHealth | GpuSnapshot | Rejection]:
    """Turn series into rows; see :func:`collect_dcgm`.

    Args:
        items: all series of the time asked for; refusals are passed on.
        telemetry: what the series do not tell.
    """
    readings = Readings(telemetry.job_label)
    unreadable = 0
    for item in items:
        refused = item if isinstance(item, Rejection) else readings.take(item)
        unreadable += isinstance(item, Rejection)
        if refused is not None:
            yield refused
    readings.settle()
    if unreadable:
        # They may have been of any job and metric: what is left of a job would look whole.
        readings.damaged.update((None, gauge.metric) for gauge in GAUGES)
    if _is_moment(readings):
        health = list(_health(readings, telemetry))
        yield from health
        yield from _snapshots(readings, telemetry, health)
        return
    for job in readings.jobs():
        yield from _window_row(readings, job, telemetry)
    yield from _health(readings, telemetry)


def _is_moment(readings: Readings) -> bool:
    lengths = [len(t.times_s) for _, _, _, t in _all_tracks(readings)]
    return bool(lengths) and max(lengths) == 1


def _all_tracks(readings: Readings) -> Iterator[tuple[GpuKey, str, str, Track]]:
    for key, by_job in sorted(readings.tracks.items()):
        for job, metrics in by_job.items():
            for metric, track in metrics.items():
                yield key, job, metric, track


def _window_row(
    readings: Readings, job: str, telemetry: Telemetry
) -> Iterator[GpuWindow | Rejection]:
    tracks: _Tracks = {}
    for key, by_job in sorted(readings.tracks.items()):
        for metric, track in by_job.get(job, {}).items():
            if metric in GAUGE_BY_METRIC:
                tracks.setdefault(metric, {})[key] = track
    if not tracks:
        return
    unsure = {metric for owner, metric in readings.damaged if owner in {None, job}}
    shown = f"job {printable(job)}"
    job_labels, faults = _averages(tracks, unsure)
    window = telemetry.windows.get(job)
    inside: _Tracks = {}
    labels: dict[str, float] = {}
    if window is not None:
        inside = {metric: _cut(by_gpu, window) for metric, by_gpu in tracks.items()}
        labels, more = _averages(inside, unsure)
        faults += [f"serving window: {fault}" for fault in more]
        if not labels:
            faults.append("no readings in its serving window")
    for fault in faults:
        yield Rejection(1, f"{shown}: {fault}", "average left out")
    if not labels and not job_labels:
        return
    gpus = _gpus_of(inside) or _gpus_of(tracks)
    every = [track for by_gpu in tracks.values() for track in by_gpu.values()]
    yield GpuWindow(
        source=_SOURCE,
        job_id=job,
        gpu=_gpu_names(readings, gpus),
        n_gpus=len(gpus),
        labels=labels,
        job_labels=job_labels,
        cluster=telemetry.cluster,
        serve_start_s=window.start_s if window else 0.0,
        serve_end_s=window.end_s if window else 0.0,
        start_s=min(float(t.times_s[0]) for t in every),
        end_s=max(float(t.times_s[-1]) for t in every),
        coverage_frac=_coverage(tracks, inside, window) if window else 0.0,
        n_samples=sum(len(t.times_s) for by_gpu in inside.values() for t in by_gpu.values()),
        job_samples=sum(len(t.times_s) for t in every),
    )


def _cut(by_gpu: Mapping[GpuKey, Track], window: Window) -> dict[GpuKey, Track]:
    cut = {key: track.within(*window) for key, track in by_gpu.items()}
    return {key: track for key, track in cut.items() if len(track.times_s)}


def _gpus_of(tracks: _Tracks) -> list[GpuKey]:
    return sorted({key for by_gpu in tracks.values() for key in by_gpu})


def _averages(tracks: _Tracks, unsure: Collection[str] = ()) -> tuple[dict[str, float], list[str]]:
    """Average each metric over time, then put the GPUs together.

    A metric that some GPU lacks is left out and told, for its sum or mean would be of other
    GPUs; so is one with refused series, and all of a job that moved to other GPUs on its way.
    """
    n_gpus = len(_gpus_of(tracks))
    labels: dict[str, float] = {}
    faults = []
    for gauge in GAUGES:
        by_gpu = tracks.get(gauge.metric)
        if gauge.metric in unsure:
            faults.append(f"a series of {gauge.metric} was refused")
        elif not by_gpu:
            continue
        elif len(by_gpu) < n_gpus:
            faults.append(f"{gauge.metric} of {n_gpus - len(by_gpu)} of {n_gpus} GPUs is missing")
        elif _moved(by_gpu.values()):
            faults.append(f"{gauge.metric} comes from other GPUs at other times")
        else:
            value = (_sum_of_gpus(by_gpu) if gauge.summed else _mean(by_gpu.values())) * gauge.scale
            labels[gauge.label] = min(value, 1.0) if gauge.label.endswith("_frac") else value
            if gauge.peak:
                peak = max(float(track.values.max()) for track in by_gpu.values())
                labels[gauge.peak] = peak * gauge.scale
    return labels, faults


def _mean(tracks: Collection[Track]) -> float:
    return sum(track.mean() for track in tracks) / len(tracks)


def _sum_of_gpus(by_gpu: Mapping[GpuKey, Track]) -> float:
    """Add up GPUs; each slice of one (MIG) tells the whole GPU's reading, which counts once."""
    slices: dict[tuple[str, str], list[Track]] = {}
    for key, track in by_gpu.items():
        slices.setdefault((key.host, key.uuid), []).append(track)
    return sum(map(_mean, slices.values()))


def _moved(tracks: Collection[Track]) -> bool:
    """Tell whether some GPU was read for less than half of the time that all were together."""
    begin_s = min(float(t.times_s[0]) for t in tracks)
    end_s = max(float(t.times_s[-1]) for t in tracks)
    step_s = max(usual_step_s(t.times_s) for t in tracks)
    if end_s - begin_s <= _FEW_STEPS * step_s:
        return False
    shortest_s = min(float(t.times_s[-1] - t.times_s[0]) for t in tracks)
    return shortest_s < (end_s - begin_s) / 2


def _coverage(tracks: _Tracks, inside: _Tracks, window: Window) -> float:
    """Give the share of the expected readings that the window holds, of the sparsest series."""
    length_s = window.end_s - window.start_s
    shares = [
        len(cut.times_s) * usual_step_s(tracks[metric][key].times_s) / length_s
        for metric, by_gpu in inside.items()
        for key, cut in by_gpu.items()
    ]
    if not shares or any(not by_gpu for by_gpu in inside.values()):
        return 0.0
    return min(1.0, *shares)


def _gpu_names(readings: Readings, gpus: Iterable[GpuKey]) -> str:
    return "+".join(sorted({readings.models[key] for key in gpus if key in readings.models}))


def _health(readings: Readings, telemetry: Telemetry) -> Iterator[GpuHealth]:
    """Give a row for each fault of each GPU, XIDs by their number."""
    for key, job, metric, track in _all_tracks(readings):
        fault = FAULT_BY_METRIC.get(metric)
        if fault is None:
            continue
        for code in (
            np.unique(track.values[track.values > 0]).tolist() if fault.event == "xid" else [0]
        ):
            shown = track.values == code if code else track.values > 0
            if not shown.any():
                continue
            times_s = track.times_s[shown]
            yield GpuHealth(
                source=_SOURCE,
                host=key.host,
                gpu_uuid=key.uuid,
                gpu=readings.models.get(key, ""),
                event=fault.event,
                severity=_SEVERITY[fault.event] or xid_severity(int(code)),
                code=int(code),
                count=0 if code else int(track.values[shown].max()),
                cluster=telemetry.cluster,
                job_id=job,
                first_s=float(times_s[0]) or telemetry.at_s,
                last_s=float(times_s[-1]) or telemetry.at_s,
            )


def _snapshots(
    readings: Readings, telemetry: Telemetry, health: list[GpuHealth]
) -> Iterator[GpuSnapshot]:
    kinds: dict[str, list[GpuKey]] = {}
    for key in sorted(readings.tracks):
        kinds.setdefault(readings.models.get(key, ""), []).append(key)
    faulty = {row.gpu_uuid for row in health if row.severity == "hardware"}
    for kind, keys in kinds.items():
        tracks: dict[str, dict[GpuKey, Track]] = {}
        for key in keys:
            for metrics in readings.tracks[key].values():
                for metric, track in metrics.items():
                    if metric in GAUGE_BY_METRIC:
                        tracks.setdefault(metric, {})[key] = track
        if not tracks:
            continue
        labels, _ = _averages(tracks, {metric for _, metric in readings.damaged})
        at_s = max(float(t.times_s[0]) for by_gpu in tracks.values() for t in by_gpu.values())
        yield GpuSnapshot(
            source=_SOURCE,
            gpu=kind,
            n_gpus=len(keys),
            labels=labels,
            n_hosts=len({key.host for key in keys}),
            n_busy=sum(any(job for job in readings.tracks[key]) for key in keys),
            n_faulty=sum(key.uuid in faulty for key in keys),
            cluster=telemetry.cluster,
            at_s=at_s or telemetry.at_s,
        )
