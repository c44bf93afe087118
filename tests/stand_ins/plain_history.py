"""The cluster's history counted in plain Python: what SQL must count too, to the last digit."""

from __future__ import annotations

from array import array
from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.domain import ClusterJob
from omnipilot.store.cluster import JobFacts
from omnipilot.store.priors import (
    AGE_WEIGHTS,
    STEPS_PER_WINDOW,
    WAIT_QUANTILES,
    ClusterHistory,
    Configuration,
    ConfigurationCount,
    LaunchDefinition,
    QueueWaits,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from omnipilot.store import ReadTally, Store
    from omnipilot.store.priors import Outcome

_SUPERSEDED: Final = "REQUEUED"


def facts_of(job: ClusterJob) -> JobFacts:
    """Reduce a row to what is counted."""
    return JobFacts(**{name: getattr(job, name) for name in JobFacts.__struct_fields__})


def read_jobs(store: Store, tally: ReadTally) -> Iterator[JobFacts]:
    """Read the cluster's jobs in the order they were written; other kinds are left out."""
    for stored in store.rows(tally):
        if isinstance(stored.row, ClusterJob):
            yield facts_of(stored.row)


def each_once(jobs: Iterable[JobFacts]) -> Iterator[JobFacts]:
    """Leave out jobs seen before, such as those harvested with and without a column.

    The runs of a requeued job differ in their time of submission, so each of them stays.
    """
    seen: set[int] = set()
    for job in jobs:
        run = hash((job.cluster, job.job_id, job.submit_s, job.start_s))
        if run not in seen:
            seen.add(run)
            yield job


def outcome_of(job: JobFacts, definition: LaunchDefinition) -> Outcome:
    """Classify one run that started."""
    long_enough = job.elapsed_s >= definition.min_runtime_s
    if job.state == "CANCELLED" and job.ended_by == "user":
        if definition.user_cancel == "runtime":
            return "success" if long_enough else "failure"
        return definition.user_cancel
    outcome = definition.outcomes.get(job.state, "excluded")
    return "failure" if outcome == "success" and not long_enough else outcome


class _Tally:
    """Running counts of one configuration; ends of its launches, and which came up."""

    __slots__ = ("came_up", "ends_s", "excluded", "jobs")

    def __init__(self) -> None:
        self.jobs = self.excluded = 0
        self.ends_s = array("d")
        self.came_up = array("b")


class _Waits:
    """Waits and starts of one partition and size."""

    __slots__ = ("starts_s", "waits_s")

    def __init__(self) -> None:
        self.waits_s = array("d")
        self.starts_s = array("d")


def count_history(
    jobs: Iterable[JobFacts],
    definition: LaunchDefinition,
    *,
    now_s: float,
    kind_of_partition: Mapping[str, str] = MappingProxyType({}),
) -> ClusterHistory:
    """Count launches, demand and waits, reading the jobs once.

    Args:
        jobs: each run once (see :func:`each_once`).
        definition: what counts.
        now_s: time from which ages are counted, Unix seconds.
        kind_of_partition: GPU kind of partitions whose scheduler counts GPUs without a type.

    Returns:
        The counts; empty where there is no GPU job.
    """
    tallies: defaultdict[Configuration, _Tally] = defaultdict(_Tally)
    waits: defaultdict[tuple[str, int], _Waits] = defaultdict(_Waits)
    outcomes: defaultdict[tuple[str, Outcome], int] = defaultdict(int)
    without_gpus = untyped = 0
    wanted = definition.job_class
    for job in jobs:
        if wanted and job.job_class != wanted:
            continue
        if not job.n_gpus:
            without_gpus += job.n_tasks
            continue
        gpu = job.gpu or kind_of_partition.get(job.partition, "")
        tally = tallies[Configuration(gpu, job.n_gpus)]
        if job.state != _SUPERSEDED:
            tally.jobs += job.n_tasks
            if not gpu:
                untyped += job.n_tasks
        if not job.start_s:
            continue
        outcome = outcome_of(job, definition)
        outcomes[job.state, outcome] += 1
        if outcome == "excluded":
            tally.excluded += 1
        else:
            tally.ends_s.append(job.end_s)
            tally.came_up.append(outcome == "success")
        if 0 < job.eligible_s <= job.start_s:
            place = waits[job.partition, job.n_gpus]
            place.waits_s.append(job.start_s - job.eligible_s)
            place.starts_s.append(job.start_s)
    total = sum(tally.jobs for tally in tallies.values())
    window_s = definition.window_s
    counts = [_counted(key, tally, total, now_s, window_s) for key, tally in tallies.items()]
    return ClusterHistory(
        configurations=tuple(sorted(counts, key=lambda c: (-c.jobs, c.configuration))),
        waits=_queue_waits(waits, now_s, definition.wait_window_s),
        jobs=total,
        untyped=untyped,
        without_gpus=without_gpus,
        outcomes=dict(sorted(outcomes.items())),
    )


def _counted(
    configuration: Configuration, tally: _Tally, total: int, now_s: float, window_s: float
) -> ConfigurationCount:
    came_up = np.frombuffer(tally.came_up, dtype=np.int8)
    weights = _weights(tally.ends_s, now_s, window_s)
    return ConfigurationCount(
        configuration=configuration,
        jobs=tally.jobs,
        launches=len(came_up),
        attempts=int(weights.sum()) / (AGE_WEIGHTS[0] if window_s else 1),
        successes=int(weights @ came_up) / (AGE_WEIGHTS[0] if window_s else 1),
        excluded=tally.excluded,
        demand_frac=tally.jobs / total if total else 0.0,
    )


def _weights(times_s: array[float], now_s: float, window_s: float) -> NDArray[np.int64]:
    """Weight events by their age, all alike without a window."""
    if not window_s:
        return np.ones(len(times_s), dtype=np.int64)
    ages_s = np.maximum(int(now_s) - np.frombuffer(times_s, dtype=np.float64), 0.0)
    steps = np.floor(ages_s * STEPS_PER_WINDOW / round(window_s)).astype(np.int64)
    table = np.array([*AGE_WEIGHTS, 0], dtype=np.int64)
    return table[np.minimum(steps, len(AGE_WEIGHTS))]


def _queue_waits(
    waits: Mapping[tuple[str, int], _Waits], now_s: float, window_s: float
) -> tuple[QueueWaits, ...]:
    found = []
    for (partition, n_gpus), place in sorted(waits.items()):
        waits_s = np.frombuffer(place.waits_s, dtype=np.float64)
        weights = _weights(place.starts_s, now_s, window_s)
        total = int(weights.sum())
        if total <= 0:
            continue
        order = np.argsort(waits_s, kind="stable")
        reached = np.cumsum(weights[order]) * 100
        # The smallest wait that at least this share of the weight does not exceed.
        at = np.searchsorted(reached, [total * round(100 * q) for q in WAIT_QUANTILES])
        found.append(
            QueueWaits(
                partition=partition,
                n_gpus=n_gpus,
                jobs=len(waits_s),
                quantiles_s=tuple(float(q) for q in waits_s[order][at]),
                mean_s=int(waits_s.astype(np.int64) @ weights) / total,
            )
        )
    return tuple(found)
