"""Readings of GPUs put together: one GPU's metrics over time, and which job held it when."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnipilot.collect.dcgm_metrics import (
    BLANK,
    BLANK_INT32,
    FAULT_BY_METRIC,
    GAUGE_BY_METRIC,
    JOB_METRIC,
)
from omnipilot.collect.lines import printable
from omnipilot.collect.slurm_values import FieldError, job_number
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from omnipilot.collect.prometheus_json import Series

__all__ = ["GpuKey", "Readings", "Track", "usual_step_s"]

_HOST_LABELS: Final = ("Hostname", "hostname", "instance")
_UUID_LABELS: Final = ("UUID", "uuid")
_NUMBER_LABELS: Final = ("gpu", "minor_number", "ordinal")
_MODEL_LABELS: Final = ("modelName", "name")
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}", re.ASCII)
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9/:-]{0,99}", re.ASCII)
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .()+_-]{0,79}", re.ASCII)
_MOST_SERIES: Final = 200_000
_MOST_READINGS: Final = 50_000_000
# A job's reading holds until the next one; where that is missing, not for longer than this.
_HELD_STEPS: Final = 2.5
_MOST_OF: Final[dict[str, float]] = {
    **{metric: gauge.most for metric, gauge in GAUGE_BY_METRIC.items()},
    **{metric: fault.most for metric, fault in FAULT_BY_METRIC.items()},
    JOB_METRIC: 1e10,
}


class GpuKey(NamedTuple):
    """One GPU, or one slice of it: node, identity and slice ("" for a whole GPU)."""

    host: str
    uuid: str
    part: str = ""


@dataclass(slots=True)
class Track:
    """One metric of one GPU in one job: times (n,) rising and values (n,)."""

    times_s: NDArray[np.float64]
    values: NDArray[np.float64]

    def within(self, start_s: float, end_s: float) -> Track:
        """Give the readings of [``start_s``, ``end_s``]."""
        low, high = np.searchsorted(self.times_s, [start_s, np.nextafter(end_s, np.inf)])
        return Track(self.times_s[low:high], self.values[low:high])

    def mean(self) -> float:
        """Average over time: each reading counts for the time that it stands for.

        That is half the way to its neighbours, and not more than a step to either side across a
        gap; readings of even spacing count alike.
        """
        step_s = usual_step_s(self.times_s)
        gaps = np.minimum(np.diff(self.times_s), 2 * step_s)
        edge = [step_s]
        weights = np.concatenate([edge, gaps]) + np.concatenate([gaps, edge])
        return float(self.values @ weights / weights.sum())

    def joined(self, other: Track) -> Track | None:
        """Merge with other readings of the same series; None where the two contradict."""
        times_s = np.concatenate([self.times_s, other.times_s])
        values = np.concatenate([self.values, other.values])
        order = np.argsort(times_s, kind="stable")
        times_s, values = times_s[order], values[order]
        same = np.diff(times_s) == 0
        if bool(np.any(same & (np.diff(values) != 0))):
            return None
        first = np.concatenate([[True], ~same])
        return Track(times_s[first], values[first])


def usual_step_s(times_s: NDArray[np.float64]) -> float:
    """Median time between readings; 1 where there is one reading."""
    return float(np.median(np.diff(times_s))) if len(times_s) > 1 else 1.0


@dataclass
class Readings:
    """All readings, by GPU, job ("" for none) and metric.

    Args:
        job_label: label of a series that names the job.
        damaged: job (None for one that is not told) and metric of each refused series.
    """

    job_label: str = "hpc_job"
    tracks: dict[GpuKey, dict[str, dict[str, Track]]] = field(default_factory=dict)
    models: dict[GpuKey, str] = field(default_factory=dict)
    damaged: set[tuple[str | None, str]] = field(default_factory=set)
    _unowned: dict[GpuKey, dict[str, Track]] = field(default_factory=dict)
    _owners: dict[str, Track] = field(default_factory=dict)
    _series: int = 0
    _readings: int = 0

    def take(self, series: Series) -> Rejection | None:
        """Take in one series of a metric that is read; others are passed over."""
        if series.name not in _MOST_OF:
            return None
        self._series += 1
        self._readings += len(series.times_s)
        try:
            self._take(series)
        except FieldError as error:
            self._note_damage(series)
            return Rejection(series.line, str(error), error.code)
        return None

    def _take(self, series: Series) -> None:
        if self._series > _MOST_SERIES or self._readings > _MOST_READINGS:
            raise FieldError("too many", "more readings than one answer may hold")
        key = _key(series.labels)
        if key is None:
            raise FieldError("no GPU named", f"a series of {series.name} names no GPU and no node")
        track = _recorded(series)
        if not len(track.times_s):
            return
        _check(track, series.name)
        if series.name == JOB_METRIC:
            self._put(self._owners, key.uuid, track, series)
            return
        job = self._job(series)
        if job is not None and job:
            job_number(job)
        model = next((series.labels[n] for n in _MODEL_LABELS if n in series.labels), "")
        if _MODEL.fullmatch(model):
            self.models.setdefault(key, model)
        if job is None:
            tracks = self._unowned.setdefault(key, {})
        else:
            tracks = self.tracks.setdefault(key, {}).setdefault(job, {})
        self._put(tracks, series.name, track, series)

    def _job(self, series: Series) -> str | None:
        """Give the job that the label names, "" for an idle GPU, None without the label."""
        job = series.labels.get(self.job_label)
        return "" if job == "0" else job

    def _note_damage(self, series: Series) -> None:
        """Remember which averages would lack a GPU; None where that may be any job's."""
        job = self._job(series)
        if job != "":
            self.damaged.add((job, series.name))

    @staticmethod
    def _put(tracks: dict[str, Track], name: str, track: Track, series: Series) -> None:
        known = tracks.get(name)
        merged = track if known is None else known.joined(track)
        if merged is None:
            reason = f"two series of {series.name} contradict one another on one GPU"
            raise FieldError("contradictory series", reason)
        tracks[name] = merged

    def settle(self) -> None:
        """Give readings without a job's label to the jobs that held the GPU, once all are in."""
        for key, metrics in self._unowned.items():
            owner = self._owners.get(key.uuid)
            for name, track in metrics.items():
                for job, part in _parts(track, owner):
                    tracks = self.tracks.setdefault(key, {}).setdefault(job, {})
                    known = tracks.get(name)
                    tracks[name] = part if known is None else (known.joined(part) or known)
        self._unowned.clear()

    def jobs(self) -> list[str]:
        """Jobs with readings, in order of their numbers as far as they have one."""
        found = {job for by_job in self.tracks.values() for job in by_job if job}
        return sorted(found, key=lambda job: (len(job), job))


def _key(labels: dict[str, str]) -> GpuKey | None:
    host = next((labels[n] for n in _HOST_LABELS if labels.get(n)), "")
    host = host.partition(":")[0]
    uuid = next((labels[n] for n in _UUID_LABELS if labels.get(n)), "")
    number = next((labels[n] for n in _NUMBER_LABELS if labels.get(n)), "")
    if host and not _HOST.fullmatch(host):
        return None
    if not uuid and host and number.isascii() and number.isdigit() and len(number) <= 4:
        uuid = f"{host}/{number}"
    if not _UUID.fullmatch(uuid):
        return None
    part = labels.get("GPU_I_ID", "")
    return GpuKey(host, uuid, printable(part, 8) if part else "")


def _check(track: Track, metric: str) -> None:
    low, high = float(track.values.min()), float(track.values.max())
    if low < 0 or high > _MOST_OF[metric]:
        bad = low if low < 0 else high
        reason = f"a reading of {metric} is {bad:g}, which no GPU gives"
        raise FieldError("reading out of range", reason)
    if metric not in GAUGE_BY_METRIC and bool(np.any(track.values != np.floor(track.values))):
        reason = f"a reading of {metric} is no whole number"
        raise FieldError("reading out of range", reason)


def _recorded(series: Series) -> Track:
    values = series.values
    blank = values >= BLANK
    blank |= (values >= BLANK_INT32.start) & (values < BLANK_INT32.stop)
    kept = np.isfinite(values) & ~blank
    return Track(series.times_s[kept], values[kept])


def _parts(track: Track, owner: Track | None) -> Iterator[tuple[str, Track]]:
    """Cut one GPU's readings by the job that held it; "" where none is told."""
    if owner is None:
        yield "", track
        return
    at = np.searchsorted(owner.times_s, track.times_s, side="right") - 1
    held_s = _HELD_STEPS * usual_step_s(owner.times_s)
    known = (at >= 0) & (track.times_s - owner.times_s[np.maximum(at, 0)] <= held_s)
    jobs = np.where(known, owner.values[np.maximum(at, 0)], 0.0)
    for job in np.unique(jobs).tolist():
        mine = jobs == job
        yield (f"{job:.0f}" if job else ""), Track(track.times_s[mine], track.values[mine])
