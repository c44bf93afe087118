"""Physical lines of an untrusted text file, plain or gzip-compressed, in bounded memory.

A file from elsewhere may be binary, hold a line of many megabytes or expand to terabytes. What
makes it another thing than text is a :class:`BadInputError`; damage within it is the reader's.
"""

from __future__ import annotations

import io
import stat
import zlib
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _typeshed import WriteableBuffer

__all__ = ["Limits", "Lines", "decode_line", "open_lines", "printable"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one input file may cost.

    Args:
        line_bytes: longest record; a longer line is refused and passed over unread.
        record_lines: most physical lines that one quoted record may span.
        file_bytes: most decompressed bytes of one file.
        expansion_ratio: most decompressed bytes a compressed byte; checked after
            ``expansion_floor_bytes``. Real tables reach about 20, a gzip bomb 1000.
        expansion_floor_bytes: decompressed bytes below which no ratio is checked. Small, for a
            bomb of line ends costs a reader the time of as many lines.
    """

    line_bytes: int = 2**20
    record_lines: int = 100
    file_bytes: int = 4 * 2**30
    expansion_ratio: float = 100.0
    expansion_floor_bytes: int = 2**18


_GZIP: Final = b"\x1f\x8b"
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
_PACKED_BYTES: Final = 2**16
# Read together where there are many lines: of more, what is made of them would live long enough for
# the garbage collector to look at it.
_TOGETHER_BYTES: Final = 2**14
# First bytes of files that people take for text, and what to do about it.
_NOT_TEXT: Final[tuple[tuple[bytes, str], ...]] = (
    (b"PK\x03\x04", "a zip or Excel file: export the sheet as CSV, or unpack it"),
    (b"PAR1", "a Parquet file: export it as text"),
    (b"BZh", "compressed with bzip2: use plain text or gzip"),
    (b"\xfd7zXZ", "compressed with xz: use plain text or gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: use plain text or gzip"),
    (_GZIP, "compressed with gzip twice: decompress it once"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
)
_BOM: Final = b"\xef\xbb\xbf"


def printable(text: str, limit: int = 40) -> str:
    """Shorten a foreign text for a message and take its control characters out."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[:limit] + "…"


def decode_line(number: int, line: bytes, limits: Limits) -> str | Rejection:
    """Decode one line without its end, or say why it is no text."""
    if len(line) > limits.line_bytes:
        return Rejection(number, f"longer than {limits.line_bytes} bytes", "line too long")
    if b"\0" in line:
        return Rejection(number, "holds a NUL byte", "NUL byte")
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text (byte {line[error.start]:#04x}): save the file as UTF-8"
        return Rejection(number, reason, "not UTF-8")


@contextmanager
def open_lines(path: Path, limits: Limits, wanted: str) -> Iterator[Lines]:
    """Open a plain or gzip-compressed text file.

    Args:
        path: a regular file; gzip is told by its first bytes, not by its name.
        limits: what the file may cost.
        wanted: what the file should be, with its article ("a CSV file").

    Raises:
        BadInputError: here or while lines are read: the file cannot be opened, is empty, is not
            text, is a damaged gzip file or exceeds ``limits.file_bytes`` or
            ``limits.expansion_ratio``.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInputError(f"{path} is not a regular file: give {wanted}")
        with path.open("rb") as raw:
            yield Lines(path, raw, limits, wanted)
    except (EOFError, zlib.error) as error:
        message = f"{path} is a damaged or cut gzip file ({error}): fetch it again"
        raise BadInputError(message) from error
    except OSError as error:
        raise BadInputError(f"cannot read {path}: {error.strerror or error}") from error


class _Gunzip(io.RawIOBase):
    """A gzip file unpacked piece by piece, with an exact count of the bytes that went in.

    ``gzip.GzipFile`` reads ahead, so that the place in the file tells little of how far a few
    compressed bytes have expanded.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._unpacker = zlib.decompressobj(wbits=_GZIP_WBITS)
        self._packed = b""
        self.taken_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while True:
            if not self._packed:
                self._packed = self._raw.read(_PACKED_BYTES)
            if self._unpacker.eof and not self._next_member():
                return 0
            is_end = not self._packed
            data = self._unpacker.decompress(self._packed, len(view))
            left = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            self.taken_bytes += len(self._packed) - len(left)
            self._packed = left
            if data:
                view[: len(data)] = data
                return len(data)
            if is_end and not self._unpacker.eof:
                raise EOFError("it ends before its end mark")

    def _next_member(self) -> bool:
        """Begin the next member, past zeros that pad the last; False at the end of the file."""
        while not self._packed.strip(b"\0"):
            self._packed = self._raw.read(_PACKED_BYTES)
            if not self._packed:
                return False
        self._packed = self._packed.lstrip(b"\0")
        self._unpacker = zlib.decompressobj(wbits=_GZIP_WBITS)
        return True


class Lines:
    """Physical lines with their numbers, and a place to put lines back."""

    def __init__(self, path: Path, raw: BinaryIO, limits: Limits, wanted: str) -> None:
        self.limits = limits
        self._path = path
        self._gunzip: _Gunzip | None = None
        self._put_back: deque[tuple[int, bytes]] = deque()
        self._stream = self._open(raw, wanted)
        self._line = 0
        self._bytes_read = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Give the lines to the end of the file; see :meth:`next_line`."""
        while (at := self.next_line()) is not None:
            yield at

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

    def next_lines(self) -> tuple[int, list[bytes]] | None:
        """Give the next lines together, a few dozen of usual length; None at the end.

        Returns:
            The number of the first one, and the lines without their newlines; one that is longer
            than the limit is cut above it.
        """
        block = self._stream.read(_TOGETHER_BYTES)
        if not block:
            return None
        if not block.endswith(b"\n"):
            most = self.limits.line_bytes + 1
            rest = self._stream.readline(most)
            block += rest
            while len(rest) == most and not rest.endswith(b"\n"):
                rest = self._stream.readline(most)
                self._count(len(rest))
        self._count(len(block))
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        first = self._line + 1
        self._line += len(lines)
        return first, lines

    def put_back(self, lines: list[tuple[int, bytes]]) -> None:
        """Give ``lines`` again before any other."""
        self._put_back.extendleft(reversed(lines))

    def peek(self) -> bytes:
        """Show the first bytes of what is left of the file, at most 4096."""
        return self._stream.peek(4096)[:4096]

    def read_block(self) -> bytes:
        """Read the next bytes of the file, at most 1 MiB; none at the end."""
        block = self._stream.read(2**20)
        self._count(len(block))
        return block

    def read_all(self) -> bytes:
        """Read what is left of the file, within ``limits.file_bytes``."""
        blocks = []
        while block := self.read_block():
            blocks.append(block)
        return b"".join(blocks)

    def _open(self, raw: BinaryIO, wanted: str) -> io.BufferedReader:
        stream = cast("io.BufferedReader", raw)
        if stream.peek(2)[:2] == _GZIP:
            self._gunzip = _Gunzip(raw)
            stream = io.BufferedReader(self._gunzip, buffer_size=2**16)
        head = stream.peek(8)[:8]
        if not head:
            raise BadInputError(f"{self._path} is empty: give {wanted}")
        for magic, what in _NOT_TEXT:
            if head.startswith(magic):
                raise BadInputError(f"{self._path} is not {wanted}: it is {what}")
        if head.startswith(_BOM):
            stream.read(len(_BOM))
        return stream

    def _count(self, n_bytes: int) -> None:
        self._bytes_read += n_bytes
        if self._bytes_read > self.limits.file_bytes:
            raise BadInputError(
                f"{self._path} holds more than {self.limits.file_bytes / 2**20:.0f} MiB of text: "
                "split it into smaller files"
            )
        if (
            self._gunzip is not None
            and self._bytes_read > self.limits.expansion_floor_bytes
            and self._bytes_read > self.limits.expansion_ratio * self._gunzip.taken_bytes
        ):
            raise BadInputError(
                f"{self._path} expands more than {self.limits.expansion_ratio:.0f} times: "
                "refused as a gzip bomb; if it is sound, decompress it first"
            )
