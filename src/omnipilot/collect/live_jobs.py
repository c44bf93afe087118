"""Jobs with GPUs that run or wait, as ``squeue`` prints them, without the names of people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from omnipilot.collect.lines import printable
from omnipilot.collect.slurm_numbers import Number, number_or
from omnipilot.collect.slurm_values import FieldError, array_tasks, duration_s, gpus_of_tres
from omnipilot.domain.cluster import QueuedJob
from omnipilot.domain.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SQUEUE_FORMAT", "read_jobs_json", "read_jobs_text"]

_RUNNING: Final = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "RESIZING"})
# Reasons of ``man squeue``, "JOB REASON CODES", with which a job has a place in the queue. Others
# (held, a dependency, a limit of its owner) keep it out of the way.
_COMPETING: Final = ("None", "Priority", "Resources", "ReqNodeNotAvail", "Nodes required", "Prolog")

# Columns of ``squeue -O`` for versions without JSON, and their widths in bytes.
_COLUMNS: Final = (
    ("Partition", 256), ("State", 24), ("Reason", 64), ("NumNodes", 12), ("StartTime", 24),
    ("EndTime", 24), ("SubmitTime", 24), ("TimeLimit", 24), ("PriorityLong", 24),
    ("JobArrayID", 256), ("tres-alloc", 512),
)  # fmt: skip
_STATE: Final = re.compile(r"[A-Z_]{2,24}", re.ASCII)
SQUEUE_FORMAT: Final = ",".join(f"{name}:{width}" for name, width in _COLUMNS)

_Words = str | list[str] | None


class _Job(msgspec.Struct):
    job_state: _Words = None
    partition: str | None = ""
    tres_req_str: str | None = ""
    tres_alloc_str: str | None = ""
    node_count: Number = 1
    submit_time: Number = 0
    start_time: Number = 0
    end_time: Number = 0
    time_limit: Number = 0
    priority: Number = 0
    array_task_string: str | None = ""
    state_reason: str | None = ""


class _Answer(msgspec.Struct):
    jobs: list[_Job]


_decoder = msgspec.json.Decoder(_Answer)


def read_jobs_json(data: bytes) -> tuple[QueuedJob, ...]:
    """Read the JSON of ``squeue --json``.

    Raises:
        ToolError: it is not JSON, or of another shape.
    """
    try:
        answer = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ToolError(f"squeue's JSON cannot be read: {printable(str(error), 120)}") from error
    if any(not job.job_state for job in answer.jobs):
        raise ToolError("squeue's JSON cannot be read: a job without a state")
    return tuple(job for raw in answer.jobs if (job := _job(raw)) is not None)


def _job(raw: _Job) -> QueuedJob | None:
    words = [raw.job_state] if isinstance(raw.job_state, str) else list(raw.job_state or ())
    return _queued(
        states=words,
        partitions=raw.partition or "",
        # A running job holds what was allocated, which names the kind of an untyped request.
        tres=raw.tres_alloc_str or raw.tres_req_str or "",
        reason=raw.state_reason or "",
        tasks=raw.array_task_string or "",
        n_nodes=number_or(raw.node_count, 1),
        submit_s=number_or(raw.submit_time),
        start_s=number_or(raw.start_time),
        end_s=number_or(raw.end_time),
        time_limit_s=60 * number_or(raw.time_limit),
        priority=number_or(raw.priority),
    )


def read_jobs_text(data: bytes) -> tuple[QueuedJob, ...]:
    """Read ``squeue -h -a -O`` with :data:`SQUEUE_FORMAT`, times in seconds.

    Raises:
        ToolError: a line is not one of that format.
    """
    lines = [line for line in data.splitlines() if line.strip()]
    return tuple(job for line in lines if (job := _line(line)) is not None)


def _line(line: bytes) -> QueuedJob | None:
    cells = dict(zip((name for name, _ in _COLUMNS), _cells(line), strict=True))
    if not _STATE.fullmatch(cells["State"]):
        said = printable(line.decode("utf-8", "replace").strip(), 120)
        raise ToolError(f"squeue's text cannot be read: {said}")
    try:
        limit_s = duration_s(cells["TimeLimit"], "TimeLimit") or 0
    except FieldError:
        limit_s = 0
    _, bracket, tasks = cells["JobArrayID"].partition("_[")
    return _queued(
        states=[cells["State"]],
        partitions=cells["Partition"],
        tres=cells["tres-alloc"],
        reason=cells["Reason"],
        tasks=tasks.rstrip("]") if bracket else "",
        n_nodes=number_or(cells["NumNodes"], 1),
        submit_s=number_or(cells["SubmitTime"]),
        start_s=number_or(cells["StartTime"]),
        end_s=number_or(cells["EndTime"]),
        time_limit_s=limit_s,
        priority=number_or(cells["PriorityLong"]),
    )


def _cells(line: bytes) -> Iterator[str]:
    at = 0
    for _, width in _COLUMNS:
        yield line[at : at + width].decode("utf-8", "replace").strip()
        at += width


def _queued(
    *,
    states: list[str],
    partitions: str,
    tres: str,
    reason: str,
    tasks: str,
    n_nodes: int,
    submit_s: int,
    start_s: int,
    end_s: int,
    time_limit_s: int,
    priority: int,
) -> QueuedJob | None:
    """One job with GPUs that runs or waits; None for any other."""
    running = any(state in _RUNNING for state in states)
    if not running and "PENDING" not in states:
        return None
    try:
        gpus = gpus_of_tres(tres)
        n_tasks = array_tasks(tasks) if tasks and not running else 1
    except FieldError:
        return None
    if not gpus.n:
        return None
    return QueuedJob(
        partitions=tuple(p for p in partitions.split(",") if p),
        gpu=gpus.kind,
        n_gpus=gpus.n,
        running=running,
        n_nodes=max(n_nodes, 1),
        n_tasks=max(n_tasks, 1),
        submit_s=submit_s,
        start_s=start_s,
        end_s=end_s if running else 0,
        time_limit_s=time_limit_s,
        priority=priority,
        competes=running or not reason or reason.startswith(_COMPETING),
    )
