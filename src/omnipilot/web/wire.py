"""Connections: heads that come in time and are no longer than they may be, answers in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omnipilot.web.limits import Limits

if TYPE_CHECKING:
    import asyncio

__all__ = ["GuardedProtocol", "JoiningTransport"]

# What a line of a head holds beside name and value.
_LINE_BYTES: Final = len(": \r\n")
# Requests read ahead on one connection: each holds some KiB, and a packet brings thousands.
_MOST_AHEAD: Final = 32


class JoiningTransport:
    """A transport that sends what one step of the event loop writes in one go.

    The head and the body of an answer are written apart: two system calls here, and two waits at
    the caller's.

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

    The parser is compiled and sets no limit: it holds a header until that has come as a whole. It
    takes what follows a wish to change the protocol for that protocol, which nobody speaks here:
    such a head is read again without the wish. Headers after a body are counted and left aside.
    """

    head_s = Limits().head_s
    head_bytes = Limits().head_bytes
    _head_timer: asyncio.TimerHandle | None = None
    # Runs of lines that began (a head; what stands before and after each part of a body), whether
    # the last of them goes on and belongs to a head, and how long it is by its complete lines and
    # by what came since it began.
    _runs = 0
    _in_lines = False
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
        self._unset_keepalive_if_required()
        before, came_bytes = self._runs, len(data)
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as end:
                data = self._head_again() + data[end.args[0] :]
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
                return
            else:
                break
        if self._in_lines and self._runs == before:
            self._came_bytes += came_bytes
            if self._came_bytes > self.head_bytes:
                self.send_400_response("The head is too large.")
                return
        if self.cycle is None or self.cycle.response_complete:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._begin_lines()
        self._in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one after the body could pass for what a proxy says of the caller."""
        self._count(len(name) + len(value) + _LINE_BYTES)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the clock once a head is there."""
        self._in_lines = self._in_head = False
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("no tunnels here")
            return  # it is read again
        self._stop_timer()
        super().on_headers_complete()
        if len(self.pipeline) > _MOST_AHEAD:
            raise ValueError("too many requests at a time")

    def on_chunk_header(self) -> None:
        """Count what may be lines after the body."""
        self._begin_lines()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._in_lines = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._in_lines = False
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _head_again(self) -> bytes:
        """The head that was read last, without the wish for another protocol; for a new parser."""
        first = (
            self.parser.get_method(), self.url, b"HTTP/" + self.parser.get_http_version().encode(),
        )  # fmt: skip
        lines = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return b"\r\n".join([b" ".join(first), *lines, b"", b""])

    def _begin_lines(self) -> None:
        self._runs += 1
        self._in_lines, self._told_bytes, self._came_bytes = True, 0, 0

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
