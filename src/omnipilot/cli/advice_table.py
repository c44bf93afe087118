"""How advice looks to a person: shared by ``advise`` and ``explain``."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import click

from omnipilot.advisor.words import (
    THROUGHPUT,
    arm_line,
    cluster_lines,
    headline,
    loss_sentence,
    marked_seconds,
    number,
    request_line,
    site_line,
    turning_sentence,
    usd,
)
from omnipilot.cli.output import Column, emit_heading, emit_lines, emit_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.advisor import Advice
    from omnipilot.domain import Arm, InfeasibleArm, RankedArm

COLUMNS = (
    Column("#", number=True),
    Column("arm", narrow=True),
    Column("tok/s", number=True),
    Column("80 % interval", number=True),
    Column("TTFT", number=True),
    Column("TPOT", number=True),
    Column("USD/h", number=True),
    Column("utility", number=True),
    Column("confidence"),
)
MAX_ARMS_A_REASON = 6


def emit_answer(advice: Advice) -> None:
    """Print the request and the answer in a sentence each."""
    emit_lines([request_line(advice.recommendation.request)], indent="")
    emit_lines([headline(advice)], indent="", bold=True)
    loss = loss_sentence(advice)
    if loss:
        emit_lines([loss], indent="")
    abstention = advice.recommendation.abstention
    if abstention is not None and abstention.probe:
        emit_lines([f"What would let it know: {abstention.probe}."], indent="")


def _cells(place: int, arm: RankedArm, duration_h: float) -> tuple[str, ...]:
    target = arm.targets[THROUGHPUT]
    return (
        str(place),
        arm.arm.label,
        number(target.q50),
        f"{number(target.lower)} to {number(target.upper)}",
        marked_seconds(arm, "ttft_p50_s"),
        marked_seconds(arm, "tpot_p50_s"),
        usd(arm.usd_per_h),
        usd(arm.utility.total_usd / duration_h),
        arm.confidence,
    )


def emit_ranking(advice: Advice, top: int) -> None:
    """Print the arms that start, best first."""
    recommendation = advice.recommendation
    ranked = recommendation.ranked
    duration_h = recommendation.request.duration_h
    click.echo()
    emit_table(COLUMNS, [_cells(i, a, duration_h) for i, a in enumerate(ranked[:top], start=1)])
    shown = ranked[:top]
    notes = ["tok/s counts prompt and output tokens; utility is USD per hour."]
    if any(arm.targets[n].source == "prior" for arm in shown for n in ("ttft_p50_s", "tpot_p50_s")):
        notes.append("* from the physics prior alone: no measured rows.")
    if len(ranked) > top:
        notes.append(f"{top} of {len(ranked)} arms that start; --top {len(ranked)} shows all.")
    emit_lines([" ".join(notes)], indent="")
    emit_heading("Why this order")
    emit_lines(f"{i}  {arm.arm.label}: {arm.rationale}" for i, arm in enumerate(shown, start=1))


def emit_engine(advice: Advice) -> None:
    """Print what the best arm's launch says to the engine, and why."""
    best = advice.recommendation.ranked[0]
    found = best.engine_parameters
    if found is None:
        return
    emit_heading(f"How to start {best.arm.label}")
    parts = [
        f"max_model_len {found.max_model_len}",
        f"gpu_memory_utilization {found.memory_utilization_frac:g}",
        f"max_num_seqs {found.max_num_seqs}",
        f"kv_cache_dtype {found.kv_dtype}",
    ]
    emit_lines([f"{', '.join(parts)}; omnipilot launch writes the script."])
    if found.needs:
        emit_lines([f"needs {found.needs}"])
    emit_lines(f"{r.flag}: {r.why} ({r.source})" for r in found.reasons)


def emit_cluster(advice: Advice, top: int) -> None:
    """Print the cluster as it is, and what that means for the best arm of each GPU kind."""
    report = advice.cluster
    if report is None:
        return
    lines = cluster_lines(report)
    if report.origin != "none":
        best: dict[str, Arm] = {}
        for ranked in advice.recommendation.ranked:
            best.setdefault(ranked.arm.gpu_kind, ranked.arm)
        placed = [arm for arm in best.values() if arm in report.arms]
        lines += [arm_line(arm, report.arms[arm]) for arm in placed[:top]]
    if lines:
        emit_heading("The cluster now")
        emit_lines(lines)


def emit_site_runs(advice: Advice, most: int = 8) -> None:
    """Print what the site itself has measured of the model, newest first."""
    found = advice.site_runs
    if not found:
        return
    emit_heading("Measured on this site")
    emit_lines(site_line(group) for group in found[:most])
    if len(found) > most:
        emit_lines([f"and {len(found) - most} more: omnipilot advise --format json"])


def emit_infeasible(infeasible: Sequence[InfeasibleArm]) -> None:
    """Print what cannot start, grouped by reason, with one reason in full for each group."""
    if not infeasible:
        return
    groups: dict[str, list[InfeasibleArm]] = defaultdict(list)
    for arm in infeasible:
        groups[arm.reason_code].append(arm)
    emit_heading(f"Cannot start ({len(infeasible)} arms)")
    for code, arms in sorted(groups.items(), key=lambda item: -len(item[1])):
        where = _short_list([a.arm for a in arms])
        emit_lines([f"{code} ({len(arms)}): {where}. {arms[0].arm.label}: {arms[0].reason}"])


def _short_list(arms: Sequence[Arm]) -> str:
    by_kind: dict[str, set[str]] = defaultdict(set)
    for arm in arms:
        by_kind[arm.gpu_kind].add(f"{arm.tensor_parallel}x")
    texts = [
        f"{kind} {'/'.join(sorted(degrees, key=lambda d: int(d[:-1])))}"
        for kind, degrees in by_kind.items()
    ]
    rest = len(texts) - MAX_ARMS_A_REASON
    shown = ", ".join(texts[:MAX_ARMS_A_REASON])
    return f"{shown} and {rest} more kinds" if rest > 0 else shown


def emit_basis(advice: Advice) -> None:
    """Print the site's own runs, what would change the answer, the assumptions and the model."""
    emit_site_runs(advice)
    if advice.turning_points:
        emit_heading("What would change the answer")
        emit_lines(turning_sentence(point) for point in advice.turning_points)
    emit_heading("Assumptions")
    emit_lines(advice.assumptions)
    emit_lines([f"Answered by cost model {advice.recommendation.model_version}."])
