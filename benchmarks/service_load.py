"""Load on the service: requests a second, latency, memory, and a promotion in the middle.

Client and service share the machine. Every question is another one unless ``--repeat`` says
otherwise, so that no answer is kept from before:

    .venv/bin/python benchmarks/service_load.py --seconds 60 --top 10
    .venv/bin/python benchmarks/service_load.py --seconds 60 --top 10 --rate 150
    .venv/bin/python benchmarks/service_load.py --seconds 60 --top 10 --lengths 9973
    .venv/bin/python benchmarks/service_load.py --requests 100000 --repeat 50 --top 10 --promote

A connection asks again as soon as it has its answer, so that the next question waits for the last
answer. With ``--rate`` questions are due at fixed times instead, whichever connection is free first
asks each, and latency counts from when it was due: no wait is left out.

The gauge is the time of a loop of pure Python: about 0.3 s on a calm core of a present server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from omnipilot.costmodel.bundle import base_model_path

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "Qwen/Qwen2.5-7B-Instruct"
# 80 arms start for this model: 12 of each of six GPU kinds, 4 of each of two slices.
ARMS = 80
# Parts of a run by the number of requests, after each of which the memory is read.
_WATCH_PARTS = 10
GPUS = (
    "a100-40", "a100-80", "h100-80", "h200-141", "b200-180", "l40s-48", "a100-80.mig-3g.40gb",
    "h100-80.mig-3g.40gb",
)  # fmt: skip
PRECISIONS = ("bf16", "fp8", "gptq", "awq")


def gauge_s() -> float:
    """Seconds of a fixed loop: what a core is worth at this moment."""
    began = time.perf_counter()
    exec("for i in range(5_000_000): total += i", {"total": 0})  # noqa: S102 - as a module runs it
    return time.perf_counter() - began


def questions(repeat: int, top: int, lengths: int = 0) -> Iterator[Asked]:
    """Questions without end; each is another one, or one of ``repeat``.

    The context length changes every 997 questions, or with each of them through ``lengths``.
    """
    n = 0
    while True:
        i = n % repeat if repeat else n
        longer = i % lengths if lengths else (i // 997) % 997
        body = {
            "model": MODEL, "concurrency": 1 + i % 997, "context_tokens": 2048 + longer,
            "gpus": GPUS, "precisions": PRECISIONS, **({"top": top} if top else {}),
        }  # fmt: skip
        data = json.dumps(body).encode()
        yield Asked(
            b"POST /v1/advise HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data),
            b'"concurrency":%d,"context_tokens":%d,' % (1 + i % 997, 2048 + longer),
        )
        n += 1


class Asked(NamedTuple):
    """A request's bytes, and what its answer must say of it."""

    request: bytes
    said: bytes


class Load:
    """Some connections over one stream of questions.

    Args:
        port: of the service.
        asked: the questions.
        rate_per_s: how often one is due; 0 asks as soon as a connection has its answer.
    """

    def __init__(self, port: int, asked: Iterator[Asked], rate_per_s: float = 0.0) -> None:
        self.port = port
        self.latencies_s: list[float] = []
        self.by_worker: dict[bytes, int] = {}
        self.faults: list[str] = []
        self.versions: dict[str, int] = {}
        self.arms: set[int] = set()
        self._questions = asked
        self._apart_s = 1.0 / rate_per_s if rate_per_s else 0.0

    async def run(self, connections: int, seconds: float, requests: int) -> float:
        """Ask until the time is over or the number is reached; seconds that it took."""
        self._until_s = time.perf_counter() + seconds if seconds else float("inf")
        self._left = requests or sys.maxsize
        began = self._due_s = time.perf_counter()
        await asyncio.gather(*(self._one() for _ in range(connections)))
        return time.perf_counter() - began

    async def _one(self) -> None:
        while not self.is_over:
            await self._connection()

    async def _connection(self) -> None:
        loop = asyncio.get_running_loop()
        caller = Caller(self, loop.create_future())
        await loop.create_connection(lambda: caller, "127.0.0.1", self.port)
        await caller.gone

    @property
    def is_over(self) -> bool:
        """Whether no more is to be asked."""
        return self._left <= 0 or self._next_due_s() >= self._until_s

    def _next_due_s(self) -> float:
        return self._due_s if self._apart_s else time.perf_counter()

    def next(self) -> tuple[Asked, float] | None:
        """The next question and when it is due; None where no more is to be asked."""
        if self.is_over:
            return None
        self._left -= 1
        due_s = self._next_due_s()
        self._due_s = due_s + self._apart_s
        return next(self._questions), due_s

    def answered(self, asked: Asked, head: bytes, body: bytes, took_s: float) -> None:
        """Check and count one answer that came as a whole."""
        self.latencies_s.append(took_s)
        if not head.startswith(b"HTTP/1.1 200") or asked.said not in body[:1000]:
            self.faults.append(head.split(b"\r\n")[0].decode())
            return
        version = re.search(rb'"model_version":"(\w+)"', body)
        name = version[1].decode() if version else "?"
        self.versions[name] = self.versions.get(name, 0) + 1
        # Each worker numbers its answers after a word of its own.
        worker = re.search(rb"x-request-id: (\w+)\w{8}", head)
        if worker:
            self.by_worker[worker[1]] = self.by_worker.get(worker[1], 0) + 1
        if len(self.latencies_s) % 500 == 1:
            self.arms.add(compared(json.loads(body)))


def compared(answer: dict[str, Any]) -> int:
    """How many arms started and were compared, told or not."""
    first = answer["ranked"][0]["rationale"] if answer["ranked"] else ""
    found = re.match(r"best of (\d+)", first)
    return int(found[1]) if found else 0


class Caller(asyncio.Protocol):
    """One connection: asks, waits for the whole answer, asks again when it is time.

    Args:
        load: gives the questions and takes the answers.
        gone: done when the connection is.
    """

    def __init__(self, load: Load, gone: asyncio.Future[None]) -> None:
        self.gone = gone
        self._load = load
        self._asked: Asked | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the first question."""
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        following = self._load.next()
        if following is None:
            self._asked = None
            self._transport.close()
            return
        self._asked, self._due_s = following
        self._received, self._length = bytearray(), 0
        early_s = self._due_s - time.perf_counter()
        if early_s > 0:
            asyncio.get_running_loop().call_later(early_s, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if self._asked is not None:
            self._transport.write(self._asked.request)

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        self._received += data
        if not self._length:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = bytes(self._received[:end])
            stated = re.search(rb"content-length: (\d+)", self._head)
            self._length = end + 4 + int(stated[1]) if stated else sys.maxsize
        if len(self._received) >= self._length and self._asked is not None:
            took_s = time.perf_counter() - self._due_s
            body = bytes(self._received[len(self._head) + 4 :])
            self._load.answered(self._asked, self._head, body, took_s)
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that goes before its answer is a fault."""
        if self._asked is not None:
            self._load.faults.append(repr(exc) if exc else "hung up")
        self.gone.set_result(None)


def resident_mib(pid: int) -> float:
    """Of the service and its workers, shared pages counted once."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    total_kib = 0
    for process in (str(pid), *children):
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
        total_kib += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
    return total_kib / 1024


def processor_s(pid: int) -> float:
    """Processor time of the service and its workers so far."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    ticks = 0
    for process in (str(pid), *children):
        fields = (
            Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        )
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def start(home: Path, log: Path, workers: int) -> tuple[subprocess.Popen[bytes], int]:
    """The service on a free port."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "omnipilot", "serve", "--port", "0", "--rate", "0",
             "--no-live", "--workers", str(workers), "--home", str(home)],
            stderr=out, stdout=out, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
    for _ in range(300):
        found = re.search(r'"url":"http://127.0.0.1:(\d+)/"', log.read_text(encoding="utf-8"))
        if found:
            return process, int(found[1])
        time.sleep(0.1)
    raise SystemExit(log.read_text(encoding="utf-8"))


def promote(home: Path) -> None:
    """Make a copy of the shipped bundle the one that answers, as a promotion does."""
    folder = home / "bundles" / "copy"
    shutil.copytree(base_model_path(), folder)
    link = home / "bundles" / ".next"
    link.symlink_to(folder.name)
    link.replace(home / "bundles" / "current")


async def measured(args: argparse.Namespace, port: int, pid: int, home: Path) -> Load:
    print(f"gauge before {gauge_s():.2f} s")
    warm = Load(port, questions(args.repeat, args.top, args.lengths))
    await warm.run(4, 0, 40)
    await asyncio.sleep(0.5)  # until the workers know of one another that these have gone
    load = Load(port, questions(args.repeat, args.top, args.lengths), args.rate)
    memory_mib, busy_s = [resident_mib(pid)], processor_s(pid)
    client_s = time.process_time()
    watch = asyncio.create_task(_watch(pid, load, memory_mib, _WATCH_PARTS, args.requests))
    half = asyncio.create_task(_promote_later(home, args)) if args.promote else None
    took_s = await load.run(args.connections, args.seconds, args.requests)
    watch.cancel()
    if half is not None:
        await half
    busy_s, client_s = processor_s(pid) - busy_s, time.process_time() - client_s
    memory_mib.append(resident_mib(pid))
    ordered = sorted(load.latencies_s)

    def at(q: float) -> float:
        return 1e3 * ordered[min(int(q * len(ordered)), len(ordered) - 1)]

    asked = f"{args.rate:g} due a second" if args.rate else "asked again at once"
    print(f"{len(ordered):,} requests in {took_s:.1f} s at {args.connections} connections, {asked}")
    mean_ms = 1e3 * sum(ordered) / len(ordered)
    print(
        f"{len(ordered) / took_s:.1f} requests/s; p50 {at(0.5):.1f} ms, p99 {at(0.99):.1f} ms "
        f"({at(0.99) / mean_ms:.2f} times the mean), longest {1e3 * ordered[-1]:.1f} ms"
    )
    print(f"answers by worker: {sorted(load.by_worker.values())}")
    print(f"processor time of the service: {1e3 * busy_s / len(ordered):.1f} ms a request")
    print(f"processor time of the client: {1e3 * client_s / len(ordered):.2f} ms a request")
    print(f"arms compared: {sorted(load.arms)}; model versions: {load.versions}")
    print(f"resident memory, even parts: {', '.join(f'{m:.0f}' for m in memory_mib)} MiB")
    if load.arms != {ARMS}:
        load.faults.append(f"not {ARMS} arms")
    print(f"faults: {len(load.faults)} {load.faults[:3]}; gauge after {gauge_s():.2f} s")
    return load


async def _watch(pid: int, load: Load, memory_mib: list[float], parts: int, requests: int) -> None:
    """Note the memory after each part of the requests; in a run by the clock only at its ends.

    It takes some 35 ms, in which no answer is read: ten of them are nothing in a long run and are
    more than a hundredth of a short one.
    """
    for part in range(1, parts if requests else 0):
        while len(load.latencies_s) * parts < requests * part:  # noqa: ASYNC110 - seldom looked at
            await asyncio.sleep(0.1)
        memory_mib.append(resident_mib(pid))


async def _promote_later(home: Path, args: argparse.Namespace) -> None:
    await asyncio.sleep(args.seconds / 2 if args.seconds else 5)
    promote(home)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0, help="questions due a second")
    parser.add_argument("--repeat", type=int, default=0, help="distinct questions; 0 for all")
    parser.add_argument("--lengths", type=int, default=0, help="context lengths in turn")
    parser.add_argument("--top", type=int, default=0, help="arms told in full; 0 for all")
    parser.add_argument("--workers", type=int, default=2, help="processes of the service")
    parser.add_argument("--promote", action="store_true", help="promote a bundle in the middle")
    args = parser.parse_args()
    if not args.seconds and not args.requests:
        args.seconds = 30.0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        process, port = start(home, home / "service.log", args.workers)
        try:
            load = asyncio.run(measured(args, port, process.pid, home))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    return 1 if load.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
