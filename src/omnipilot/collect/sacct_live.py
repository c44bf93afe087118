"""Ended jobs asked of a running Slurm through ``sacct``.

Jobs are chosen by their state and the time of their end, so that a job is printed once it has
ended, however long ago it was submitted, and also where it was cancelled while held.
"""

from __future__ import annotations

import re
from contextlib import closing
from datetime import UTC, datetime
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omnipilot.collect.command import SILENCE_S, run_command, stream_lines
from omnipilot.collect.lines import Limits, Lines, printable
from omnipilot.collect.sacct_text import COLUMNS, collect_text
from omnipilot.domain.errors import ToolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omnipilot.collect.identity import SiteKey
    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.rows import ClusterJob

__all__ = ["check_cluster", "collect_live", "local_cluster", "printed_columns"]

# Ended states that ``sacct -s`` knows in 22.05 and later; the others of an ended job are not asked
# for by name anywhere (LAUNCH_FAILED and RECONFIG_FAIL are flags that come with FAILED).
_STATES: Final = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REQUEUED", "REVOKED", "TIMEOUT",
)  # fmt: skip
_CLUSTER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}", re.ASCII)
_CONFIGURED: Final = re.compile(r"^ClusterName\s*=\s*(\S+)", re.MULTILINE)
# Times in and out are UTC and Unix seconds: no daylight saving anywhere.
_ENV: Final = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
_LIMITS: Final = Limits(file_bytes=64 * 2**30)
_NAME: Final = Path("sacct")
_BLOCK_BYTES: Final = 2**18


def local_cluster() -> str:
    """Ask for the name of the cluster that this machine belongs to.

    Raises:
        ToolError: Slurm does not answer.
    """
    found = _CONFIGURED.search(_answer("scontrol", "show", "config"))
    if found is None:
        raise ToolError("scontrol does not tell the cluster's name: give --cluster NAME")
    return found[1]


def check_cluster(name: str) -> None:
    """Refuse a cluster that the accounting does not know: for it sacct prints nothing.

    Raises:
        UsageError: no such cluster; the message names those that there are.
        ToolError: Slurm does not answer.
    """
    if _CLUSTER.fullmatch(name) is None:
        raise UsageError(f"'{printable(name)}' is no name of one cluster")
    listed = _answer("sacctmgr", "-n", "-P", "list", "cluster", "format=Cluster")
    names = [printable(line.strip(), 255) for line in listed.splitlines() if line.strip()]
    if name not in names:
        raise UsageError(f"no cluster '{name}' in Slurm's accounting: say one of {names}")


def printed_columns() -> tuple[str, ...]:
    """Ask which of the columns wanted this version of sacct has; an unknown one would fail."""
    known = set(_answer("sacct", "--helpformat").split())
    *first, comment, name = COLUMNS  # free texts stand last
    extra = [column for column in ("Restarts",) if column in known]
    return (*first, *extra, *([comment] if comment in known else []), name)


def collect_live(
    start_s: int,
    end_s: int,
    *,
    columns: Sequence[str],
    cluster: str = "",
    key: SiteKey | None = None,
    silence_s: float = SILENCE_S,
) -> Iterator[ClusterJob | Rejection]:
    """Read the jobs that ended in a time, both ends included.

    Args:
        start_s: Unix seconds.
        end_s: Unix seconds.
        columns: of :func:`printed_columns`.
        cluster: "" for this machine's.
        key: the site's key; without it users and accounts are left out.
        silence_s: longest wait for sacct's next output.

    Yields:
        One item a record: the row, or why the record is none.

    Raises:
        ToolError: sacct is missing, failed or fell silent.
    """
    argv = [
        "sacct", "--allusers", "--allocations", "--duplicates", "--parsable2",
        f"--starttime={_shown(start_s)}", f"--endtime={_shown(end_s)}",
        f"--state={','.join(_STATES)}", f"--format={','.join(columns)}",
        *([f"--clusters={cluster}"] if cluster else []),
    ]  # fmt: skip
    lines = stream_lines(argv, timeout_s=silence_s, output_bytes=_LIMITS.file_bytes, env=_ENV)
    with closing(lines):
        stream = BufferedReader(_Stream(lines), _BLOCK_BYTES)
        yield from collect_text(_NAME, Lines(_NAME, stream, _LIMITS, "accounting"), key=key)


def _answer(*argv: str) -> str:
    return run_command(argv, env=_ENV).stdout.decode("utf-8", "replace")


class _Stream(RawIOBase):
    """Lines as a stream of bytes."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__()
        self._lines = lines
        self._rest = memoryview(b"")
        self._n_bytes = 0

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def tell(self) -> int:
        """Give the number of bytes read."""
        return self._n_bytes

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with what comes next; 0 at the end."""
        rest = self._rest or memoryview(next(self._lines, b""))
        n_bytes = min(len(rest), len(buffer))
        buffer[:n_bytes] = rest[:n_bytes]
        self._rest = rest[n_bytes:]
        self._n_bytes += n_bytes
        return n_bytes


def _shown(when_s: int) -> str:
    return datetime.fromtimestamp(when_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
