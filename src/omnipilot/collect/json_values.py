"""JSON values of an untrusted file: one, an array, JSON Lines, or several one after another.

Tools append results to one file, crashes cut it short, and people pretty-print it: the values are
found by their brackets, whatever lies between them. A value that cannot be read is a
:class:`Rejection`, and reading goes on at the next line that begins a value.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from omnipilot.collect.lines import Limits, open_lines, printable
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["JSON_LIMITS", "JsonValue", "decode_json", "number_of", "read_json_values"]

JSON_LIMITS: Final = replace(Limits(), file_bytes=256 * 2**20)
_MOST_VALUES: Final = 20_000
_MOST_DEPTH: Final = 64
# A scan of brackets that finds no end is done again from the next value; this many times the size
# of the file is what all of them may look at.
_SCAN_RATIO: Final = 8

_T = TypeVar("_T")

# A string ends on its line (JSON has no line ends in strings). An unclosed one matches without its
# last quote, so that no text is scanned twice.
_MARK: Final = re.compile(rb'"(?:[^"\\\n]++|\\[^\n])*+("?)|[{}\[\]]')
_OPENING: Final = re.compile(rb"[{\[]")
_QUOTE, _BRACE, _LINE_END = b'"{\n'
_NEXT_VALUE: Final = re.compile(rb"\n[{\[]")
_BETWEEN: Final = re.compile(rb"[\s,]*")


class JsonValue(NamedTuple):
    """One object or array: the line it starts on and its bytes."""

    line: int
    data: bytes


def read_json_values(
    path: Path, wanted: str, limits: Limits = JSON_LIMITS
) -> Iterator[JsonValue | Rejection]:
    """Find the objects of a file; arrays at the top are opened.

    Args:
        path: a file, plain or gzip-compressed.
        wanted: what the file should be, with its article.
        limits: what the file may cost.

    Yields:
        One item a value, in file order.

    Raises:
        BadInputError: the file cannot be opened, is no text, is too large or holds no value.
    """
    with open_lines(path, limits, wanted) as lines:
        data = lines.read_all()
    if _OPENING.search(data) is None:
        raise BadInputError(f"{path} holds no JSON: give {wanted}")
    for n, item in enumerate(_values(data)):
        if n >= _MOST_VALUES:
            raise BadInputError(f"{path} holds more than {_MOST_VALUES} values: split it")
        if isinstance(item, Rejection) or item.data[:1] == b"{":
            yield item
        else:
            yield from _elements(item)


def _values(data: bytes) -> Iterator[JsonValue | Rejection]:
    at, line, budget = 0, 1, _SCAN_RATIO * len(data)
    while at < len(data):
        between = _BETWEEN.match(data, at)
        start = between.end() if between else at
        line += data.count(b"\n", at, start)
        if start >= len(data):
            return
        end, fault = _end(data, start)
        if fault:
            yield Rejection(line, fault, "not JSON")
            budget -= end - start
            if budget < 0:
                yield Rejection(line, "too damaged to look further", "not JSON")
                return
            following = _NEXT_VALUE.search(data, start)
            end = following.start() if following else len(data)
        else:
            yield JsonValue(line, data[start:end])
        line += data.count(b"\n", start, end)
        at = end


def _end(data: bytes, start: int) -> tuple[int, str]:
    """Find where the value that begins at ``start`` ends.

    Returns:
        The end and "", or where the search was given up and why.
    """
    if data[start] not in b"{[":
        shown = printable(data[start : start + 20].decode(errors="replace"), 20)
        return start, f"'{shown}' is no JSON object"
    # Written without line ends: a bracket that begins a later line is the next value's.
    compact = data[start + 1 : start + 2] not in b"\r\n"
    opened = bytearray()
    for mark in _MARK.finditer(data, start):
        at, byte = mark.start(), data[mark.start()]
        if byte == _QUOTE:
            if not mark[1]:
                return mark.end(), "a text in it is not closed: is the file cut short?"
        elif byte in b"{[":
            if opened and data[at - 1] == _LINE_END and (compact or opened[-1] == _BRACE):
                return at, "cut short: the next value begins within it"
            opened.append(byte)
            if len(opened) > _MOST_DEPTH:
                return at, f"nested deeper than {_MOST_DEPTH}"
        else:
            opened.pop()
            if not opened:
                return mark.end(), ""
    return len(data), "not closed: is the file cut short?"


def _elements(value: JsonValue) -> Iterator[JsonValue | Rejection]:
    elements = decode_json(value, list[msgspec.Raw])
    if isinstance(elements, Rejection):
        yield elements
        return
    for element in elements[:_MOST_VALUES]:
        yield JsonValue(value.line, bytes(element))


def decode_json(value: JsonValue, wanted: type[_T]) -> _T | Rejection:
    """Decode one value into a typed structure; members it does not name are passed over."""
    try:
        return msgspec.json.decode(value.data, type=wanted)
    except msgspec.ValidationError as error:
        return Rejection(value.line, printable(str(error), 160), "wrong shape")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Rejection(value.line, printable(str(error), 160), "not JSON")


def number_of(value: Any) -> float | None:  # noqa: ANN401 - whatever JSON holds
    """Read a number that a tool may have written as text; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value) if not isinstance(value, str) or len(value) <= 64 else None
    except (ValueError, OverflowError):
        return None
