"""Range queries to a server that is slow, large, broken or away."""

from __future__ import annotations

import http.server
import json
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from dcgm_stand_in import T0, answer

from omnipilot.collect.prometheus_json import Series
from omnipilot.collect.prometheus_server import PrometheusServer, query_range, selector
from omnipilot.domain import UsageError
from omnipilot.domain.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Answering(http.server.ThreadingHTTPServer):
    """Answers as ``reply`` says and keeps what it was asked."""

    daemon_threads = True
    reply: Callable[[Any, dict[str, str]], None]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/base/"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Answering)
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = {name: values[0] for name, values in parse_qs(body).items()}
        server.asked.append(asked | {"path": self.path})
        server.headers.append(dict(self.headers))
        server.reply(self, asked)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        del format, args


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def send(handler: Any, text: str, status: int = 200, **headers: str) -> None:
    data = text.encode()
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def every_step(handler: Any, asked: dict[str, str]) -> None:
    """One series with a reading at each instant asked for."""
    start, end, step = (float(asked[name]) for name in ("start", "end", "step"))
    n = int((end - start) / step) + 1
    values = [[start + i * step, "1"] for i in range(n)]
    send(handler, answer({"metric": {"__name__": "up"}, "values": values}))


def ask(server: Answering, end_s: float = T0 + 60, **options: Any) -> list[Any]:
    return list(query_range(PrometheusServer(server.url, **options), "up", T0, end_s, 1.0))


def test_one_answer_holds_every_instant(server: Answering) -> None:
    server.reply = every_step
    (series,) = ask(server, token="secret")  # noqa: S106 - made up
    assert isinstance(series, Series)
    assert series.times_s.tolist() == [T0 + n for n in range(61)]
    assert server.asked[0]["path"] == "/base/api/v1/query_range"
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_long_times_are_asked_for_in_parts_that_touch(server: Answering) -> None:
    server.reply = every_step
    parts = ask(server, T0 + 25_000)
    times = [t for series in parts for t in series.times_s.tolist()]
    assert times == [T0 + n for n in range(25_001)]
    assert len(server.asked) == 3


def test_an_answer_that_is_too_large_is_asked_for_in_smaller_parts(server: Answering) -> None:
    server.reply = every_step
    parts = ask(server, T0 + 999, answer_bytes=5_000)
    times = [t for series in parts for t in series.times_s.tolist()]
    assert times == [T0 + n for n in range(1000)]
    assert len(server.asked) > 4


def test_a_server_that_loads_too_many_samples_is_asked_for_less(server: Answering) -> None:
    def limited(handler: Any, asked: dict[str, str]) -> None:
        if float(asked["end"]) - float(asked["start"]) > 20:
            error = "query processing would load too many samples into memory"
            send(handler, json.dumps({"status": "error", "error": error}), 422)
        else:
            every_step(handler, asked)

    server.reply = limited
    assert sum(len(series.times_s) for series in ask(server)) == 61


@pytest.mark.parametrize(
    ("status", "told"), [(400, "bad query"), (401, "no token"), (503, "overloaded")]
)
def test_a_refusal_is_told_in_one_line(server: Answering, status: int, told: str) -> None:
    server.reply = lambda handler, _: send(handler, told, status)
    with pytest.raises(ToolError, match=f"{status}.*{told}"):
        ask(server)


def test_redirects_are_not_followed(server: Answering) -> None:
    server.reply = lambda handler, _: send(handler, "", 302, Location="http://elsewhere/")
    with pytest.raises(ToolError, match="points elsewhere"):
        ask(server)
    assert len(server.asked) == 1


def test_a_huge_answer_for_one_instant_ends_within_its_limit(server: Answering) -> None:
    server.reply = lambda handler, _: send(handler, " " * 300_000)
    with pytest.raises(ToolError, match="ask for single jobs"):
        ask(server, answer_bytes=100_000)


def test_a_compressed_answer_is_refused_unread(server: Answering) -> None:
    server.reply = lambda handler, _: send(handler, "x", Content_Encoding="gzip")
    with pytest.raises(ToolError, match="compresses"):
        ask(server)


def test_an_answer_that_drips_ends_at_the_deadline(server: Answering) -> None:
    def drip(handler: Any, _asked: dict[str, str]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(400):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return
            time.sleep(0.05)

    server.reply = drip
    began_s = time.monotonic()
    with pytest.raises(ToolError, match="did not finish"):
        ask(server, timeout_s=0.3)
    assert time.monotonic() - began_s < 10.0


def test_silence_and_a_cut_answer_end_in_one_line(server: Answering) -> None:
    server.reply = lambda _handler, _asked: time.sleep(0.6)
    with pytest.raises(ToolError, match="cannot be asked"):
        ask(server, timeout_s=0.2)

    def cut(handler: Any, _asked: dict[str, str]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"status"')

    server.reply = cut
    with pytest.raises(ToolError, match=r"cut its answer short|cannot be asked"):
        ask(server)


def test_a_server_that_is_away_is_told() -> None:
    with pytest.raises(ToolError, match="check the address"):
        list(query_range(PrometheusServer("http://127.0.0.1:9"), "up", T0, T0 + 1, 1.0))


@pytest.mark.parametrize(
    "url",
    [
        "host:9090",
        "ftp://host",
        "http://",
        "http://ho st",
        "http://u:p@host",
        "http://h:x",
        "file:///x",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        PrometheusServer(url)


def test_a_selector_cannot_be_broken_out_of() -> None:
    assert selector(["a"], {"hpc_job": ["1+0"]}) == '{__name__=~"a",hpc_job=~"1\\\\+0"}'
    with pytest.raises(UsageError, match="cannot be asked for"):
        selector(["a"], {"hpc_job": ['1"} or up{x="']})
