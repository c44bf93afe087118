"""What pages show beyond advice: the cluster, the ledger, a job script."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from omnipilot.advisor.words import age_words
from omnipilot.web.svg import Scale, term_bar

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor import Advisor, Question
    from omnipilot.advisor.cluster_now import ClusterNow

__all__ = ["cluster_data", "ledger_rows", "script_data"]

_MOST: Final = 40


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


def ledger_rows(home: Path) -> list[tuple[str, str, str, str]]:
    """What the site's ledger of models says, newest first: when, event, model, verdict."""
    del home
    return []


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
        "command": _command(question, key or _key(prepared.spec.arm), checkpoint, image, bench),
    }


def _key(arm: Any) -> str:  # noqa: ANN401 - an arm
    return f"{arm.gpu_kind}:{arm.tensor_parallel}:{arm.precision}"


def _command(question: Question, key: str, checkpoint: str, image: str, bench: bool) -> str:
    """``omnipilot launch`` with this request."""
    request = question.request
    options: list[tuple[str, object]] = [
        ("--model", request.model_id), ("--concurrency", request.concurrency),
        ("--context", request.context_tokens), ("--prompt-tokens", request.prompt_tokens),
        ("--output-tokens", request.output_tokens), ("--hours", f"{request.duration_h:g}"),
        ("--arm", key), ("--checkpoint", checkpoint), ("--image", image),
        ("--engine-version", request.engine_version),
    ]  # fmt: skip
    words = ["omnipilot", "launch"]
    for name, value in options:
        if value != "":
            words += [name, shlex.quote(str(value))]
    return " ".join([*words, *(["--bench"] if bench else []), "--submit"])
