"""CSV records of an untrusted file, one at a time in bounded memory.

A file from elsewhere may be binary, cut short, of mixed encodings, hold a line of many megabytes
or expand to terabytes. Damage that spoils one record is a :class:`Rejection` and reading goes on;
damage that makes the file another thing than CSV text is a :class:`BadInputError`.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.collect.lines import Limits, Lines, decode_line, open_lines, printable
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Limits", "Record", "printable", "read_records"]


class Record(NamedTuple):
    """One record: the physical line it starts on and its fields."""

    line: int
    fields: list[str]


_FIELD_CHARACTERS: Final = 131_072  # the csv module's default limit of one field
_UNCLOSED: Final = "unexpected end of data"


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
    with open_lines(path, limits, "a CSV file with a header line") as lines:
        yield from _records(lines)


def _records(lines: Lines) -> Iterator[Record | Rejection]:
    while (at := lines.next_line()) is not None:
        number, line = at
        if not line.strip():
            continue
        item = _parse(number, line, lines.limits)
        yield _quoted_over_lines(number, line, lines) if item is None else item


def _parse(number: int, line: bytes, limits: Limits) -> Record | Rejection | None:
    """Turn the bytes of one record into fields; None where a quote is still open."""
    text = decode_line(number, line, limits)
    return text if isinstance(text, Rejection) else _split(number, text)


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


def _quoted_over_lines(number: int, line: bytes, lines: Lines) -> Record | Rejection:
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
