"""Advice as the pages show it: texts and drawings, ready for the templates."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from omnipilot.advisor.words import (
    THROUGHPUT,
    arm_line,
    cluster_lines,
    fit_lines,
    loss_sentence,
    marked_seconds,
    number,
    seconds,
    site_line,
    support_lines,
    turning_sentence,
    usd,
)
from omnipilot.decide.utility import TERMS
from omnipilot.domain.frozen import dataclass
from omnipilot.web.svg import Scale, Span, interval_bar, term_bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from omnipilot.advisor import Advice
    from omnipilot.domain import Arm, InfeasibleArm, RankedArm, TargetPrediction

__all__ = [
    "find_arm", "ranking_view", "refusals_view", "result_view", "span_of",
    "waterfall_view",
]  # fmt: skip

SHOWN: Final = 12
_TERM_NAMES: Final = {
    "serving_value": "Tokens served", "kv_saturation": "Lost to a full KV cache",
    "compute": "GPUs and electricity", "queue": "Waiting in the queue",
    "failure": "Failed starts", "slo": "Missed limits", "carbon": "Carbon",
}  # fmt: skip
_SCHEMES: Final = {"high": "good", "medium": "fair", "low": "poor"}


def find_arm(advice: Advice, key: str) -> RankedArm | None:
    """The ranked arm of a key; the best where it is empty or not there."""
    ranked = advice.recommendation.ranked
    return next((r for r in ranked if r.arm.key == key), ranked[0] if ranked else None)


def span_of(target: TargetPrediction) -> Span:
    """A predicted quantity to draw."""
    return Span(target.lower, target.q10, target.q50, target.q90, target.upper)


@dataclass(frozen=True, slots=True)
class Row:
    """One arm of the table."""

    place: int
    key: str
    label: str
    bar: Markup
    tokens: str
    interval: str
    ttft: str
    tpot: str
    usd_per_h: str
    utility: str
    utility_interval: str
    confidence: str
    scheme: str
    rationale: str
    supported: bool


def ranking_view(ranked: Sequence[RankedArm], duration_h: float, most: int) -> list[Row]:
    """The arms that start, best first."""
    shown = ranked[:most]
    ends = [v for r in shown for v in (r.targets[THROUGHPUT].lower, r.targets[THROUGHPUT].upper)]
    scale = Scale.over(ends, log=True)
    rows = []
    for place, arm in enumerate(shown, start=1):
        tokens = arm.targets[THROUGHPUT]
        interval = f"{number(tokens.lower)} to {number(tokens.upper)}"
        terms = arm.utility
        rows.append(
            Row(
                place=place,
                key=arm.arm.key,
                label=arm.arm.label,
                bar=interval_bar(span_of(tokens), scale, ""),
                tokens=number(tokens.q50),
                interval=interval,
                ttft=marked_seconds(arm, "ttft_p50_s"),
                tpot=marked_seconds(arm, "tpot_p50_s"),
                usd_per_h=usd(arm.usd_per_h),
                utility=usd(terms.total_usd / duration_h),
                utility_interval=f"{number(terms.lower_usd / duration_h, 2)} to "
                f"{number(terms.upper_usd / duration_h, 2)}",
                confidence=arm.confidence,
                scheme=_SCHEMES[arm.confidence],
                rationale=arm.rationale,
                supported=arm.support.supported,
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class Step:
    """One term of the waterfall."""

    name: str
    meaning: str
    value: str
    bar: Markup
    is_total: bool = False


def waterfall_view(advice: Advice, arm: RankedArm) -> list[Step]:
    """The utility of an arm term by term, weighted, in USD an hour."""
    hours = advice.economics.duration_h
    level, found = 0.0, []
    for term in TERMS:
        weight = getattr(advice.weights, term.name)
        change = term.sign * weight * getattr(arm.utility, term.field) / hours
        found.append((term, level, level + change, change))
        level += change
    terms = arm.utility
    ends = [0.0, *(v for _, a, b, _ in found for v in (a, b)), terms.total_usd / hours]
    scale = Scale.over(ends)
    steps = [
        Step(
            _TERM_NAMES.get(term.name, term.name),
            term.meaning,
            usd(change + 0.0 if abs(change) >= 5e-4 else 0.0),
            term_bar(start, end, scale, "gain" if change >= 0 else "cost", ""),
        )
        for term, start, end, change in found
    ]
    total = terms.total_usd / hours
    steps.append(
        Step("Utility", "the sum", usd(total), term_bar(0.0, total, scale, "total", ""),
             is_total=True)
    )  # fmt: skip
    return steps


@dataclass(frozen=True, slots=True)
class Refusal:
    """Arms that cannot start for one reason."""

    code: str
    arms: str
    count: int
    example: str
    reason: str


def refusals_view(infeasible: Sequence[InfeasibleArm]) -> list[Refusal]:
    """What cannot start, by reason, most arms first."""
    groups: dict[str, list[InfeasibleArm]] = defaultdict(list)
    for arm in infeasible:
        groups[arm.reason_code].append(arm)
    found = []
    for code, arms in sorted(groups.items(), key=lambda item: -len(item[1])):
        labels = [a.arm.label for a in arms]
        rest = len(labels) - 8
        shown = ", ".join(labels[:8]) + (f" and {rest} more" if rest > 0 else "")
        found.append(Refusal(code.replace("_", " "), shown, len(arms), labels[0], arms[0].reason))
    return found


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the answer."""

    name: str
    value: str
    note: str = ""


def figures_view(advice: Advice, arm: RankedArm) -> list[Figure]:
    """The numbers of one arm that an operator reads first."""
    tokens, hours = arm.targets[THROUGHPUT], advice.economics.duration_h
    figures = [
        Figure("Throughput", f"{number(tokens.q50)} tok/s",
               f"80 % interval {number(tokens.lower)} to {number(tokens.upper)}"),
        *(
            Figure(words, marked_seconds(arm, target), _interval(arm, target))
            for words, target in (("Time to first token", "ttft_p50_s"),
                                  ("Time per output token", "tpot_p50_s"))
        ),
        Figure("Cost", f"{usd(arm.usd_per_h)} USD/h", "GPUs and electricity"),
        Figure("Utility", f"{usd(arm.utility.total_usd / hours)} USD/h",
               f"80 % interval {number(arm.utility.lower_usd / hours, 2)} to "
               f"{number(arm.utility.upper_usd / hours, 2)}"),
    ]  # fmt: skip
    economics = advice.economics
    if economics.ttft_limit_s or economics.tpot_limit_s:
        figures.append(
            Figure("Misses a limit", f"{arm.slo_violation_prob:.0%}", "probability, by median")
        )
    return figures


def _interval(arm: RankedArm, name: str) -> str:
    target = arm.targets[name]
    return f"80 % interval {seconds(target.lower)} to {seconds(target.upper)}"


def result_view(advice: Advice, arm_wanted: str, most: int) -> dict[str, Any]:
    """Everything that the page of an answer shows.

    Args:
        advice: the answer.
        arm_wanted: key of the arm whose terms are shown; the best where "".
        most: rows of the table.
    """
    recommendation = advice.recommendation
    ranked, abstention = recommendation.ranked, recommendation.abstention
    chosen = find_arm(advice, arm_wanted)
    view: dict[str, Any] = {
        "request": recommendation.request,
        "advice": advice,
        "abstention": abstention,
        "loss": loss_sentence(advice),
        "fallback_key": abstention.fallback.key if abstention and abstention.fallback else "",
        "n_ranked": len(ranked),
        "rows": ranking_view(ranked, advice.economics.duration_h, most),
        "refusals": refusals_view(recommendation.infeasible),
        "n_infeasible": len(recommendation.infeasible),
        "turning": [turning_sentence(point) for point in advice.turning_points],
        "assumptions": advice.assumptions,
        "site_runs": [site_line(group) for group in advice.site_runs[:8]],
        "cluster": _cluster(advice),
        "model_version": recommendation.model_version,
        "chosen": None,
    }
    if chosen is not None:
        view |= {
            "chosen": chosen,
            "chosen_key": chosen.arm.key,
            "is_best": chosen is ranked[0],
            "figures": figures_view(advice, chosen),
            "steps": waterfall_view(advice, chosen),
            "fit": fit_lines(chosen.fit),
            "support": support_lines(chosen),
            "scheme": _SCHEMES[chosen.confidence],
            "engine": chosen.engine_parameters,
        }
    return view


def _cluster(advice: Advice) -> list[str]:
    report = advice.cluster
    if report is None:
        return []
    lines = cluster_lines(report)
    if report.origin != "none":
        best: dict[str, Arm] = {}
        for ranked in advice.recommendation.ranked:
            best.setdefault(ranked.arm.gpu_kind, ranked.arm)
        lines += [arm_line(a, report.arms[a]) for a in best.values() if a in report.arms][:8]
    return lines
