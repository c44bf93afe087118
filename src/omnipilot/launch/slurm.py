"""What a launch asks of Slurm: to take a script, and how its jobs are.

Each question is one call with a time-out; whether a job was ever submitted is asked by its name,
so that an answer that got lost does not start it twice.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.collect.command import run_command
from omnipilot.domain.errors import AmbiguousNameError, ToolError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from omnipilot.catalog import Catalog

__all__ = ["ACTIVE_STATES", "Job", "Place", "jobs_named", "places_of", "queued_jobs", "submit"]

TIMEOUT_S: Final = 30.0
# States in which a job may still run; REQUEUED jobs run again.
ACTIVE_STATES: Final = frozenset((
    "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD",
    "SPECIAL_EXIT", "RESIZING", "STAGE_OUT", "SIGNALING", "STOPPED",
))  # fmt: skip
_JOB_ID: Final = re.compile(r"\d{1,18}")
_GRES: Final = re.compile(r"gpu:([^:,()]+):(\d+)")
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
    """A partition that has a GPU kind: its name, the type as --gres says it, GPUs of a node."""

    partition: str
    gres_type: str
    gpus_per_node: int


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
    catalog: Catalog, kind: str, n_gpus: int, *, timeout_s: float = TIMEOUT_S
) -> list[Place]:
    """Find the partitions whose nodes hold ``n_gpus`` of a kind, in the order of sinfo.

    A type such as "h100" that several kinds share counts for each of them.

    Raises:
        ToolError: Slurm does not answer.
    """
    text = _ask(["sinfo", "-h", "-o", "%P|%a|%G"], timeout_s)
    places: list[Place] = []
    for line in dict.fromkeys(text.splitlines()):
        partition, _, rest = line.partition("|")
        available, _, gres = rest.partition("|")
        if available != "up":
            continue
        for word, count in _GRES.findall(gres):
            if int(count) >= n_gpus and kind in _kinds(catalog, word):
                places.append(Place(partition.rstrip("*"), word, int(count)))
    return places


def _kinds(catalog: Catalog, word: str) -> Iterable[str]:
    try:
        return (catalog.gpu(word).kind,)
    except AmbiguousNameError as error:
        return error.candidates
    except UnknownNameError:
        return ()
