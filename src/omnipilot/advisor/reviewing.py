"""The use case "review": a job that is about to be submitted, in a few lines of advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.advisor.job_scripts import read_job_script
from omnipilot.advisor.question import Launch, Question
from omnipilot.advisor.words import number, usd
from omnipilot.domain import OmniPilotError, ServingRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.job_scripts import ServingJob
    from omnipilot.advisor.question import Advice
    from omnipilot.domain import RankedArm

__all__ = ["review"]

# Where the script does not tell its load: named in the advice, so that nobody takes it for known.
_CONCURRENCY: Final = 64
_CONTEXT_TOKENS: Final = 8192


def review(
    advisor: Advisor,
    script: str,
    *,
    gres: str = "",
    partition: str = "",
    live: bool = False,
    now_s: float = 0.0,
    ask: Callable[[Question], Advice] | None = None,
) -> list[str]:
    """Say what is to be said of a job script before it is submitted.

    Args:
        advisor: the site.
        script: the job's script.
        gres: GPUs asked for on the command line.
        partition: the same.
        live: take the cluster's state into account, as of ``now_s``.
        now_s: Unix seconds.
        ask: answers a question; the advisor itself where None.

    Returns:
        Lines; none where the job is no vLLM server, or nothing is known of it.
    """
    job = read_job_script(script, gres=gres, partition=partition)
    if job is None:
        return []
    try:
        advisor.resolve_model(job.model)
    except OmniPilotError:
        return []  # a path, or a model that nobody described: no word rather than a wrong one
    lines = _waste(job)
    kind = _kind(advisor, job, live=live, now_s=now_s)
    if kind:
        lines += _fit(advisor, job, kind)
    return lines + _advice(advisor, job, kind, live, now_s, ask or advisor.advise)


def _waste(job: ServingJob) -> list[str]:
    used = job.tensor_parallel * job.pipeline_parallel * job.data_parallel
    if job.n_gpus > used:
        degree = f"--tensor-parallel-size {job.tensor_parallel}"
        return [f"the job asks for {job.n_gpus} GPUs and vLLM will use {used} ({degree})"]
    if 0 < job.n_gpus < used:
        return [f"vLLM needs {used} GPUs and the job asks for {job.n_gpus}: it will not start"]
    return []


def _kind(advisor: Advisor, job: ServingJob, *, live: bool, now_s: float) -> str:
    """The catalogue's kind of the job's GPUs; "" where the script leaves it open."""
    told = job.gpu or advisor.settings.gpu_kind_of_partition.get(job.partition, "")
    if not told:
        return ""
    try:
        return advisor.catalog.gpu(told).kind
    except OmniPilotError:
        pass
    if not live:
        return ""
    question = Question(ServingRequest("none", 1, 2, 1, 1), live=True, now_s=now_s)
    now = advisor.cluster(question)
    entries = now.view.gpus if now.view else ()
    found = {k for g in entries for k in g.kinds if told.lower() in k and len(g.kinds) == 1}
    return found.pop() if len(found) == 1 else ""


def _fit(advisor: Advisor, job: ServingJob, kind: str) -> list[str]:
    try:
        fit = advisor.fits(
            Launch(
                job.model, kind, tensor_parallel=job.tensor_parallel,
                pipeline_parallel=job.pipeline_parallel, precision=job.precision,
                kv_dtype=job.kv_dtype or "auto", max_model_len=job.max_model_len or None,
                max_num_seqs=job.max_num_seqs or None,
                gpu_memory_utilization=job.memory_utilization_frac or None,
            )
        )  # fmt: skip
    except OmniPilotError:
        return []
    label = f"{job.tensor_parallel}x {kind}"
    if fit.verdict in ("oom", "unsupported"):
        return [f"{job.model} on {label} will not start: {fit.reason}"]
    if fit.verdict == "fits" and fit.kv_cache_tokens:
        return [f"{job.model} starts on {label}; its KV cache holds {fit.kv_cache_tokens:,} tokens"]
    return []


def _advice(
    advisor: Advisor,
    job: ServingJob,
    kind: str,
    live: bool,
    now_s: float,
    ask: Callable[[Question], Advice],
) -> list[str]:
    concurrency = job.concurrency or _CONCURRENCY
    context = job.context_tokens or job.max_model_len or _CONTEXT_TOKENS
    prompt, output = ServingRequest.with_lengths(context, None, None)
    try:
        request = ServingRequest(job.model, concurrency, context, prompt, output)
        question = Question(request, live=live, now_s=now_s, ask_starts=False)
        recommendation = ask(question).recommendation
    except OmniPilotError:
        return []
    if recommendation.abstention is not None or not recommendation.ranked:
        return []
    best = recommendation.ranked[0]
    load = f"{concurrency:,} requests at once of up to {context:,} tokens"
    if not job.concurrency:
        load += " (assumed; a line '#OMNIPILOT concurrency=N context=N' tells)"
    text = f"at {load}, {best.arm.label} is best: {_short(best)}"
    own = _own(advisor, job, kind, recommendation.ranked)
    if own is best:
        return [f"at {load} this is the best configuration: {_short(best)}"]
    if own is not None:
        text += f"; this one, {own.arm.label}: {own.rationale}"
    return [text]


def _own(
    advisor: Advisor, job: ServingJob, kind: str, ranked: tuple[RankedArm, ...]
) -> RankedArm | None:
    if not kind or job.pipeline_parallel * job.data_parallel > 1:  # no arm of advice has those
        return None
    model = advisor.resolve_model(job.model)
    precision = model.named(job.precision or model.native_precision)
    wanted = (kind, job.tensor_parallel, precision)
    return next(
        (r for r in ranked if (r.arm.gpu_kind, r.arm.tensor_parallel, r.arm.precision) == wanted),
        None,
    )


def _short(arm: RankedArm) -> str:
    tokens = arm.targets["aggregate_tokens_per_s"]
    return (
        f"{number(tokens.q50)} tok/s ({number(tokens.lower)} to {number(tokens.upper)}) for "
        f"{usd(arm.usd_per_h)} USD/h, confidence {arm.confidence}"
    )
