"""One record of Slurm's accounting, whatever it was printed as, checked and made a row.

What names people or places (user, account, job name, working folder, comments, nodes) is hashed,
reduced to a class or never read; nothing else of it reaches the row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from omnipilot.collect.jobstats import NO_STATISTICS, Statistics
from omnipilot.collect.slurm_values import NO_GPUS, FieldError, Gpus, JobState, job_class
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.rows import ClusterJob

if TYPE_CHECKING:
    from omnipilot.collect.identity import SiteKey

__all__ = ["SOURCE", "JobRecord", "are_gpus_of_one_job", "is_name", "is_place", "row_of"]

SOURCE: Final = "sacct"
# Clusters and partitions: what slurm.conf allows, with the list of a job that may run in several.
_PLACE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+-]{0,254}", re.ASCII)
_CLOCK_SLACK_S: Final = 1
# Times printed without an offset shift by an hour where daylight saving begins or ends.
_LOCAL_SLACK_S: Final = 3600 + _CLOCK_SLACK_S
_DAMAGED: Final = "\ufffd"
# Where the end of a short job reaches slurmdbd before its start does, its record has this name, no
# partition and no time limit until the start comes; every other job has a partition.
_NAMELESS: Final = "allocation"
_NO_STACK: Final = StackFingerprint()  # accounting does not tell it


class JobRecord(msgspec.Struct, gc=False):
    """The fields of one record, converted; see :class:`omnipilot.domain.ClusterJob` for units.

    ``elapsed_s`` is None where not told, ``allocated`` also where nothing was allocated;
    ``local_times`` says that times had no offset.
    """

    job_id: str
    state: JobState
    submit_s: int
    eligible_s: int
    start_s: int
    end_s: int
    elapsed_s: int | None = None
    raw_job_id: int = 0
    n_tasks: int = 1
    allocated: Gpus | None = None
    requested: Gpus = NO_GPUS
    cluster: str = ""
    partition: str = ""
    user: str = ""
    account: str = ""
    name: str = ""
    exit_code: int = -1
    exit_signal: int = -1
    restarts: int = -1
    time_limit_s: int = 0
    n_nodes: int = 0
    n_cpus: int = 0
    statistics: Statistics = NO_STATISTICS
    local_times: bool = False


def row_of(record: JobRecord, key: SiteKey | None) -> ClusterJob:
    """Make a row of a record.

    Args:
        record: what was read.
        key: the site's key; without it users and accounts are left out.

    Raises:
        FieldError: the job has not ended, or is not recorded whole yet, or its fields contradict
            one another.
    """
    if not record.state.ended:
        raise FieldError("not ended", "the job has not ended yet: collect it again when it has")
    if record.name == _NAMELESS and not record.partition:
        raise FieldError(
            "not recorded whole",
            "the accounting has the job's end and not its start yet: collect it again later",
        )
    _check_times(record)
    _check_twice_told(record)
    _check_names(record)
    state = record.state
    gpus = record.requested if record.allocated is None else record.allocated
    statistics = record.statistics
    return ClusterJob(
        source=SOURCE,
        cluster=record.cluster,
        job_id=record.job_id,
        state=state.name,
        gpu=gpus.kind,
        n_gpus=gpus.n,
        raw_job_id=record.raw_job_id,
        n_tasks=record.n_tasks,
        partition=record.partition,
        user_hash=key.hashed("user", record.user) if key else "",
        account_hash=key.hashed("account", record.account) if key else "",
        job_class=job_class(record.name),
        ended_by=state.ended_by,
        exit_code=record.exit_code,
        exit_signal=record.exit_signal,
        restarts=record.restarts,
        submit_s=record.submit_s,
        eligible_s=record.eligible_s,
        start_s=record.start_s,
        end_s=record.end_s,
        elapsed_s=_elapsed_s(record),
        time_limit_s=record.time_limit_s,
        n_nodes=record.n_nodes,
        n_cpus=record.n_cpus,
        jobstats=statistics.status,
        gpu_utilization_frac=statistics.gpu_utilization_frac,
        gpu_memory_used_gib=statistics.gpu_memory_used_gib,
        gpu_memory_total_gib=statistics.gpu_memory_total_gib,
        stack=_NO_STACK,
    )


def is_place(name: str) -> bool:
    """Tell a name of a cluster or partition, or none, from anything else."""
    return not name or _PLACE.fullmatch(name) is not None


def is_name(name: str) -> bool:
    """Tell a name of a user or account that was printed whole."""
    return _DAMAGED not in name


def are_gpus_of_one_job(requested: Gpus, allocated: Gpus | None) -> bool:
    """Tell whether GPUs allocated (None: nothing was) can be what was requested."""
    if allocated is None or requested == allocated:
        return True
    if requested.n and not allocated.n:
        return False
    return not requested.kind or set(requested.kind.split("+")) <= set(allocated.kind.split("+"))


def _check_names(record: JobRecord) -> None:
    for column, place in (("Cluster", record.cluster), ("Partition", record.partition)):
        if not is_place(place):
            raise FieldError(f"{column} unreadable", f"{column} is no name that Slurm allows")
    for column, name in (("User", record.user), ("Account", record.account)):
        if not is_name(name):
            raise FieldError("not UTF-8", f"{column} is not UTF-8 text")


def _check_times(record: JobRecord) -> None:
    if not record.submit_s:
        raise FieldError("Submit blank", "the job has no time of submission")
    if not record.end_s:
        raise FieldError("End blank", "the job has ended and has no end time")
    slack_s = _LOCAL_SLACK_S if record.local_times else _CLOCK_SLACK_S
    elapsed_s = record.elapsed_s
    if record.start_s and record.end_s < record.start_s:
        # Where local clocks went back meanwhile, the time that it ran tells so.
        back_s = slack_s - _CLOCK_SLACK_S
        ran_s = record.end_s - record.start_s + back_s
        if not back_s or elapsed_s is None or not 0 <= ran_s - elapsed_s <= _CLOCK_SLACK_S:
            raise FieldError("times contradictory", "the job ended before it started")
    if elapsed_s is None:
        return
    # Suspended time is not counted as elapsed, so only too much of it is wrong.
    most_s = record.end_s - record.start_s if record.start_s else 0
    if elapsed_s > most_s + slack_s:
        raise FieldError("times contradictory", "the job ran longer than from start to end")


def _check_twice_told(record: JobRecord) -> None:
    """Compare what two fields tell; half of one record joined to half of another differs here."""
    raw = record.raw_job_id
    if raw and record.job_id.isdigit() and int(record.job_id) != raw:
        raise FieldError("JobID contradictory", "JobID and JobIDRaw are of different jobs")
    if not are_gpus_of_one_job(record.requested, record.allocated):
        raise FieldError("TRES contradictory", "the GPUs allocated are not those requested")


def _elapsed_s(record: JobRecord) -> int:
    if record.elapsed_s is not None:
        return record.elapsed_s
    return max(record.end_s - record.start_s, 0) if record.start_s else 0
