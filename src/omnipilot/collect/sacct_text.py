"""The text of ``sacct -P``: records by the header's names, in any order of columns.

``-P`` escapes nothing, so a job's name or comment may hold the delimiter. Such a record has too
many fields: it is read only where all divisions of its fields that make sense give one row.
Steps are passed over; their jobs' records stand for them.
"""

from __future__ import annotations

import math
import re
from datetime import UTC
from itertools import combinations, pairwise, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from omnipilot.collect.jobstats import MARK, NO_STATISTICS, read_statistics
from omnipilot.collect.lines import printable
from omnipilot.collect.sacct_quick import QuickReader
from omnipilot.collect.sacct_row import JobRecord, row_of
from omnipilot.collect.slurm_values import (
    NO_GPUS,
    FieldError,
    Gpus,
    JobState,
    duration_s,
    exit_pair,
    gpus_of_tres,
    is_step,
    job_number,
    job_state,
    times_of_job,
    whole_number,
)
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import tzinfo
    from pathlib import Path

    from omnipilot.collect.identity import SiteKey
    from omnipilot.collect.lines import Lines
    from omnipilot.domain.rows import ClusterJob

__all__ = ["COLUMNS", "collect_text"]

# What to print, in the order that keeps free texts last; Planned and Restarts are newer than 22.05
# and not needed.
COLUMNS: Final = (
    "JobID", "JobIDRaw", "Cluster", "User", "Account", "Partition", "State", "ExitCode", "Submit",
    "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw", "NNodes", "NCPUS", "AllocTRES",
    "ReqTRES", "AdminComment", "JobName",
)  # fmt: skip
_HOW: Final = f"run sacct -a -X -D -P --format={','.join(COLUMNS)}"
# One of each line must be there.
_REQUIRED: Final = (
    ("JobID", "JobIDRaw"), ("State",), ("Submit",), ("Start",), ("End",), ("AllocTRES", "ReqTRES"),
)  # fmt: skip
# Columns that are read, in the order of _Reader._row; the first of the choice that is there.
_READ: Final = (
    ("jobid",), ("jobidraw",), ("cluster",), ("user",), ("account",), ("partition",), ("state",),
    ("exitcode",), ("submit",), ("eligible",), ("start",), ("end",), ("elapsedraw",), ("elapsed",),
    ("planned", "reserved"), ("timelimitraw",), ("timelimit",), ("restarts",),
    ("nnodes", "allocnodes"), ("ncpus", "alloccpus"), ("alloctres",), ("reqtres",),
    ("admincomment",), ("jobname",),
)  # fmt: skip
# Columns that hold whatever people or prologs wrote (man sacct).
_FREE: Final = frozenset(
    {
        "admincomment", "comment", "constraints", "container", "extra", "jobname", "reason",
        "reservation", "stderr", "stdin", "stdout", "submitline", "systemcomment", "wckey",
        "workdir",
    }
)  # fmt: skip
_DELIMITER: Final = re.compile(r"[A-Za-z]+([^A-Za-z0-9]+)")
_NAME: Final = re.compile(r"[A-Za-z]+[A-Za-z0-9]*", re.ASCII)
_MOST_COLUMNS: Final = 300
_MOST_EXTRA: Final = 12
_MOST_DIVISIONS: Final = 500
_REMEMBERED: Final = 10_000
_MINUTE_S: Final = 60
_LONGEST_LIMIT_MIN: Final = 100 * 366 * 1440
_LOCAL_CHARACTERS: Final = len("2026-11-29T13:10:03")


def collect_text(
    path: Path, lines: Lines, *, key: SiteKey | None, zone: tzinfo = UTC
) -> Iterator[ClusterJob | Rejection]:
    """Read the records after a header line.

    Args:
        path: for messages.
        lines: the opened file.
        key: the site's key; without it users and accounts are left out.
        zone: where times without an offset were printed.

    Yields:
        One item a record, in file order, but for steps.

    Raises:
        BadInputError: there is no header, it lacks columns, or the text is sacct's cut columns.
    """
    most = lines.limits.line_bytes
    reader: _Reader | None = None
    while (block := lines.next_lines()) is not None:
        texts = _texts(*block, most)
        if reader is None:
            at = next((i for i, (_, text) in enumerate(texts) if isinstance(text, str)), len(texts))
            header = texts[at : at + 1]
            if not header:
                continue
            reader = _Reader(path, str(header[0][1]), key, zone)
            texts = texts[at + 1 :]
        yield from reader.items(texts)
    if reader is None:
        raise BadInputError(f"{path} has no readable header line: {_HOW}")


def _texts(first: int, lines: list[bytes], most: int) -> list[tuple[int, str | Rejection]]:
    """Decode lines; bytes that are no UTF-8 (names cut by a column's width) become U+FFFD."""
    texts: list[tuple[int, str | Rejection]] = []
    for number, line in enumerate(lines, start=first):
        if len(line) > most:
            texts.append((number, Rejection(number, f"longer than {most} bytes", "line too long")))
        elif b"\0" in line:
            texts.append((number, Rejection(number, "holds a NUL byte", "NUL byte")))
        elif line and not line.isspace():
            texts.append((number, line.decode("utf-8", "replace").rstrip("\r\n")))
    return texts


class _Reader:
    """Turns records into rows by one header."""

    def __init__(self, path: Path, header: str, key: SiteKey | None, zone: tzinfo) -> None:
        self._header = header
        self._delimiter = _delimiter(path, header)
        names = [name.strip().lower() for name in header.split(self._delimiter)]
        self._trailing = not names[-1]
        if self._trailing:  # -p instead of -P
            names.pop()
        _check_header(path, names)
        self._n_columns = len(names)
        self._free = [i for i, name in enumerate(names) if name in _FREE]
        at = {name: i for i, name in enumerate(names)}
        self._state_at = at["state"]
        # A column that is not there is read from the blank after the last field.
        self._pick = itemgetter(
            *(next((at[n] for n in choice if n in at), len(names)) for choice in _READ)
        )
        self._quick = None
        if not self._trailing and QuickReader.reads(names, self._delimiter):
            self._quick = QuickReader(names, self._delimiter, key)
        self._key = key
        self._zone = zone
        self._gpus: dict[str, Gpus] = {"": NO_GPUS}
        self._states: dict[str, JobState] = {}

    def items(self, batch: list[tuple[int, str | Rejection]]) -> Iterator[ClusterJob | Rejection]:
        """Turn lines into rows or the reasons why they are none; steps are passed over."""
        quick: Iterable[ClusterJob | None] = repeat(None)
        if self._quick is not None:
            quick = self._quick.read([text if isinstance(text, str) else "" for _, text in batch])
        for (number, text), row in zip(batch, quick, strict=False):
            if isinstance(text, Rejection):
                yield text
            elif row is not None:
                yield row
            elif (item := self.item(number, text)) is not None:
                yield item

    def item(self, number: int, text: str) -> ClusterJob | Rejection | None:
        """Turn one line into a row or the reason why it is none; None for a step."""
        fields = text.split(self._delimiter)
        if self._trailing and not fields[-1]:
            fields.pop()
        try:
            return self._item(fields)
        except FieldError as fault:
            if text == self._header:
                return Rejection(number, "repeats the header line", "repeated header")
            return Rejection(number, str(fault), fault.code)

    def _item(self, fields: list[str]) -> ClusterJob | None:
        n, wanted = len(fields), self._n_columns
        if n == wanted:
            return self._row(fields)
        if n > wanted:
            return self._divided(fields, n - wanted)
        reason = f"{n} fields where the header has {wanted}: cut short, or a name with a line end"
        raise FieldError("too few fields", reason)

    def _divided(self, fields: list[str], extra: int) -> ClusterJob | None:
        """Read a record whose free texts hold the delimiter, where that has one meaning."""
        found: set[ClusterJob | None] = set()
        fault = FieldError("too many fields", f"{extra} fields more than the header has")
        state_at = self._state_at
        before = sum(column < state_at for column in self._free)
        for sizes in _divisions(len(self._free), extra):
            try:
                self._state(fields[state_at + sum(sizes[:before])])  # settles most of them
                found.add(self._row(self._joined(fields, sizes)))
            except FieldError as error:
                if error.code == "not ended":
                    fault = error
        if len(found) > 1:
            raise FieldError(
                "delimiter ambiguous",
                "a name or comment holds the delimiter in a way that can be read twice",
            )
        if not found:
            raise fault
        return found.pop()

    def _joined(self, fields: list[str], sizes: Sequence[int]) -> list[str]:
        joined: list[str] = []
        at = 0
        more = dict(zip(self._free, sizes, strict=True))
        for column in range(self._n_columns):
            end = at + 1 + more.get(column, 0)
            joined.append(self._delimiter.join(fields[at:end]))
            at = end
        return joined

    def _row(self, fields: list[str]) -> ClusterJob | None:
        picked: tuple[str, ...] = self._pick((*fields, ""))
        (
            shown, raw, cluster, user, account, partition, state, exit_code, submit, eligible,
            start, end, elapsed_raw, elapsed, planned, limit_raw, limit, restarts, n_nodes, n_cpus,
            allocated, requested, comment, name,
        ) = picked  # fmt: skip
        shown = shown or raw
        if "." in shown:
            if is_step(shown) and not (partition and user):
                return None
            raise FieldError("JobID unreadable", "JobID is no job number")
        number = job_number(shown)
        code, signal = exit_pair(exit_code)
        elapsed_s = _elapsed_s(elapsed_raw, elapsed)
        submit_s, eligible_s, start_s, end_s = times_of_job(
            submit, eligible, start, end, elapsed_s=elapsed_s, zone=self._zone
        )
        if planned and start_s and not eligible:
            eligible_s = start_s - (duration_s(planned, "Planned") or 0)
        if comment and self._delimiter in comment and MARK in comment:  # base64 holds none
            raise FieldError("delimiter ambiguous", "AdminComment holds the delimiter")
        record = JobRecord(
            job_id=number.shown,
            n_tasks=number.n_tasks,
            state=self._state(state),
            submit_s=submit_s,
            eligible_s=eligible_s,
            start_s=start_s,
            end_s=end_s,
            elapsed_s=elapsed_s,
            raw_job_id=whole_number(raw, "JobIDRaw") if raw else 0,
            allocated=self._tres(allocated) if allocated else None,
            requested=self._tres(requested),
            cluster=cluster,
            partition=partition,
            user=user,
            account=account,
            name=name,
            exit_code=code,
            exit_signal=signal,
            restarts=whole_number(restarts, "Restarts") if restarts else -1,
            time_limit_s=_time_limit_s(limit_raw, limit),
            n_nodes=whole_number(n_nodes, "NNodes") if n_nodes else 0,
            n_cpus=whole_number(n_cpus, "NCPUS") if n_cpus else 0,
            statistics=read_statistics(comment) if comment else NO_STATISTICS,
            local_times=len(start) == _LOCAL_CHARACTERS,
        )
        return row_of(record, self._key)

    def _state(self, text: str) -> JobState:
        state = self._states.get(text)
        if state is None:
            state = job_state(text)
            if len(self._states) < _REMEMBERED:
                self._states[text] = state
        return state

    def _tres(self, text: str) -> Gpus:
        gpus = self._gpus.get(text)
        if gpus is None:
            gpus = gpus_of_tres(text)
            if len(self._gpus) < _REMEMBERED and len(text) < 1000:
                self._gpus[text] = gpus
        return gpus


def _delimiter(path: Path, header: str) -> str:
    found = _DELIMITER.match(header)
    if found is None:
        if header[:1].isdigit():
            raise BadInputError(f"{path} has no header line: run sacct without -n")
        raise BadInputError(f"{path} is no accounting of Slurm: {_HOW}")
    delimiter = found[1]
    if not delimiter.strip(" "):
        raise BadInputError(f"{path} holds sacct's aligned columns, which cut their fields: {_HOW}")
    return delimiter


def _check_header(path: Path, names: list[str]) -> None:
    if len(names) > _MOST_COLUMNS or not all(_NAME.fullmatch(name) for name in names):
        raise BadInputError(f"{path} has no header of sacct's column names: {_HOW}")
    missing = [
        " or ".join(choice)
        for choice in _REQUIRED
        if not any(name.lower() in names for name in choice)
    ]
    if missing:
        raise BadInputError(f"{path} lacks the columns {', '.join(missing)}: {_HOW}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        shown = ", ".join(printable(name) for name in twice)
        raise BadInputError(f"{path} has the columns {shown} more than once: {_HOW}")


def _divisions(n_free: int, extra: int) -> Iterator[tuple[int, ...]]:
    """Give the ways in which ``extra`` fields may belong to ``n_free`` columns, within limits."""
    if not n_free or extra > _MOST_EXTRA:
        return
    if math.comb(extra + n_free - 1, extra) > _MOST_DIVISIONS:
        return
    for bars in combinations(range(extra + n_free - 1), n_free - 1):
        edges = (-1, *bars, extra + n_free - 1)
        yield tuple(after - before - 1 for before, after in pairwise(edges))


def _elapsed_s(raw: str, text: str) -> int | None:
    shown_s = duration_s(text, "Elapsed") if text else None
    if not raw:
        return shown_s
    elapsed_s = whole_number(raw, "ElapsedRaw")
    if shown_s is not None and shown_s != elapsed_s:
        raise FieldError("times contradictory", "Elapsed and ElapsedRaw differ")
    return elapsed_s


def _time_limit_s(raw: str, text: str) -> int:
    if raw.isdigit():
        return whole_number(raw, "TimelimitRaw", _LONGEST_LIMIT_MIN) * _MINUTE_S
    return duration_s(text or raw, "Timelimit") or 0
