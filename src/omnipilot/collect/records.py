"""CSV records of an untrusted file, one at a time in bounded memory.

A file from elsewhere may be binary, cut short, of mixed encodings, hold a line of many megabytes
or expand to terabytes. Damage that spoils one record is a :class:`Rejection` and reading goes on;
damage that makes the file another thing than CSV text is a :class:`BadInputError`.
"""

from __future__ import annotations

import csv
import gzip
import io
import stat
import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, cast

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Limits", "Record", "printable", "read_records"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one input file may cost.

    Args:
        line_bytes: longest record; a longer line is refused and passed over unread.
        record_lines: most physical lines that one quoted record may span.
        file_bytes: most decompressed bytes of one file.
        expansion_ratio: most decompressed bytes a compressed byte; checked after
            ``expansion_floor_bytes``. Real tables reach about 20, a gzip bomb 1000.
        expansion_floor_bytes: decompressed bytes below which no ratio is checked.
    """

    line_bytes: int = 2**20
    record_lines: int = 100
    file_bytes: int = 4 * 2**30
    expansion_ratio: float = 200.0
    expansion_floor_bytes: int = 64 * 2**20


class Record(NamedTuple):
    """One record: the physical line it starts on and its fields."""

    line: int
    fields: list[str]


_GZIP: Final = b"\x1f\x8b"
# First bytes of files that people take for CSV, and what to do about it.
_NOT_CSV: Final[tuple[tuple[bytes, str], ...]] = (
    (b"PK\x03\x04", "a zip or Excel file: export the sheet as CSV"),
    (b"PAR1", "a Parquet file: export it as CSV"),
    (b"BZh", "compressed with bzip2: use plain text or gzip"),
    (b"\xfd7zXZ", "compressed with xz: use plain text or gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: use plain text or gzip"),
    (_GZIP, "compressed with gzip twice: decompress it once"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
)
_BOM: Final = b"\xef\xbb\xbf"
_FIELD_CHARACTERS: Final = 131_072  # the csv module's default limit of one field
_UNCLOSED: Final = "unexpected end of data"


def printable(text: str, limit: int = 40) -> str:
    """Shorten a foreign text for a message and take its control characters out."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[:limit] + "…"


def read_records(path: Path, limits: Limits) -> Iterator[Record | Rejection]:
    """Read the records of a plain or gzip-compressed CSV file; blank lines are passed over.

    Args:
        path: a regular file; gzip is told by its first bytes, not by its name.
        limits: what the file may cost.

    Yields:
        One item a record, in file order.

    Raises:
        BadInputError: the file cannot be opened, is empty, is not text, is a damaged gzip file or
            exceeds ``limits.file_bytes`` or ``limits.expansion_ratio``.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInputError(f"{path} is not a regular file: give a CSV file")
        with path.open("rb") as raw:
            yield from _records(_Lines(path, raw, limits))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        message = f"{path} is a damaged or cut gzip file ({error}): fetch it again"
        raise BadInputError(message) from error
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror or error}") from error


class _Lines:
    """Physical lines with their numbers, and a place to put lines back."""

    def __init__(self, path: Path, raw: BinaryIO, limits: Limits) -> None:
        self.limits = limits
        self._path = path
        self._raw = raw
        self._put_back: deque[tuple[int, bytes]] = deque()
        self._stream = self._open(raw)
        self._line = 0
        self._bytes_read = 0

    def _open(self, raw: BinaryIO) -> io.BufferedReader:
        stream = cast("io.BufferedReader", raw)
        if stream.peek(2)[:2] == _GZIP:
            # GzipFile is a BufferedIOBase, not a RawIOBase, but offers the readinto() needed here.
            inner = cast("io.RawIOBase", gzip.GzipFile(fileobj=raw, mode="rb"))
            stream = io.BufferedReader(inner, buffer_size=2**16)
        head = stream.peek(8)[:8]
        if not head:
            raise BadInputError(f"{self._path} is empty: give a CSV file with a header line")
        for magic, what in _NOT_CSV:
            if head.startswith(magic):
                raise BadInputError(f"{self._path} is not CSV text: it is {what}")
        if head.startswith(_BOM):
            stream.read(len(_BOM))
        return stream

    def next_line(self) -> tuple[int, bytes] | None:
        """Give the next line, cut at one byte above the limit; None at the end."""
        if self._put_back:
            return self._put_back.popleft()
        most = self.limits.line_bytes + 1
        line = self._stream.readline(most)
        if not line:
            return None
        self._line += 1
        self._count(len(line))
        rest = line
        while len(rest) == most and not rest.endswith(b"\n"):
            rest = self._stream.readline(most)
            self._count(len(rest))
        return self._line, line

    def put_back(self, lines: list[tuple[int, bytes]]) -> None:
        """Give ``lines`` again before any other."""
        self._put_back.extendleft(reversed(lines))

    def _count(self, n_bytes: int) -> None:
        self._bytes_read += n_bytes
        if self._bytes_read > self.limits.file_bytes:
            raise BadInputError(
                f"{self._path} holds more than {self.limits.file_bytes / 2**20:.0f} MiB of text: "
                "split it into smaller files"
            )
        if (
            self._bytes_read > self.limits.expansion_floor_bytes
            and self._bytes_read > self.limits.expansion_ratio * self._raw.tell()
        ):
            raise BadInputError(
                f"{self._path} expands more than {self.limits.expansion_ratio:.0f} times: "
                "refused as a gzip bomb"
            )


def _records(lines: _Lines) -> Iterator[Record | Rejection]:
    while (at := lines.next_line()) is not None:
        number, line = at
        if not line.strip():
            continue
        item = _parse(number, line, lines.limits)
        yield _quoted_over_lines(number, line, lines) if item is None else item


def _parse(number: int, line: bytes, limits: Limits) -> Record | Rejection | None:
    """Turn the bytes of one record into fields; None where a quote is still open."""
    if len(line) > limits.line_bytes:
        return Rejection(number, f"longer than {limits.line_bytes} bytes", "line too long")
    if b"\0" in line:
        return Rejection(number, "holds a NUL byte", "NUL byte")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text (byte {line[error.start]:#04x}): save the file as UTF-8"
        return Rejection(number, reason, "not UTF-8")
    return _split(number, text.rstrip("\r\n"))


def _split(number: int, text: str) -> Record | Rejection | None:
    # Most lines hold nothing that csv treats specially; splitting them is four times as fast.
    if '"' not in text and "\r" not in text and len(text) < _FIELD_CHARACTERS:
        return Record(number, text.split(","))
    try:
        return Record(number, next(csv.reader((text,), strict=True)))
    except csv.Error as error:
        if str(error) == _UNCLOSED:
            return None
        return Rejection(number, f"not CSV: {error}", "not CSV")


def _quoted_over_lines(number: int, line: bytes, lines: _Lines) -> Record | Rejection:
    """Join the lines of a record whose quoted field holds line ends.

    A quote that never closes would swallow the rest of the file: after ``record_lines`` lines or
    ``line_bytes`` bytes its own line is refused and the lines after it are read as records.
    """
    taken: list[tuple[int, bytes]] = []

    def texts() -> Iterator[str]:
        size = len(line)
        yield line.decode()
        while len(taken) + 1 < lines.limits.record_lines:
            at = lines.next_line()
            if at is None:
                return
            taken.append(at)
            size += len(at[1])
            if size > lines.limits.line_bytes or b"\0" in at[1]:
                return
            yield at[1].decode()

    try:
        return Record(number, next(csv.reader(texts(), strict=True)))
    except (csv.Error, UnicodeDecodeError):
        lines.put_back(taken)
        return Rejection(number, "a quote is opened and never closed", "unclosed quote")
