"""A small cluster: nodes of one GPU kind a pool, first come first served, with backfill.

Each job takes GPUs of one node. Where the first in line fits nowhere, the node that is freest is
held for it and jobs behind it may start on the others; so nobody is passed over for ever. Nodes are
drained now and then, at once (their jobs die) or when their jobs have ended.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Drain", "Pool", "Requests", "Schedule", "schedule"]

_BACKFILL_DEPTH: Final = 12
_INFINITE_S: Final = float("inf")


class Pool(NamedTuple):
    """The nodes of one GPU kind, by the name that the scheduler gives it."""

    gpu: str
    partition: str
    n_nodes: int
    gpus_per_node: int


class Drain(NamedTuple):
    """A node out of service from ``start_s`` to ``end_s``; ``kills`` ends its jobs at once."""

    pool: int
    node: int
    start_s: float
    end_s: float
    kills: bool


@dataclass(frozen=True, slots=True)
class Requests:
    """Jobs as they are submitted, all arrays (n_jobs,).

    Args:
        pool: index of the pool that each job asks for.
        n_gpus: GPUs, at most those of one node.
        submit_s: time of submission, Unix seconds, ascending.
        runtime_s: seconds that it would run undisturbed.
        cancel_s: time at which its user gives up if it has not started, infinite for never.
    """

    pool: NDArray[np.int64]
    n_gpus: NDArray[np.int64]
    submit_s: NDArray[np.float64]
    runtime_s: NDArray[np.float64]
    cancel_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What became of the jobs, all arrays (n_jobs,).

    ``start_s`` is NaN for a job that was cancelled while it waited; ``end_s`` is then the time of
    that. ``node`` is -1 there. ``killed`` marks jobs that died with their node.
    """

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    node: NDArray[np.int64]
    killed: NDArray[np.bool_]


def schedule(pools: Sequence[Pool], requests: Requests, drains: Sequence[Drain]) -> Schedule:
    """Run all jobs through the queue.

    Args:
        pools: the cluster.
        requests: jobs in the order of their submission.
        drains: nodes out of service.

    Returns:
        Start, end and node of every job.

    Raises:
        BadInputError: a job that no node of its pool can hold, or jobs out of order.
    """
    n = len(requests.submit_s)
    if n and bool(np.any(np.diff(requests.submit_s) < 0)):
        raise BadInputError("jobs must be in the order of their submission")
    start_s = np.full(n, np.nan)
    end_s = np.zeros(n)
    node = np.full(n, -1, dtype=np.int64)
    killed = np.zeros(n, dtype=np.bool_)
    for index, pool in enumerate(pools):
        of_pool = np.flatnonzero(requests.pool == index)
        sizes = requests.n_gpus[of_pool]
        if len(sizes) and not 1 <= int(sizes.min()) <= int(sizes.max()) <= pool.gpus_per_node:
            raise BadInputError(
                f"jobs of pool {pool.gpu} must ask for 1 to {pool.gpus_per_node} GPUs"
            )
        run = _PoolRun(
            pool,
            sizes.tolist(),
            requests.submit_s[of_pool].tolist(),
            requests.runtime_s[of_pool].tolist(),
            requests.cancel_s[of_pool].tolist(),
            sorted((d for d in drains if d.pool == index), key=lambda d: (d.start_s, d.node)),
        )
        run.go()
        start_s[of_pool], end_s[of_pool] = run.start_s, run.end_s
        node[of_pool], killed[of_pool] = run.node, run.killed
    return Schedule(start_s, end_s, node, killed)


class _PoolRun:
    """The event loop of one pool. Nodes stand in buckets by the number of their free GPUs."""

    def __init__(
        self,
        pool: Pool,
        sizes: list[int],
        submit_s: list[float],
        runtime_s: list[float],
        cancel_s: list[float],
        drains: list[Drain],
    ) -> None:
        n = len(sizes)
        self.width = pool.gpus_per_node
        self.sizes, self.submit_s, self.runtime_s = sizes, submit_s, runtime_s
        self.cancel_s, self.drains = cancel_s, drains
        self.start_s, self.end_s = [float("nan")] * n, [0.0] * n
        self.node, self.killed = [-1] * n, [False] * n
        self.free = [self.width] * pool.n_nodes
        self.closed = [0] * pool.n_nodes
        # Dictionaries keep their order, which sets do not promise.
        self.buckets: list[dict[int, None]] = [{} for _ in range(self.width + 1)]
        self.buckets[self.width] = dict.fromkeys(range(pool.n_nodes))
        self.queue: deque[int] = deque()
        self.ends: list[tuple[float, int]] = []
        self.held = -1

    def go(self) -> None:
        """Take events in the order of time: ends first, then drains, then submissions."""
        n, at, drain_at = len(self.sizes), 0, 0
        reopen: list[tuple[float, int]] = []
        while at < n or self.ends or self.queue:
            end_s = self.ends[0][0] if self.ends else _INFINITE_S
            next_s = self.submit_s[at] if at < n else _INFINITE_S
            drain_s = self.drains[drain_at].start_s if drain_at < len(self.drains) else _INFINITE_S
            open_s = reopen[0][0] if reopen else _INFINITE_S
            now_s = min(end_s, next_s, drain_s, open_s)
            if now_s == end_s:
                time_s, job = heapq.heappop(self.ends)
                if self.end_s[job] != time_s or self.killed[job]:
                    continue  # died with its node before
                self._release(self.node[job], self.sizes[job])
            elif now_s == open_s:
                _, node = heapq.heappop(reopen)
                self.closed[node] -= 1
                if not self.closed[node]:
                    self.buckets[self.free[node]][node] = None
            elif now_s == drain_s:
                drain = self.drains[drain_at]
                drain_at += 1
                self._close(drain)
                heapq.heappush(reopen, (drain.end_s, drain.node))
            else:
                job, at = at, at + 1
                if self.queue:
                    near = len(self.queue) < _BACKFILL_DEPTH
                    if not (near and self._place(job, now_s, behind=True)):
                        self.queue.append(job)
                    continue  # nothing has become free for those before it
                if not self._place(job, now_s):
                    self.queue.append(job)
            if self.queue:
                self._serve_queue(now_s)

    def _serve_queue(self, now_s: float) -> None:
        queue = self.queue
        while queue:
            if self.cancel_s[queue[0]] <= now_s:
                self._give_up(queue.popleft())
            elif self._place(queue[0], now_s):
                queue.popleft()
            else:
                break
        if not queue:
            self.held = -1
            return
        self.held = self._freest()
        offset, too_large = 1, self.width + 1
        while offset < min(len(queue), _BACKFILL_DEPTH):
            job = queue[offset]
            if self.cancel_s[job] <= now_s:
                self._give_up(job)
                del queue[offset]
                continue
            if self.sizes[job] < too_large and self._place(job, now_s, behind=True):
                del queue[offset]
                continue
            too_large = min(too_large, self.sizes[job])
            if too_large == 1:
                break
            offset += 1

    def _place(self, job: int, now_s: float, *, behind: bool = False) -> bool:
        """Start a job on the fullest node that still holds it."""
        size = self.sizes[job]
        for free in range(size, self.width + 1):
            for node in self.buckets[free]:
                if behind and node == self.held:
                    continue
                del self.buckets[free][node]
                self.free[node] = free - size
                self.buckets[free - size][node] = None
                self.node[job], self.start_s[job] = node, now_s
                self.end_s[job] = now_s + self.runtime_s[job]
                heapq.heappush(self.ends, (self.end_s[job], job))
                return True
        return False

    def _freest(self) -> int:
        for free in range(self.width, 0, -1):
            if self.held in self.buckets[free]:
                return self.held
            for node in self.buckets[free]:
                return node
        return -1

    def _give_up(self, job: int) -> None:
        self.end_s[job] = self.cancel_s[job]

    def _release(self, node: int, size: int) -> None:
        free = self.free[node]
        self.free[node] = free + size
        if not self.closed[node]:
            del self.buckets[free][node]
            self.buckets[free + size][node] = None

    def _close(self, drain: Drain) -> None:
        node = drain.node
        if not self.closed[node]:
            del self.buckets[self.free[node]][node]
        self.closed[node] += 1
        if drain.kills:
            for time_s, job in self.ends:
                if self.node[job] == node and self.end_s[job] == time_s and not self.killed[job]:
                    self.killed[job] = True
                    self.end_s[job] = drain.start_s
                    self.free[node] += self.sizes[job]
