"""Honest refusals: the abstention with its fallback, and what to say where nothing fits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from omnipilot.decide.fallback import FALLBACK_RULE, FitOption, smallest_fit_with_headroom
from omnipilot.domain import Abstention

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.decide.candidate import Candidate
    from omnipilot.domain import Arm, FitVerdict, ServingRequest

_MAX_VIOLATIONS: Final = 8
_PROBE_REQUESTS: Final = 4  # a client, as omnipilot launch --bench takes


def abstain(
    candidates: Sequence[Candidate],
    demand_tokens: int,
    request: ServingRequest,
    *,
    model_option: str = "",
) -> Abstention | None:
    """Abstention where arms fit but none of them was measured in support.

    Args:
        candidates: the feasible arms.
        demand_tokens: KV-cache tokens asked for, for the fallback rule.
        request: what is to be served, for the probe.
        model_option: what names the model on a command line; --model and its id where empty.

    Returns:
        None where an arm is supported, or where nothing fits at all (see :func:`nothing_fits`).
    """
    if not candidates or any(c.support.supported for c in candidates):
        return None
    counts = Counter(v for c in candidates for v in dict.fromkeys(c.support.violations))
    violations = tuple(v for v, _ in counts.most_common(_MAX_VIOLATIONS))
    shared = [v for v in violations if counts[v] == len(candidates)]
    options = [FitOption(c.arm, c.fit, c.price_usd_per_gpu_h) for c in candidates]
    fallback = smallest_fit_with_headroom(options, demand_tokens)
    chosen = next((c for c in candidates if c.arm == fallback), None)
    return Abstention(
        reason=f"none of the {len(candidates)} arms that fit is inside what was measured"
        + (f": {'; '.join(shared)}" if shared else ""),
        violations=violations,
        fallback_rule=FALLBACK_RULE,
        fallback=fallback,
        probe=probe_of(chosen, request, model_option) if chosen else "",
    )


def probe_of(candidate: Candidate, request: ServingRequest, model_option: str = "") -> str:
    """The measurement that would bring an arm into what is known, with its time and its command.

    One benchmark of the request's own load on the arm itself gives a row on every axis that is out.
    """
    arm = candidate.arm
    requests = _PROBE_REQUESTS * request.concurrency
    tokens = requests * (request.prompt_tokens + request.output_tokens)
    seconds = candidate.targets["cold_start_s"].q50
    seconds += tokens / max(candidate.targets["aggregate_tokens_per_s"].q50, 1.0)
    axes = "; ".join(candidate.support.violations[:_MAX_VIOLATIONS])
    return (
        f"{requests:,} requests of {request.prompt_tokens:,} + {request.output_tokens:,} tokens at "
        f"concurrency {request.concurrency:,} on {arm.label}, about {max(seconds / 60.0, 1.0):.0f} "
        f"min, bring in what is out ({axes}): omnipilot launch "
        f"{model_option or f'--model {request.model_id}'} "
        f"--concurrency {request.concurrency} --context {request.context_tokens} "
        f"--arm {arm.key} --bench --stop-after-bench "
        "--submit, then omnipilot fit"
    )


def nearest_miss(
    refused: Sequence[tuple[Arm, FitVerdict]], memory_gib: Mapping[str, float], context_tokens: int
) -> tuple[Arm, FitVerdict] | None:
    """The refused arm that comes nearest to starting.

    An arm that starts at a shorter context is nearer than one whose weights alone are too large;
    among the former the longest possible context counts, among the latter the smallest ratio of
    weights to memory. Arms without arithmetic (unsupported pairs) come last.

    Args:
        refused: arms with the verdicts that refused them.
        memory_gib: usable memory by GPU kind.
        context_tokens: context asked for.

    Returns:
        The arm and its verdict; None where nothing was refused.
    """

    def distance(pair: tuple[Arm, FitVerdict]) -> tuple[int, float, int, str]:
        arm, fit = pair
        if fit.verdict == "oom" and fit.max_model_len_possible:
            rank, size = 0, context_tokens / fit.max_model_len_possible
        elif fit.verdict == "oom" and fit.weights_gib_per_gpu is not None:
            rank, size = 1, fit.weights_gib_per_gpu / memory_gib.get(arm.gpu_kind, 1.0)
        else:
            rank, size = 2, 0.0
        return rank, size, arm.tensor_parallel, arm.label

    return min(refused, key=distance, default=None)


def nothing_fits(
    model_id: str,
    refused: Sequence[tuple[Arm, FitVerdict]],
    memory_gib: Mapping[str, float],
    context_tokens: int,
) -> str:
    """One statement for a request that no arm can serve, with the nearest miss."""
    miss = nearest_miss(refused, memory_gib, context_tokens)
    if miss is None:
        return f"no arm to try for {model_id}: widen the GPU kinds or precisions"
    arm, fit = miss
    return (
        f"none of {len(refused)} arms can start {model_id} at {context_tokens} tokens; "
        f"nearest: {arm.label}: {fit.reason}"
    )
