"""What the OpenAPI document promises, held against requests that schemathesis makes up."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi
from served_site import make_site

from omnipilot.web.endpoints import ENDPOINTS, Endpoint
from omnipilot.web.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = int(os.environ.get("OMNIPILOT_FUZZ_EXAMPLES", "6"))
CHECKS = [
    not_a_server_error, openapi.status_code_conformance, openapi.content_type_conformance,
    openapi.response_schema_conformance,
]  # fmt: skip
# A request without a body cannot be of another form than the document's.
MADE_UP = [
    pytest.param(endpoint, mode, id=f"{endpoint.method} {endpoint.path} {mode.value}")
    for endpoint in ENDPOINTS
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    if (endpoint.body and endpoint.path != "/v1/review") or mode is GenerationMode.POSITIVE
]


@cache
def fuzzed(home: Path) -> tuple[Any, dict[str, str]]:
    """The schema of a service, and the header of a token that may do everything."""
    site = make_site(home / "fuzzed", limits=Limits(per_s=0))
    token = site.tokens.add("fuzzer", ("read", "write"), 0.0)
    schema = schemathesis.openapi.from_asgi("/openapi.json", site.client.app)
    return schema, {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(("endpoint", "mode"), MADE_UP)
@settings(
    max_examples=EXAMPLES, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
@given(data=st.data())
def test_no_made_up_request_makes_a_fault_or_an_answer_of_another_form(
    data: st.DataObject,
    endpoint: Endpoint,
    mode: GenerationMode,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    schema, headers = fuzzed(tmp_path_factory.getbasetemp())
    case = data.draw(schema[endpoint.path][endpoint.method].as_strategy(generation_mode=mode))
    answer = case.call(headers=headers)
    case.validate_response(answer, checks=CHECKS)
