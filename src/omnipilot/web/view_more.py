"""The other pages' content: comparisons, what-if, evidence, cluster, models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from omnipilot.advisor.words import number, seconds, usd
from omnipilot.decide.utility import TERMS
from omnipilot.domain import TARGET_BY_NAME
from omnipilot.domain.frozen import dataclass
from omnipilot.web.svg import Area, FanPoint, Scale, fan_chart, interval_bar, load_map, shade_of
from omnipilot.web.view_advice import find_arm, span_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from markupsafe import Markup

    from omnipilot.advisor import Advice, Question
    from omnipilot.costmodel.envelope import Evidence
    from omnipilot.domain import RankedArm, TargetPrediction

__all__ = [
    "QUANTITIES",
    "comparison_view",
    "coverage_view",
    "evidence_view",
    "held_out_view",
    "loads_of",
    "what_if_view",
]  # fmt: skip

WIDE, NARROW = 1180, 340
QUANTITIES: Final = {
    "aggregate_tokens_per_s": "Throughput, tokens per second",
    "ttft_p50_s": "Time to first token, seconds",
    "tpot_p50_s": "Time per output token, seconds",
    "kv_cache_peak_frac": "Peak use of the KV cache, fraction",
    "power_mean_w": "Power, watts",
}
_COMPARED: Final = (
    "aggregate_tokens_per_s", "request_per_s", "ttft_p50_s", "tpot_p50_s", "itl_p50_s",
    "cold_start_s", "kv_cache_peak_frac", "power_mean_w",
)  # fmt: skip
_FACTORS: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1 / 1.4, 1.0, 1.4, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True, slots=True)
class Pair:
    """One quantity of two arms."""

    name: str
    a: str
    b: str
    bar_a: Markup | None
    bar_b: Markup | None
    better: str
    note: str = ""


def comparison_view(advice: Advice, key_a: str, key_b: str) -> dict[str, Any]:
    """Two arms side by side; the second is the runner-up where none is named."""
    ranked = advice.recommendation.ranked
    a = find_arm(advice, key_a)
    others = [r for r in ranked if r is not a]
    b = find_arm(advice, key_b) if key_b else None
    if b is None or b is a:
        b = others[0] if others else None
    if a is None or b is None:
        return {"a": None, "b": None, "pairs": [], "terms": []}
    hours = advice.economics.duration_h
    pairs = [_target_pair(a, b, name) for name in _COMPARED]
    pairs += [
        _plain_pair("Cost, USD/h", a.usd_per_h, b.usd_per_h, lower_is_better=True),
        _plain_pair("GPUs", a.arm.tensor_parallel, b.arm.tensor_parallel, lower_is_better=True),
    ]
    terms = []
    for term in TERMS:
        weight = term.sign * getattr(advice.weights, term.name) / hours
        values = [weight * getattr(r.utility, term.field) + 0.0 for r in (a, b)]
        terms.append((term, usd(values[0]), usd(values[1]), usd(values[0] - values[1])))
    totals = [r.utility.total_usd / hours for r in (a, b)]
    return {
        "a": a, "b": b, "pairs": pairs, "terms": terms,
        "totals": (usd(totals[0]), usd(totals[1]), usd(totals[0] - totals[1])),
        "intervals": tuple(
            f"{number(r.utility.lower_usd / hours, 2)} to {number(r.utility.upper_usd / hours, 2)}"
            for r in (a, b)
        ),
    }  # fmt: skip


def _target_pair(a: RankedArm, b: RankedArm, name: str) -> Pair:
    one, two = a.targets[name], b.targets[name]
    target = TARGET_BY_NAME[name]
    scale = Scale.over([one.lower, one.upper, two.lower, two.upper], log=True)
    better = ""
    if target.higher_is_better is not None and one.q50 != two.q50:
        better = "a" if (one.q50 > two.q50) is target.higher_is_better else "b"
    apart = one.lower > two.upper or two.lower > one.upper
    return Pair(
        target.meaning,
        _said(one),
        _said(two),
        interval_bar(span_of(one), scale, ""),
        interval_bar(span_of(two), scale, ""),
        better,
        "the intervals do not meet" if apart else "",
    )


def _plain_pair(name: str, a: float, b: float, *, lower_is_better: bool) -> Pair:
    better = "" if a == b else ("a" if (a < b) is lower_is_better else "b")
    return Pair(name, f"{a:,.4g}", f"{b:,.4g}", None, None, better)


def _said(target: TargetPrediction) -> str:
    if target.unit == "s":
        text = f"{seconds(target.q50)} ({seconds(target.lower)} to {seconds(target.upper)})"
    elif target.unit == "fraction":
        text = f"{target.q50:.0%} ({target.lower:.0%} to {target.upper:.0%})"
    else:
        interval = f"{number(target.lower)} to {number(target.upper)}"
        text = f"{number(target.q50)} {target.unit} ({interval})"
    return text + ("*" if target.source == "prior" else "")


def loads_of(question: Question) -> list[Question]:
    """The question at loads below and above its own."""
    own = question.request.concurrency
    loads = sorted({min(max(1, round(own * f)), 10_000_000) for f in _FACTORS})
    return [
        replace(question, request=replace(question.request, concurrency=load)) for load in loads
    ]


def what_if_view(
    advices: Sequence[Advice], key: str, quantity: str, own: int, knee_frac: float
) -> dict[str, Any]:
    """One arm over the load, with the SLO and the load at which the KV cache is nearly full.

    Args:
        advices: by rising load, each of the arm's GPU kind and precision.
        key: of the arm.
        quantity: target to draw.
        own: load of the request.
        knee_frac: occupancy of the KV cache above which throughput is lost.
    """
    found = []
    for advice in advices:
        arm = next((r for r in advice.recommendation.ranked if r.arm.key == key), None)
        if arm is not None:
            found.append((advice.recommendation.request, arm, advice))
    if len(found) < 2:
        return {"charts": (), "table": [], "knee": None}
    first_request, first, first_advice = found[0]
    points = [FanPoint(float(r.concurrency), span_of(a.targets[quantity])) for r, a, _ in found]
    limit = {
        "ttft_p50_s": first_advice.economics.ttft_limit_s,
        "tpot_p50_s": first_advice.economics.tpot_limit_s,
        "kv_cache_peak_frac": knee_frac,
    }.get(quantity)
    tokens = first.fit.kv_cache_tokens
    held = tokens / (first_request.prompt_tokens + first_request.output_tokens) if tokens else None
    knee = None if held is None else max(held * knee_frac, 1.0)
    title = QUANTITIES[quantity]
    label = f"{title} of {first.arm.label} over concurrent requests; the table has the numbers"
    charts = tuple(
        fan_chart(
            points, width=width, label=label, x_title="concurrent requests", y_title=title,
            limit=limit, limit_title="limit" if quantity != "kv_cache_peak_frac" else "knee",
            knee=knee, knee_title="KV cache nearly full", here=float(own),
        )
        for width in (WIDE, NARROW)
    )  # fmt: skip
    table = [
        (
            f"{request.concurrency:,}",
            _said(arm.targets[quantity]),
            f"{arm.targets['kv_cache_peak_frac'].q50:.0%}",
            usd(arm.utility.total_usd / advice.economics.duration_h),
            arm.confidence,
            request.concurrency == own,
        )
        for request, arm, advice in found
    ]
    return {
        "charts": charts, "table": table, "knee": None if knee is None else f"{knee:,.0f}",
        "held": None if held is None else f"{held:,.0f}", "arm": first.arm, "title": title,
        "limit": None if limit is None else _limit_words(quantity, limit),
    }  # fmt: skip


def _limit_words(quantity: str, limit: float) -> str:
    return f"{limit:.0%} of the cache" if quantity == "kv_cache_peak_frac" else seconds(limit)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured cell of the evidence."""

    source: str
    model: str
    arm: str
    rows: str
    concurrency: str
    context: str
    distance: str


def evidence_view(cells: Sequence[Evidence], most: int = 20) -> list[Cell]:
    """The measured cells nearest to a question, nearest first."""
    return [
        Cell(
            c.source, c.model, f"{c.n_gpus}x {c.gpu} {c.precision}", f"{c.rows:,}",
            _range(c.concurrency_range), _range(c.context_range), number(c.distance, 2),
        )
        for c in cells[:most]
    ]  # fmt: skip


def _range(pair: tuple[float, float]) -> str:
    low, high = pair
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def coverage_view(
    cells: Sequence[Evidence],
    *,
    model_id: str,
    concurrency: float,
    context: float,
    same_model: Callable[[str], bool],
) -> dict[str, Any]:
    """What was measured: rows by GPU kind and number, and the loads of each cell.

    Args:
        cells: all of the cost model.
        model_id: of the request.
        concurrency: of the request.
        context: tokens of its requests.
        same_model: tells a cell's model from others.
    """
    kinds: dict[str, dict[int, int]] = {}
    degrees: set[int] = set()
    areas = []
    own = 0
    for c in cells:
        degrees.add(c.n_gpus)
        row = kinds.setdefault(c.gpu, {})
        row[c.n_gpus] = row.get(c.n_gpus, 0) + c.rows
        mine = same_model(c.model)
        own += c.rows if mine else 0
        if c.concurrency_range[1] > 0 and c.context_range[1] > 0:
            low = max(c.concurrency_range[0], 1.0)
            areas.append(
                Area(
                    (low, max(c.concurrency_range[1], low)),
                    (max(c.context_range[0], 1.0), max(c.context_range[1], 1.0)),
                    c.rows, mine,
                )
            )  # fmt: skip
    most = max((n for row in kinds.values() for n in row.values()), default=1)
    columns = sorted(degrees)
    table = [
        (kind, [(n, shade_of(n, most)) for n in (row.get(d, 0) for d in columns)])
        for kind, row in sorted(kinds.items(), key=lambda item: -sum(item[1].values()))
    ]
    label = (
        f"Loads that were measured, those of {model_id} marked, and the request at "
        f"{concurrency:,.0f} requests of {context:,.0f} tokens"
    )
    charts = tuple(
        load_map(
            areas, (max(concurrency, 1.0), max(context, 1.0)), width=width, label=label,
            x_title="concurrent requests", y_title="tokens of a request",
        )
        for width in (WIDE, NARROW)
    )  # fmt: skip
    return {
        "columns": columns, "table": table, "charts": charts if areas else (),
        "rows": sum(c.rows for c in cells), "own": own, "cells": len(cells),
    }  # fmt: skip


def held_out_view(card: dict[str, Any]) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    """Errors on rows that the cost model had not seen, by target and kind of novelty."""
    found = []
    for head, classes in sorted(card.get("held_out", {}).items()):
        rows = []
        for name, measured in classes.items():
            if not isinstance(measured, dict):
                continue
            error, coverage = measured.get("median_ape"), measured.get("nested_coverage")
            rows.append(
                (
                    name,
                    "-" if error is None else f"{error:.1%}",
                    "-" if coverage is None else f"{coverage:.0%}",
                    f"{measured.get('rows', 0):,}",
                )
            )
        found.append((head, rows))
    return found
