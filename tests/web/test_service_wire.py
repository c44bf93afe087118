"""The service on a port: heads, bodies and connections that no honest client makes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from stand_in import StandInModel
from omnipilot.advisor import Advisor
from omnipilot.web import server
from omnipilot.web.limits import Limits
Advisor.model = property(lambda self: StandInModel())
server.serve(server.ServeOptions(
    Path(sys.argv[1]), port=0, live=False, limits=Limits(head_s=1.0, body_s=1.0, per_s=0)))
"""

ADVISE = b"POST /v1/advise HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
QUESTION = (
    b'{"model": "Qwen/Qwen2.5-7B-Instruct", "concurrency": 8, "context_tokens": 4096, '
    b'"gpus": ["h100-80"], "top": 1}'
)
CHUNKED = (
    ADVISE + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n"
) % (len(QUESTION), QUESTION)  # fmt: skip


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A service in a process of its own, with short time limits."""
    home = tmp_path_factory.mktemp("wire")
    stand_ins = os.path.join(os.path.dirname(os.path.dirname(__file__)), "stand_ins")  # noqa: PTH118, PTH120
    log = home / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(home), stand_ins], stderr=out, stdout=out
        )
    try:
        yield wait_for_port(log, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
        text = log.read_text(encoding="utf-8")
        assert "request failed" not in text
        assert "Traceback" not in text
    finally:
        process.kill()
        process.wait()


def wait_for_port(log: Path, process: subprocess.Popen[bytes]) -> int:
    for _ in range(600):
        found = re.search(r'"url":"http://127.0.0.1:(\d+)/"', log.read_text(encoding="utf-8"))
        if found:
            return int(found[1])
        assert process.poll() is None, log.read_text(encoding="utf-8")
        time.sleep(0.1)
    raise AssertionError("the service does not listen")


def talk(port: int, *parts: bytes, pause_s: float = 0.0, then_end: bool = False) -> bytes:
    """Send bytes, with a pause after each part; all that comes back until the service hangs up."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                if pause_s:
                    time.sleep(pause_s)
            if then_end:
                connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                found += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
        return found


def is_alive(port: int) -> bool:
    return talk(port, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_a_head_that_never_ends_is_hung_up_on(port: int) -> None:
    began = time.monotonic()
    assert talk(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") == b""
    assert time.monotonic() - began < 8


def test_a_head_that_drips_is_hung_up_on(port: int) -> None:
    began = time.monotonic()
    talk(port, b"GET / HTTP/1.1\r\n", *(b"a: b\r\n" for _ in range(8)), pause_s=0.4)
    assert time.monotonic() - began < 12
    assert is_alive(port)


def test_a_connection_that_says_nothing_is_hung_up_on(port: int) -> None:
    assert talk(port) == b""


def test_a_body_that_does_not_come_is_refused(port: int) -> None:
    answer = talk(
        port,
        b"POST /v1/advise HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 500\r\n\r\n{",
    )
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"urn:omnipilot:problem:slow-body" in answer


@pytest.mark.parametrize(
    "length", [b"Content-Length: 99999999999\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_a_body_that_is_too_large_is_refused_at_once(port: int, length: bytes) -> None:
    head = (
        b"POST /v1/advise HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + length
        + b"\r\n"
    )
    body = b"20000\r\n" + b"x" * 0x20000 if b"chunked" in length else b""
    assert talk(port, head, body).startswith(b"HTTP/1.1 413")


def test_a_head_that_is_too_large_is_refused(port: int) -> None:
    answer = talk(
        port,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000 + b"\r\n\r\n",
        then_end=True,
    )
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))


@pytest.mark.parametrize("header", [b"X: ", b"GET /"], ids=["header", "address"])
@pytest.mark.parametrize("pieces", [5, 40])
def test_a_head_that_is_too_large_is_refused_before_it_ends(
    port: int, header: bytes, pieces: int
) -> None:
    began = b"GET / HTTP/1.1\r\nHost: localhost\r\n" * (header == b"X: ") + header
    with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
        connection.sendall(began)
        answer = b""
        try:
            for _ in range(pieces):
                connection.sendall(b"x" * (40_000 // pieces))
                time.sleep(0.01)
            answer = connection.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


def test_a_head_that_is_nearly_too_large_is_answered(port: int) -> None:
    filler = b"".join(b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(15))
    head = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n" + filler + b"Connection: close\r\n\r\n"
    assert len(head) > 15_000
    assert talk(port, head).startswith(b"HTTP/1.1 200")
    # The same in pieces, as a slow network brings it.
    pieces = [head[i : i + 1000] for i in range(0, len(head), 1000)]
    assert talk(port, *pieces, pause_s=0.01).startswith(b"HTTP/1.1 200")


def test_requests_sent_at_once_are_answered_one_after_the_other(port: int) -> None:
    ask = ADVISE + b"Content-Length: %d\r\n\r\n%s" % (len(QUESTION), QUESTION)
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    # Heads after bodies, and a body that is longer than a head may be: neither counts as the other.
    padded = ADVISE + b"Content-Length: %d\r\n\r\n%s" % (len(QUESTION) + 30_000, QUESTION)
    for first in (ask, padded + b" " * 30_000):
        answer = talk(port, first + ask + last)
        assert answer.count(b"HTTP/1.1 200") == 3
        assert answer.endswith(b'{"status":"alive"}')


def test_a_header_after_the_body_does_not_count_as_one(port: int) -> None:
    # A proxy that names the caller in a header strips it from heads and not from here.
    answer = talk(port, CHUNKED + b"X-Request-Id: after-the-body\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"after-the-body" not in answer


def test_headers_after_the_body_that_never_end_are_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
        connection.sendall(CHUNKED + b"X: ")
        sent = 0
        try:
            for _ in range(4_000):
                sent += connection.send(b"x" * 10_000)
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert sent < 40_000_000
    assert is_alive(port)


def test_more_requests_at_once_than_any_client_sends_are_refused(port: int) -> None:
    answer = talk(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000)
    assert answer.count(b"HTTP/1.1 200") < 100
    assert is_alive(port)


@pytest.mark.parametrize("apart", [False, True])
def test_a_wish_for_another_protocol_is_passed_over_and_the_body_read(
    port: int, *, apart: bool
) -> None:
    # So asks Java's client first. Taken for another protocol, the body could hold a request.
    head = ADVISE + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n"
    first = head + b"Content-Length: %d\r\n\r\n" % len(QUESTION)
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    parts = (first, QUESTION, last) if apart else (first + QUESTION + last,)
    answer = talk(port, *parts, pause_s=0.2 if apart else 0.0)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.endswith(b'{"status":"alive"}')
    assert b'"ranked"' in answer


@pytest.mark.parametrize("path", [b"/health", b"/v1/models", b"/"])
def test_what_asks_for_the_head_gets_that_of_the_answer_alone(port: int, path: bytes) -> None:
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    head = talk(port, b"HEAD %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path + last)
    whole = talk(port, b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path + last)
    kept = re.compile(rb"(?im)^(content-length|content-type): .*$")
    first, _, rest = head.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200")
    assert rest.startswith(b"HTTP/1.1 200")  # of the request that follows: there was no body
    asked = whole.partition(b"\r\n\r\n")[0]
    assert kept.findall(first)
    assert [m[0] for m in kept.finditer(first)] == [m[0] for m in kept.finditer(asked)]


def test_a_tunnel_is_refused(port: int) -> None:
    answer = talk(port, b"CONNECT / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 100)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: +5\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length : 5\r\n",
        b"X: a\x00b\r\n",
        b"X: a\r\n folded\r\n",
    ],
)
def test_a_head_that_two_servers_could_read_differently_is_refused(port: int, lines: bytes) -> None:
    head = b"POST /v1/advise HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = talk(port, head + lines + b"\r\n5\r\nhello\r\n0\r\n\r\n", then_end=True)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=60).map(
            lambda b: b"GET /" + b + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ),
        st.binary(max_size=60).map(lambda b: b"GET / HTTP/1.1\r\nHost: " + b + b"\r\n\r\n"),
        st.binary(max_size=60).map(
            lambda b: (
                b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\nAuthorization: " + b + b"\r\n\r\n"
            )
        ),
        st.sampled_from(
            [
                b"GET /../../etc/passwd HTTP/1.0\r\nHost: localhost\r\n\r\n",
                b"GET /static/..%2f..%2fserver.py HTTP/1.0\r\nHost: localhost\r\n\r\n",
                b"GET /static/%00 HTTP/1.0\r\nHost: localhost\r\n\r\n",
                b"GET http://evil.example/ HTTP/1.0\r\nHost: localhost\r\n\r\n",
                b"GET * HTTP/1.0\r\nHost: localhost\r\n\r\n",
                b"TRACE / HTTP/1.0\r\nHost: localhost\r\n\r\n",
            ]
        ),
    )
)
def test_no_bytes_make_a_fault(port: int, sent: bytes) -> None:
    answer = talk(port, sent, then_end=True)
    assert b"HTTP/1.1 5" not in answer.split(b"\r\n")[0]
    assert b"root:" not in answer
    assert b"import" not in answer or b"<!doctype html>" in answer


def test_after_all_that_it_answers(port: int) -> None:
    assert is_alive(port)


def test_a_taken_port_is_told_in_one_line(port: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omnipilot", "serve", "--port", str(port), "--no-live",
         "--home", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "Traceback" not in done.stderr
