"""Who may do what, and what nobody may: tokens, proxies, hosts, rates, sizes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_site import ASK, ROWS, make_site
from test_service_api import problem

from omnipilot.domain import BadInputError, StateError
from omnipilot.web.access import is_loopback
from omnipilot.web.endpoints import ENDPOINTS
from omnipilot.web.limits import Limits, RateLimiter
from omnipilot.web.problems import ProblemError
from omnipilot.web.server import ServeOptions, host_names, make_service
from omnipilot.web.tokens import TokenFile

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.web.access import Access


def test_an_address_of_the_network_takes_authentication(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--auth token"):
        make_service(ServeOptions(tmp_path, host="0.0.0.0"))  # noqa: S104 - what is refused
    make_service(ServeOptions(tmp_path, host="0.0.0.0", auth="token"))  # noqa: S104 - same


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("login1", False)],  # noqa: S104
)  # fmt: skip
def test_loopback_is_told_from_the_network(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_under_token_authentication_nothing_but_the_probes_is_open(tmp_path: Path) -> None:
    site = make_site(tmp_path, auth="token")
    for endpoint in ENDPOINTS:
        answer = site.client.request(endpoint.method, endpoint.path)
        expected = 200 if endpoint.path in ("/health", "/ready") else 401
        assert answer.status_code == expected, endpoint.path
    for path in ("/", "/openapi.json", "/static/omnipilot.css", "/v2/anything"):
        answer = site.client.get(path)
        problem(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Basic ")


def test_a_token_opens_what_its_scopes_allow_and_a_revoked_one_nothing(tmp_path: Path) -> None:
    site = make_site(tmp_path, auth="token")
    reader = site.token("reader", "read")
    assert site.client.post("/v1/advise", json=ASK, headers=reader).status_code == 200
    answer = site.client.post(
        "/v1/rows", content=ROWS, headers=reader | {"content-type": "text/csv"}
    )
    problem(answer, 403, "forbidden")
    site.tokens.revoke("reader")
    problem(site.client.post("/v1/advise", json=ASK, headers=reader), 401, "unauthenticated")


def test_a_token_that_may_only_write_cannot_read(tmp_path: Path) -> None:
    site = make_site(tmp_path, auth="token")
    writer = site.token("writer", "write")
    problem(site.client.get("/v1/models", headers=writer), 403, "forbidden")


def test_a_browser_s_password_reads_and_never_writes(tmp_path: Path) -> None:
    site = make_site(tmp_path, auth="token")
    token = site.tokens.add("me", ("read", "write"), 0.0)
    said = base64.b64encode(f"anyone:{token}".encode()).decode()
    basic = {"authorization": f"Basic {said}"}
    assert site.client.get("/v1/models", headers=basic).status_code == 200
    answer = site.client.post(
        "/v1/rows", content=ROWS, headers=basic | {"content-type": "text/csv"}
    )
    problem(answer, 403, "forbidden")


@cache
def one_token(home: Path) -> Access:
    service = make_service(ServeOptions(home, auth="token"))
    service.access.tokens.add("somebody", ("read",), 0.0)
    return service.access


@given(
    st.one_of(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=80),
        st.binary(max_size=40).map(lambda b: "Basic " + base64.b64encode(b).decode()),
        st.sampled_from(["Bearer", "Bearer ", "Basic ", "Basic !!!", "Digest x", "Bearer omp_"]),
    )
)
def test_no_made_up_token_is_let_in(tmp_path_factory: pytest.TempPathFactory, fuzzed: str) -> None:
    access = one_token(tmp_path_factory.getbasetemp() / "one-token")
    if fuzzed.strip():
        with pytest.raises(ProblemError):
            access.principal({"authorization": fuzzed}, "127.0.0.1")
    else:
        assert access.principal({}, "127.0.0.1") is None


def test_the_file_holds_hashes_only_and_is_its_owner_s_alone(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    token = tokens.add("dashboard", ("read",), 12.0)
    text = tokens.path.read_text(encoding="utf-8")
    assert token not in text
    assert json.loads(text)[0]["sha256"] == hashlib.sha256(token.encode()).hexdigest()
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    tokens.path.chmod(0o640)
    with pytest.raises(StateError, match="chmod 600"):
        TokenFile(tmp_path).records()


def test_a_damaged_token_file_lets_nobody_in(tmp_path: Path) -> None:
    site = make_site(tmp_path, auth="token")
    reader = site.token("reader", "read")
    site.tokens.path.write_text("[{]", encoding="utf-8")
    problem(site.client.get("/v1/models", headers=reader), 503, "unavailable")


def test_names_of_tokens_are_unique_and_plain(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    tokens.add("a", ("read",), 0.0)
    for name in ("a", "", "../b", "x" * 70, "two words"):
        with pytest.raises(BadInputError):
            tokens.add(name, ("read",), 0.0)
    with pytest.raises(BadInputError, match="no token 'zzz'"):
        tokens.revoke("zzz")


def test_a_proxy_s_header_is_believed_from_the_proxy_only(tmp_path: Path) -> None:
    user = {"x-remote-user": "alice"}
    near = make_site(tmp_path, auth="proxy", writers=("bob",))
    assert near.client.get("/v1/models", headers=user).status_code == 200
    assert near.lines()[-1]["caller"] == "alice"
    csv = {"content-type": "text/csv"}
    answer = near.client.post("/v1/rows", content=ROWS, headers=user | csv)
    problem(answer, 403, "forbidden")
    bob = {"x-remote-user": "bob"}
    assert near.client.post("/v1/rows", content=ROWS, headers=bob | csv).status_code == 200
    problem(near.client.get("/v1/models"), 401, "unauthenticated")
    far = make_site(tmp_path, auth="proxy", peers=("10.0.0.9",))
    problem(far.client.get("/v1/models", headers=user), 401, "unauthenticated")


def test_a_page_of_a_stranger_s_name_cannot_reach_a_local_service(tmp_path: Path) -> None:
    site = make_site(tmp_path, hosts=host_names(ServeOptions(tmp_path)))
    for host in ("localhost", "localhost:8088", "127.0.0.1:1", "[::1]:8088"):
        assert site.client.get("/v1/models", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:8088", "localhost.evil.example", "", "[::2]"):
        problem(site.client.get("/v1/models", headers={"host": host}), 421, "wrong-host")


def test_a_body_larger_than_allowed_is_refused_before_it_is_read(tmp_path: Path) -> None:
    site = make_site(tmp_path, limits=Limits(body_bytes=1000))
    big = ASK | {"engine_version": "x" * 2000}
    problem(site.client.post("/v1/advise", json=big), 413, "too-large")

    def chunks() -> object:
        for _ in range(100):
            yield b"x" * 100

    answer = site.client.post(
        "/v1/advise", content=chunks(), headers={"content-type": "application/json"}  # type: ignore[arg-type]
    )  # fmt: skip
    problem(answer, 413, "too-large")


def test_an_address_that_takes_no_body_gets_none(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    problem(site.client.request("GET", "/v1/models", content=b"x"), 413, "too-large")


def test_too_many_rows_are_refused(tmp_path: Path) -> None:
    site = make_site(tmp_path, limits=Limits(rows=5))
    answer = site.client.post(
        "/v1/predict", content="a\n" * 10, headers={"content-type": "text/csv"}
    )
    problem(answer, 413, "too-large")


def test_a_caller_beyond_its_rate_waits(tmp_path: Path) -> None:
    site = make_site(tmp_path, limits=Limits(per_s=1, burst=3))
    statuses = [site.client.get("/v1/models").status_code for _ in range(5)]
    assert statuses[:3] == [200, 200, 200]
    answer = site.client.get("/v1/models")
    problem(answer, 429, "too-many-requests")
    assert int(answer.headers["retry-after"]) >= 1
    assert site.client.get("/health").status_code == 200


@given(st.lists(st.floats(0.0, 2.0), max_size=60), st.integers(1, 5))
def test_no_caller_gets_more_than_burst_and_rate(steps: list[float], burst: int) -> None:
    now = [0.0]
    limiter = RateLimiter(Limits(per_s=2.0, burst=burst), lambda: now[0])
    allowed = 0
    for step in steps:
        now[0] += step
        allowed += limiter.wait_s("one") == 0.0
    assert allowed <= burst + 2.0 * now[0] + 1e-6


def test_a_caller_s_bucket_is_its_own() -> None:
    limiter = RateLimiter(Limits(per_s=1.0, burst=1), lambda: 0.0)
    assert limiter.wait_s("one") == 0.0
    assert limiter.wait_s("one") > 0.0
    assert limiter.wait_s("two") == 0.0


def test_pages_may_not_be_framed_or_run_foreign_scripts(tmp_path: Path) -> None:
    answer = make_site(tmp_path).client.get("/health")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_the_umask_of_the_caller_does_not_open_the_token_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        tokens = TokenFile(tmp_path)
        tokens.add("a", ("read",), 0.0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
