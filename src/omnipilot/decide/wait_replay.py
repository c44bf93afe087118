"""The history replayed: what was known when each job was submitted, and how long it then waited.

GPUs are shared within a pool: those of one kind, or of one partition where the scheduler counts
GPUs without a type. How many a pool has is taken as the most that ever ran at once.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from omnipilot.decide.queue_plan import DEFAULT_LIMIT_S, PoolNow, plan_start
from omnipilot.decide.waits import WaitEvidence, WaitModel, fit_wait_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["JobWait", "PoolHistory", "ReplayedJob", "learn_waits", "replay"]

MOST_SAMPLES: Final = 1500
_WARM_UP: Final = 0.1  # share of the time at whose begin the queue is not known yet
# A history holds jobs that have ended. Who is still there at its end is missing from it, so its
# last days look emptier than they were, for as long as this share of jobs takes from line to end.
_ENDED_FRAC: Final = 0.99


class JobWait(Protocol):
    """What of a job is looked at; :class:`omnipilot.store.cluster.JobFacts` has it."""

    @property
    def gpu(self) -> str: ...  # noqa: D102 - as in ClusterJob
    @property
    def n_gpus(self) -> int: ...  # noqa: D102
    @property
    def partition(self) -> str: ...  # noqa: D102
    @property
    def eligible_s(self) -> int: ...  # noqa: D102
    @property
    def start_s(self) -> int: ...  # noqa: D102
    @property
    def end_s(self) -> int: ...  # noqa: D102
    @property
    def time_limit_s(self) -> int: ...  # noqa: D102


class ReplayedJob(NamedTuple):
    """One job of the history: when it became eligible, what was known then, how long it waited."""

    eligible_s: float
    partition: str
    n_gpus: int
    evidence: WaitEvidence
    wait_s: float


class PoolHistory:
    """Jobs of one pool in the order in which they became eligible; arrays are (n_jobs,).

    Args:
        jobs: jobs that started.
    """

    _LAST: Final = 100  # earlier jobs that the past is the median of

    def __init__(self, jobs: Sequence[JobWait]) -> None:
        self.jobs = sorted(jobs, key=lambda j: (j.eligible_s, j.start_s))
        self.eligible = np.array([j.eligible_s for j in self.jobs], dtype=np.float64)
        self.start = np.array([j.start_s for j in self.jobs], dtype=np.float64)
        self.end = np.array([j.end_s for j in self.jobs], dtype=np.float64)
        self.n = np.array([j.n_gpus for j in self.jobs], dtype=np.int64)
        self.limit = np.array(
            [j.time_limit_s or DEFAULT_LIMIT_S for j in self.jobs], dtype=np.float64
        )
        self.total = _most_at_once(self.start, self.end, self.n)
        self._groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._grouped = 0

    def now(self, i: int) -> PoolNow:
        """The pool as the ``i``-th job became eligible."""
        at = self.eligible[i]
        runs = np.flatnonzero((self.start < at) & (self.end > at))
        waits = np.flatnonzero((self.eligible[:i] <= at) & (self.start[:i] >= at))
        running = [
            (max(float(self.start[j] + self.limit[j] - at), 0.0), int(self.n[j])) for j in runs
        ]
        return PoolNow(
            total=self.total,
            free=max(self.total - int(self.n[runs].sum()), 0),
            running=running,
            waiting=[(int(self.n[j]), float(self.limit[j])) for j in waits],
        )

    def past_median_s(self, i: int) -> float | None:
        """Median wait of jobs like the ``i``-th that had started before it; ask in order."""
        for j in range(self._grouped, i):
            job = self.jobs[j]
            self._groups[job.partition, job.n_gpus].append(j)
        self._grouped = max(self._grouped, i)
        job = self.jobs[i]
        group = self._groups[job.partition, job.n_gpus][-2 * self._LAST :]
        waits = [
            self.start[j] - self.eligible[j] for j in group if self.start[j] <= self.eligible[i]
        ]
        return float(np.median(waits[-self._LAST :])) if waits else None


def _most_at_once(
    start: NDArray[np.float64], end: NDArray[np.float64], n: NDArray[np.int64]
) -> int:
    times = np.concatenate([start, end])
    change = np.concatenate([n, -n])
    # An end comes before a start of the same second.
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max(initial=0))


def replay(jobs: Iterable[JobWait], most: int = MOST_SAMPLES) -> list[ReplayedJob]:
    """Replay the history, at most ``most`` jobs of it evenly over time.

    Args:
        jobs: jobs that started, in any order; those without GPUs or times are passed over.
        most: jobs whose evidence is worked out.

    Returns:
        The jobs in the order in which they became eligible. The past of each is the median wait of
        earlier jobs of its partition and size.
    """
    pools: defaultdict[str, list[JobWait]] = defaultdict(list)
    for job in jobs:
        if job.n_gpus > 0 and 0 < job.eligible_s <= job.start_s <= job.end_s:
            pools[job.gpu or f"partition {job.partition}"].append(job)
    total = sum(len(pool) for pool in pools.values())
    found: list[ReplayedJob] = []
    for members in pools.values():
        pool = PoolHistory(members)
        step = max(1, round(total / most))
        begin = int(_WARM_UP * len(members))
        for i in range(begin, len(members), step):
            job = pool.jobs[i]
            now = pool.now(i)
            plan = plan_start(now, job.n_gpus, float(pool.limit[i]))
            evidence = WaitEvidence(
                planned_s=plan.behind_all_s,
                first_in_line_s=plan.first_in_line_s,
                past_s=pool.past_median_s(i),
                pending_ratio=now.pending_gpu_h / max(now.total, 1),
            )
            found.append(
                ReplayedJob(
                    job.eligible_s, job.partition, job.n_gpus, evidence,
                    float(job.start_s - job.eligible_s),
                )
            )  # fmt: skip
    return sorted(found, key=lambda r: r.eligible_s)


def learn_waits(jobs: Iterable[JobWait], most: int = MOST_SAMPLES) -> WaitModel | None:
    """Fit the blend to a history; None where it is too short.

    Jobs of its last days only fill the queue of those before them: what they met themselves is not
    known whole.
    """
    all_jobs = list(jobs)
    until_s = _whole_until_s(all_jobs)
    replayed = [job for job in replay(all_jobs, most) if job.eligible_s <= until_s]
    return fit_wait_model([r.evidence for r in replayed], [r.wait_s for r in replayed])


def _whole_until_s(jobs: Sequence[JobWait]) -> float:
    """Until when nearly everybody who was in the queue has ended, and so is in the history."""
    started = [j for j in jobs if 0 < j.eligible_s <= j.start_s <= j.end_s]
    if not started:
        return 0.0
    stays = [j.end_s - j.eligible_s for j in started]
    return max(j.end_s for j in started) - float(np.quantile(stays, _ENDED_FRAC))
