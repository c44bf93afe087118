"""Connections over workers that accept from one socket: even, and never left waiting."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.web import accepting
from omnipilot.web.accepting import Acceptor, Shares
from omnipilot.web.wire import JoiningTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LOOPBACK = "127.0.0.1"


class Worker:
    """Holds connections as a worker does; all workers of a test live on one event loop."""

    def __init__(self, listener: socket.socket, shares: Shares, number: int) -> None:
        self.held: set[asyncio.BaseTransport] = set()
        self.listener = listener.dup()
        self.acceptor = Acceptor(
            self.listener, shares, number, lambda: len(self.held), lambda: Connection(self)
        )
        self.acceptor.start()

    def stop(self) -> None:
        self.acceptor.stop()
        self.listener.close()


class Connection(asyncio.Protocol):
    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.worker.held.add(transport)

    def connection_lost(self, _: Exception | None) -> None:
        self.worker.held.discard(self.transport)
        self.worker.acceptor.tell()


def listening() -> socket.socket:
    listener = socket.create_server((LOOPBACK, 0), backlog=128)
    listener.setblocking(False)
    return listener


async def connected(listener: socket.socket, count: int) -> list[asyncio.StreamWriter]:
    port = listener.getsockname()[1]
    made = await asyncio.gather(*(asyncio.open_connection(LOOPBACK, port) for _ in range(count)))
    return [writer for _, writer in made]


async def settled(found: Callable[[], object], wanted: object) -> None:
    for _ in range(1000):
        if found() == wanted:
            return
        await asyncio.sleep(0.005)
    assert found() == wanted


def run(test: Callable[[socket.socket], Coroutine[None, None, None]]) -> None:
    with listening() as listener:
        asyncio.run(test(listener))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_connections_that_come_at_once_are_spread_evenly(workers: int) -> None:
    async def test(listener: socket.socket) -> None:
        shares = Shares(workers)
        all_workers = [Worker(listener, shares, i) for i in range(workers)]
        callers = await connected(listener, 6 * workers)
        await settled(lambda: [len(w.held) for w in all_workers], [6] * workers)
        for worker in all_workers:
            worker.stop()
        for caller in callers:
            caller.close()

    run(test)


def test_who_lost_its_connections_gets_the_next_ones() -> None:
    async def test(listener: socket.socket) -> None:
        shares = Shares(2)
        one, other = Worker(listener, shares, 0), Worker(listener, shares, 1)
        callers = await connected(listener, 8)
        await settled(lambda: (len(one.held), len(other.held)), (4, 4))
        for transport in tuple(other.held):
            transport.close()
        await settled(lambda: (len(one.held), len(other.held)), (4, 0))
        callers += await connected(listener, 3)
        await settled(lambda: (len(one.held), len(other.held)), (4, 3))
        one.stop()
        other.stop()
        for caller in callers:
            caller.close()

    run(test)


def test_a_worker_that_hangs_leaves_no_connection_waiting() -> None:
    async def test(listener: socket.socket) -> None:
        shares = Shares(2)
        worker = Worker(listener, shares, 0)
        shares.put(1, 0)  # says that it has none, and accepts none
        callers = await connected(listener, 3)
        await settled(lambda: len(worker.held), 3)
        worker.stop()
        for caller in callers:
            caller.close()

    run(test)


def test_a_worker_that_is_out_of_files_accepts_once_it_has_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "_EXHAUSTED_S", 0.01)
    refusals = [OSError(errno.EMFILE, "too many open files"), BlockingIOError()]

    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if refusals:
                raise refusals.pop()
            return super().accept()

        def dup(self) -> Exhausted:
            return self

    async def test(listener: socket.socket) -> None:
        worker = Worker(listener, Shares(1), 0)
        callers = await connected(listener, 2)
        await settled(lambda: len(worker.held), 2)
        assert not refusals
        worker.stop()
        for caller in callers:
            caller.close()

    with listening() as plain, Exhausted(fileno=plain.detach()) as listener:
        asyncio.run(test(listener))


@given(
    st.lists(st.integers(0, 1000) | st.none(), min_size=1, max_size=8),
    st.data(),
)
def test_there_is_always_a_worker_that_may_take_the_next_connection(
    held: list[int | None], data: st.DataObject
) -> None:
    shares = Shares(len(held))
    for number, connections in enumerate(held):
        if connections is not None:
            shares.put(number, connections)
    there = {i: n for i, n in enumerate(held) if n is not None}
    if there:
        least = min(there, key=lambda i: there[i])
        assert shares.is_fair(least, there[least])
    number = data.draw(st.integers(0, len(held) - 1))
    others = [n for i, n in there.items() if i != number]
    if others:
        assert not shares.is_fair(number, 2 * max(others) + 1)
    else:
        assert shares.is_fair(number, 10_000)


def test_a_worker_that_left_is_waited_for_no_more() -> None:
    shares = Shares(2)
    shares.put(1, 0)
    assert not shares.is_fair(0, 1)
    shares.leave(1)
    assert shares.is_fair(0, 1)


class Written:
    """A transport that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append(b"closed")

    def is_closing(self) -> bool:
        return self.told[-1:] == [b"closed"]


def test_what_one_step_writes_is_sent_at_once_and_before_the_connection_closes() -> None:
    async def sent() -> list[bytes]:
        below = Written()
        transport = JoiningTransport(below, asyncio.get_running_loop())  # type: ignore[arg-type]
        transport.write(b"head ")
        transport.write(b"")
        transport.write(b"body")
        assert below.told == []
        await asyncio.sleep(0)
        transport.write(b"last")
        transport.close()
        assert transport.is_closing()
        await asyncio.sleep(0)
        return below.told

    assert asyncio.run(sent()) == [b"head body", b"last", b"closed"]
