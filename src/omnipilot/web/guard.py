"""What every request passes first: identity, host, rate, size and time; and its log line."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.errors import OmniPilotError
from omnipilot.domain.frozen import dataclass
from omnipilot.web.limits import RateLimiter
from omnipilot.web.problems import MEDIA_TYPE, ProblemError, problem_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from omnipilot.web.access import Principal
    from omnipilot.web.answering import Service

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]
    Direct = Callable[[Service, bytes], Awaitable[bytes]]

__all__ = ["Guard", "Rule"]

_JSON: Final = {"content-type": "application/json"}
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Pages hold no inline script or style and ask nobody but this service.
_HEADERS: Final = (
    (b"content-security-policy",
     (b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
     b"connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
     b"frame-ancestors 'none'")),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """What an address asks of a request.

    Args:
        scope: needed to use it; None where anybody may.
        body_bytes: largest body.
        media_types: of bodies; empty takes none.
    """

    scope: str | None = "read"
    body_bytes: int = 0
    media_types: tuple[str, ...] = ()


@dataclass
class _Exchange:
    """One request on its way."""

    request_id: str
    began_s: float
    caller: str = ""
    status: int = 0
    sent_bytes: int = 0
    problem: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class Guard:
    """The outermost layer of the service.

    Args:
        app: what answers.
        service: with access, limits, metrics and journal.
        rules: by (method, path); an address without a rule needs the scope "read" and no body.
        hosts: names that a request may say in Host; empty takes any.
        direct: by (method, path), what answers a body with JSON in the place of ``app``.
    """

    def __init__(
        self,
        app: App,
        service: Service,
        rules: Mapping[tuple[str, str], Rule],
        hosts: frozenset[str] = frozenset(),
        direct: Mapping[tuple[str, str], Direct] | None = None,
    ) -> None:
        self._app = app
        self._direct = direct or {}
        # Numbers after what no other worker begins with: an id of its own for each costs a system
        # call that lets the other threads go first.
        self._ids = map(f"{uuid.uuid4().hex[:24]}{{:08x}}".format, count())
        self._service = service
        self._rules = rules
        self._paths = frozenset(path for _, path in rules)
        self._hosts = hosts
        self._rates = RateLimiter(service.limits)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the life of the service passes through."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        asked = str(scope["method"])
        if asked == "HEAD":  # what a GET would say (RFC 9110 §9.3.2); the server drops the body
            scope = {**scope, "method": "GET"}
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        said = headers.get("x-request-id", "")
        request_id = said if _REQUEST_ID.fullmatch(said) else next(self._ids)
        exchange = _Exchange(request_id, time.perf_counter(), headers=headers)
        scope.setdefault("state", {})["request_id"] = exchange.request_id
        metrics = self._service.metrics
        self._in_flight += 1
        metrics.put("omnipilot_requests_in_flight", {(): float(self._in_flight)})
        try:
            await self._answer(scope, receive, self._sender(exchange, send), exchange)
        finally:
            self._in_flight -= 1
            metrics.put("omnipilot_requests_in_flight", {(): float(self._in_flight)})
            self._record(scope, exchange, asked)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, exchange: _Exchange
    ) -> None:
        try:
            body = await self._admitted(scope, receive, exchange)
            direct = self._direct.get((scope["method"], scope["path"]))
            if direct is None:
                await self._app(scope, _replay(body, receive), send)
            else:
                await _reply(send, 200, await direct(self._service, body), _JSON)
        except ProblemError as error:
            await self._refuse(error, send, exchange)
        except OmniPilotError as error:
            known = problem_of(error) or ProblemError("internal", "see the service's log")
            await self._refuse(known, send, exchange)
        except Exception as error:  # noqa: BLE001 - a bug becomes a 500 and a line of the log
            self._service.journal.failure(
                "request failed", error, request_id=exchange.request_id, path=_route(scope)
            )
            detail = f"the service failed; its log has the place under {exchange.request_id}"
            await self._refuse(ProblemError("internal", detail), send, exchange)

    async def _admitted(self, scope: Scope, receive: Receive, exchange: _Exchange) -> bytes:
        """Check a request in the order of what the checks cost; its body."""
        headers, service = exchange.headers, self._service
        access = service.access
        peer = scope["client"][0] if scope.get("client") else ""
        rule = self._rules.get((scope["method"], scope["path"]), Rule())
        if rule.scope is not None:
            self._check_host(headers)
            exchange.caller = peer
            principal = self._principal(headers, peer)
            self._check_rate(principal.name if principal and access.way == "proxy" else peer)
            self._check_scope(rule.scope, principal, exchange)
            if self._in_flight > service.limits.in_flight:
                raise ProblemError(
                    "unavailable", "too many requests at a time", headers={"retry-after": "1"}
                )
        return await self._body(rule, headers, receive)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse names of strangers, by which a page of theirs could reach a local service."""
        if not self._hosts:
            return
        host = headers.get("host", "").lower()
        name = host[: host.rfind(":")] if re.search(r":\d*$", host) else host
        if name.strip("[]") not in self._hosts:
            raise ProblemError("wrong-host", "say the service's own name (--allow-host adds one)")

    def _principal(self, headers: Mapping[str, str], peer: str) -> Principal | None:
        access = self._service.access
        try:
            return access.principal(headers, peer)
        except ProblemError as error:
            self._check_rate(peer)
            error.headers["www-authenticate"] = access.challenge()
            raise

    def _check_rate(self, caller: str) -> None:
        wait_s = self._rates.wait_s(caller)
        if wait_s > 0:
            raise ProblemError(
                "too-many-requests", f"wait {wait_s:.1f} s",
                headers={"retry-after": str(max(1, round(wait_s + 0.5)))},
            )  # fmt: skip

    def _check_scope(self, scope: str, principal: Principal | None, exchange: _Exchange) -> None:
        access = self._service.access
        if principal is not None:
            exchange.caller = principal.name
            if scope in principal.scopes:
                return
            if access.way != "none" or "authorization" in exchange.headers:
                raise ProblemError("forbidden", f"this needs the scope {scope}")
        raise ProblemError(
            "unauthenticated", f"to {scope} takes a token: Authorization: Bearer TOKEN",
            headers={"www-authenticate": access.challenge()},
        )  # fmt: skip

    async def _body(self, rule: Rule, headers: Mapping[str, str], receive: Receive) -> bytes:
        limit = rule.body_bytes
        stated = headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > limit:
            raise ProblemError(
                "too-large", f"the body may have {limit:,} bytes", headers={"connection": "close"}
            )
        body = bytearray()
        try:
            async with asyncio.timeout(self._service.limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ProblemError("bad-request", "the caller has gone")
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise ProblemError(
                            "too-large", f"the body may have {limit:,} bytes",
                            headers={"connection": "close"},
                        )  # fmt: skip
                    if not message.get("more_body", False):
                        break
        except TimeoutError as error:
            raise ProblemError(
                "slow-body", f"the body did not arrive in {self._service.limits.body_s:g} s",
                headers={"connection": "close"},
            ) from error  # fmt: skip
        said = headers.get("content-type", "").partition(";")[0].strip().lower()
        if rule.media_types and said not in rule.media_types:
            types = " or ".join(rule.media_types)
            raise ProblemError("unsupported-media-type", f"say Content-Type: {types}")
        return bytes(body)

    def _sender(self, exchange: _Exchange, send: Send) -> Send:
        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [
                    *message.get("headers", []),
                    *_HEADERS,
                    (b"x-request-id", exchange.request_id.encode()),
                ]
            elif message["type"] == "http.response.body":
                exchange.sent_bytes += len(message.get("body", b""))
            await send(message)

        return forward

    async def _refuse(self, error: ProblemError, send: Send, exchange: _Exchange) -> None:
        exchange.problem = error.problem.slug
        if exchange.status:  # the answer has begun: nothing can be taken back
            return
        body = error.body(exchange.request_id)
        headers = {"content-type": MEDIA_TYPE, "cache-control": "no-store", **error.headers}
        await _reply(send, error.problem.status, body, headers)

    def _record(self, scope: Scope, exchange: _Exchange, asked: str) -> None:
        took_s = time.perf_counter() - exchange.began_s
        route, metrics = _route(scope, self._paths), self._service.metrics
        method = asked if asked in _METHODS else "other"
        metrics.add("omnipilot_requests_total", route, method, str(exchange.status))
        metrics.observe("omnipilot_request_seconds", route, value=took_s)
        facts: dict[str, Any] = {
            "request_id": exchange.request_id, "method": method, "route": route,
            "status": exchange.status, "took_ms": round(took_s * 1e3, 1),
            "bytes": exchange.sent_bytes, "caller": exchange.caller,
        }  # fmt: skip
        problem = exchange.problem or scope.get("state", {}).get("problem", "")
        if problem:
            facts["problem"] = problem
            metrics.add("omnipilot_refused_total", problem)
        self._service.journal.write("request", **facts)


async def _reply(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a whole answer."""
    said = {**headers, "content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in said.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


def _route(scope: Scope, known: frozenset[str] = frozenset()) -> str:
    """The address as the table spells it; what nobody answers to is one word."""
    path = getattr(scope.get("route"), "path", None)
    if path is None and scope["path"].startswith("/static/"):
        return "/static"
    return path or (scope["path"] if scope["path"] in known else "unknown")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read already, then what follows it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
