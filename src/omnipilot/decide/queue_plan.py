"""When a job would start if every job ran to its time limit: conservative backfill on one pool.

Each waiting job in its turn is given the earliest time at which its GPUs are free for as long as it
may run (Mu'alem and Feitelson 2001, IEEE TPDS 12:529, section 2). It is what ``sbatch --test-only``
plans, without knowing of nodes. Jobs end before their limits and others come first, so the plan is
evidence of the wait and not the wait itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["DEFAULT_LIMIT_S", "MOST_WAITING", "PlannedQueue", "PoolNow", "QueuePlan", "plan_start"]

DEFAULT_LIMIT_S: Final = 86_400.0  # of a job without a time limit
MOST_WAITING: Final = 200  # as bf_max_job_test bounds Slurm's own plan
_MANY: Final = 200  # jobs from which ends are rounded up to a grid, as Slurm's bf_resolution does
_GRID_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class PoolNow:
    """GPUs that jobs share, at one moment; times in seconds from then.

    Args:
        total: GPUs in service.
        free: of these, those that a job may have now.
        running: (seconds until the time limit, GPUs) of each job that holds some.
        waiting: (GPUs, time limit in seconds) of each job that waits, first in line first.
        scattered: which of those (by place in line) the free GPUs would do for and no node has
            them together: they start once a job has ended.
    """

    total: int
    free: int
    running: Sequence[tuple[float, int]]
    waiting: Sequence[tuple[int, float]] = ()
    scattered: frozenset[int] = frozenset()

    @property
    def pending_gpu_h(self) -> float:
        """GPU-hours that the jobs in line ask for."""
        return sum(n * limit_s for n, limit_s in self.waiting) / 3600.0


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Start of one more job: behind all that wait, and as if it were first in line; seconds.

    Infinite where nothing that is known frees the GPUs.
    """

    behind_all_s: float
    first_in_line_s: float


def plan_start(pool: PoolNow, n_gpus: int, limit_s: float) -> QueuePlan:
    """Plan the start of one more job.

    Args:
        pool: who runs and who waits.
        n_gpus: GPUs of the job.
        limit_s: its time limit.

    Returns:
        The starts; infinite where the pool has fewer GPUs.

    Example:
        >>> pool = PoolNow(total=8, free=0, running=[(600.0, 8)], waiting=[(8, 1200.0)])
        >>> plan_start(pool, 2, 300.0)
        QueuePlan(behind_all_s=1800.0, first_in_line_s=600.0)
    """
    return PlannedQueue(pool).start(n_gpus, limit_s)


class PlannedQueue:
    """The plan of one pool, to ask about several jobs.

    Args:
        pool: who runs and who waits.
    """

    def __init__(self, pool: PoolNow) -> None:
        running: Iterable[tuple[float, int]] = pool.running
        if len(pool.running) > _MANY:
            running = [(math.ceil(end_s / _GRID_S) * _GRID_S, n) for end_s, n in pool.running]
        self._total = pool.total
        self._running = _Profile(pool.free, running)
        self._all = self._running.copy()
        next_s = self._running.times[1] if len(self._running.times) > 1 else 0.0
        for place, (wanted, wanted_s) in enumerate(pool.waiting[:MOST_WAITING]):
            if wanted <= pool.total:
                from_s = next_s if place in pool.scattered else 0.0
                self._all.take(self._all.earliest(wanted, wanted_s, from_s), wanted, wanted_s)

    def start(self, n_gpus: int, limit_s: float) -> QueuePlan:
        """Plan the start of one more job; see :func:`plan_start`."""
        if n_gpus > self._total:
            return QueuePlan(float("inf"), float("inf"))
        return QueuePlan(
            self._all.earliest(n_gpus, limit_s), self._running.earliest(n_gpus, limit_s)
        )


class _Profile:
    """Free GPUs over time: ``free[i]`` from ``times[i]`` until ``times[i + 1]``, then for ever."""

    def __init__(self, free: int, running: Iterable[tuple[float, int]]) -> None:
        self.times = [0.0]
        self.free = [free]
        for end_s, n in sorted(running):
            at = max(end_s, 0.0)
            if at > self.times[-1]:
                self.times.append(at)
                self.free.append(self.free[-1] + n)
            else:
                self.free[-1] += n

    def copy(self) -> _Profile:
        """The same, to be changed apart."""
        other = _Profile(0, ())
        other.times, other.free = list(self.times), list(self.free)
        return other

    def earliest(self, n: int, length_s: float, from_s: float = 0.0) -> float:
        """First time from ``from_s`` on from which ``n`` GPUs stay free for ``length_s``."""
        times, free = self.times, self.free
        i = bisect_left(times, from_s)
        while i < len(times) - 1:
            end_s = times[i] + length_s
            j = i
            while j < len(times) and times[j] < end_s:
                if free[j] < n:
                    break
                j += 1
            else:
                return times[i]
            i = j + 1
        return times[-1] if free[-1] >= n else math.inf

    def take(self, start_s: float, n: int, length_s: float) -> None:
        """Hold ``n`` GPUs from ``start_s`` on."""
        if start_s == float("inf"):
            return
        first, last = self._split(start_s), self._split(start_s + length_s)
        for i in range(first, last):
            self.free[i] -= n

    def _split(self, at_s: float) -> int:
        i = bisect_left(self.times, at_s)
        if i == len(self.times) or self.times[i] != at_s:
            self.times.insert(i, at_s)
            self.free.insert(i, self.free[i - 1])
        return i
