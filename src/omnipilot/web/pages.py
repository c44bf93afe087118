"""The pages, each one GET: a table entry, a handler and a template."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi import Request, Response

from omnipilot.decide.profiles import PROFILES
from omnipilot.domain import OmniPilotError
from omnipilot.domain.frozen import dataclass
from omnipilot.web import learning, page_data
from omnipilot.web.asking import ASK_EXAMPLE, question_of
from omnipilot.web.handlers import service_of
from omnipilot.web.page_request import FIELDS, Asked, read_query
from omnipilot.web.problems import ProblemError, problem_of
from omnipilot.web.render import render
from omnipilot.web.view_advice import SHOWN, find_arm, ranking_view, result_view
from omnipilot.web.view_more import (
    QUANTITIES,
    comparison_view,
    coverage_view,
    evidence_view,
    held_out_view,
    loads_of,
    what_if_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.advisor import Advice
    from omnipilot.web.answering import Service
    from omnipilot.web.snapshot import Snapshot

__all__ = ["NAV", "PAGES", "Page", "problem_page"]

NAV: Final = (
    ("/", "Ask", True), ("/compare", "Compare", True), ("/what-if", "What if", True),
    ("/probe", "Probe", True),
    ("/evidence", "Evidence", True), ("/cluster", "Cluster", False), ("/models", "Models", False),
    ("/api", "API", False),
)  # fmt: skip
_ALL_ARMS: Final = 1000
_CELLS: Final = 100_000
_EXAMPLES: Final = (
    ("a 7B chat model", {"model": "Qwen/Qwen2.5-7B-Instruct", "concurrency": "200",
                         "context_tokens": "4096"}),
    ("a 70B model with a limit on the first token",
     {"model": "meta-llama/Llama-3.1-70B-Instruct", "concurrency": "64", "context_tokens": "8192",
      "slo_ttft_ms": "1000"}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Call:
    """One request for a page, as its handler sees it."""

    service: Service
    snapshot: Snapshot
    asked: Asked
    query: dict[str, str]
    base: str
    request_id: str

    def advice(self) -> Advice:
        """The answer to the request in the address."""
        if self.asked.body is None:
            raise ValueError("no request in the address")
        return self.service.advice(self.snapshot, question_of(self.asked.body, self.snapshot))

    def rows(self, advice: Advice) -> Any:  # noqa: ANN401 - rows of a table
        """All arms, for a choice among them."""
        return ranking_view(advice.recommendation.ranked, 1.0, _ALL_ARMS)


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its address, its template and what fills it.

    ``needs_request`` says that without a request in the address there is nothing to show,
    ``shows_problems`` that the template shows a refusal itself; ``defaults`` are values that it
    needs whatever happens.
    """

    path: str
    template: str
    fill: Callable[[_Call], dict[str, Any]]
    needs_request: bool = True
    shows_problems: bool = False
    slow: bool = False
    defaults: Callable[[_Call], dict[str, Any]] = lambda _: {}

    @property
    def handler(self) -> Callable[[Request], Any]:
        """The handler of the address."""

        async def answer(request: Request) -> Response:
            service = service_of(request)
            snapshot = service.keeper.current
            call = _Call(
                service, snapshot, read_query(request.query_params),
                {k: v[:200] for k, v in request.query_params.items()}, str(request.base_url),
                request.scope["state"]["request_id"],
            )  # fmt: skip
            text, status = await service.run(self._text, call, slow=self.slow)
            return Response(text, status, media_type="text/html; charset=utf-8",
                            headers={"cache-control": "no-store"})  # fmt: skip

        return answer

    def _text(self, call: _Call) -> tuple[str, int]:
        values: dict[str, Any] = {"problem": None, "view": None, **self.defaults(call)}
        status = 200
        if call.asked.errors:
            status = 422
        if call.asked.body is not None or not self.needs_request:
            try:
                values |= self.fill(call)
            except (OmniPilotError, ProblemError) as error:
                known = error if isinstance(error, ProblemError) else problem_of(error)
                if known is None:
                    raise
                if not self.shows_problems:
                    page = problem_page(known, call.request_id, call.snapshot)
                    return page, known.problem.status
                status = known.problem.status
                values["problem"] = _problem(known)
        page = render(
            self.template, nav=NAV, here=self.path, asked=call.asked, snapshot=call.snapshot,
            **values,
        )  # fmt: skip
        return page, status


def problem_page(error: ProblemError, request_id: str, snapshot: Snapshot | None) -> str:
    """A refusal for a person."""
    return render(
        "problem.html", nav=NAV, here="", asked=None, snapshot=snapshot, problem=_problem(error),
        request_id=request_id,
    )  # fmt: skip


def _problem(error: ProblemError) -> dict[str, Any]:
    return {
        "title": error.problem.title, "detail": error.detail,
        "candidates": error.extra.get("candidates", ()),
    }  # fmt: skip


def _ask_defaults(call: _Call) -> dict[str, Any]:
    settings = call.snapshot.advisor.settings
    return {
        "fields": FIELDS,
        "answer": None,
        "top": "",
        "request_arm": "",
        "examples": [(text, Asked(None, dict(q), {}).link("/")) for text, q in _EXAMPLES],
        "site": {
            "profiles": PROFILES,
            "models": call.snapshot.advisor.catalog.model_ids(),
            "defaults": {
                "value_per_token_usd": f"{settings.value_usd_per_token:g}",
                "electricity_usd_per_kwh": f"{settings.electricity_usd_per_kwh:g}",
                "wait_cost_usd_per_h": f"{settings.wait_cost_usd_per_h:g}",
                "slo_penalty_usd_per_h": f"{settings.slo_penalty_usd_per_h:g}",
                "hours": "1",
            },
        },
    }


def _script_defaults(call: _Call) -> dict[str, Any]:
    return {
        "key": call.query.get("arm", ""), "checkpoint": call.query.get("checkpoint", ""),
        "image": call.query.get("image", ""), "bench": call.query.get("bench") == "1",
    }  # fmt: skip


def _ask(call: _Call) -> dict[str, Any]:
    if call.asked.body is None:
        return {}
    top, arm = call.query.get("top", ""), call.query.get("arm", "")
    most = _ALL_ARMS if top == "all" else SHOWN
    return {"answer": result_view(call.advice(), arm, most), "top": top, "request_arm": arm}


def _compare(call: _Call) -> dict[str, Any]:
    advice = call.advice()
    view = comparison_view(advice, call.query.get("a", ""), call.query.get("b", ""))
    keys = {f"key_{n}": view[n].arm.key if view[n] else "" for n in ("a", "b")}
    return {"view": view, "rows": call.rows(advice), **keys}


def _what_if(call: _Call) -> dict[str, Any]:
    advice = call.advice()
    arm = find_arm(advice, call.query.get("arm", ""))
    quantity = call.query.get("quantity", "")
    if quantity not in QUANTITIES:
        quantity = next(iter(QUANTITIES))
    body = call.asked.body
    view: dict[str, Any] = {"charts": (), "table": [], "knee": None}
    if arm is not None and body is not None:
        narrowed = body.model_copy(
            update={"gpus": [arm.arm.gpu_kind], "precisions": [arm.arm.precision]}
        )
        asked = loads_of(question_of(narrowed, call.snapshot))
        view = what_if_view(
            [call.service.advice(call.snapshot, question) for question in asked],
            arm.arm.key, quantity, body.concurrency, advice.economics.kv_knee_frac,
        )  # fmt: skip
    return {
        "view": view, "rows": call.rows(advice), "key": arm.arm.key if arm else "",
        "quantities": QUANTITIES, "quantity": quantity,
    }  # fmt: skip


def _evidence(call: _Call) -> dict[str, Any]:
    from omnipilot.advisor.arm_sheet import scenario_of  # noqa: PLC0415 - next to its use

    advice, advisor = call.advice(), call.snapshot.advisor
    arm = find_arm(advice, call.query.get("arm", ""))
    request = advice.recommendation.request
    if arm is None:
        return {"view": coverage_view([], model_id=request.model_id, concurrency=1, context=1,
                                      same_model=bool), "near": [], "rows": [], "key": "",
                "label": "nothing that starts"}  # fmt: skip
    scenario = scenario_of(advisor, arm.arm, request, advice.model)
    cells = advisor.model.evidence(scenario, k=_CELLS)
    own = {advice.model.model_id, advice.model.base_id}
    return {
        "view": coverage_view(
            cells, model_id=request.model_id, concurrency=float(request.concurrency),
            context=float(request.prompt_tokens + request.output_tokens),
            same_model=own.__contains__,
        ),
        "near": evidence_view(cells), "rows": call.rows(advice), "key": arm.arm.key,
        "label": arm.arm.label,
    }  # fmt: skip


def _probe(call: _Call) -> dict[str, Any]:
    from omnipilot.web.asking import ProbeBody  # noqa: PLC0415 - next to its use
    from omnipilot.web.handlers import probe_report  # noqa: PLC0415 - same

    if call.asked.body is None:
        return {}
    budget = page_data.budget_of(call.query)
    body = ProbeBody(**call.asked.body.model_dump(), budget_node_h=budget)
    return {"view": page_data.probe_view(probe_report(call.snapshot, body), budget)}


def _script(call: _Call) -> dict[str, Any]:
    defaults = _script_defaults(call)
    if call.asked.body is None:
        return {}
    question = question_of(call.asked.body, call.snapshot)
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(call.service.clock()))
    return page_data.script_data(call.snapshot.advisor, question, run_id=f"{when}-page", **defaults)


def _cluster(call: _Call) -> dict[str, Any]:
    return page_data.cluster_data(call.snapshot.cluster())


def _models(call: _Call) -> dict[str, Any]:
    service, snapshot = call.service, call.snapshot
    card = getattr(snapshot.advisor.model, "card", {})
    return {
        "held_out": held_out_view(card),
        **page_data.learning_view(
            learning.models(service, snapshot), learning.ledger(service, snapshot),
            learning.health(service, snapshot),
        ),
    }  # fmt: skip


def _api(call: _Call) -> dict[str, Any]:
    from omnipilot.web.endpoints import ENDPOINTS  # noqa: PLC0415 - it knows the pages' handlers

    rows = [(e, (e.handler.__doc__ or "").strip().splitlines()[0]) for e in ENDPOINTS]
    example = msgspec.json.encode(
        {k: ASK_EXAMPLE[k] for k in ("model", "concurrency", "context_tokens")}
    ).decode()
    return {"endpoints": rows, "example": example, "base": call.base}


PAGES: Final[tuple[Page, ...]] = (
    Page("/", "ask.html", _ask, needs_request=False, shows_problems=True, defaults=_ask_defaults),
    Page("/compare", "compare.html", _compare),
    Page("/what-if", "what_if.html", _what_if, slow=True),
    Page("/evidence", "evidence.html", _evidence, slow=True),
    Page(
        "/probe",
        "probe.html",
        _probe,
        slow=True,
        shows_problems=True,
        defaults=lambda call: page_data.gate_defaults(call.query),
    ),
    Page("/script", "script.html", _script, shows_problems=True, defaults=_script_defaults),
    Page("/cluster", "cluster.html", _cluster, needs_request=False),
    Page("/models", "models.html", _models, needs_request=False, slow=True),
    Page("/api", "api.html", _api, needs_request=False),
)
