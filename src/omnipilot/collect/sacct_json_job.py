"""One job of ``sacct --json``, by its shape.

Shapes differ between versions: a number may stand alone (22.05) or in ``{set, infinite, number}``
(24.11), a state may be a text or a list, a count may be missing. Unknown members are passed over,
so paths, scripts, comments and the command line are never decoded.
"""

from __future__ import annotations

from typing import Final

import msgspec

from omnipilot.collect.jobstats import read_statistics
from omnipilot.collect.sacct_row import JobRecord
from omnipilot.collect.slurm_values import (
    MOST_COUNT,
    NO_GPUS,
    FieldError,
    Gpus,
    JobState,
    checked_duration_s,
    checked_time_s,
    gpus_of_counts,
    gpus_of_tres,
    job_number,
    named_state,
)

__all__ = ["read_job"]

_NO_VALUE: Final = 0xFFFFFFFE  # NO_VAL of slurm.h; INFINITE is one more
_MINUTE_S: Final = 60
# Slurm 22.05 answers SUCCESS and 0 for a job that exited 3; shapes with a list of codes are right.
_SUCCESS: Final = "SUCCESS"


class _Wrapped(msgspec.Struct):
    """A number with what is known of it."""

    set: bool = True
    infinite: bool = False
    number: int | float | None = None


_Number = int | float | _Wrapped | str | None
_Words = str | list[str] | None


class _Tres(msgspec.Struct):
    type: str | None = ""
    name: str | None = ""
    count: _Number = 0


class _TresLists(msgspec.Struct):
    allocated: list[_Tres] | str | None = None
    requested: list[_Tres] | str | None = None


class _Times(msgspec.Struct):
    submission: _Number = None
    eligible: _Number = None
    start: _Number = None
    end: _Number = None
    elapsed: _Number = None
    limit: _Number = None


class _State(msgspec.Struct):
    current: _Words = None


class _Signal(msgspec.Struct):
    id: _Number = None
    signal_id: _Number = None


class _Exit(msgspec.Struct):
    status: _Words = None
    return_code: _Number = None
    signal: _Signal | None = None


class _Array(msgspec.Struct):
    job_id: _Number = None
    task_id: _Number = None
    task: str | None = None


class _Het(msgspec.Struct):
    job_id: _Number = None
    job_offset: _Number = None


class _Comment(msgspec.Struct):
    administrator: str | None = None


class _Required(msgspec.Struct):
    CPUs: _Number = None


class _Job(msgspec.Struct):
    job_id: _Number
    time: _Times
    state: _State | str | list[str]
    tres: _TresLists | None = None
    account: str | None = None
    allocation_nodes: _Number = None
    array: _Array | None = None
    cluster: str | None = None
    comment: _Comment | str | None = None
    exit_code: _Exit | None = None
    het: _Het | None = None
    kill_request_user: str | None = None
    name: str | None = None
    partition: str | None = None
    required: _Required | None = None
    restart_cnt: _Number = None
    user: str | None = None


_decoder = msgspec.json.Decoder(_Job)


def read_job(text: bytes | msgspec.Raw) -> JobRecord:
    """Read the JSON object of one job.

    Raises:
        FieldError: a member that says no such thing.
        msgspec.MsgspecError: no JSON, or a member of another shape.
    """
    return _record(_decoder.decode(text))


def _record(job: _Job) -> JobRecord:
    time = job.time
    state = _state(job)
    raw_job_id = _count(job.job_id, "job_id")
    if not raw_job_id:
        raise FieldError("JobID unreadable", "job_id is missing")
    number = job_number(_shown_number(job, raw_job_id))
    exit_code, exit_signal = _exit(job.exit_code, state)
    tres = job.tres or _TresLists()
    limit_minutes = _number(time.limit, "limit")
    elapsed_s = _number(time.elapsed, "elapsed")
    comment = job.comment.administrator if isinstance(job.comment, _Comment) else None
    return JobRecord(
        job_id=number.shown,
        n_tasks=number.n_tasks,
        raw_job_id=raw_job_id,
        state=state,
        submit_s=_time(time.submission, "submission"),
        eligible_s=_time(time.eligible, "eligible"),
        start_s=_time(time.start, "start"),
        end_s=_time(time.end, "end"),
        elapsed_s=None if elapsed_s is None else checked_duration_s(elapsed_s, "elapsed"),
        allocated=_gpus(tres.allocated) if tres.allocated else None,
        requested=_gpus(tres.requested),
        cluster=job.cluster or "",
        partition=job.partition or "",
        user=job.user or "",
        account=job.account or "",
        name=job.name or "",
        exit_code=exit_code,
        exit_signal=exit_signal,
        restarts=_count(job.restart_cnt, "restart_cnt", -1),
        time_limit_s=checked_duration_s((limit_minutes or 0) * _MINUTE_S, "limit"),
        n_nodes=_count(job.allocation_nodes, "allocation_nodes"),
        n_cpus=_n_cpus(job),
        statistics=read_statistics(comment or ""),
    )


def _state(job: _Job) -> JobState:
    current = job.state.current if isinstance(job.state, _State) else job.state
    words = [current] if isinstance(current, str) else list(current or ())
    if not words:
        raise FieldError("State unreadable", "state is missing")
    # ["PENDING", "REQUEUED"] is the ended record of a job that waits again.
    states = [named_state(word) for word in words]
    state = next((s for s in states if s.ended), states[0])
    if state.name == "CANCELLED" and job.kill_request_user:
        by = "system" if job.kill_request_user in {"root", "0"} else "user"
        return state._replace(ended_by=by)
    return state


def _shown_number(job: _Job, raw_job_id: int) -> str:
    array, het = job.array, job.het
    if array is not None and (array_id := _count(array.job_id, "array.job_id")):
        task = _number(array.task_id, "array.task_id")
        if task is not None:
            return f"{array_id}_{task}"
        if array.task:
            return f"{array_id}_[{array.task.strip('[]')}]"
    if het is not None and (het_id := _count(het.job_id, "het.job_id")):
        return f"{het_id}+{_count(het.job_offset, 'het.job_offset')}"
    return str(raw_job_id)


def _exit(code: _Exit | None, state: JobState) -> tuple[int, int]:
    if code is None:
        return -1, -1
    returned = _number(code.return_code, "return_code")
    signal = code.signal or _Signal()
    number = _number(signal.id if signal.id is not None else signal.signal_id, "signal")
    if code.status == _SUCCESS and state.name not in {"COMPLETED", "CANCELLED"}:
        return -1, -1
    if returned is None and number is None:
        return -1, -1
    return _in_range(returned or 0, "return_code"), _in_range(number or 0, "signal")


def _gpus(tres: list[_Tres] | str | None) -> Gpus:
    if isinstance(tres, str):
        return gpus_of_tres(tres)
    if not tres:
        return NO_GPUS
    return gpus_of_counts(
        (f"gres/{item.name}", _count(item.count, "TRES count"))
        for item in tres
        if item.type == "gres" and item.name and item.name.split(":")[0] == "gpu"
    )


def _n_cpus(job: _Job) -> int:
    allocated = job.tres.allocated if job.tres else None
    if isinstance(allocated, list):
        for item in allocated:
            if item.type == "cpu":
                return _count(item.count, "CPUs")
    return _count(job.required.CPUs, "CPUs") if job.required else 0


def _number(value: _Number, column: str) -> int | None:
    """Unwrap a number; None where it is unset, infinite or one of Slurm's special values."""
    if isinstance(value, _Wrapped):
        value = value.number if value.set and not value.infinite else None
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) < 20):
            raise FieldError("unknown shape", f"{column} is no number")
        value = int(value)
    if isinstance(value, float):
        if not value.is_integer():
            raise FieldError("unknown shape", f"{column} is no whole number")
        value = int(value)
    return None if value in {_NO_VALUE, _NO_VALUE + 1} or value >= 2**64 - 2 else value


def _time(value: _Number, column: str) -> int:
    seconds = _number(value, column)
    return checked_time_s(seconds, column) if seconds else 0


def _count(value: _Number, column: str, absent: int = 0) -> int:
    number = _number(value, column)
    return absent if number is None else _in_range(number, column)


def _in_range(number: int, column: str) -> int:
    if not 0 <= number <= MOST_COUNT:
        raise FieldError(f"{column} out of range", f"{column} is below 0 or too large")
    return number
