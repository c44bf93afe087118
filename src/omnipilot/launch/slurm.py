"""What a launch asks of Slurm: to take a script, and how its jobs are.

Each question is one call with a time-out; whether a job was ever submitted is asked by its name,
so that an answer that got lost does not start it twice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.collect.command import run_command
from omnipilot.collect.hostlist import expand_hosts
from omnipilot.collect.live_nodes import gres_gpus
from omnipilot.collect.slurm_values import FieldError, duration_s
from omnipilot.decide.cluster_gpus import name_gpus
from omnipilot.decide.placement import gres_of, lookalikes
from omnipilot.domain.cluster import ClusterNode, ClusterState, GpuCount
from omnipilot.domain.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from omnipilot.decide.cluster_gpus import GpuNaming

__all__ = ["ACTIVE_STATES", "Job", "Place", "jobs_named", "places_of", "queued_jobs", "submit"]

TIMEOUT_S: Final = 30.0
# States in which a job may still run; REQUEUED jobs run again.
ACTIVE_STATES: Final = frozenset((
    "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD",
    "SPECIAL_EXIT", "RESIZING", "STAGE_OUT", "SIGNALING", "STOPPED",
))  # fmt: skip
_JOB_ID: Final = re.compile(r"\d{1,18}")
_NAMES_A_CALL: Final = 400


class Job(NamedTuple):
    """One job: its number and its state in Slurm's words."""

    job_id: str
    state: str

    @property
    def is_active(self) -> bool:
        """Whether it may still run."""
        return self.state in ACTIVE_STATES


class Place(NamedTuple):
    """A partition that has a GPU kind.

    Args:
        gres_type: the type as --gres says it, "" where the nodes' GPUs have none.
        max_time_s: longest job, 0 where unlimited.
        others: nodes with other kinds that --gres does not tell apart.
    """

    partition: str
    gres_type: str
    max_time_s: int = 0
    others: tuple[str, ...] = ()

    def allows(self, seconds: float) -> bool:
        """Whether a job may be that long."""
        return not self.max_time_s or seconds <= self.max_time_s

    def gres(self, n_gpus: int) -> str:
        """What --gres says for so many GPUs."""
        return gres_of(self.gres_type, n_gpus)


def _ask(argv: Sequence[str], timeout_s: float) -> str:
    return run_command(argv, timeout_s=timeout_s).stdout.decode("utf-8", "replace")


def submit(script: Path, *, timeout_s: float = TIMEOUT_S) -> str:
    """Submit a script; the job's number.

    Raises:
        ToolError: sbatch is missing, refuses, or does not answer in time.
    """
    answer = _ask(["sbatch", "--parsable", str(script)], timeout_s)
    found = _JOB_ID.match(answer.strip())
    if not found:
        raise ToolError(f"sbatch answered '{answer.strip()[:80]}' and no job number")
    return found[0]


def queued_jobs(names: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> dict[str, Job]:
    """Find the latest job of each name that the controller knows; others are left out.

    Accounting is not asked: it calls jobs that the controller lost "RUNNING" for ever.

    Raises:
        ToolError: Slurm does not answer.
    """
    found: dict[str, Job] = {}
    for part in _parts(names):
        listed = ["squeue", "-h", "-t", "all", f"--name={','.join(part)}", "-o", "%A|%T|%j"]
        _take(found, set(part), _ask(listed, timeout_s))
    return found


def jobs_named(
    names: Sequence[str], *, since: str = "now-30days", timeout_s: float = TIMEOUT_S
) -> dict[str, Job]:
    """Find the latest job of each name, also long ended ones; names without one are left out.

    Raises:
        ToolError: Slurm does not answer.
    """
    found = queued_jobs(names, timeout_s=timeout_s)
    for part in _parts([name for name in names if name not in found]):
        ended = ["sacct", "-n", "-P", "-X", "-S", since, f"--name={','.join(part)}",
                 "--format=JobIDRaw,State,JobName"]  # fmt: skip
        try:
            _take(found, set(part), _ask(ended, timeout_s))
        except ToolError:
            # A site without accounting: what squeue has forgotten is then told by the run's folder.
            continue
    return found


def _parts(names: Sequence[str]) -> list[list[str]]:
    return [list(names[i : i + _NAMES_A_CALL]) for i in range(0, len(names), _NAMES_A_CALL)]


def _take(found: dict[str, Job], wanted: set[str], text: str) -> None:
    for line in text.splitlines():
        job_id, _, rest = line.partition("|")
        state, _, name = rest.partition("|")
        known = found.get(name)
        if name in wanted and _JOB_ID.fullmatch(job_id):
            # "CANCELLED by 1000" is CANCELLED.
            job = Job(job_id, state.split(" ")[0].rstrip("+"))
            if known is None or int(job_id) > int(known.job_id):
                found[name] = job


def places_of(
    naming: GpuNaming, kind: str, n_gpus: int, *, timeout_s: float = TIMEOUT_S
) -> list[Place]:
    """Find the partitions whose nodes hold ``n_gpus`` of a kind, in the order of sinfo.

    A type such as "h100" that several kinds share counts for each of them, unless the nodes'
    features tell which it is.

    Raises:
        ToolError: Slurm does not answer.
    """
    text = _ask(["sinfo", "-h", "-o", "%P|%a|%l|%G|%f|%N"], timeout_s)
    nodes: list[ClusterNode] = []
    limits_s: dict[str, int] = {}
    for line in dict.fromkeys(text.splitlines()):
        cells = line.split("|")
        if len(cells) != 6 or cells[1] != "up":
            continue
        partition = cells[0].rstrip("*")
        limits_s[partition] = _limit_s(cells[2])
        gpus = tuple(GpuCount(word, n) for word, n in gres_gpus(cells[3]).items())
        nodes += [
            ClusterNode(name, (), (partition,), gpus, features=tuple(cells[4].split(",")))
            for name in expand_hosts(cells[5])
        ]
    named = name_gpus(ClusterState(0.0, tuple(nodes)), naming)
    found = dict.fromkeys(
        (g.partitions[0], g.gpu) for g in named if g.total >= n_gpus and kind in g.kinds
    )
    return [
        Place(partition, word, limits_s[partition], lookalikes(nodes, named, kind, word, partition))
        for partition, word in found
    ]


def _limit_s(text: str) -> int:
    try:
        return duration_s(text, "TIMELIMIT") or 0
    except FieldError:
        return 0
