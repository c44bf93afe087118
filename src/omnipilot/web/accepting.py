"""Connections spread evenly over workers that accept from one socket.

A worker answers one question at a time, so who shares a worker with eleven connections waits
nearly twice as long as who shares it with five. The kernel hands connections out by a hash or to
whoever wakes first; here a worker leaves a connection to one that holds fewer, for a moment.
"""

from __future__ import annotations

import asyncio
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import uvicorn

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ["Acceptor", "Shares", "SharingServer"]

_AWAY: Final = 2**32 - 1
# Up to this count shares differ by one connection at most, beyond it by this part of them.
_SLACK_PART: Final = 8
# How often a worker looks whether its share has come up, and when it stops waiting for the others:
# a busy worker takes some milliseconds to see a connection.
_LOOK_S: Final = 0.001
_PATIENCE_S: Final = 0.05
_EXHAUSTED_S: Final = 1.0


class Shares:
    """Open connections by worker, in memory that the workers share: make it before they fork.

    Args:
        count: of the workers.
    """

    def __init__(self, count: int) -> None:
        self._open = memoryview(mmap.mmap(-1, 4 * count)).cast("I")
        for number in range(count):
            self.leave(number)

    def put(self, number: int, connections: int) -> None:
        """Tell how many connections a worker holds."""
        self._open[number] = connections

    def leave(self, number: int) -> None:
        """Tell that a worker takes none: nobody waits for it."""
        self._open[number] = _AWAY

    def is_fair(self, number: int, connections: int) -> bool:
        """Whether a worker that holds some connections may take another one."""
        others = [n for i, n in enumerate(self._open) if i != number]
        least = min(others, default=_AWAY)
        return connections <= least + least // _SLACK_PART


class Acceptor:
    """Accepts for one worker, on the running event loop.

    Args:
        listener: the socket that all workers accept from.
        shares: of all workers.
        number: of this worker.
        held: counts the connections that it has.
        take: makes a protocol for one more.
    """

    def __init__(
        self,
        listener: socket.socket,
        shares: Shares,
        number: int,
        held: Callable[[], int],
        take: Callable[[], asyncio.Protocol],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._shares = shares
        self._number = number
        self._held = held
        self._take = take
        self._opening: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self.tell()
        self._loop.add_reader(self._listener, self._ready)

    def stop(self) -> None:
        """Accept no more; what waits is the other workers'."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._shares.leave(self._number)

    def tell(self) -> int:
        """Tell the other workers how many connections this one holds; the number."""
        connections = self._held() + len(self._opening)
        self._shares.put(self._number, connections)
        return connections

    def _is_fair(self) -> bool:
        return self._shares.is_fair(self._number, self.tell())

    def _ready(self) -> None:
        if self._is_fair():
            self._accept()
        else:
            self._loop.remove_reader(self._listener)
            self._stand_back(self._loop.time() + _PATIENCE_S)

    def _stand_back(self, until_s: float) -> None:
        """Leave what waits to the others until they had their share, or their time."""
        is_fair = self._is_fair()
        if not is_fair and self._loop.time() < until_s:
            self._timer = self._loop.call_later(_LOOK_S, self._stand_back, until_s)
            return
        self._look_again()
        if not is_fair:
            self._accept()

    def _look_again(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._ready)

    def _accept(self) -> None:
        """Take one connection, if none of the others was quicker."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:  # out of files or memory: those that end make room
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(_EXHAUSTED_S, self._look_again)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        self.tell()

    async def _open(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the caller has gone
            await self._loop.connect_accepted_socket(self._take, connection)


class SharingServer(uvicorn.Server):
    """One of several workers on one socket; see :class:`Acceptor`.

    Args:
        config: of uvicorn.
        listener: the socket that all workers accept from.
        shares: of all workers.
        number: of this worker.
    """

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, shares: Shares, number: int
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._shares = shares
        self._number = number
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept."""
        await super().startup(sockets=sockets or [])
        protocol: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        state = self.server_state

        def take() -> asyncio.Protocol:
            return protocol(config=self.config, server_state=state, app_state=self.lifespan.state)

        self._acceptor = Acceptor(
            self._listener, self._shares, self._number, lambda: len(state.connections), take
        )
        self._acceptor.start()

    async def on_tick(self, counter: int) -> bool:
        """Tell of connections that have ended, ten times a second."""
        if self._acceptor is not None:
            self._acceptor.tell()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let what runs end."""
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None
        await super().shutdown(sockets=sockets)
