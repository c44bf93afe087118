"""Several processes on one port: each answers from its own copy of the site.

Answers are computed by Python, which runs on one core a process. The workers are forked before any
thread starts; a worker that dies is replaced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from omnipilot.web.journal import Journal

    Handlers = dict[signal.Signals, Callable[[int, FrameType | None], Any] | int | None]

__all__ = ["run_workers"]

_CRASH_PAUSE_S: Final = 1.0
_GRACE_S: Final = 20.0
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


def run_workers(
    count: int, work: Callable[[int], None], journal: Journal, ended: Callable[[int, int], None]
) -> None:
    """Fork workers and watch over them until told to stop.

    Args:
        count: how many.
        work: what the worker of a number does; it returns when told to stop by SIGTERM.
        journal: told of workers that died.
        ended: told the number and the process of a worker that died.
    """
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    before = {number: signal.signal(number, stop) for number in _STOPS}
    workers: dict[int, int] = {_start(i, work, before): i for i in range(count)}
    try:
        while not stopping:
            time.sleep(0.2)  # a signal ends the sleep's wait for the next look
            for pid, i in _ended(workers):
                ended(i, pid)
                journal.write("worker died", "error", worker=i, pid=pid)
                time.sleep(_CRASH_PAUSE_S)
                if not stopping:
                    workers[_start(i, work, before)] = i
    finally:
        _end(workers)
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(i: int, work: Callable[[int], None], before: Handlers) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number, handler in before.items():
            signal.signal(number, handler)
        work(i)
        code = 0
    finally:
        os._exit(code)  # nothing of the parent's is to be cleaned up here


def _ended(workers: dict[int, int]) -> list[tuple[int, int]]:
    """(process, number) of workers that are gone; they are taken out."""
    gone = []
    for pid in list(workers):
        found, _ = os.waitpid(pid, os.WNOHANG)
        if found:
            gone.append((pid, workers.pop(pid)))
    return gone


def _end(workers: dict[int, int]) -> None:
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until_s = time.monotonic() + _GRACE_S
    while workers and time.monotonic() < until_s:
        _ended(workers)
        time.sleep(0.05)
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
