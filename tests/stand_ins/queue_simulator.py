"""A simulated queue with backfill, for back-tests of wait estimates; nothing here is a measurement.

Nodes of equal GPUs, jobs that end before their limits, priorities that age and differ by user, and
EASY backfill (Lifka 1995): the first job in line is promised a node, later ones start where they do
not delay it. ``test_only`` plans as Slurm's ``sbatch --test-only`` does: everybody runs to the
limit, and whoever has more priority now goes first.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

DAY_S = 86_400.0
_LIMITS_H = (1.0, 2.0, 4.0, 8.0, 12.0, 24.0, 48.0, 72.0)
EPOCH_S = 1_700_000_000.0


@dataclass(slots=True)
class SimJob:
    """One job; it has what a harvested job has (whole seconds)."""

    n_gpus: int
    eligible_s: int
    runtime_s: float
    limit_s: float
    user_priority: float
    start_s: int = -1
    end_s: int = -1
    node: int = -1
    test_only_s: float | None = None
    gpu: str = "h100"
    partition: str = "gpu_h100"

    @property
    def time_limit_s(self) -> int:
        return int(self.limit_s)

    def priority(self, now_s: float) -> float:
        return self.user_priority + min((now_s - self.eligible_s) / (3 * DAY_S), 1.0)


@dataclass(slots=True)
class SimQueue:
    """State of the simulation."""

    n_nodes: int
    gpus_per_node: int
    free: list[int] = field(default_factory=list)
    running: list[SimJob] = field(default_factory=list)
    waiting: list[SimJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [self.gpus_per_node] * self.n_nodes

    def start_what_fits(self, now_s: float) -> list[SimJob]:
        """One pass of the scheduler."""
        started: list[SimJob] = []
        held_node, shadow_s = -1, math.inf
        for job in sorted(self.waiting, key=lambda j: -j.priority(now_s)):
            fits = [
                node
                for node in range(self.n_nodes)
                if self.free[node] >= job.n_gpus
                and (node != held_node or now_s + job.limit_s <= shadow_s)
            ]
            if fits:
                node = min(fits, key=lambda i: self.free[i])
                job.node, job.start_s = node, math.ceil(now_s)
                job.end_s = math.ceil(now_s + job.runtime_s)
                self.free[node] -= job.n_gpus
                started.append(job)
            elif held_node < 0:
                held_node, shadow_s = self._promise(job, now_s, started)
        for job in started:
            self.waiting.remove(job)
            self.running.append(job)
        return started

    def _promise(self, job: SimJob, now_s: float, started: list[SimJob]) -> tuple[int, float]:
        best = (-1, math.inf)
        for node in range(self.n_nodes):
            there = [j for j in (*self.running, *started) if j.node == node]
            free = self.free[node]
            for other in sorted(there, key=lambda j: j.start_s + j.limit_s):
                if free >= job.n_gpus:
                    break
                free += other.n_gpus
                at_s = max(other.start_s + other.limit_s, now_s)
                if free >= job.n_gpus and at_s < best[1]:
                    best = (node, at_s)
        return best

    def test_only(self, job: SimJob, now_s: float) -> float:
        """Seconds until the start that a plan gives."""
        nodes = [
            _NodePlan(
                self.free[node],
                [(j.start_s + j.limit_s - now_s, j.n_gpus) for j in self.running if j.node == node],
            )
            for node in range(self.n_nodes)
        ]
        mine = job.priority(now_s)
        ahead = sorted(
            (j for j in self.waiting if j is not job and j.priority(now_s) >= mine),
            key=lambda j: -j.priority(now_s),
        )
        for other in ahead[:100]:
            at_s, node = min(
                (p.earliest(other.n_gpus, other.limit_s), i) for i, p in enumerate(nodes)
            )
            nodes[node].take(at_s, other.n_gpus, other.limit_s)
        return min(p.earliest(job.n_gpus, job.limit_s) for p in nodes)


class _NodePlan:
    """Free GPUs of one node over time, by events."""

    def __init__(self, free: int, running: list[tuple[float, int]]) -> None:
        self.events = sorted([(0.0, free), *((max(t, 1.0), n) for t, n in running)])

    def earliest(self, n: int, length_s: float) -> float:
        for at_s in sorted({t for t, _ in self.events}):
            level = sum(c for t, c in self.events if t <= at_s)
            lowest = level
            for t, change in self.events:
                if at_s < t < at_s + length_s:
                    level += change
                    lowest = min(lowest, level)
            if lowest >= n:
                return at_s
        return math.inf

    def take(self, at_s: float, n: int, length_s: float) -> None:
        if math.isfinite(at_s):
            self.events = sorted([*self.events, (at_s, -n), (at_s + length_s, n)])


def simulate_queue(
    *,
    days: float,
    n_nodes: int = 8,
    gpus_per_node: int = 4,
    load: float = 0.9,
    seed: int = 0,
    test_only_from: float = 0.7,
    n_test_only: int = 150,
) -> list[SimJob]:
    """Simulate a queue; some jobs late in it carry what ``--test-only`` said at their submission.

    Args:
        days: length.
        n_nodes: nodes.
        gpus_per_node: GPUs of each.
        load: GPU-hours asked for over GPU-hours there.
        seed: of the random numbers.
        test_only_from: share of the time after which jobs are asked about.
        n_test_only: about how many of them.

    Returns:
        The jobs that ended, by eligible time.
    """
    rng = np.random.default_rng(seed)
    jobs = _demand(rng, days, n_nodes * gpus_per_node, load, gpus_per_node)
    queue = SimQueue(n_nodes, gpus_per_node)
    late = [i for i, j in enumerate(jobs) if j.eligible_s - EPOCH_S > test_only_from * days * DAY_S]
    asked = set(rng.choice(late, size=min(n_test_only, len(late)), replace=False).tolist())
    ends: list[tuple[float, int, SimJob]] = []
    at, done = 0, []
    while at < len(jobs) or ends:
        next_end = ends[0][0] if ends else math.inf
        if at < len(jobs) and jobs[at].eligible_s <= next_end:
            job = jobs[at]
            now_s = float(job.eligible_s)
            queue.waiting.append(job)
            if at in asked:
                job.test_only_s = queue.test_only(job, now_s)
            at += 1
        else:
            now_s, _, job = heapq.heappop(ends)
            queue.running.remove(job)
            queue.free[job.node] += job.n_gpus
            done.append(job)
        for started in queue.start_what_fits(now_s):
            heapq.heappush(ends, (float(started.end_s), id(started), started))
    return sorted(done, key=lambda j: j.eligible_s)


def _demand(
    rng: np.random.Generator, days: float, n_gpus: int, load: float, largest: int
) -> list[SimJob]:
    sizes = [n for n in (1, 2, 4, 8) if n <= largest]
    shares = np.array([0.6, 0.2, 0.15, 0.05][: len(sizes)])
    shares /= shares.sum()
    mean_runtime_s = 3.0 * 3600.0
    mean_size = float(np.dot(sizes, shares))
    rate = load * n_gpus / (mean_size * mean_runtime_s)
    times: list[float] = []
    t = 0.0
    while t < days * DAY_S:
        t += rng.exponential(1.0 / (1.8 * rate))
        # By day more is submitted than by night, and little at the weekend.
        hour, day = (t / 3600.0) % 24.0, int(t / DAY_S) % 7
        weight = (0.55 + 0.45 * math.sin((hour - 9.0) / 24.0 * 2 * math.pi)) * (
            0.6 if day > 4 else 1.15
        )
        if rng.random() < weight / 1.15:
            times.append(t)
    users = rng.normal(0.0, 0.25, size=30)
    jobs = []
    for t in times:
        runtime = float(np.clip(rng.lognormal(math.log(mean_runtime_s) - 0.98, 1.4), 60, 72 * 3600))
        asked = runtime * rng.uniform(1.1, 6.0) / 3600.0
        limit = 3600.0 * next((h for h in _LIMITS_H if h >= asked), _LIMITS_H[-1])
        user = int(rng.integers(len(users)))
        users[user] += rng.normal(0.0, 0.02) - 0.05 * users[user]
        jobs.append(
            SimJob(
                n_gpus=int(rng.choice(sizes, p=shares)),
                eligible_s=int(EPOCH_S + t),
                runtime_s=min(runtime, limit),
                limit_s=limit,
                user_priority=float(users[user]),
            )
        )
    return jobs
