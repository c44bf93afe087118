"""Records as the proposed columns print them, many at a time and column by column.

A harvest reads millions, nearly all of one form: a job that started and ended, with times in Unix
seconds. A record of any other form, or with anything to object to, is no fault here: it takes the
long way of :mod:`omnipilot.collect.sacct_text`, whose answer for these is the same.
"""

from __future__ import annotations

import re
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from omnipilot.collect.jobstats import NO_STATISTICS, read_statistics
from omnipilot.collect.sacct_row import SOURCE, are_gpus_of_one_job, is_name, is_place
from omnipilot.collect.slurm_values import (
    EARLIEST_S,
    LATEST_S,
    FieldError,
    Gpus,
    JobState,
    exit_pair,
    gpus_of_tres,
    job_class,
    job_state,
)
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.rows import ClusterJob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from omnipilot.collect.identity import SiteKey

__all__ = ["QuickReader"]

_TIME: Final = "([0-9]{10})"
_COUNT: Final = "([0-9]{1,9})"
_TEXT: Final = "([^{bar}]*)"
# The columns read, in the order of _Texts.
_COLUMNS: Final[dict[str, str]] = {
    "jobid": "([0-9]{1,10}(?:_[0-9]{1,10})?)",
    "jobidraw": "([0-9]{1,10})",
    "cluster": _TEXT,
    "user": _TEXT,
    "account": _TEXT,
    "partition": _TEXT,
    "state": _TEXT,
    "exitcode": _TEXT,
    "submit": _TIME,
    "eligible": _TIME,
    "start": _TIME,
    "end": _TIME,
    "elapsedraw": _COUNT,
    "timelimitraw": "([0-9]{1,7})",
    "nnodes": _COUNT,
    "ncpus": _COUNT,
    "alloctres": _TEXT,
    "reqtres": _TEXT,
    "admincomment": _TEXT,
    "jobname": _TEXT,
}
_RESTARTS: Final = "restarts"
# Compared with columns above where it is printed: left to the long way.
_COMPARED: Final = "elapsed"
_CLOCK_SLACK_S: Final = 1
_MINUTE_S: Final = 60
_REMEMBERED: Final = 100_000
_NO_STACK: Final = StackFingerprint()

Value = TypeVar("Value")


class _Memory(dict[str, Value | None]):
    """What texts mean, worked out once; None for a text with a fault."""

    def __init__(self, meaning: Callable[[str], Value | None]) -> None:
        super().__init__()
        self._meaning = meaning

    def __missing__(self, text: str) -> Value | None:
        try:
            value = self._meaning(text)
        except FieldError:
            value = None
        if len(self) < _REMEMBERED and len(text) < 1000:
            self[text] = value
        return value


class _Pair(NamedTuple):
    code: int
    signal: int


class QuickReader:
    """Reads records under one header.

    Args:
        names: the header's columns, in lower case.
        delimiter: between fields.
        key: the site's key; without it users and accounts are left out.
    """

    def __init__(self, names: Sequence[str], delimiter: str, key: SiteKey | None) -> None:
        bar = re.escape(delimiter)
        wanted = {**_COLUMNS, _RESTARTS: "([0-9]{0,9})"}
        parts = [wanted.get(name, "[^{bar}]*").replace("{bar}", bar) for name in names]
        self._match = re.compile(bar.join(parts), re.ASCII).fullmatch
        read = [name for name in names if name in wanted]
        self._order = [read.index(name) for name in wanted if name in read]
        self._states = _Memory[JobState](job_state)
        self._exits = _Memory[_Pair](lambda text: _Pair(*exit_pair(text)))
        self._gpus = _Memory[Gpus](_gpus)
        self._places = _Memory[bool](lambda text: is_place(text) or None)
        self._users = _Memory[str](lambda name: _person(key, "user", name))
        self._accounts = _Memory[str](lambda name: _person(key, "account", name))

    @staticmethod
    def reads(names: Sequence[str], delimiter: str) -> bool:
        """Tell whether a header is of the form that is read here."""
        return _COLUMNS.keys() <= set(names) and _COMPARED not in names and len(delimiter) == 1

    def read(self, lines: Sequence[str]) -> list[ClusterJob | None]:
        """Read records.

        Args:
            lines: without their ends.

        Returns:
            The row of each line, None for a line that must take the long way.
        """
        found = [self._match(line) for line in lines]
        texts = [match.groups() for match in found if match is not None]
        if not texts:
            return [None] * len(lines)
        rows = iter(self._rows(list(zip(*texts, strict=True))))
        return [None if match is None else next(rows) for match in found]

    def _rows(self, printed: list[tuple[str, ...]]) -> list[ClusterJob | None]:
        n = len(printed[0])
        (
            shown, raw_texts, cluster, user, account, partition, state_texts, exits, submits,
            eligibles, starts, ends, elapsed, limits, nodes, cpus, allocated, requested, comments,
            names, *restart_texts,
        ) = itemgetter(*self._order)(printed)  # fmt: skip
        raw_ids = list(map(int, raw_texts))
        submit_s, eligible_s = list(map(int, submits)), list(map(int, eligibles))
        start_s, end_s = list(map(int, starts)), list(map(int, ends))
        elapsed_s = list(map(int, elapsed))
        states = [self._states[text] for text in state_texts]
        pairs = [self._exits[text] for text in exits]
        gpus = [
            self._gpus[f"{got}\0{asked}"] for got, asked in zip(allocated, requested, strict=True)
        ]
        users = [self._users[name] for name in user]
        accounts = [self._accounts[name] for name in account]
        places = [
            b and self._places[a] and self._places[b]
            for a, b in zip(cluster, partition, strict=True)
        ]
        good = [
            submit >= EARLIEST_S
            and EARLIEST_S <= eligible < LATEST_S
            and EARLIEST_S <= start <= end < LATEST_S
            and submit < LATEST_S
            and ran <= end - start + _CLOCK_SLACK_S
            for submit, eligible, start, end, ran in zip(
                submit_s, eligible_s, start_s, end_s, elapsed_s, strict=True
            )
        ]
        statistics = [read_statistics(text) if text else NO_STATISTICS for text in comments]
        restarts = (
            [int(text) if text else -1 for text in restart_texts[0]] if restart_texts else [-1] * n
        )
        minutes = [int(text) * _MINUTE_S for text in limits]
        return [
            ClusterJob(
                SOURCE, in_cluster, job_id, state.name, gpu.kind, gpu.n, raw_id, 1, in_partition,
                user_hash, account_hash, job_class(name), state.ended_by, pair.code, pair.signal,
                restart, submit, eligible, start, end, ran, limit_s, int(n_nodes), int(n_cpus),
                told.status, told.gpu_utilization_frac, told.gpu_memory_used_gib,
                told.gpu_memory_total_gib, _NO_STACK,
            )
            if fine
            and place
            and state is not None
            and state.ended
            and gpu is not None
            and pair is not None
            and user_hash is not None
            and account_hash is not None
            and (job_id == raw_text or "_" in job_id or int(job_id) == raw_id or not raw_id)
            else None
            for (
                fine, place, state, gpu, pair, user_hash, account_hash, job_id, raw_text, raw_id,
                in_cluster, in_partition, name, restart, submit, eligible, start, end, ran, limit_s,
                n_nodes, n_cpus, told,
            ) in zip(
                good, places, states, gpus, pairs, users, accounts, shown, raw_texts, raw_ids,
                cluster, partition, names, restarts, submit_s, eligible_s, start_s, end_s,
                elapsed_s, minutes, nodes, cpus, statistics, strict=True,
            )
        ]  # fmt: skip


def _gpus(texts: str) -> Gpus | None:
    """Read what was allocated and what was requested, joined by NUL."""
    got, _, asked = texts.partition("\0")
    allocated = gpus_of_tres(got) if got else None
    requested = gpus_of_tres(asked)
    if not are_gpus_of_one_job(requested, allocated):
        return None
    return requested if allocated is None else allocated


def _person(key: SiteKey | None, what: str, name: str) -> str | None:
    if not is_name(name):
        return None
    return key.hashed(what, name) if key else ""
