"""What an answer says, in the words that every reader gets: terminal, page and agent."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from omnipilot.advisor.outlook import ArmOutlook, ClusterReport
    from omnipilot.advisor.question import Advice
    from omnipilot.advisor.site_runs import SiteRuns
    from omnipilot.advisor.turning import TurningPoint
    from omnipilot.domain import Arm, FitVerdict, RankedArm, ServingRequest

__all__ = [
    "THROUGHPUT", "age_words", "arm_line", "cluster_lines", "fit_lines", "headline",
    "loss_sentence", "marked_seconds", "moment", "number", "queue_sentence", "request_line",
    "seconds", "site_line", "support_lines", "turning_sentence", "usd",
]  # fmt: skip

THROUGHPUT: Final = "aggregate_tokens_per_s"
_MOST_NODES: Final = 6
_MOST_ARMS: Final = 4


def number(value: float | None, digits: int = 3) -> str:
    """A number for a person: significant digits, thousands separated, "-" where unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits - 1 - math.floor(math.log10(abs(value)))):,.{decimals}f}"


def usd(value: float | None) -> str:
    """Money for a person, two decimals."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.2f}" if abs(value) >= 0.005 or value == 0 else f"{value:.2g}"


def seconds(value: float | None) -> str:
    """A time for a person, in ms below one second."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{number(value * 1e3)} ms" if value < 1 else f"{number(value)} s"


def marked_seconds(arm: RankedArm, target: str) -> str:
    """An arm's median time, with an asterisk where no row was measured."""
    found = arm.targets[target]
    return f"{seconds(found.q50)}{'*' if found.source == 'prior' else ''}"


def moment(at_s: float | None) -> str:
    """A moment in UTC to the minute, "" where there is none."""
    return "" if at_s is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s))


def request_line(request: ServingRequest) -> str:
    """The request in one line."""
    engine = f"{request.engine} {request.engine_version}".strip()
    return (
        f"{request.model_id}: {request.concurrency:,} requests at once, context "
        f"{request.context_tokens:,} tokens (prompt {request.prompt_tokens:,} + output "
        f"{request.output_tokens:,}), {request.duration_h:g} h, {engine}"
    )


def loss_sentence(advice: Advice) -> str:
    """Says that no arm earns what it costs, and what should decide then; "" where one does.

    Without limits on latency such an answer is the smallest loss, however long requests wait.
    """
    recommendation = advice.recommendation
    # The order puts arms that are not trusted last, so any may be the one that pays.
    if max((arm.utility.total_usd for arm in recommendation.ranked), default=0.0) >= 0.0:
        return ""
    first = recommendation.ranked[0].utility.total_usd
    loss = usd(-first / recommendation.request.duration_h)
    said = f"No arm earns what it costs at this value of a token: the first one loses {loss} USD/h."
    slo, site = recommendation.request.slo, advice.economics
    limits = (slo.ttft_p50_s, slo.tpot_p50_s, site.ttft_limit_s, site.tpot_limit_s)
    if any(limit is not None for limit in limits):
        return said
    trusted = [arm for arm in recommendation.ranked if arm.confidence != "low"]
    most = max(
        trusted or recommendation.ranked,
        key=lambda arm: arm.targets[THROUGHPUT].q50 / max(arm.usd_per_h, 1e-9),
    )
    rate = number(most.targets[THROUGHPUT].q50)
    return (
        f"{said} If it has to run, let limits on TTFT and TPOT decide (none are given), or tokens "
        f"for the money: {most.arm.label} has most, {rate} tok/s at {usd(most.usd_per_h)} USD/h."
    )


def queue_sentence(request: ServingRequest, arms: Iterable[RankedArm]) -> str:
    """Arms whose rate leaves first tokens longer to wait than their TTFT says; "" where none.

    Clients that ask again once answered take concurrency / rate for each request (Little's law);
    what decoding does not take of it they wait. Held-out rows where that is above the interval and
    more than half of the time had 0.8 of it in the middle (docs/limits.md).
    """
    found = []
    for arm in arms:
        cycle_s = request.concurrency / arm.targets["request_per_s"].q50
        wait_s = cycle_s - (request.output_tokens - 1) * arm.targets["tpot_p50_s"].q50
        if wait_s > max(arm.targets["ttft_p50_s"].upper, cycle_s / 2):
            found.append(f"{arm.arm.label} {seconds(wait_s)}")
    if not found:
        return ""
    more = f" and {len(found) - _MOST_ARMS} more" if len(found) > _MOST_ARMS else ""
    return (
        f"{request.concurrency:,} requests at once are more than some arms run: their rates leave "
        "first tokens longer to wait than TTFT and its interval say (Little's law): "
        f"{', '.join(found[:_MOST_ARMS])}{more}."
    )


def headline(advice: Advice) -> str:
    """The answer in one sentence."""
    recommendation = advice.recommendation
    abstention = recommendation.abstention
    if abstention is not None and abstention.fallback is None:
        return f"Nothing starts: {abstention.reason}."
    if abstention is not None and abstention.fallback is not None:
        return (
            f"No recommendation: {abstention.reason}. "
            f"Fallback by the rule {abstention.fallback_rule}: {abstention.fallback.label}."
        )
    best = recommendation.ranked[0]
    target = best.targets[THROUGHPUT]
    return (
        f"Take {best.arm.label}: {number(target.q50)} tok/s "
        f"({number(target.lower)} to {number(target.upper)}), "
        f"TTFT {seconds(best.targets['ttft_p50_s'].q50)}, {usd(best.usd_per_h)} USD/h, "
        f"confidence {best.confidence}."
    )


def turning_sentence(point: TurningPoint) -> str:
    """One value that would change the answer, in words."""
    verb = "above" if point.at > point.now else "below"
    if point.quantity == "value_per_token_usd":
        return (
            f"{point.winner.label} wins once a token is worth {verb} {point.at:.2g} USD "
            f"(now {point.now:.2g})."
        )
    return (
        f"{point.winner.label} wins once {point.gpu_kind} costs {verb} {usd(point.at)} USD per "
        f"GPU-hour (now {usd(point.now)})."
    )


def site_line(group: SiteRuns) -> str:
    """The site's own runs of one configuration and load, in one line."""
    where = f"{group.n_gpus}x {group.gpu_kind} {group.precision}"
    told = ["expert parallel"] * group.expert_parallel + group.engine_settings.split()
    where += f" with {', '.join(told)}" if told else ""
    load = f"{group.concurrency:,.0f} at once, prompt {group.prompt_tokens:,.0f} + output "
    load += f"{group.output_tokens:,.0f} tokens"
    if group.tokens_per_s is not None:
        said = f"{number(group.tokens_per_s)} tok/s"
    else:
        said = group.note or group.status
    runs = "1 run" if group.n_runs == 1 else f"{group.n_runs} runs"
    return f"{where}, {load}: {said} ({runs})"


def support_lines(arm: RankedArm) -> list[str]:
    """How well an arm is known: inside or outside what was measured, and why."""
    support = arm.support
    state = "inside what was measured" if support.supported else "outside what was measured"
    lines = [f"Confidence {arm.confidence}: {state} (novelty: {support.novelty})."]
    lines += [f"Out: {violation}." for violation in support.violations]
    lines += [f"{reason}." for reason in support.reasons]
    return lines


def fit_lines(fit: FitVerdict) -> list[str]:
    """Sentences of a verdict: the reason, the sizes, the room, what was assumed."""
    sizes = (
        ("weights", fit.weights_gib_per_gpu),
        ("activation", fit.activation_gib),
        ("graphs", fit.graph_gib),
        ("KV cache", fit.kv_gib_per_gpu),
    )
    known = [f"{name} {number(size)} GiB" for name, size in sizes if size is not None]
    lines = [f"On each GPU: {', '.join(known)}."] if known else []
    if fit.kv_cache_tokens is not None:
        room = f"The KV cache holds {fit.kv_cache_tokens:,} tokens"
        if fit.max_concurrency is not None:
            room += f": {number(fit.max_concurrency)} requests of the full context at once"
        lines.append(f"{room}.")
    return [fit.reason, *lines, *(f"Assumed: {text}" for text in fit.assumptions)]


def age_words(seconds: float) -> str:
    """How long ago, for a person.

    >>> age_words(45.0), age_words(600.0)
    ('45 s ago', '10 min ago')
    """
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60.0:.0f} min ago"


def cluster_lines(report: ClusterReport) -> list[str]:
    """What is known of the cluster as a whole."""
    lines = list(report.notes)
    if report.origin == "none":
        return lines
    where = {"slurm": "Slurm", "cache": "Slurm, cached", "file": "a saved state"}[report.origin]
    free = ", ".join(
        f"{kind} {free} of {total} free" for kind, (free, total) in sorted(report.gpus.items())
    )
    version = f" {report.version}" if report.version and report.origin != "file" else ""
    lines.append(
        f"{where}{version}, read {age_words(report.age_s)}: {free}; "
        f"{report.pending_gpus} GPUs are waited for."
    )
    if report.closed:
        lines.append(f"Closed: {_few(report.closed)}.")
    if report.faulty:
        lines.append(f"Safety shield: {_few(report.faulty)}.")
    return lines


def arm_line(arm: Arm, outlook: ArmOutlook) -> str:
    """Where one arm would run, how long it waits, and whether it comes up."""
    place, wait = outlook.place, outlook.wait
    interval = f"{_hours(wait.lower_h)} to {_hours(wait.upper_h)}"
    words = [f"wait {_hours(wait.median_h)} ({interval}; {wait.note})"]
    if place is not None:
        state = "free now" if place.free_now else "not free now"
        words.insert(0, f"partition {place.partition}, {state}")
        if place.preemptible:
            words.append("jobs of a higher tier can push it out")
        if place.health:
            words.append(f"only nodes with faults are left: {place.health}")
        if place.avoid:
            words.append(f"keep away from {_few(dict(place.avoid))}")
    words.append(f"comes up with {outlook.chance.probability:.0%}: {outlook.chance.note}")
    return f"{arm.label}: {'; '.join(words)}."


def _few(items: dict[str, str]) -> str:
    shown = "; ".join(f"{name} {why}" for name, why in list(items.items())[:_MOST_NODES])
    rest = len(items) - _MOST_NODES
    return f"{shown}; and {rest} more" if rest > 0 else shown


def _hours(hours: float) -> str:
    if hours < 1.0 / 60.0:
        return "none"
    return f"{hours * 60.0:.0f} min" if hours < 2.0 else f"{hours:.1f} h"
