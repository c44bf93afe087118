"""The client against a service on a port."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
import uvicorn
from served_site import ROWS, Site, make_site

from omnipilot.client import Client, ServiceError
from omnipilot.web.app import make_app

if TYPE_CHECKING:
    from collections.abc import Iterator


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
