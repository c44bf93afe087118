"""The service as an ASGI application."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from omnipilot import __version__
from omnipilot.domain import OmniPilotError
from omnipilot.web.endpoints import ENDPOINTS, openapi_of, responses_of, rules_of
from omnipilot.web.guard import Guard, Rule
from omnipilot.web.handlers import invalid
from omnipilot.web.pages import PAGES, problem_page
from omnipilot.web.problems import MEDIA_TYPE, ProblemError, problem_of
from omnipilot.web.render import STATIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from omnipilot.web.answering import Service

__all__ = ["make_app"]

_ABOUT = (
    "Asks, before an LLM server is submitted to a shared GPU cluster: which GPU kind, tensor "
    "parallel and precision, with checked intervals; and says so when it does not know. Refusals "
    "are application/problem+json (RFC 9457); every answer carries X-Request-Id."
)
_OF_STATUS = {404: "not-found", 405: "method-not-allowed"}


def make_app(service: Service, hosts: frozenset[str] = frozenset()) -> Guard:
    """Build the application.

    Args:
        service: what handlers work with; started and stopped with the application.
        hosts: names that a request may say in Host; empty takes any.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if not service.keeper.is_ready:
            service.keeper.start()
        yield
        service.keeper.stop()
        service.close()

    app = FastAPI(
        title="OmniPilot", version=__version__, summary="The advisor to ask before a launch.",
        description=_ABOUT, docs_url=None, redoc_url=None, lifespan=life,
        openapi_url="/openapi.json",
    )  # fmt: skip
    app.state.service = service
    for endpoint in ENDPOINTS:
        app.add_api_route(
            endpoint.path, endpoint.handler, methods=[endpoint.method],
            response_model=None, operation_id=endpoint.handler.__name__,
            summary=_summary(endpoint.handler.__doc__), description=_rest(endpoint.handler.__doc__),
            responses={
                200: {"model": endpoint.answer, "description": "The answer."}
                if endpoint.answer
                else _plain(endpoint.path),
                **responses_of(endpoint),
            },
            openapi_extra=openapi_of(endpoint),
        )  # fmt: skip
    for page in PAGES:
        app.add_api_route(
            page.path, page.handler, methods=["GET"], include_in_schema=False, response_model=None
        )
    app.mount("/static", StaticFiles(directory=STATIC))
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    for kind in (ProblemError, OmniPilotError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refused)
    # A bug is answered here and raised again: the guard writes its place into the log.
    app.add_exception_handler(Exception, _refused)
    rules = rules_of(service.limits) | {("GET", page.path): Rule() for page in PAGES}
    direct = {(str(e.method), e.path): e.direct for e in ENDPOINTS if e.direct}
    return Guard(app, service, rules, hosts, direct)


async def _refused(request: Request, error: Exception) -> Response:
    """Every expected error in the form of RFC 9457."""
    if isinstance(error, ProblemError):
        known = error
    elif isinstance(error, RequestValidationError):
        errors = error.errors()
        unreadable = any(e["type"] == "json_invalid" for e in errors)
        known = (
            ProblemError("bad-request", "the body is no JSON") if unreadable else invalid(errors)
        )
    elif isinstance(error, HTTPException):
        slug = _OF_STATUS.get(error.status_code, "bad-request")
        known = ProblemError(slug, str(error.detail), headers=error.headers)
    else:
        said = f"the service failed; its log has the place under {_id(request)}"
        known = problem_of(error) or ProblemError("internal", said)
    request.scope["state"]["problem"] = known.problem.slug
    if "text/html" in request.headers.get("accept", "") and request.method == "GET":
        text = problem_page(known, _id(request), None)
        return Response(text, known.problem.status, media_type="text/html; charset=utf-8")
    return Response(
        known.body(_id(request)), known.problem.status,
        headers=known.headers, media_type=MEDIA_TYPE,
    )  # fmt: skip


def _id(request: Request) -> str:
    found: str = request.scope["state"]["request_id"]
    return found


def _plain(path: str) -> dict[str, Any]:
    if path in ("/metrics", "/v1/review"):
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": {"type": "object"}}}
    return {"description": "The answer.", "content": content}


def _summary(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0].rstrip(".")


def _rest(doc: str | None) -> str:
    lines = (doc or "").strip().splitlines()
    return " ".join(line.strip() for line in lines[1:]).strip() or lines[0]


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description,
        routes=app.routes,
    )  # fmt: skip
    components = document.setdefault("components", {})
    components["securitySchemes"] = {
        "token": {
            "type": "http", "scheme": "bearer",
            "description": "A token of `omnipilot token add`; not needed to read on loopback.",
        }
    }  # fmt: skip
    schemas = components.setdefault("schemas", {})
    for endpoint in ENDPOINTS:
        if endpoint.schema is not None:
            own = endpoint.schema.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(own.pop("$defs", {}))
            schemas[endpoint.schema.__name__] = own
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    for path in document["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                # Refusals are of one media type.
                if not status.startswith("2"):
                    answer["content"].pop("application/json", None)
    app.openapi_schema = document
    return document
