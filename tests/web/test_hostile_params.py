"""Junk in addresses: an answer or a refusal, never a fault, and never markup of the caller's."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served_site import make_site

from omnipilot.web.endpoints import ENDPOINTS
from omnipilot.web.limits import Limits
from omnipilot.web.page_request import FIELDS
from omnipilot.web.pages import PAGES

if TYPE_CHECKING:
    from pathlib import Path

    from served_site import Site

EXAMPLES = int(os.environ.get("OMNIPILOT_FUZZ_EXAMPLES", "6")) * 5
MARK = "<script>alert(7)</script>"
JUNK = (
    MARK, f'"{MARK}', f"'{MARK}", "javascript:alert(7)", '" onload="alert(7)', "{{7*7}}", "{%raw%}",
    "../../../etc/passwd", "/etc/passwd", "%2e%2e/", "\x1b[2J", "\r\nset-cookie: a=b", "nan", "inf",
    "1e999", "-1", "9" * 400, "0", "1_0", "\u0661", "\U0001f600", "x" * 20_000, "", " ", ",", "[]",
    "{}", "null", "'; DROP TABLE runs; --", "=1+1", "Qwen/Qwen2.5-7B-Instruct", "h100-80", "200",
    "4096",
)  # fmt: skip
PLACES = tuple(p.path for p in PAGES) + tuple(e.path for e in ENDPOINTS if e.method == "GET")
NAMES = tuple(field.name for field in FIELDS)
junk = st.sampled_from(JUNK) | st.text(max_size=20)


@cache
def site(home: Path) -> Site:
    return make_site(home / "params", limits=Limits(per_s=0))


@settings(
    max_examples=EXAMPLES, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(
    place=st.sampled_from(PLACES)
    | st.text(max_size=20).map(lambda t: f"/{quote(t, safe='/.%', errors='replace')}"),
    query=st.lists(st.tuples(st.sampled_from(NAMES) | st.text(max_size=8), junk), max_size=6),
)
def test_no_query_makes_a_fault_or_markup(
    tmp_path_factory: pytest.TempPathFactory, place: str, query: list[tuple[str, str]]
) -> None:
    served = site(tmp_path_factory.getbasetemp())
    address = f"{place}?{urlencode(query, errors='replace')}"
    answer = served.client.get(address[:60_000])
    assert answer.status_code < 500, (place, query)
    assert "set-cookie" not in answer.headers
    if answer.headers["content-type"].startswith("text/html"):
        assert MARK not in answer.text, (place, query)
        assert 'onload="alert' not in answer.text.lower(), (place, query)


@pytest.mark.parametrize(
    "path",
    ["/static/../../../../etc/passwd", "/static/%2e%2e/%2e%2e/app.py", "/static//etc/passwd",
     "/static/..%2f..%2fapp.py", "/static/%00", "/static/\u2025/app.py"],
)  # fmt: skip
def test_static_files_are_those_of_their_folder(tmp_path: Path, path: str) -> None:
    answer = make_site(tmp_path).client.get(path)
    assert answer.status_code in {400, 404}
    assert "root:" not in answer.text
    assert "import " not in answer.text
