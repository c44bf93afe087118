"""The client against a service on a port."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import uvicorn
from served_site import ROWS, Site, make_site

from omnipilot.client import Client, ServiceError
from omnipilot.web.app import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    site = make_site(tmp_path_factory.mktemp("served"))
    config = uvicorn.Config(make_app(site.service), port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        threading.Event().wait(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield site, f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def test_each_call_answers(served: tuple[Site, str]) -> None:
    client = Client(served[1])
    load = {"concurrency": 200, "context_tokens": 4096}
    advice = client.advise("Qwen/Qwen2.5-7B-Instruct", **load, gpus=["h100-80"])
    assert {a["arm"]["gpu_kind"] for a in advice["ranked"]} == {"h100-80"}
    assert client.explain("Qwen/Qwen2.5-7B-Instruct", **load)["loads"]
    assert client.fits("Qwen/Qwen2.5-7B-Instruct", "h100-80")["verdict"] == "fits"
    row = {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "H100", "n_gpus": 1, "precision": "bf16",
           "isl": 512, "osl": 128, "concurrency": 8}  # fmt: skip
    assert [r["verdict"] for r in client.predict([row, row])] == ["fits", "fits"]
    assert client.models()[0]["answers"]
    assert client.cluster()["origin"] == "none"
    assert client.prior()["jobs"] == 0
    assert client.catalog()["gpus"]
    assert client.ready()["status"] == "ready"


def test_rows_are_ingested_with_a_token_and_refused_without(served: tuple[Site, str]) -> None:
    site, url = served
    with pytest.raises(ServiceError) as caught:
        Client(url).ingest_csv(ROWS)
    assert caught.value.status == 401
    token = site.tokens.add("writer", ("read", "write"), 0.0)
    assert Client(url, token=token).ingest_csv(ROWS)["accepted"] == 1


def test_a_refusal_carries_the_problem(served: tuple[Site, str]) -> None:
    with pytest.raises(ServiceError, match="no/such") as caught:
        Client(served[1]).advise("no/such", concurrency=1, context_tokens=100)
    assert caught.value.status == 404
    assert caught.value.kind == "urn:omnipilot:problem:unknown-name"
    assert caught.value.request_id
    assert caught.value.document["title"]


def test_a_service_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(ServiceError, match="does not answer") as caught:
        Client("http://127.0.0.1:9", timeout_s=2).models()
    assert caught.value.status == 0
    with pytest.raises(ServiceError, match="no address"):
        Client("127.0.0.1:8088")


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], str]]:
    """Addresses of servers that say some bytes, whatever they are asked."""
    with ExitStack() as opened:

        def serve(said: bytes) -> str:
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer() -> None:
                with listener.accept()[0] as caller:
                    caller.recv(65536)
                    caller.sendall(said)

            threading.Thread(target=answer, daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield serve


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "something else"),
    ],
)
def test_a_server_of_another_kind_is_told_in_one_line(
    said: bytes, told: str, stranger: Callable[[bytes], str]
) -> None:
    with pytest.raises(ServiceError, match=told):
        Client(stranger(said), timeout_s=5).models()


def test_what_cannot_be_asked_is_told_in_one_line() -> None:
    with pytest.raises(ServiceError, match="nonnumeric port"):
        Client("http://127.0.0.1:abc").models()
    with pytest.raises(ServiceError, match="JSON cannot hold"):
        Client("http://127.0.0.1:9").advise("m", concurrency=1, context_tokens=2, hours=math.nan)
    odd = "omp_abc\n"
    with pytest.raises(ServiceError, match="token") as caught:
        Client("http://127.0.0.1:9", token=odd)
    assert "abc" not in str(caught.value)
