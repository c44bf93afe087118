"""The addresses of the API, in one table; the program adds nothing that is not in it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from omnipilot.domain.frozen import dataclass
from omnipilot.web import handlers, schemas
from omnipilot.web.asking import (
    ASK_EXAMPLE,
    FITS_EXAMPLE,
    PREDICT_EXAMPLE,
    PROBE_EXAMPLE,
    AdviseBody,
    PredictBody,
)
from omnipilot.web.guard import Rule

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic import BaseModel

    from omnipilot.web.answering import Service
    from omnipilot.web.limits import Limits

__all__ = ["ENDPOINTS", "Endpoint", "openapi_of", "rules_of"]

JSON: Final = "application/json"
CSV: Final = "text/csv"
TEXT: Final = "text/plain"
_SCRIPT_EXAMPLE: Final = (
    "#!/bin/bash\n#SBATCH --gres=gpu:h100:2\n"
    "vllm serve Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 2\n"
)
_CSV_EXAMPLE: Final = (
    "model,gpu,n_gpus,precision,isl,osl,concurrency\n"
    "Qwen/Qwen2.5-7B-Instruct,H100,1,bf16,512,128,8\n"
)
_ROWS_EXAMPLE: Final = (
    "source,model,engine,gpu,n_gpus,precision,isl,osl,concurrency,agg_tok_s,status\n"
    "our_site,Qwen/Qwen2.5-7B-Instruct,vllm,H100,1,bf16,512,128,8,4200,ok\n"
)
_TYPED_ROW_EXAMPLE: Final[dict[str, Any]] = {
    "kind": "hardware_probe", "source": "our_site", "probe": "node_admission", "status": "pass",
    "gpu": "h100-80", "n_gpus": 8, "host": "h100n1", "labels": {"flops_per_s": 7.0e14},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of the API.

    Args:
        method: GET or POST.
        path: of the address.
        handler: answers; its docstring is the description.
        answer: form of the answer; None for text.
        scope: that a caller needs; None for anybody.
        body: size of the largest body: "question", "rows" or "" for none.
        examples: of the body, by media type; the first is the usual one. A body that the handler
            declares itself needs its example here only.
        schema: of a JSON body that the handler does not declare.
        refusals: statuses of refusals beyond those of every address.
        direct: answers a body with JSON as ``handler`` does, without the framework's share of the
            work: for what is asked often.
    """

    method: Literal["GET", "POST"]
    path: str
    handler: Callable[..., Any]
    answer: type[BaseModel] | None
    scope: Literal["read", "write"] | None = "read"
    body: Literal["", "question", "rows"] = ""
    examples: dict[str, Any] = field(default_factory=dict)
    schema: type[BaseModel] | None = None
    refusals: tuple[int, ...] = ()
    direct: Callable[[Service, bytes], Awaitable[bytes]] | None = None


_ASKED: Final = (404, 409, 422)
ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint("POST", "/v1/advise", handlers.advise, schemas.AdviceAnswer, body="question",
             examples={JSON: ASK_EXAMPLE}, schema=AdviseBody, refusals=_ASKED,
             direct=handlers.advised),
    Endpoint("POST", "/v1/explain", handlers.explain, schemas.ExplainAnswer, body="question",
             examples={JSON: ASK_EXAMPLE}, refusals=_ASKED),
    Endpoint("POST", "/v1/probe", handlers.probe, schemas.ProbeAnswer, body="question",
             examples={JSON: PROBE_EXAMPLE}, refusals=_ASKED),
    Endpoint("POST", "/v1/fits", handlers.fits, schemas.FitsAnswer, body="question",
             examples={JSON: FITS_EXAMPLE}, refusals=_ASKED),
    Endpoint("POST", "/v1/review", handlers.review, None, body="question",
             examples={TEXT: _SCRIPT_EXAMPLE}),
    Endpoint("POST", "/v1/predict", handlers.predict, schemas.PredictAnswer, body="rows",
             examples={JSON: PREDICT_EXAMPLE, CSV: _CSV_EXAMPLE}, schema=PredictBody,
             refusals=(422,)),
    Endpoint("GET", "/v1/models", handlers.models, schemas.ModelsAnswer),
    Endpoint("GET", "/v1/ledger", handlers.ledger, schemas.LedgerAnswer),
    Endpoint("GET", "/v1/drift", handlers.drift, schemas.DriftAnswer),
    Endpoint("GET", "/v1/evaluate", handlers.evaluate, schemas.EvaluateAnswer),
    Endpoint("GET", "/v1/catalog", handlers.catalog, schemas.CatalogAnswer),
    Endpoint("GET", "/v1/cluster", handlers.cluster, schemas.ClusterAnswer),
    Endpoint("GET", "/v1/prior", handlers.prior, schemas.PriorAnswer),
    Endpoint("GET", "/v1/rows", handlers.store, schemas.StoreAnswer),
    Endpoint("POST", "/v1/rows", handlers.ingest, schemas.IngestAnswer, scope="write", body="rows",
             examples={CSV: _ROWS_EXAMPLE, JSON: _TYPED_ROW_EXAMPLE}, refusals=(422,)),
    Endpoint("GET", "/health", handlers.health, None, scope=None),
    Endpoint("GET", "/ready", handlers.ready, schemas.ReadyAnswer, scope=None),
    Endpoint("GET", "/metrics", handlers.metrics, None),
)  # fmt: skip

_EVERY: Final[dict[int, str]] = {
    400: "The request cannot be read.",
    401: "A token is needed or not known.",
    403: "The token lacks the scope.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is of another type.",
    421: "The request names another host.",
    429: "Too many requests.",
    503: "The service cannot answer now.",
    504: "The answer took too long.",
}
_SOME: Final[dict[int, str]] = {
    404: "No such model, GPU kind, precision, engine, profile or term.",
    409: "The spelling means several things; `candidates` names them.",
    422: "The question cannot be answered as it stands; `errors` names the places.",
}


def rules_of(limits: Limits) -> dict[tuple[str, str], Rule]:
    """What each address asks of a request, for the guard."""
    sizes = {"": 0, "question": limits.body_bytes, "rows": limits.rows_bytes}
    return {(e.method, e.path): Rule(e.scope, sizes[e.body], tuple(e.examples)) for e in ENDPOINTS}


def openapi_of(endpoint: Endpoint) -> dict[str, Any]:
    """What the OpenAPI document says of an endpoint beyond what its handler declares."""
    said: dict[str, Any] = {}
    if endpoint.scope is not None:
        said["security"] = [{"token": []}]
    if (
        endpoint.schema is not None
        or (endpoint.examples and JSON not in endpoint.examples)
        or (endpoint.body == "rows")
    ):
        content: dict[str, Any] = {}
        for media_type, example in endpoint.examples.items():
            schema: dict[str, Any] = {"type": "string"}
            if media_type == JSON:
                schema = (
                    {"$ref": f"#/components/schemas/{endpoint.schema.__name__}"}
                    if endpoint.schema
                    else {"type": "object"}
                )
            content[media_type] = {"schema": schema, "example": example}
        said["requestBody"] = {"required": True, "content": content}
    elif endpoint.examples:
        said["requestBody"] = {"content": {JSON: {"example": endpoint.examples[JSON]}}}
    return said


def responses_of(endpoint: Endpoint) -> dict[int | str, dict[str, Any]]:
    """Statuses that an endpoint answers with."""
    problem = {
        "model": schemas.ProblemAnswer,
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}
        },
    }
    texts = {s: _SOME[s] for s in endpoint.refusals}
    if endpoint.scope is not None:
        texts |= _EVERY
    elif endpoint.path == "/ready":
        texts[503] = "The cost model is not loaded yet."
    return {status: {**problem, "description": text} for status, text in sorted(texts.items())}
