"""What single fields of Slurm's accounting say: times, durations, states, TRES, job names.

Each function takes one field as ``sacct`` prints it and raises :class:`FieldError` where it is
none. Formats are those of Slurm 22.05 to 25.x (``man sacct``, "Job Accounting Fields").
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise, product
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.collect.row_fault import RowFault
from omnipilot.domain.job_states import ENDED_STATES, LIVE_STATES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import tzinfo

__all__ = [
    "EARLIEST_S", "LATEST_S", "MOST_COUNT", "MOST_GPUS",
    "FieldError", "Gpus", "JobNumber", "JobState", "array_tasks", "checked_duration_s",
    "checked_time_s", "duration_s", "exit_pair", "gpus_of_counts", "gpus_of_tres", "is_step",
    "job_class", "job_number", "job_state", "named_state", "time_s", "times_of_job",
    "whole_number",
]  # fmt: skip

EARLIEST_S: Final = 946_684_800  # 2000-01-01: before Slurm existed
LATEST_S: Final = 4_102_444_800  # 2100-01-01
_NO_TIME: Final = frozenset({"", "None", "NONE", "Unknown", "N/A"})
_NO_DURATION: Final = frozenset(
    {"", "INVALID", "None", "N/A", "Partition_Limit", "UNLIMITED", "Unknown"}
)
_LONGEST_S: Final = 100 * 366 * 86_400
MOST_COUNT: Final = 10**10  # above any job number, node or CPU count
# No job holds more; also the most array tasks that Slurm allows (MaxArraySize, man slurm.conf).
MOST_GPUS: Final = 100_000
_MOST_TASKS: Final = 4_000_001
_LONGEST_JOB_ID: Final = 2000

_DURATION: Final = re.compile(
    r"(?:(?:([0-9]{1,6})-)?([0-9]{1,6}):)?([0-5]?[0-9]):([0-5][0-9])(?:\.[0-9]+)?", re.ASCII
)
_STATE: Final = re.compile(r"([A-Z_]+)(?: by ([0-9]{1,10}))?", re.ASCII)
_EXIT: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,5})", re.ASCII)
_JOB: Final = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10})|\+([0-9]{1,6})|_\[(.+)\])?", re.ASCII)
_STEP: Final = re.compile(
    r"[0-9]{1,10}(?:_[0-9]+|\+[0-9]+)?\.(?:batch|extern|interactive|[0-9]+)(?:\+[0-9]+)?", re.ASCII
)
_TASKS: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?", re.ASCII)
_TRES_VALUE: Final = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,9})?[KMGTPE]?", re.ASCII)
_KIND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_VLLM: Final = re.compile(r"v[-_ ]?llm", re.IGNORECASE)


class FieldError(RowFault):
    """A field that does not say what its column promises."""


class JobState(NamedTuple):
    """State without its ornaments; ``ended_by`` as in :class:`omnipilot.domain.ClusterJob`."""

    name: str
    ended: bool
    ended_by: str


class Gpus(NamedTuple):
    """GPU kind ("" where untyped) and number of a TRES list."""

    kind: str
    n: int


NO_GPUS: Final = Gpus("", 0)


def whole_number(text: str, column: str, most: int = MOST_COUNT) -> int:
    """Read a number of digits only."""
    if not (text.isascii() and text.isdigit() and len(text) < 20) or (value := int(text)) > most:
        raise FieldError(f"{column} unreadable", f"{column} is no whole number up to {most}")
    return value


def time_s(text: str, column: str, zone: tzinfo = UTC, *, fold: int = 0) -> int:
    """Read a time: Unix seconds, or ISO 8601 with or without an offset; 0 where there is none.

    Args:
        text: the field.
        column: its name, for the message.
        zone: where times without an offset were printed.
        fold: 1 for the second occurrence of a time that clocks showed twice.

    Example:
        >>> time_s("1795957803", "End"), time_s("2026-11-29T13:10:03", "End"), time_s("None", "End")
        (1795957803, 1795957803, 0)
    """
    if text.isdigit() and text.isascii():
        seconds = int(text[:19])
        if not seconds:
            return 0
    elif text in _NO_TIME:
        return 0
    else:
        if text[10:11] != "T" or len(text) < 19:  # what else ISO 8601 allows, sacct never prints
            raise FieldError("time unreadable", f"{column} is no time")
        try:
            when = datetime.fromisoformat(text)
            if when.tzinfo is None:
                when = when.replace(tzinfo=zone, fold=fold)
            seconds = int(when.timestamp())
        except (ValueError, OverflowError):
            raise FieldError("time unreadable", f"{column} is no time") from None
    return checked_time_s(seconds, column)


def times_of_job(
    submit: str, eligible: str, start: str, end: str, *, elapsed_s: int | None, zone: tzinfo = UTC
) -> tuple[int, ...]:
    """Read the times of one job, in Unix seconds; 0 where there is none.

    A time in the hour that clocks showed twice has two meanings. Those count with which the times
    come in order and the job ran for ``elapsed_s``; the first where both do.

    Raises:
        FieldError: one is no time.

    Example:
        >>> from zoneinfo import ZoneInfo
        >>> texts = [f"2026-10-25T{clock}:00" for clock in ("02:50", "02:50", "02:10", "04:10")]
        >>> _, eligible_s, start_s, _ = times_of_job(
        ...     *texts, elapsed_s=7200, zone=ZoneInfo("Europe/Berlin")
        ... )
        >>> start_s - eligible_s
        1200
    """
    texts = {"Submit": submit, "Eligible": eligible, "Start": start, "End": end}
    first = tuple(time_s(text, column, zone) for column, text in texts.items())
    if zone is UTC:
        return first
    second = (time_s(text, column, zone, fold=1) for column, text in texts.items())
    meanings = product(*(dict.fromkeys(pair) for pair in zip(first, second, strict=True)))
    return min(meanings, key=lambda times: _contradictions(times, elapsed_s))


def _contradictions(times: tuple[int, ...], elapsed_s: int | None) -> int:
    *_, start_s, end_s = times
    found = sum(before > after for before, after in pairwise(filter(None, times)))
    if start_s and end_s and elapsed_s is not None:
        spare_s = end_s - start_s - elapsed_s
        # A second is the clocks' slack. More time than elapsed may be suspension, less cannot be.
        found += (spare_s < -1) + (abs(spare_s) > 1)
    return found


def checked_time_s(seconds: int, column: str) -> int:
    """Refuse a time before 2000 or after 2100, which no accounting holds."""
    if not EARLIEST_S <= seconds < LATEST_S:
        raise FieldError("time out of range", f"{column} lies before 2000 or after 2100")
    return seconds


def duration_s(text: str, column: str) -> int | None:
    """Read ``[days-][hours:]minutes:seconds``; None where there is none or it has no limit.

    Example:
        >>> duration_s("1-02:03:04", "Elapsed"), duration_s("UNLIMITED", "Timelimit")
        (93784, None)
    """
    if text in _NO_DURATION:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        raise FieldError(f"{column} unreadable", f"{column} is no duration")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return checked_duration_s(total, column)


def checked_duration_s(seconds: int, column: str) -> int:
    """Refuse a duration below 0 or above a century."""
    if not 0 <= seconds <= _LONGEST_S:
        raise FieldError(f"{column} out of range", f"{column} is below 0 or above a century")
    return seconds


def job_state(text: str) -> JobState:
    """Read a state.

    Example:
        >>> job_state("CANCELLED by 33")
        JobState(name='CANCELLED', ended=True, ended_by='user')
    """
    found = _STATE.fullmatch(text)
    if found is None:
        if text.endswith("+"):
            raise FieldError(
                "State cut", "State is cut short: run sacct with -P and no %width after the name"
            )
        raise FieldError("State unreadable", "State is none of Slurm's")
    name, by = found.groups()
    ended_by = "" if by is None else ("system" if int(by) == 0 else "user")
    return named_state(name, ended_by)


def named_state(name: str, ended_by: str = "") -> JobState:
    """Classify a state given by its bare name."""
    if name in ENDED_STATES:
        return JobState(name, ended=True, ended_by=ended_by)
    if name in LIVE_STATES:
        return JobState(name, ended=False, ended_by="")
    raise FieldError("State unreadable", "State is none of Slurm's")


def exit_pair(text: str) -> tuple[int, int]:
    """Read ``code:signal``; (-1, -1) where blank."""
    if not text:
        return -1, -1
    if text == "0:0":
        return 0, 0
    found = _EXIT.fullmatch(text)
    if found is None:
        raise FieldError("ExitCode unreadable", "ExitCode is not code:signal")
    return int(found[1]), int(found[2])


def gpus_of_tres(text: str) -> Gpus:
    """Read the GPUs of a TRES list.

    Example:
        >>> gpus_of_tres("billing=4,cpu=4,gres/gpu:h100=2,gres/gpu=2,mem=8G,node=1")
        Gpus(kind='h100', n=2)
    """
    if not text:
        return NO_GPUS
    counts = []
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not (name and equals and _TRES_VALUE.fullmatch(value)):
            raise FieldError(
                "TRES unreadable",
                "a TRES list holds an item that is not name=number: is the column cut short?",
            )
        if name.partition(":")[0] == "gres/gpu":
            counts.append((name, whole_number(value, "TRES", MOST_GPUS)))
    return gpus_of_counts(counts)


def gpus_of_counts(counts: Iterable[tuple[str, int]]) -> Gpus:
    """Join the typed and untyped GPU counts of one list, which count the same GPUs twice.

    Args:
        counts: pairs such as ("gres/gpu:h100", 2) and ("gres/gpu", 2); other names are ignored.

    Raises:
        FieldError: kinds counted twice, more typed GPUs than GPUs, or a name that is no kind.
    """
    untyped: int | None = None
    typed: dict[str, int] = {}
    for name, n in counts:
        if not 0 <= n <= MOST_GPUS:
            raise FieldError("TRES unreadable", f"a TRES list counts more than {MOST_GPUS} GPUs")
        if name == "gres/gpu":
            if untyped is not None:
                raise FieldError("TRES contradictory", "a TRES list counts its GPUs twice")
            untyped = n
        elif name.startswith("gres/gpu:"):
            kind = name.removeprefix("gres/gpu:")
            if _KIND.fullmatch(kind) is None:
                raise FieldError("TRES unreadable", "a TRES list names an odd GPU kind")
            if kind in typed:
                raise FieldError("TRES contradictory", "a TRES list counts a GPU kind twice")
            typed[kind] = n
    n_typed = sum(typed.values())
    if untyped is not None and n_typed > untyped:
        raise FieldError("TRES contradictory", "a TRES list has more typed GPUs than GPUs")
    n = n_typed if untyped is None else untyped
    return Gpus("+".join(sorted(kind for kind, count in typed.items() if count)), n)


class JobNumber(NamedTuple):
    """What the JobID column says: array and heterogeneous jobs by their shown number."""

    shown: str
    n_tasks: int


def job_number(text: str) -> JobNumber:
    """Read ``123``, ``123_4``, ``123+0`` or ``123_[5-9,12%2]``.

    Example:
        >>> job_number("123_[5-9,12%2]")
        JobNumber(shown='123_[5-9,12%2]', n_tasks=6)
    """
    if text.isdigit() and text.isascii() and len(text) <= 10:
        return JobNumber(text, 1)
    found = _JOB.fullmatch(text)
    if found is None or len(text) > _LONGEST_JOB_ID:
        raise FieldError("JobID unreadable", "JobID is no job number")
    tasks = found[4]
    return JobNumber(text, 1 if tasks is None else array_tasks(tasks))


def array_tasks(text: str) -> int:
    """Count the tasks of ``1-5,7,10-20:2%4``; of a list that Slurm cut with "..." those shown.

    Example:
        >>> array_tasks("0-10:2%2"), array_tasks("1,3,...")
        (6, 2)
    """
    total = 0
    for item in text.partition("%")[0].split(","):
        if item == "..." and total:
            continue
        found = _TASKS.fullmatch(item)
        if found is None:
            raise FieldError("JobID unreadable", "JobID holds an odd list of array tasks")
        first, last, step = (int(part) if part else None for part in found.groups())
        if last is None:
            total += 1
        elif first is not None and first <= last and step != 0:
            total += (last - first) // (step or 1) + 1
        else:
            raise FieldError("JobID unreadable", "JobID holds an odd range of array tasks")
        if total > _MOST_TASKS:
            raise FieldError("JobID unreadable", f"JobID stands for more than {_MOST_TASKS} tasks")
    return total


def is_step(job_id: str) -> bool:
    """Tell a step (``123.batch``, ``123_4.0``, ``11+1.0``) from a job."""
    return "." in job_id and _STEP.fullmatch(job_id) is not None


def job_class(name: str) -> str:
    """Reduce a job's name to its class: "vllm", "other", or "" without a name.

    Example:
        >>> job_class("vLLM-qwen7b-fp8"), job_class("train"), job_class("")
        ('vllm', 'other', '')
    """
    if not name:
        return ""
    return "vllm" if _VLLM.search(name) else "other"
