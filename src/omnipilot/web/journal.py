"""The service's own log: one JSON object a line, without secrets.

A line tells which route answered, never the query or the body: these hold what people asked.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Journal", "JournalHandler"]


class Journal:
    """Writes events.

    Args:
        stream: where to; None says nothing.
        clock: Unix seconds.
    """

    def __init__(
        self, stream: TextIO | None = sys.stderr, clock: Callable[[], float] = time.time
    ) -> None:
        self._stream = stream
        self._clock = clock

    def write(self, event: str, level: str = "info", **facts: Any) -> None:  # noqa: ANN401 - JSON
        """Write one event with its facts; a reader that has gone is no error."""
        if self._stream is None:
            return
        when = datetime.fromtimestamp(self._clock(), tz=UTC)
        line = {
            "time": when.isoformat(timespec="milliseconds"), "level": level, "event": event,
            **facts,
        }  # fmt: skip
        try:
            self._stream.write(msgspec.json.encode(line).decode() + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None

    def failure(self, event: str, error: BaseException, **facts: Any) -> None:  # noqa: ANN401
        """Write a bug: where it came up, without the values that it was about."""
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
        self.write(event, "error", error=type(error).__name__, where=where, **facts)


class JournalHandler(logging.Handler):
    """Hands what libraries log to the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.INFO)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a traceback becomes its place."""
        error = record.exc_info[1] if record.exc_info else None
        level = record.levelname.lower()
        if error is not None:
            self._journal.failure("server", error, message=record.getMessage()[:200])
        else:
            self._journal.write("server", level, message=record.getMessage()[:200])
