"""From candidates to a recommendation: order, confidence, reasons, abstention.

Order: by expected total utility; beside supported arms an arm outside what was measured counts
with its lower utility, so that it comes first only where it would on a bad day. Where no arm is
supported all are ranked by expected utility, marked low, and the recommendation abstains. The place
of an arm follows from its own numbers: a dearer GPU kind can pass nothing, which a bar set by the
best supported arm would let it do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.decide.candidate import columns_of
from omnipilot.decide.economics import DecisionWeights, for_request
from omnipilot.decide.fallback import demanded_kv_tokens, precision_rank
from omnipilot.decide.rationale import Scored, why_it_loses, why_it_wins
from omnipilot.decide.refusal import abstain
from omnipilot.decide.sampling import DEFAULT_SAMPLES
from omnipilot.decide.utility import evaluate_utility
from omnipilot.domain import RankedArm, Recommendation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from omnipilot.decide.candidate import Candidate, Columns
    from omnipilot.decide.economics import Economics
    from omnipilot.decide.utility import UtilityTable
    from omnipilot.domain import Arm, InfeasibleArm, ServingRequest
    from omnipilot.domain.engine import EngineParameters
    from omnipilot.domain.prediction import Confidence

_VALUE_TARGET: Final = "aggregate_tokens_per_s"
_SLO_TARGETS: Final = (("ttft_p50_s", "ttft_limit_s"), ("tpot_p50_s", "tpot_limit_s"))


def confidence_of(candidate: Candidate, economics: Economics) -> Confidence:
    """Confidence in one arm's utility.

    Low outside the support, whatever the width of the interval, and where the throughput has no
    labelled rows; at most medium where a latency with a limit has none.

    Args:
        candidate: the arm.
        economics: the limits in force.

    Returns:
        "high", "medium" or "low".
    """
    if not candidate.support.supported or candidate.targets[_VALUE_TARGET].source == "prior":
        return "low"
    for target, limit in _SLO_TARGETS:
        if getattr(economics, limit) is not None and candidate.targets[target].source == "prior":
            return "low" if candidate.support.confidence == "low" else "medium"
    return candidate.support.confidence


def order_of(
    candidates: Sequence[Candidate], table: UtilityTable, supported: npt.NDArray[np.bool_]
) -> tuple[list[int], frozenset[int]]:
    """Indices best first, and those that are not trusted to beat the best supported arm.

    Ties are settled by support, fewer GPUs, the lower hourly price, precision order, then name.
    """
    counted = table.total_usd
    if supported.any():
        counted = counted.copy()
        beyond = ~supported
        counted[beyond] = np.minimum(table.interval(beyond)[0], counted[beyond])
    values = (-counted).tolist()
    inside = supported.tolist()
    indices = sorted(range(len(candidates)), key=values.__getitem__)
    if len(set(values)) < len(values):
        usd_per_h = table.usd_per_h.tolist()

        def key(i: int) -> tuple[float, bool, int, float, int, str]:
            arm = candidates[i].arm
            return (
                values[i],
                not inside[i],
                arm.tensor_parallel,
                usd_per_h[i],
                precision_rank(arm.precision),
                arm.label,
            )

        indices.sort(key=key)
    best_supported = next((place for place, i in enumerate(indices) if inside[i]), None)
    after = indices[best_supported:] if best_supported is not None else ()
    return indices, frozenset(i for i in after if not inside[i])


def rank(
    request: ServingRequest,
    candidates: Sequence[Candidate],
    economics: Economics,
    weights: DecisionWeights | None = None,
    n_samples: int = DEFAULT_SAMPLES,
    *,
    columns: Columns | None = None,
    top: int | None = None,
    parameters: Callable[[Arm], EngineParameters] | None = None,
) -> tuple[RankedArm, ...]:
    """Feasible arms, best first, each with its utility, confidence and reason.

    Args:
        request: the request.
        candidates: the arms that start.
        economics: prices and limits; the request's hours and its own limits replace them.
        weights: weight of each term; all 1 by default.
        n_samples: joint draws of the utility.
        columns: of the candidates, where they are at hand: then a candidate is looked at one by
            one only where it is told of.
        top: arms to tell of; all are compared whatever it is, and told where None.
        parameters: what an arm's launch says to the engine; not told where None.

    Returns:
        One entry a candidate, or the first ``top`` of them; empty where there is none.
    """
    if not candidates:
        return ()
    weights = weights or DecisionWeights()
    economics = for_request(economics, request)
    columns = columns or columns_of(candidates)
    table = evaluate_utility(columns.predictions, columns.costs, economics, weights, n_samples)
    order, untrusted = order_of(candidates, table, columns.supported)
    told = order[:top]
    if not told:
        return ()
    scored = [
        Scored(candidates[i], terms, terms.compute_usd / economics.duration_h, missed)
        for i, terms, missed in zip(
            told, table.terms_of(told), table.violation_prob(told).tolist(), strict=True
        )
    ]
    best = scored[0]
    supported_exist = bool(columns.supported.any())
    ranked = []
    for i, arm in zip(told, scored, strict=True):
        rationale = (
            why_it_wins(best, len(candidates), request, supported_exist=supported_exist)
            if arm is best
            else why_it_loses(arm, best, weights, economics.duration_h, trusted=i not in untrusted)
        )
        ranked.append(
            RankedArm(
                arm=arm.candidate.arm,
                targets=dict(arm.candidate.targets),
                utility=arm.terms,
                support=arm.candidate.support,
                confidence=confidence_of(arm.candidate, economics),
                fit=arm.candidate.fit,
                usd_per_h=arm.usd_per_h,
                slo_violation_prob=arm.slo_violation_prob,
                rationale=rationale,
                engine_parameters=parameters(arm.candidate.arm) if parameters else None,
            )
        )
    return tuple(ranked)


def recommend(
    request: ServingRequest,
    candidates: Sequence[Candidate],
    infeasible: Sequence[InfeasibleArm],
    economics: Economics,
    weights: DecisionWeights | None = None,
    *,
    model_version: str = "",
    max_num_seqs: int = 0,
    columns: Columns | None = None,
    top: int | None = None,
    parameters: Callable[[Arm], EngineParameters] | None = None,
    model_option: str = "",
) -> Recommendation:
    """Ranked arms, with an abstention and its fallback where none of them is supported.

    Where nothing fits ``ranked`` is empty and ``abstention`` None: that is an answer, not a doubt
    (see :func:`omnipilot.decide.refusal.nothing_fits` for the words).

    Args:
        request: the request.
        candidates: the arms that start.
        infeasible: the arms that cannot, with why.
        economics: prices and limits; the request's hours and its own limits replace them.
        weights: weight of each term; all 1 by default.
        model_version: digest of the cost model's bundle.
        max_num_seqs: the engine's limit of running sequences, 0 for none; for the fallback.
        columns: as for :func:`rank`.
        top: arms to tell of; all where None.
        parameters: as for :func:`rank`.
        model_option: as for :func:`omnipilot.decide.refusal.abstain`.

    Returns:
        The recommendation.
    """
    columns = columns or columns_of(candidates)
    ranked = rank(
        request, candidates, economics, weights, columns=columns, top=top, parameters=parameters
    )
    abstention = None
    if not columns.supported.any():
        demand = demanded_kv_tokens(request.concurrency, request.context_tokens, max_num_seqs)
        abstention = abstain(list(candidates), demand, request, model_option=model_option)
    return Recommendation(
        request=request,
        model_version=model_version,
        ranked=ranked,
        infeasible=tuple(infeasible),
        abstention=abstention,
    )
