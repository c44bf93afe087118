"""What the cluster's history says before a launch: how often jobs of a size came up and waited.

Counting only; shrinking the rates is :mod:`omnipilot.decide.launch_rates`.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import numpy as np

from omnipilot.domain.errors import UsageError
from omnipilot.store.dataset import FRESHNESS_CUTOFF_WINDOWS
from omnipilot.store.prior_sql import LEFT_OUT, prior_script

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from omnipilot.store.cluster import JobFacts
    from omnipilot.store.prior_sql import Script

__all__ = [
    "DEFAULT_OUTCOMES", "WAIT_QUANTILES", "ClusterHistory", "Configuration", "ConfigurationCount",
    "Engine", "LaunchDefinition", "QueueWaits", "count_history", "query_history",
]  # fmt: skip

Outcome = Literal["success", "failure", "excluded"]

# What each end state says about whether a launch came up. Excluded: it was ended from outside, or
# (REQUEUED) its next run is another row.
DEFAULT_OUTCOMES: Final[Mapping[str, Outcome]] = MappingProxyType(
    {
        "COMPLETED": "success",
        "TIMEOUT": "success",  # it ran to its limit, as a server does
        "FAILED": "failure",
        "OUT_OF_MEMORY": "failure",
        "NODE_FAIL": "failure",
        "BOOT_FAIL": "failure",
        "LAUNCH_FAILED": "failure",
        "RECONFIG_FAIL": "failure",
        "CANCELLED": "excluded",
        "DEADLINE": "excluded",
        "PREEMPTED": "excluded",
        "REQUEUED": "excluded",
        "REVOKED": "excluded",
    }
)
WAIT_QUANTILES: Final = (0.1, 0.5, 0.9)
# Weights by age are whole numbers at steps of age, so that sums are exact whatever their order.
STEPS_PER_WINDOW: Final = 60
_WHOLE_WEIGHT: Final = 2**16
AGE_WEIGHTS: Final = tuple(
    round(_WHOLE_WEIGHT * 0.5 ** (step / STEPS_PER_WINDOW))
    for step in range(round(FRESHNESS_CUTOFF_WINDOWS * STEPS_PER_WINDOW))
)
_SUPERSEDED: Final = "REQUEUED"


@dataclass(frozen=True, slots=True)
class LaunchDefinition:
    """What counts as a launch, and which launches came up.

    A launch is a run that got its nodes and has an outcome. Of it:

    - ``outcomes`` gives "success", "failure" or "excluded" for its state;
    - ``user_cancel`` replaces that for a job that its user cancelled: "excluded", "failure", or
      "runtime" (a success where it ran for ``min_runtime_s``, else a failure);
    - a success that ran for less than ``min_runtime_s`` is a failure.

    Args:
        outcomes: by state; a state that is missing is excluded.
        min_runtime_s: seconds that a launch must run to have come up.
        user_cancel: see above. Cancellations by the system follow ``outcomes``.
        job_class: count jobs of this class only ("vllm"); "" counts all.
        window_s: a launch that ended this long ago counts half, after four windows nothing
            (PAPER, Telemetry: 30 days); 0 counts all alike. Ages count in sixtieths of it.
        wait_window_s: the same for queue waits, by their start (PAPER: 7 days).

    Raises:
        UsageError: a negative time or an unknown word.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=lambda: DEFAULT_OUTCOMES)
    min_runtime_s: float = 0.0
    user_cancel: Literal["excluded", "failure", "runtime"] = "excluded"
    job_class: str = ""
    window_s: float = 0.0
    wait_window_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("min_runtime_s", "window_s", "wait_window_s"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be a number of seconds from 0")
        if self.user_cancel not in {"excluded", "failure", "runtime"}:
            raise UsageError("user_cancel must be excluded, failure or runtime")
        if unknown := set(self.outcomes.values()) - {"success", "failure", "excluded"}:
            raise UsageError(f"an outcome must be success, failure or excluded, not {unknown}")

    def outcome(self, job: JobFacts) -> Outcome:
        """Classify one run that started."""
        long_enough = job.elapsed_s >= self.min_runtime_s
        if job.state == "CANCELLED" and job.ended_by == "user":
            if self.user_cancel == "runtime":
                return "success" if long_enough else "failure"
            return self.user_cancel
        outcome = self.outcomes.get(job.state, "excluded")
        return "failure" if outcome == "success" and not long_enough else outcome


class Configuration(NamedTuple):
    """GPU kind, as the scheduler names it, and how many of them."""

    gpu: str
    n_gpus: int


@dataclass(frozen=True, slots=True)
class ConfigurationCount:
    """One configuration's history.

    Args:
        jobs: jobs that asked for it, whatever became of them; array tasks count each.
        launches: runs with an outcome, unweighted.
        attempts: the same, weighted by age (equal without a window).
        successes: those that came up, weighted by age.
        excluded: runs that started and say nothing about launching.
        demand_frac: share of all GPU jobs that asked for it.
    """

    configuration: Configuration
    jobs: int
    launches: int
    attempts: float
    successes: float
    excluded: int
    demand_frac: float

    @property
    def raw_rate(self) -> float | None:
        """Share of launches that came up; None without launches."""
        return self.successes / self.attempts if self.attempts > 0 else None


@dataclass(frozen=True, slots=True)
class QueueWaits:
    """Waits of the jobs of one partition and size, from eligible to start.

    Args:
        jobs: waits known.
        quantiles_s: at :data:`WAIT_QUANTILES`.
        mean_s: weighted by age, as the quantiles are.
    """

    partition: str
    n_gpus: int
    jobs: int
    quantiles_s: tuple[float, ...]
    mean_s: float


@dataclass(frozen=True, slots=True)
class ClusterHistory:
    """What was counted, most demanded configuration first; GPU jobs only.

    Args:
        jobs: GPU jobs, array tasks each.
        untyped: of those, jobs whose GPU kind the scheduler does not tell.
        without_gpus: jobs left out.
        outcomes: runs that started, by (state, outcome).
        newer_schema: records that only a newer omnipilot can read, left out.
        damaged: lines that are no JSON or lack a field, left out.
    """

    configurations: tuple[ConfigurationCount, ...]
    waits: tuple[QueueWaits, ...]
    jobs: int
    untyped: int
    without_gpus: int
    outcomes: Mapping[tuple[str, Outcome], int]
    newer_schema: int = 0
    damaged: int = 0


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
        jobs: each run once (see :func:`omnipilot.store.cluster.each_once`).
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
        outcome = definition.outcome(job)
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
        attempts=int(weights.sum()) / _unit(window_s),
        successes=int(weights @ came_up) / _unit(window_s),
        excluded=tally.excluded,
        demand_frac=tally.jobs / total if total else 0.0,
    )


def _unit(window_s: float) -> int:
    """Give the weight that an event of now has."""
    return _WHOLE_WEIGHT if window_s else 1


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


class Engine(Protocol):
    """Runs SQL over the cluster's jobs; see :mod:`omnipilot.store.query`."""

    def answers(self, script: Script) -> dict[str, list[tuple[Any, ...]]]:
        """Make the tables and answer the questions, by name."""
        ...


def query_history(
    engine: Engine,
    definition: LaunchDefinition,
    *,
    now_s: float,
    kind_of_partition: Mapping[str, str] = MappingProxyType({}),
) -> ClusterHistory:
    """Count as :func:`count_history` does, where the data lies.

    Of several records of one run the largest value of each field counts, so that known wins over
    unknown.

    Args:
        engine: has the jobs.
        definition: what counts.
        now_s: time from which ages are counted, Unix seconds.
        kind_of_partition: GPU kind of partitions whose scheduler counts GPUs without a type.

    Raises:
        UsageError: a state, class, partition or kind that Slurm does not allow.
        StateError: the jobs cannot be read.
    """
    script = prior_script(
        definition,
        now_s=int(now_s),
        kind_of_partition=kind_of_partition,
        quantile_percents=tuple(round(100 * q) for q in WAIT_QUANTILES),
        weights=AGE_WEIGHTS,
        steps_per_window=STEPS_PER_WINDOW,
    )
    found = engine.answers(script)
    newer_schema, damaged = found[LEFT_OUT][0]
    configurations = found["configurations"]
    total = sum(row[2] for row in configurations)
    unit = _unit(definition.window_s)
    counts = [
        ConfigurationCount(
            configuration=Configuration(gpu, n_gpus),
            jobs=jobs,
            launches=launches,
            attempts=attempts / unit,
            successes=successes / unit,
            excluded=excluded,
            demand_frac=jobs / total if total else 0.0,
        )
        for gpu, n_gpus, jobs, launches, attempts, successes, excluded in configurations
    ]
    return ClusterHistory(
        configurations=tuple(sorted(counts, key=lambda c: (-c.jobs, c.configuration))),
        waits=tuple(
            QueueWaits(queue, n_gpus, jobs, tuple(map(float, quantiles)), weighted_s / weight)
            for queue, n_gpus, jobs, weight, weighted_s, *quantiles in found["waits"]
        ),
        jobs=total,
        untyped=sum(row[2] for row in configurations if not row[0]),
        without_gpus=found["without_gpus"][0][0],
        outcomes={(state, outcome): n for state, outcome, n in found["outcomes"]},
        newer_schema=newer_schema,
        damaged=damaged,
    )
