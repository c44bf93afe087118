"""What pages show beyond advice: the cluster, the ledger, a job script."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from omnipilot.advisor.words import age_words, moment, usd
from omnipilot.learn.ledger import EVENTS
from omnipilot.web.svg import Scale, term_bar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.advisor import Advisor, Question
    from omnipilot.advisor.cluster_now import ClusterNow
    from omnipilot.advisor.learning_data import ModelEntry
    from omnipilot.advisor.probing import ProbeReport
    from omnipilot.learn.ledger import Entry

__all__ = [
    "budget_of", "cluster_data", "gate_defaults", "learning_view", "probe_view", "script_data",
]  # fmt: skip

_MOST: Final = 40
_BUDGET_NODE_H: Final = 0.2
_MOST_BUDGET_NODE_H: Final = 1e4


def cluster_data(now: ClusterNow) -> dict[str, Any]:
    """GPUs, nodes kept out, launches and waits."""
    gpus: dict[str, tuple[int, int]] = {}
    nodes: list[tuple[str, str]] = []
    source, pending = "", 0
    if now.view is not None:
        state = now.view.state
        where = {"slurm": "Slurm", "cache": "Slurm, cached", "file": "A saved state"}[state.origin]
        source = f"{where} {state.version}".strip() + f", read {age_words(now.age_s)}"
        pending = state.pending_gpus
        for entry in now.view.gpus:
            for kind in entry.kinds:
                free, total = gpus.get(kind, (0, 0))
                gpus[kind] = (free + entry.free, total + entry.total)
            health = now.view.shield.of(entry.node)
            if entry.closed:
                reason = f" ({entry.reason})" if entry.reason else ""
                nodes.append((entry.node, f"{entry.closed}{reason}"))
            elif health.level in {"penalised", "excluded"}:
                nodes.append((entry.node, f"{health.level}: {health.reason}"))
    launches = sorted([*now.digest.own, *now.digest.cluster], key=lambda found: -found.attempts)[
        :_MOST
    ]
    waits = sorted(now.digest.waits, key=lambda found: -found.jobs)[:_MOST]
    return {
        "notes": now.notes,
        "source": source,
        "pending": pending,
        "gpus": [
            (kind, free, total, term_bar(0.0, free, Scale(0.0, max(total, 1)), "gain", ""))
            for kind, (free, total) in sorted(gpus.items())
        ],
        "nodes": list(dict.fromkeys(nodes)),
        "launches": [
            (f"{found.n_gpus} x {found.gpu or '(untyped)'} {found.precision}".strip(),
             f"{found.attempts:,.0f}", f"{found.successes / max(found.attempts, 1e-9):.0%}")
            for found in launches
        ],
        "waits": [
            (found.partition or "(none)", f"{found.n_gpus} x {found.gpu or '(untyped)'}",
             f"{found.jobs:,}", _wait(found.quantiles_s[1]), _wait(found.quantiles_s[2]))
            for found in waits
        ],
    }  # fmt: skip


def _wait(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def learning_view(
    models: Sequence[ModelEntry], entries: Sequence[Entry], health: Mapping[str, Any]
) -> dict[str, Any]:
    """Models, ledger (newest first) and drift."""
    return {
        "models": [
            (m.version, m.kind, m.answers, f"{m.rows:,}", f"{m.site_rows:,}", _share(m.mape),
             _share(m.coverage), moment(m.fitted_s), m.verdict)
            for m in models
        ],
        "ledger": [
            (moment(e.at_s), e.event, EVENTS.get(e.event, ""), e.version or "shipped",
             str(e.facts.get("reason", "")))
            for e in reversed(entries[-_MOST:])
        ],
        "health": health,
        "streams": [
            (s["head"], s["kind"], s["level"] or "all", f"{s['rows']:,}", f"{s['above']:.0%}",
             f"{s['below']:.0%}", f"{s['ratio']:.2f}", s["alarm"])
            for s in health["streams"][:_MOST]
        ],
    }  # fmt: skip


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def gate_defaults(query: Mapping[str, str]) -> dict[str, Any]:
    """What the form of the gate shows."""
    return {"budget": query.get("budget", ""), "default_budget": f"{_BUDGET_NODE_H:g}"}


def budget_of(query: Mapping[str, str]) -> float:
    """Node-hours that the address allows; the usual ones where it names none that can be."""
    try:
        budget = float(query.get("budget", ""))
    except ValueError:
        return _BUDGET_NODE_H
    return budget if 0 < budget <= _MOST_BUDGET_NODE_H else _BUDGET_NODE_H


def probe_view(report: ProbeReport, budget_node_h: float) -> dict[str, Any]:
    """The gate's answer for a person, with the command that makes the first probe."""
    from omnipilot.advisor.probing import probe_data  # noqa: PLC0415 - one page

    found = probe_data(report)
    before, after = found["decision_before"], found["decision_after_expected"]
    pays = len(report.plan.probes)
    rows = [
        (place if place <= pays else "not", p["probe"], _label(p["arm"]), usd(p["voi_usd"]),
         usd(p["cost_usd"]), usd(p["net_usd"]), f"{p['node_hours']:.3f}")
        for place, p in enumerate(found["probes"], start=1)
    ]  # fmt: skip
    stop, _, words = found["stop_reason"].partition(": ")
    return {
        "rows": rows,
        "pays": pays,
        "stop": words or stop,
        "before": (_label(before["arm"]), usd(before["utility_usd"]), before["rule"]),
        "after": (usd(after["utility_usd"]), usd(after["net_utility_usd"])),
        "likely": [(_label(x["arm"]), f"{x['probability']:.0%}") for x in after["arms"]],
        "hours": f"{report.question.request.duration_h:g}",
        "command": _request_words(
            "probe", report.question, ("--budget-node-h", f"{budget_node_h:g}")
        )
        + " --run",
    }


def _label(arm: Mapping[str, Any]) -> str:
    return f"{arm['tensor_parallel']}x {arm['gpu_kind']} {arm['precision']}"


def script_data(
    advisor: Advisor,
    question: Question,
    *,
    run_id: str,
    key: str,
    checkpoint: str,
    image: str,
    bench: bool,
) -> dict[str, Any]:
    """The job script of an arm, and the command that does the same; nothing is written.

    Raises:
        UsageError: an arm that is unknown, cannot start, or needs a checkpoint.
    """
    from omnipilot.advisor.launching import LaunchOrder, prepare_launch  # noqa: PLC0415 - one page
    from omnipilot.launch.spec import Software  # noqa: PLC0415 - same

    order = LaunchOrder(
        question=question, arm=key, checkpoint=checkpoint, bench=bench,
        software=Software(image=image), ask_slurm=question.live,
    )  # fmt: skip
    prepared = prepare_launch(advisor, order, run_id)
    return {
        "script": prepared.script,
        "folder": shlex.quote(str(prepared.run_dir)),
        "notes": prepared.notes,
        "command": _command(question, key or prepared.spec.arm.key, checkpoint, image, bench),
    }


def _command(question: Question, key: str, checkpoint: str, image: str, bench: bool) -> str:
    """``omnipilot launch`` with this request."""
    more = [("--arm", key), ("--checkpoint", checkpoint), ("--image", image)]
    return " ".join(
        [_request_words("launch", question, *more), *(["--bench"] if bench else []), "--submit"]
    )


def _request_words(command: str, question: Question, *more: tuple[str, str]) -> str:
    """A command with a request's options."""
    request, slo = question.request, question.request.slo
    options: list[tuple[str, object]] = [
        ("--model", request.model_id), ("--concurrency", request.concurrency),
        ("--context", request.context_tokens), ("--prompt-tokens", request.prompt_tokens),
        ("--output-tokens", request.output_tokens), ("--hours", f"{request.duration_h:g}"),
        ("--slo-ttft-ms", _milliseconds(slo.ttft_p50_s)),
        ("--slo-tpot-ms", _milliseconds(slo.tpot_p50_s)),
        ("--engine-version", request.engine_version), ("--gpus", ",".join(question.gpus)),
        ("--precisions", ",".join(question.precisions)), ("--profile", question.profile or ""),
        *more,
    ]  # fmt: skip
    if question.value_per_token_usd is not None:
        options.append(("--value-per-token", f"{question.value_per_token_usd:g}"))
    words = ["omnipilot", command]
    for name, value in options:
        if value != "":
            words += [name, shlex.quote(str(value))]
    return " ".join(words)


def _milliseconds(limit_s: float | None) -> str:
    return "" if limit_s is None else f"{limit_s * 1e3:g}"
