"""The append-only logs of typed rows, ``HOME/history.jsonl`` and ``HOME/cluster_history.jsonl``.

A row is written once however often it is given (its content hash is the key), by any number of
processes at a time (a lock on a side file, one append a batch, fsync before success is told). A
batch that cannot be written whole leaves the file as it was. A last line that a crash cut short
is moved aside, never mixed with the next row and never thrown away.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.domain.errors import StateError
from omnipilot.settings import CLUSTER_LOG_NAME, LOG_NAME
from omnipilot.store.codec import (
    LINE_BYTES,
    EncodedRow,
    StoredRow,
    UnknownKindError,
    UnreadableLineError,
    decode_line,
    digest_of_line,
    encode_row,
    known_digest,
)
from omnipilot.store.files import make_private, sync_folder, sync_name, write_all
from omnipilot.store.lock import LOCK_TIMEOUT_S, exclusive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from omnipilot.domain.rows import Row

__all__ = [
    "CLUSTER_LOG_NAME", "LOG_NAME", "AppendReport", "ReadTally", "Store", "row_of_line",
]  # fmt: skip

_BATCH_BYTES: Final = 4 * 2**20
_BLOCK_BYTES: Final = 2**16
_LOG_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class AppendReport(NamedTuple):
    """What became of the rows given: written, or there already."""

    accepted: int
    duplicate: int


@dataclass(slots=True)
class ReadTally:
    """What a reading of the log passed over, filled in as it goes.

    ``skipped`` counts lines by class ("not a row", "altered", "too long", "torn"), ``unknown``
    lines of kinds or schemas that this version does not know; both stay in the file.
    """

    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


class _Index:
    """Content hashes in the log, read on from where the last look ended."""

    def __init__(self) -> None:
        self.digests: set[bytes] = set()
        self._end_bytes = 0
        self._inode = -1

    def refresh(self, stream: BinaryIO) -> None:
        """Take in what was appended since, by this or another process."""
        status = os.fstat(stream.fileno())
        if status.st_ino != self._inode or status.st_size < self._end_bytes:
            self.digests.clear()
            self._inode, self._end_bytes = status.st_ino, 0
        stream.seek(self._end_bytes)
        for line in _lines(stream):
            self._end_bytes = stream.tell() if line is None else self._end_bytes + len(line)
            # Of a damaged line not: the row that it named is taken in anew.
            digest = known_digest(line) if line else None
            if digest is not None:
                self.digests.add(digest)

    def advance(self, digests: Iterable[bytes], n_bytes: int) -> None:
        """Take in what was just appended."""
        self.digests.update(digests)
        self._end_bytes += n_bytes


class Store:
    """The site's stored rows.

    Args:
        home: the site's folder; made (0700) when the first row is written.
        log_name: file in it: the site's own runs, or what the whole cluster did.
        lock_timeout_s: longest wait for another writer.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from omnipilot.domain import InferenceRun
        >>> run = InferenceRun(source="site", model="m", engine="vllm", gpu="H100", n_gpus=1,
        ...     precision="fp8", mode="online", status="ok", labels={"ttft_p50_s": 0.2})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store.open(Path(folder))
        ...     store.append([run, run], now_s=0.0), store.append([run], now_s=9.0)
        (AppendReport(accepted=1, duplicate=1), AppendReport(accepted=0, duplicate=1))
    """

    def __init__(
        self, home: Path, *, log_name: str = LOG_NAME, lock_timeout_s: float = LOCK_TIMEOUT_S
    ) -> None:
        self.home = home
        self.path = home / log_name
        self._lock_path = home / f"{log_name}.lock"
        self._lock_timeout_s = lock_timeout_s
        self._index = _Index()
        self._named = False  # whether the log's name is known to survive a crash

    @classmethod
    def open(
        cls, home: Path, *, log_name: str = LOG_NAME, lock_timeout_s: float = LOCK_TIMEOUT_S
    ) -> Store:
        """Open a site's store and repair a torn last line where the folder can be written.

        Raises:
            StateError: the log is there and cannot be read.
        """
        store = cls(home, log_name=log_name, lock_timeout_s=lock_timeout_s)
        with _state_errors(store.path):
            try:
                with store.path.open("rb") as stream:
                    torn = not _ends_whole(stream.fileno())
            except FileNotFoundError:
                return store
        if torn and os.access(home, os.W_OK) and os.access(store.path, os.W_OK):
            with store._writing():
                pass
        return store

    def append(self, rows: Iterable[Row], now_s: float) -> AppendReport:
        """Write the rows that the log does not hold yet; all of them or, on an error, none.

        Args:
            rows: typed rows.
            now_s: time of taking in, Unix seconds.

        Raises:
            BadInputError: a row that cannot be stored.
            StateError: the folder or the disk refuses; the log is as it was.
        """
        return self.append_encoded((encode_row(row) for row in rows), now_s)

    def append_encoded(self, rows: Iterable[EncodedRow], now_s: float) -> AppendReport:
        """Write rows that are encoded already; see :meth:`append`."""
        return self.append_lines([row.line(now_s)] for row in rows)

    def append_lines(self, blocks: Iterable[list[bytes]]) -> AppendReport:
        """Write lines made by :meth:`EncodedRow.line`, given in lists; see :meth:`append`."""
        blocks = iter(blocks)
        first = next(blocks, None)
        if first is None:
            return AppendReport(0, 0)
        with self._writing() as stream:
            return self._write(stream, chain((first,), blocks))

    def rows(self, tally: ReadTally | None = None) -> Iterator[StoredRow]:
        """Read the rows in the order they were written, streaming.

        Args:
            tally: filled in with what was passed over.

        Raises:
            StateError: the log cannot be read.
        """
        tally = tally if tally is not None else ReadTally()
        for line in self.lines():
            row = row_of_line(line, tally)
            if row is not None:
                yield row

    def lines(self) -> Iterator[bytes | None]:
        """Read the undecoded lines in the order they were written; None for one above any row.

        Raises:
            StateError: the log cannot be read.
        """
        with _state_errors(self.path):
            try:
                stream = self.path.open("rb")
            except FileNotFoundError:
                return
            with stream:
                yield from _lines(stream)

    def settled_bytes(self) -> int:
        """Give the size of the log while nobody writes: all before it stays as it is.

        Raises:
            StateError: the log cannot be opened, or another process keeps writing.
        """
        if not self.path.exists():
            return 0
        with self._writing() as stream:
            return os.fstat(stream.fileno()).st_size

    def torn_files(self) -> list[Path]:
        """List the files that hold line ends cut by crashes."""
        return sorted(self.home.glob(f"{self.path.name}.torn-*"))

    @contextmanager
    def _writing(self) -> Iterator[BinaryIO]:
        """Hold the lock on a log that ends in a whole line."""
        with _state_errors(self.path):
            make_private(self.home)
            with exclusive(self._lock_path, self._lock_timeout_s):
                fd = os.open(self.path, _LOG_FLAGS, 0o600)
                with os.fdopen(fd, "rb") as stream:
                    self._repair(stream.fileno())
                    yield stream

    def _write(self, stream: BinaryIO, blocks: Iterable[list[bytes]]) -> AppendReport:
        self._index.refresh(stream)
        fd = stream.fileno()
        start_bytes = os.fstat(fd).st_size
        known = self._index.digests
        fresh: set[bytes] = set()
        batch: list[bytes] = []
        batch_bytes = duplicate = written_bytes = 0
        try:
            for block in blocks:
                for line in block:
                    digest = digest_of_line(line) or b""
                    if digest in known or digest in fresh:
                        duplicate += 1
                        continue
                    fresh.add(digest)
                    batch.append(line)
                    batch_bytes += len(line)
                if batch_bytes >= _BATCH_BYTES:
                    written_bytes += write_all(fd, b"".join(batch))
                    batch.clear()
                    batch_bytes = 0
            written_bytes += write_all(fd, b"".join(batch))
            # Also where all rows are there already: whoever wrote them may have died unsynced.
            os.fsync(fd)
            if not self._named:
                sync_folder(self.home)
                sync_name(self.home)  # another program may have made it just now
                self._named = True
        except BaseException:
            os.ftruncate(fd, start_bytes)
            raise
        self._index.advance(fresh, written_bytes)
        return AppendReport(len(fresh), duplicate)

    def _repair(self, fd: int) -> None:
        """Move a torn last line aside; close a whole one that lacks its newline."""
        if _ends_whole(fd):
            return
        size_bytes = os.fstat(fd).st_size
        start_bytes = _last_line_start(fd, size_bytes)
        if size_bytes - start_bytes < LINE_BYTES:
            tail = os.pread(fd, size_bytes - start_bytes, start_bytes)
            if _is_row(tail):
                write_all(fd, b"\n")
                return
        self._keep_aside(fd, start_bytes, size_bytes)
        os.ftruncate(fd, start_bytes)
        os.fsync(fd)

    def _keep_aside(self, fd: int, start_bytes: int, end_bytes: int) -> None:
        n = len(self.torn_files()) + 1
        while (path := self.home / f"{self.path.name}.torn-{n}").exists():
            n += 1
        aside = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for at in range(start_bytes, end_bytes, _BLOCK_BYTES):
                write_all(aside, os.pread(fd, min(_BLOCK_BYTES, end_bytes - at), at))
            os.fsync(aside)
            sync_folder(self.home)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(aside)


@contextmanager
def _state_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        raise StateError(
            f"the store {where} cannot be used: {error.strerror or error}; "
            "free space, correct its permissions or give another --home"
        ) from error


def _ends_whole(fd: int) -> bool:
    size_bytes = os.fstat(fd).st_size
    return size_bytes == 0 or os.pread(fd, 1, size_bytes - 1) == b"\n"


def _last_line_start(fd: int, size_bytes: int) -> int:
    """Find the offset after the last newline."""
    end = size_bytes
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Give the lines of the log; None for one that is longer than any row."""
    while line := stream.readline(LINE_BYTES):
        if line.endswith(b"\n") or len(line) < LINE_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(LINE_BYTES)
        yield None


def _is_row(line: bytes) -> bool:
    tally = ReadTally()
    return row_of_line(line + b"\n", tally) is not None or bool(tally.unknown)


def row_of_line(line: bytes | None, tally: ReadTally) -> StoredRow | None:
    """Decode a line of the log; None, and counted in ``tally``, where it is no row."""
    if line is None:
        tally.skipped["too long"] += 1
        return None
    if not line.endswith(b"\n"):
        tally.skipped["torn"] += 1
        return None
    try:
        row = decode_line(line)
    except UnreadableLineError as error:
        if line.strip():
            tally.skipped[str(error)] += 1
        return None
    except UnknownKindError as error:
        tally.unknown[str(error)] += 1
        return None
    tally.rows += 1
    return row
