"""What each address of the API answers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec
from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from omnipilot.advisor.answer_data import cluster_data, explanation_data
from omnipilot.domain import BadInputError
from omnipilot.web import learning
from omnipilot.web.asking import (
    AdviseBody,
    AskBody,
    FitsBody,
    PredictBody,
    ProbeBody,
    launch_of,
    question_of,
)
from omnipilot.web.problems import ProblemError
from omnipilot.web.row_answers import csv_of, predicted, without_path

if TYPE_CHECKING:
    from omnipilot.advisor.probing import ProbeReport
    from omnipilot.web.answering import Service
    from omnipilot.web.snapshot import Snapshot

__all__ = [
    "advise",
    "advised",
    "catalog",
    "cluster",
    "evaluate",
    "explain",
    "fits",
    "health",
    "ingest",
    "metrics",
    "models",
    "predict",
    "prior",
    "probe",
    "ready",
    "review",
    "store",
]  # fmt: skip

Body = TypeVar("Body", bound=BaseModel)
_COLLECTORS: Final = {"text/csv": "csv", "application/json": "rows"}


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service: Service = request.app.state.service
    return service


def as_json(value: object) -> Response:
    """An answer; a number that is not finite is null."""
    return Response(msgspec.json.encode(value), media_type="application/json")


async def advise(request: Request) -> Response:
    """Rank GPU kind, tensor parallel and precision for a model and a load.

    An abstention is an answer too: `abstention` then says which axis is outside what was measured,
    what the rule takes instead and which probe would settle it.
    """
    content = await advised(service_of(request), await request.body())
    return Response(content, media_type="application/json")


async def advised(service: Service, text: bytes) -> bytes:
    """The answer to a body of :func:`advise`.

    Raises:
        ProblemError: the body is of another shape, or the answer took too long.
        OmniPilotError: the question cannot be answered.
    """
    body = read_body(AdviseBody, text)
    snapshot = service.keeper.current
    question = question_of(body, snapshot)
    return await service.advised(snapshot, question, body.top)


def read_body(form: type[Body], text: bytes) -> Body:
    """A body, refused as the framework refuses those that handlers declare."""
    if not text:
        raise invalid([{"loc": ("body",), "msg": "Field required"}])
    try:
        return form.model_validate(json.loads(text), from_attributes=True)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise invalid([{**e, "loc": ("body", *e["loc"])} for e in errors]) from error
    except (ValueError, RecursionError) as error:
        raise ProblemError("bad-request", "the body is no JSON") from error


async def explain(request: Request, body: AskBody) -> Response:
    """Show why the advice is what it is: terms, evidence, other loads, turning points."""
    service = service_of(request)
    snapshot = service.keeper.current
    question = question_of(body, snapshot)

    def work() -> bytes:
        return msgspec.json.encode(explanation_data(snapshot.advisor.explain(question)))

    return Response(await service.run(work, slow=True), media_type="application/json")


async def probe(request: Request, body: ProbeBody) -> Response:
    """Say which short measurements pay before the decision.

    Each benchmark of the menu is valued on each arm by how much better the best arm is expected to
    be once its result is known, less what it costs. Nothing is run.
    """
    service = service_of(request)
    snapshot = service.keeper.current

    def work() -> dict[str, Any]:
        from omnipilot.advisor.probing import probe_data  # noqa: PLC0415 - seldom asked

        return probe_data(probe_report(snapshot, body))

    return as_json(await service.run(work, slow=True))


def probe_report(snapshot: Snapshot, body: ProbeBody) -> ProbeReport:
    """What the gate answers.

    Raises:
        UsageError: as for advice; no arm starts.
    """
    from omnipilot.advisor.probing import probe as ask  # noqa: PLC0415 - seldom asked
    from omnipilot.decide.gate import GateSettings  # noqa: PLC0415 - same

    settings = GateSettings(
        depth=body.depth, budget_node_h=body.budget_node_h, epsilon_usd=body.epsilon_usd
    )
    return ask(snapshot.advisor, question_of(body, snapshot), settings)


async def review(request: Request) -> Response:
    """Say in a few lines what is to be said of a job script before it is submitted.

    For hooks of Slurm: the body is the script, the answer is text, empty where the job is no vLLM
    server or nothing is known of it. The query may tell `gres` and `partition` of the command line.
    """
    from omnipilot.advisor.reviewing import review as ask  # noqa: PLC0415 - hooks only

    service = service_of(request)
    snapshot = service.keeper.current
    script = (await request.body()).decode("utf-8", "replace")
    told = {n: request.query_params.get(n, "")[:200] for n in ("gres", "partition")}

    def work() -> list[str]:
        return ask(
            snapshot.advisor, script, **told, live=snapshot.live, now_s=snapshot.now_s,
            ask=lambda question: service.advice(snapshot, question),
        )  # fmt: skip

    lines = await service.run(work)
    return Response("".join(f"{line}\n" for line in lines), media_type="text/plain")


async def fits(request: Request, body: FitsBody) -> Response:
    """Say whether a configuration starts, and which number decides."""
    service = service_of(request)
    snapshot = service.keeper.current
    return as_json(await service.run(snapshot.advisor.fits, launch_of(body)))


async def predict(request: Request) -> Response:
    """Predict every row: JSON with `rows`, or CSV of the normalised columns.

    A row that cannot be resolved has the verdict `unknown`, no numbers and a reason.
    """
    service = service_of(request)
    snapshot = service.keeper.current
    text = await request.body()
    if _media_type(request) == "text/csv":
        _check_rows(service, text)
    else:
        text = csv_of(_parsed(text))
    return as_json(await service.run(predicted, snapshot, text, slow=True))


def _check_rows(service: Service, text: bytes) -> None:
    if text.count(b"\n") > service.limits.rows + 1:
        raise ProblemError("too-large", f"at most {service.limits.rows:,} rows at a time")


def _parsed(text: bytes) -> PredictBody:
    try:
        return PredictBody.model_validate_json(text)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_input=False)) from error


def invalid(errors: Any) -> ProblemError:  # noqa: ANN401 - pydantic's own lists
    """A body of another shape than the schema's."""
    shown = [
        {"at": "/".join(str(part) for part in e["loc"]), "what": e["msg"]} for e in errors[:20]
    ]
    first = f"{shown[0]['at']}: {shown[0]['what']}" if shown else "the body is of another shape"
    return ProblemError("invalid", first, extra={"errors": shown})


async def models(request: Request) -> Response:
    """List the cost models of the site; the first one answers."""
    service = service_of(request)
    found = await service.run(learning.models, service, service.keeper.current, slow=True)
    return as_json({"models": found})


async def ledger(request: Request) -> Response:
    """Where every cost model of the site came from: fits, verdicts, promotions, rollbacks."""
    service = service_of(request)
    found = await service.run(learning.ledger, service, service.keeper.current, slow=True)
    return as_json({"entries": found})


async def drift(request: Request) -> Response:
    """How the model that answers stands up to rows measured since: streams, alarms, what to do."""
    service = service_of(request)
    snapshot = service.keeper.current
    return as_json(await service.run(learning.health, service, snapshot, slow=True))


async def evaluate(request: Request) -> Response:
    """Held-out errors of the cost model that answers, as measured when it was fitted."""
    snapshot = service_of(request).keeper.current
    card = getattr(snapshot.advisor.model, "card", {})
    return as_json({"model_version": snapshot.version, "card": card})


async def catalog(request: Request) -> Response:
    """Names that questions may use: GPU kinds, models, precisions, profiles, terms."""
    from omnipilot.decide.profiles import PROFILES  # noqa: PLC0415 - next to its use
    from omnipilot.decide.utility import TERMS  # noqa: PLC0415 - same

    advisor = service_of(request).keeper.current.advisor
    settings, facts = advisor.settings, advisor.catalog
    return as_json(
        {
            "gpus": [
                {
                    "kind": gpu.kind, "name": gpu.name, "memory_gib": gpu.memory_gib,
                    "price_usd_per_gpu_h": settings.price_usd_per_gpu_h(gpu),
                    "price_is_estimated": settings.price_is_estimated(gpu),
                }
                for gpu in facts.gpus()
            ],
            "models": facts.model_ids(),
            "precisions": [precision.name for precision in facts.precisions()],
            "profiles": [{"name": p.name, "meaning": p.meaning} for p in PROFILES],
            "terms": [{"name": t.name, "meaning": t.meaning} for t in TERMS],
        }
    )  # fmt: skip


async def cluster(request: Request) -> Response:
    """The cluster as it was read last: free GPUs, closed and faulty nodes, who waits."""
    from omnipilot.advisor.outlook import Outlook  # noqa: PLC0415 - next to its use
    from omnipilot.domain import ServingRequest  # noqa: PLC0415 - same

    snapshot = service_of(request).keeper.current
    outlook = Outlook(snapshot.cluster(), ServingRequest("none", 1, 2, 1, 1), 1.0)
    return as_json(cluster_data(outlook.report({})))


async def prior(request: Request) -> Response:
    """How often launches came up, how much is asked for, how jobs waited, from the history."""
    service = service_of(request)
    snapshot = service.keeper.current
    return as_json(await service.run(_prior, snapshot, service.clock(), slow=True))


def _prior(snapshot: Snapshot, now_s: float) -> dict[str, Any]:
    from omnipilot.advisor.prior import launch_definition  # noqa: PLC0415 - DuckDB
    from omnipilot.advisor.prior import prior as ask  # noqa: PLC0415 - same

    settings = snapshot.advisor.settings
    report = ask(
        snapshot.advisor.home, launch_definition(settings), now_s=now_s,
        kind_of_partition=settings.gpu_kind_of_partition,
    )  # fmt: skip
    fields = (
        "level", "pooled_rate", "strength", "strengths", "configurations", "wait_quantiles",
        "waits", "jobs", "untyped", "without_gpus",
    )  # fmt: skip
    said = report.definition
    return {
        "definition": {
            "outcomes": dict(said.outcomes), "min_runtime_s": said.min_runtime_s,
            "user_cancel": said.user_cancel, "job_class": said.job_class or "all",
        },
        **{name: getattr(report, name) for name in fields},
        "outcomes": [
            {"state": state, "outcome": outcome, "runs": n}
            for (state, outcome), n in report.outcomes.items()
        ],
    }  # fmt: skip


async def ingest(request: Request) -> Response:
    """Take measured rows into the site's store: CSV of the normalised columns, or typed JSON rows.

    Idempotent: a row that is there already counts as a duplicate. Columns that are not known are
    left aside and named, and so are GPUs, models and precisions that the catalogue does not know:
    their rows are kept, and no fit learns from them. Needs the scope `write`.
    """
    service = service_of(request)
    name = _COLLECTORS[_media_type(request)]
    text = await request.body()
    if name == "csv":
        _check_rows(service, text)
    snapshot = service.keeper.current
    report = await service.run(_taken_in, snapshot, name, text, service.clock(), slow=True)
    for outcome in ("accepted", "duplicate", "rejected"):
        service.metrics.add("omnipilot_rows_ingested_total", outcome, by=report[outcome])
    return as_json(report)


def _taken_in(snapshot: Snapshot, name: str, text: bytes, now_s: float) -> dict[str, Any]:
    from omnipilot.collect import unread_columns  # noqa: PLC0415 - writers only
    from omnipilot.collect.base import COLLECTOR_BY_NAME  # noqa: PLC0415 - same
    from omnipilot.store import Store, import_file  # noqa: PLC0415 - same

    home = snapshot.advisor.home
    unread: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory(prefix="omnipilot-") as folder:
        path = Path(folder) / f"body.{'csv' if name == 'csv' else 'json'}"
        path.write_bytes(text)
        try:
            if name == "csv":
                report = snapshot.advisor.import_runs(path, now_s=now_s)
                unread = unread_columns(path)
            else:
                collect = COLLECTOR_BY_NAME[name].for_site(home)
                report = import_file(Store.open(home), path, collect, now_s=now_s)
        except BadInputError as error:
            raise without_path(error, path) from error
    return {
        "accepted": report.accepted, "duplicate": report.duplicate, "rejected": report.rejected,
        "by_reason": report.by_reason, "unread_columns": unread,
        "unknown_names": report.unknown_names, "rejections": list(report.rejections),
    }  # fmt: skip


async def store(request: Request) -> Response:
    """Count what the site's store holds."""
    service = service_of(request)
    return as_json(await service.run(service.keeper.current.advisor.data_stats, slow=True))


async def health() -> Response:
    """The process answers."""
    return as_json({"status": "alive"})


async def ready(request: Request) -> Response:
    """A cost model is loaded, and which one."""
    keeper = service_of(request).keeper
    if not keeper.is_ready:
        raise ProblemError("unavailable", "the cost model is not loaded yet")
    snapshot = keeper.current
    return as_json(
        {
            "status": "ready", "model_version": snapshot.version, "origin": snapshot.origin,
            "loaded_s": snapshot.loaded_s,
        }
    )  # fmt: skip


async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    media_type: Literal["text/plain; version=0.0.4"] = "text/plain; version=0.0.4"
    return Response(service_of(request).metrics.page(), media_type=media_type)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
