"""Lines of a vLLM log: process, level, time and text, whatever wrote the prefix."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.collect.lines import Limits, decode_line, open_lines
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LogLine", "read_log_lines", "seconds_between"]

_WANTED: Final = "a log of a vLLM server"
_YEAR_S: Final = 366 * 86400.0

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
# "(EngineCore_DP0 pid=7) INFO 11-29 13:14:44 [core.py:93] text"; before 0.8 "core.py:93] text".
# What stands before (container names, srun labels, timestamps of journals) is passed over.
_LOGGED: Final = re.compile(
    r"(?:\(([A-Za-z][\w.-]{0,60}) (?:\w{1,20}=\w{1,20} ){0,4}pid=(\d{1,10})\) ?)?"
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,]\d{1,9})? "
    r"\[?([\w./-]{1,120}:\d{1,7})\] ?"
)
_PRINTED: Final = re.compile(r"\(([A-Za-z][\w.-]{0,60}) pid=(\d{1,10})\) ?")
_PREFIX_CHARACTERS: Final = 400
# The longest line that is read for what it says, the engine's settings, has some 10,000.
_TEXT_CHARACTERS: Final = 65_536
# Progress bars have some hundreds of updates on a line; the last ones tell what was reached.
_MOST_PARTS: Final = 10_000


class LogLine(NamedTuple):
    """One line.

    ``level`` is "" for what was printed past the logger, ``at`` then None. ``at`` is a time in an
    unknown year.
    """

    number: int
    process: str
    level: str
    at: datetime | None
    text: str


def read_log_lines(path: Path, limits: Limits) -> Iterator[LogLine | Rejection]:
    """Read the lines of a log, plain or gzip-compressed; progress bars are split at their returns.

    Raises:
        BadInputError: the file cannot be opened, is no text or is too large.
    """
    with open_lines(path, limits, _WANTED) as lines:
        for number, raw in lines:
            text = decode_line(number, raw, limits)
            if isinstance(text, Rejection):
                yield text
                continue
            if "\x1b" in text:
                text = _COLOUR.sub("", text)
            if "\r" in text:
                yield from (_line(number, part) for part in text.split("\r")[-_MOST_PARTS:] if part)
            elif text:
                yield _line(number, text)


def _line(number: int, text: str) -> LogLine:
    text = text[:_TEXT_CHARACTERS]
    logged = _LOGGED.search(text, 0, _PREFIX_CHARACTERS)
    if logged:
        process, pid, level, *when, _ = logged.groups()
        return LogLine(
            number, _process(process, pid), level, _time(*when), text[logged.end() :].rstrip()
        )
    printed = _PRINTED.search(text, 0, _PREFIX_CHARACTERS)
    if printed:
        return LogLine(number, _process(*printed.groups()), "", None, text[printed.end() :])
    return LogLine(number, "", "", None, text)


def _process(name: str | None, pid: str | None) -> str:
    return f"{name} {pid}" if name else ""


def _time(month: str, day: str, hour: str, minute: str, second: str) -> datetime | None:
    try:
        # A leap year, so that 29 February is a day.
        return datetime(2024, int(month), int(day), int(hour), int(minute), int(second))  # noqa: DTZ001 - the log tells neither year nor zone
    except ValueError:
        return None


def seconds_between(first: datetime, last: datetime) -> float:
    """Seconds from one time to a later one, over the end of a year too."""
    seconds = (last - first).total_seconds()
    return seconds if seconds >= 0 else seconds + _YEAR_S
