"""Range queries to a Prometheus server, within a time and a size that the caller sets.

API: prometheus.io, "HTTP API", range queries; Thanos, Mimir and VictoriaMetrics answer the same.
"""

from __future__ import annotations

import http.client
import math
import ssl
import time
from dataclasses import field
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import urlencode, urlsplit

from omnipilot.collect.json_values import JsonValue
from omnipilot.collect.lines import printable
from omnipilot.collect.prometheus_json import Series, series_of
from omnipilot.domain.errors import ToolError, UsageError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from omnipilot.domain.rejection import Rejection

__all__ = ["PrometheusServer", "query_range", "selector"]

# A server refuses more than 11,000 points a series in one answer (web/api/v1, "exceeded maximum
# resolution").
_MOST_POINTS: Final = 10_000
_BLOCK_BYTES: Final = 2**16
_ERROR_BYTES: Final = 4096
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+[]-,%:.")


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """Where to ask, and what one answer may cost.

    Args:
        url: ``http://host:9090``, with a path where the API lies under one. No redirect is
            followed.
        timeout_s: longest time for one answer, and for connecting.
        answer_bytes: largest answer; a larger one is asked for in smaller parts.
        token: sent as a bearer token, "" for none.

    Raises:
        UsageError: an address that is none.
    """

    url: str
    timeout_s: float = 60.0
    answer_bytes: int = 64 * 2**20
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            usable = False
        if not usable or not self.url.isprintable() or " " in self.url:
            raise UsageError(f"'{printable(self.url)}' is no address such as http://host:9090")
        if parts.username is not None or parts.password is not None:
            raise UsageError("the address of Prometheus must not hold a password: use a token")
        if not (0 < self.timeout_s < math.inf and self.answer_bytes > 0):
            raise UsageError("the time-out and the size of an answer must be above 0")
        if not (self.token.isascii() and self.token.isprintable()):
            raise UsageError("the token for Prometheus holds odd characters: is it the right file?")


class _TooLargeError(Exception):
    """An answer above the limit."""


def selector(metrics: Sequence[str], labels: Mapping[str, Sequence[str]] | None = None) -> str:
    """Give the PromQL selector of several metrics; ``labels`` to the values that they may have.

    Example:
        >>> selector(["a", "b"], {"hpc_job": ["12", "13"]})
        '{__name__=~"a|b",hpc_job=~"12|13"}'
    """
    terms = [f'__name__=~"{"|".join(metrics)}"']
    for name, values in (labels or {}).items():
        if not all(_PLAIN.issuperset(value) for value in values):
            raise UsageError(f"'{printable(' '.join(values))}' cannot be asked for as {name}")
        escaped = "|".join(_quoted(value) for value in values)
        terms.append(f'{name}=~"{escaped}"')
    return "{" + ",".join(terms) + "}"


def _quoted(value: str) -> str:
    return "".join(f"\\\\{c}" if c in "+[].-" else c for c in value)


def query_range(
    server: PrometheusServer, query: str, start_s: float, end_s: float, step_s: float
) -> Iterator[Series | Rejection]:
    """Ask for the readings of a time, in as many parts as the server's and our limits need.

    Args:
        server: where to ask.
        query: PromQL.
        start_s: first instant, Unix seconds.
        end_s: last instant.
        step_s: between instants; the time between scrapes is right.

    Yields:
        Series of one part after the other, so that one source may come several times.

    Raises:
        UsageError: times that are none.
        ToolError: the server cannot be reached, refuses, or its answer for a single instant is
            too large.
    """
    if not (0 <= start_s <= end_s < math.inf and 0 < step_s < math.inf):
        raise UsageError("a range query needs a start before its end and a step above 0")
    points = _MOST_POINTS
    at = 0
    last = int((end_s - start_s) / step_s)
    while at <= last:
        upto = min(last, at + points - 1)
        try:
            answer = _ask(server, query, start_s + at * step_s, start_s + upto * step_s, step_s)
        except _TooLargeError:
            if points == 1 or upto == at:
                raise ToolError(
                    f"{_shown(server)} answered with more than {server.answer_bytes} bytes for one "
                    "instant: ask for single jobs"
                ) from None
            points = max(1, (upto - at + 1) // 2)
            continue
        yield from series_of(JsonValue(1, answer))
        at = upto + 1


def _ask(
    server: PrometheusServer, query: str, start_s: float, end_s: float, step_s: float
) -> bytes:
    parts = urlsplit(server.url)
    deadline_s = time.monotonic() + server.timeout_s
    body = urlencode(
        {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
    )
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    connection = _connection(server)
    try:
        path = parts.path.rstrip("/") + "/api/v1/query_range"
        connection.request("POST", path, body=body, headers=headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            _refuse(server, response)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ToolError(f"{_shown(server)} compresses its answer unasked: ask it directly")
        return _body(server, response, deadline_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = printable(str(error) or type(error).__name__, 120)
        raise ToolError(
            f"Prometheus at {_shown(server)} cannot be asked ({reason}): check the address and "
            "whether it runs"
        ) from error
    finally:
        connection.close()


def _connection(server: PrometheusServer) -> http.client.HTTPConnection:
    parts = urlsplit(server.url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            host, parts.port, timeout=server.timeout_s, context=context
        )
    return http.client.HTTPConnection(host, parts.port, timeout=server.timeout_s)


def _body(server: PrometheusServer, response: http.client.HTTPResponse, deadline_s: float) -> bytes:
    blocks = bytearray()
    # read1: a server that drips bytes must not outlast the deadline within one read.
    while block := response.read1(_BLOCK_BYTES):
        blocks += block
        if len(blocks) > server.answer_bytes:
            raise _TooLargeError
        if time.monotonic() > deadline_s:
            raise ToolError(
                f"{_shown(server)} did not finish its answer within {server.timeout_s:g} s: ask "
                "for a shorter time, or give it longer"
            )
    if response.length:
        raise ToolError(f"{_shown(server)} cut its answer short: try again")
    return bytes(blocks)


def _refuse(server: PrometheusServer, response: http.client.HTTPResponse) -> NoReturn:
    told = printable(response.read(_ERROR_BYTES).decode(errors="replace").strip(), 160)
    if response.status == http.client.UNPROCESSABLE_ENTITY and "too many samples" in told:
        raise _TooLargeError
    if 300 <= response.status < 400:
        told = "it points elsewhere: give that address"
    raise ToolError(f"{_shown(server)} refused the query ({response.status}): {told}")


def _shown(server: PrometheusServer) -> str:
    parts = urlsplit(server.url)
    return printable(f"{parts.scheme}://{parts.netloc}{parts.path}", 120)
