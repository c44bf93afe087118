"""The cluster as it is now: nodes, partitions, reservations and what waits, no person named."""

from __future__ import annotations

import re
from typing import Final

from omnipilot.domain.frozen import dataclass

__all__ = [
    "ClusterNode", "ClusterState", "GpuCount", "Partition", "QueuedJob", "Reservation",
    "StartEstimate",
]  # fmt: skip

# States and flags of ``man sinfo``, "NODE STATE CODES", under which a node takes no new job.
_CLOSED: Final = {
    "DOWN": "down", "DRAIN": "drained", "DRAINED": "drained", "DRAINING": "draining",
    "ERROR": "down", "FAIL": "failing", "FAILING": "failing", "FUTURE": "not there yet",
    "INVAL": "registered wrongly", "INVALID": "registered wrongly",
    "INVALID_REG": "registered wrongly", "MAINT": "in maintenance",
    "MAINTENANCE": "in maintenance", "NO_RESPOND": "not responding",
    "NOT_RESPONDING": "not responding", "POWER_DOWN": "being switched off",
    "POWERING_DOWN": "being switched off", "REBOOT_ISSUED": "rebooting",
    "REBOOT_REQUESTED": "about to reboot", "RESERVED": "reserved", "UNKNOWN": "unknown",
}  # fmt: skip
_MIG: Final = re.compile(r"\dg\.\d+gb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuCount:
    """GPUs of one kind on a node; ``kind`` as the scheduler names it, "" where it does not."""

    kind: str
    total: int
    used: int = 0

    @property
    def free(self) -> int:
        """GPUs that no job holds."""
        return max(self.total - self.used, 0)

    @property
    def is_mig(self) -> bool:
        """Whether these are MIG slices, by their name."""
        return _MIG.search(self.kind) is not None


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One node.

    Args:
        states: base state and flags in capitals, base first: ``("MIXED", "DRAIN")``.
        gpus: one entry a GPU kind.
        reason: why an administrator closed it, "" for none.
        features: words that the site gave it, such as ``hbm80``.
    """

    name: str
    states: tuple[str, ...]
    partitions: tuple[str, ...]
    gpus: tuple[GpuCount, ...] = ()
    reason: str = ""
    features: tuple[str, ...] = ()

    @property
    def closed(self) -> str:
        """Why it takes no new job, in a word or two; "" where it does."""
        return next((_CLOSED[state] for state in self.states if state in _CLOSED), "")


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition; ``max_time_s`` is 0 where unlimited.

    ``priority_tier``: jobs of a higher tier go first and, where the site preempts, push out others.
    """

    name: str
    is_up: bool = True
    is_default: bool = False
    max_time_s: int = 0
    priority_tier: int = 1
    preempts: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes set aside from ``start_s`` to ``end_s`` (Unix seconds)."""

    name: str
    start_s: int
    end_s: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job with GPUs that runs or waits; ``gpu`` as the scheduler names it, "" where untyped.

    Args:
        running: it holds its GPUs; else it waits for them.
        n_tasks: array tasks that this entry stands for.
        start_s: when it started, or when the scheduler plans to start it; 0 where not told.
        end_s: when its time limit ends it, if it runs; 0 where not told.
        time_limit_s: 0 where unlimited or not told.
        competes: it waits for resources or its turn; False where it is held, waits for another
            job or for a limit of its owner, and so holds no place in the queue.
    """

    partitions: tuple[str, ...]
    gpu: str
    n_gpus: int
    running: bool
    n_nodes: int = 1
    n_tasks: int = 1
    submit_s: int = 0
    start_s: int = 0
    end_s: int = 0
    time_limit_s: int = 0
    priority: int = 0
    competes: bool = True


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """What ``sbatch --test-only`` says of one request.

    ``start_s`` is None where Slurm refuses it, with the ``refusal`` in its words.
    """

    partition: str
    gpu: str
    n_gpus: int
    start_s: float | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster at one moment.

    Args:
        taken_s: when it was read, Unix seconds.
        origin: "slurm", "cache" or "file".
        version: of Slurm, "" where not told.
        notes: what could not be read, in sentences.
    """

    taken_s: float
    nodes: tuple[ClusterNode, ...]
    partitions: tuple[Partition, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    jobs: tuple[QueuedJob, ...] = ()
    origin: str = "slurm"
    version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> dict[str, tuple[int, int]]:
        """(free, total) GPUs by the scheduler's kind; closed nodes have none free."""
        counts: dict[str, tuple[int, int]] = {}
        for node in self.nodes:
            for gpu in node.gpus:
                free, total = counts.get(gpu.kind, (0, 0))
                counts[gpu.kind] = (free + (0 if node.closed else gpu.free), total + gpu.total)
        return counts

    @property
    def pending_gpus(self) -> int:
        """GPUs that jobs with a place in the queue wait for."""
        return sum(j.n_gpus * j.n_tasks for j in self.jobs if not j.running and j.competes)
