"""Several workers on one port: one that dies is replaced, and their figures are one page."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnipilot.client import Client, ServiceError
from omnipilot.web.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "omnipilot", "serve", "--port", "0", "--no-live",
             "--workers", "2", "--home", str(tmp_path / "home")],
            stderr=out, stdout=out,
        )  # fmt: skip
    url = None
    for _ in range(600):
        found = re.search(r'"url":"(http://[^"]+)/"', log.read_text(encoding="utf-8"))
        if found:
            url = found[1]
            break
        assert process.poll() is None, log.read_text(encoding="utf-8")
        time.sleep(0.1)
    assert url is not None
    try:
        yield process, url
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
        assert log.read_text(encoding="utf-8").splitlines()[-1].endswith('"event":"stopped"}')
    finally:
        process.kill()
        process.wait()


def workers(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(part) for part in text.split()]


def test_a_worker_that_dies_is_replaced_and_figures_are_added_up(
    served: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, url = served
    client = Client(url, timeout_s=60)
    for _ in range(30):
        client.ready()
    time.sleep(3)  # each worker publishes once a second
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:  # noqa: S310 - ours
        page = answer.read().decode()
    found = re.search(r'omnipilot_requests_total\{route="/ready",[^}]*\} (\d+)', page)
    assert found is not None
    assert int(found[1]) == 30
    assert page.count("omnipilot_model_info{") == 1
    before = workers(process.pid)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s and (
        len(workers(process.pid)) < 2 or before[0] in workers(process.pid)
    ):
        time.sleep(0.1)
    assert len(set(workers(process.pid)) - {before[0]}) == 2
    for _ in range(20):
        assert client.ready()["status"] == "ready"


def test_connections_are_shared_out_evenly(served: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = served
    host, _, port = url.removeprefix("http://").partition(":")
    # A worker that still starts leaves all to the other, and one that gets no core for long a few.
    until_s = time.monotonic() + 60
    held = shares(process.pid, host, int(port))
    while held != [6, 6] and time.monotonic() < until_s:
        time.sleep(0.5)
        held = shares(process.pid, host, int(port))
    assert held == [6, 6]


def shares(pid: int, host: str, port: int) -> list[int]:
    """Open twelve connections; how many of them each worker of a service has."""
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as opened:
        for _ in range(12):
            caller = opened.enter_context(socket.create_connection((host, port), 60))
            caller.sendall(ask)
            assert caller.recv(12) == b"HTTP/1.1 200"
        return [connections(worker, port) for worker in workers(pid)]


def connections(pid: int, port: int) -> int:
    """Established connections of a process to a port of its own."""
    own = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            own.add(str(file.readlink()))
    lines = Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    rows = [line.split() for line in lines]
    return sum(
        row[1].endswith(f":{port:04X}") and row[3] == "01" and f"socket:[{row[9]}]" in own
        for row in rows
    )


def test_counts_of_workers_are_added_and_gauges_are_not(tmp_path: Path) -> None:
    one, other = Metrics(tmp_path), Metrics(tmp_path)
    for metrics in (one, other):
        metrics.add("omnipilot_requests_total", "/ready", "GET", "200", by=2)
        metrics.put("omnipilot_gpus_pending", {(): 7.0})
        metrics.observe("omnipilot_request_seconds", "/ready", value=0.02)
    other.publish()
    published = tmp_path / f"{os.getpid()}.json"
    published.rename(tmp_path / "1.json")  # as if of another process
    page = one.page()
    assert 'omnipilot_requests_total{route="/ready",method="GET",status="200"} 4' in page
    assert "omnipilot_gpus_pending 7\n" in page
    assert 'omnipilot_request_seconds_count{route="/ready"} 2' in page
    (tmp_path / "2.json").write_text("damaged", encoding="utf-8")
    assert one.page() == page


def test_a_worker_that_died_leaves_its_counts_and_none_of_its_gauges(tmp_path: Path) -> None:
    died, lives = Metrics(tmp_path), Metrics(tmp_path)
    died.add("omnipilot_requests_total", "/ready", "GET", "200")
    died.put("omnipilot_requests_in_flight", {(): 3.0})
    died.put("omnipilot_model_info", {("old", "site"): 1.0})
    died.publish()
    (tmp_path / f"{os.getpid()}.json").rename(tmp_path / "1.json")
    lives.put("omnipilot_requests_in_flight", {(): 1.0})
    lives.bury(1)
    lives.bury(2)  # it died before it told anything
    page = lives.page()
    assert 'omnipilot_requests_total{route="/ready",method="GET",status="200"} 1' in page
    assert "omnipilot_requests_in_flight 1\n" in page
    assert "omnipilot_model_info{" not in page


def test_a_service_that_is_gone_is_told(tmp_path: Path) -> None:
    del tmp_path
    with pytest.raises(ServiceError):
        Client("http://127.0.0.1:9", timeout_s=2).ready()
