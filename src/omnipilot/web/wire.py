"""Connections: heads that come in time and are no longer than they may be, answers in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omnipilot.web.limits import Limits

if TYPE_CHECKING:
    import asyncio

__all__ = ["GuardedProtocol", "JoiningTransport"]

# What a line of a head holds beside name and value.
_LINE_BYTES = len(": \r\n")


class JoiningTransport:
    """A transport that sends what one step of the event loop writes in one go.

    The head and the body of an answer are written apart: two system calls, at each of which the
    thread that works on the next answer may go first, and two waits at the caller's.

    Args:
        transport: that sends.
        loop: the running one.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the transport's
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data at the end of this step."""
        if not data:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Send what was written, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))


class GuardedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that hangs up on a caller who does not send a whole head in time, or too long a one.

    The parser is compiled and sets no limit: it holds a header until that has come as a whole.
    """

    head_s = Limits().head_s
    head_bytes = Limits().head_bytes
    _head_timer: asyncio.TimerHandle | None = None
    # Heads that began, whether the last of them goes on, and how long it is by its complete lines
    # and by what came since it began.
    _heads = 0
    _in_head = False
    _told_bytes = 0
    _came_bytes = 0

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as uvicorn types it
        """Start the clock of the first head."""
        super().connection_made(JoiningTransport(transport, self.loop))  # type: ignore[arg-type]
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Run the clock for the head of each later request too."""
        before = self._heads
        super().data_received(data)
        if self._in_head and self._heads == before:
            self._came_bytes += len(data)
            if self._came_bytes > self.head_bytes and not self.transport.is_closing():
                self.send_400_response("The head is too large.")
        if self.cycle is None or self.cycle.response_complete:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._heads += 1
        self._in_head, self._told_bytes, self._came_bytes = True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count(len(name) + len(value) + _LINE_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the clock once a head is there."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def _count(self, more_bytes: int) -> None:
        self._told_bytes += more_bytes
        if self._told_bytes > self.head_bytes:
            # The parser stops at it, and what it stops at is answered with a 400.
            raise ValueError("the head is too large")

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._hang_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self) -> None:
        self._head_timer = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
