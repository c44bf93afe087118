"""All figures of a decision backtest, from out-of-fold answers to one document."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.domain.errors import UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.aiconfigurator import NAME as AICONFIGURATOR
from omnipilot.evaluate.aiconfigurator import ask_aiconfigurator
from omnipilot.evaluate.baselines import POLICIES, WITHOUT_INTERVALS, Setting
from omnipilot.evaluate.decision_cells import (
    LATENCIES,
    Forecast,
    build_cells,
    throughput_targets,
)
from omnipilot.evaluate.decisions import (
    TIE_FRAC,
    OperatingPoint,
    best_of,
    choose,
    measured_utility_usd_per_h,
    outcomes,
    precision_choices,
    score,
    with_limits,
)
from omnipilot.evaluate.holdout_cache import held_out, is_kept
from omnipilot.evaluate.plain_gbm import gbm_forecast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from omnipilot.catalog import Catalog
    from omnipilot.evaluate.aiconfigurator import PeerAnswers
    from omnipilot.evaluate.decision_cells import ArmKey, DecisionCell
    from omnipilot.evaluate.decisions import Outcomes
    from omnipilot.evaluate.holdout import Holdout
    from omnipilot.learn.dataset import Dataset

    Say = Callable[[str], None]

# Base-model size in billions of parameters: (name, from, below).
SIZE_BANDS: Final[tuple[tuple[str, float, float], ...]] = (
    ("below 3B", 0.0, 3e9),
    ("3-9B", 3e9, 9.5e9),
    ("9-15B", 9.5e9, 15.5e9),
    ("15-35B", 15.5e9, 35.5e9),
    ("35-80B", 35.5e9, 80e9),
    ("above 80B", 80e9, float("inf")),
)
VALUES_USD_PER_TOKEN: Final = (5e-8, 2e-7, 1e-6)
PROFILE_POINTS: Final = ("cost-conscious", "throughput-first", "slo-constrained")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What decisions are judged on.

    ``cells`` all decisions of the filter, also those without a choice; ``gbm`` tokens per second
    by cell and arm of the trees without physics, empty where they were not asked for; ``peer``
    what AIConfigurator says, where it was asked; ``target`` what was predicted; ``tested_rows``
    rows with an answer; ``unpriced_rows`` those on kinds without price.
    """

    cells: tuple[DecisionCell, ...]
    gbm: Mapping[str, Mapping[ArmKey, float]]
    target: str
    tested_rows: int
    unpriced_rows: int
    peer: PeerAnswers | None = None

    @property
    def decisions(self) -> tuple[DecisionCell, ...]:
        """Cells with a choice."""
        return tuple(cell for cell in self.cells if len(cell.arms) > 1)


def gather(
    dataset: Dataset,
    question: Holdout,
    prices: Mapping[str, float],
    home: Path | None,
    *,
    limits: bool = False,
    trees: bool = True,
    peer: tuple[str, Catalog] | None = None,
    progress: Say = lambda _: None,
) -> Evidence:
    """Answer every row out of fold and group the rows into decisions.

    Args:
        dataset: the rows.
        question: filter and split; its target is chosen here.
        prices: USD per GPU and hour by kind.
        home: where answers are kept; None keeps none.
        limits: answer TTFT and TPOT too, where rows have them, for points with limits.
        trees: fit the baseline of trees without physics.
        peer: the Python that has AIConfigurator, and the catalogue; None does not ask it.
        progress: told in words what is being done.

    Raises:
        UsageError: nothing matches the filter, or no cell of it has two priced arms.
        ToolError: AIConfigurator was to be asked and does not answer.
    """
    targets = throughput_targets(dataset, question)
    kept = [t for t in targets if is_kept(dataset, replace(question, target=t), home)]
    target = (kept or list(targets))[0]
    asked = replace(question, target=target)
    held = held_out(dataset, asked, home, progress)
    n = dataset.data.frame.n
    latencies = []
    for name in LATENCIES if limits else ():
        answer = _latency(dataset, replace(question, target=name), home, progress)
        latencies += [answer] if answer is not None else []
    table = build_cells(dataset, question.split, Forecast.of(held, target, n), prices, latencies)
    evidence = Evidence(table.cells, {}, target, len(held.index), table.unpriced)
    if not evidence.decisions:
        raise UsageError(
            "no workload cell of these rows has two priced arms: nothing to decide between"
        )
    if peer is not None:
        python, catalog = peer
        progress("asking AIConfigurator about every arm")
        answers = ask_aiconfigurator(python, evidence.decisions, dataset, catalog)
        evidence = replace(evidence, peer=answers)
    if not trees:
        return evidence
    plain = build_cells(dataset, question.split, gbm_forecast(dataset, asked, progress), prices)
    return replace(evidence, gbm={cell.name: cell.by_arm(cell.prior) for cell in plain.cells})


def _latency(
    dataset: Dataset, question: Holdout, home: Path | None, progress: Say
) -> Forecast | None:
    try:
        held = held_out(dataset, question, home, progress)
    except UsageError:
        return None
    return Forecast.of(held, question.target, dataset.data.frame.n)


def _summary(found: Outcomes, seed: int) -> dict[str, Any]:
    return asdict(score(found, np.random.default_rng(seed)))


def _brief(found: Outcomes) -> dict[str, Any]:
    return {
        "cells": len(found.hit),
        "top1": float(found.hit.mean()),
        "regret_usd_per_h": float(found.regret_usd_per_h.mean()),
        "regret_relative": float(found.relative.mean()),
        "regret_revenue_frac": float(found.revenue_frac.mean()),
    }


def _grouped(found: Outcomes, names: Sequence[str]) -> dict[str, Any]:
    of = np.asarray(names)
    return {name: _brief(found.take(of == name)) for name in dict.fromkeys(names)}


def _by_size(found: Outcomes, cells: Sequence[DecisionCell]) -> dict[str, Any]:
    figures = _grouped(found, [_band(cell.params) for cell in cells])
    return {name: figures[name] for name, _, _ in SIZE_BANDS if name in figures}


def _band(params: float) -> str:
    return next(name for name, low, high in SIZE_BANDS if low <= params < high)


def policies(
    evidence: Evidence, cells: Sequence[DecisionCell], point: OperatingPoint
) -> dict[str, Outcomes]:
    """Outcome of every baseline on the cells, in the order of the table."""
    setting = Setting.of(evidence.decisions, point, evidence.gbm)
    used = [p for p in POLICIES if evidence.gbm or not p.needs_gbm]
    return {p.name: outcomes(cells, [p.pick(cell, setting) for cell in cells], point) for p in used}


def at_point(
    evidence: Evidence, cells: Sequence[DecisionCell], point: OperatingPoint, seed: int
) -> dict[str, Any]:
    """Our decisions and every baseline at one operating point."""
    ours = outcomes(cells, [choose(cell, point) for cell in cells], point)
    setting = Setting.of(evidence.decisions, point, {})
    peer = None if evidence.peer is None else beside_peer(evidence, evidence.peer, cells, point)
    certain = outcomes(cells, [WITHOUT_INTERVALS.pick(cell, setting) for cell in cells], point)
    return {
        "value_per_token_usd": point.value_per_token_usd,
        **_summary(ours, seed),
        "variants": {WITHOUT_INTERVALS.name: _brief(certain)},
        "baselines": {
            name: _brief(found) for name, found in policies(evidence, cells, point).items()
        },
        "peers": {} if peer is None else {AICONFIGURATOR: peer},
    }


def beside_peer(
    evidence: Evidence, peer: PeerAnswers, cells: Sequence[DecisionCell], point: OperatingPoint
) -> dict[str, Any] | None:
    """AIConfigurator on the decisions among the arms that it answers, and everybody on the same.

    Returns:
        Its figures with the shares that it refused, and those of the others; None where it leaves
        no decision.
    """
    judged = peer.answered(cells)
    if not judged:
        return None
    ours = outcomes(judged, [choose(cell, point) for cell in judged], point)
    others = policies(evidence, judged, point)
    return {
        **_brief(outcomes(judged, [peer.pick(cell, point) for cell in judged], point)),
        "version": peer.version,
        "arms": sum(len(cell.arms) for cell in judged),
        "arms_refused_frac": peer.refused_frac(cells),
        "cells_refused_frac": 1.0 - len(judged) / len(cells),
        "refusals": dict(peer.reasons.most_common()),
        "throughput_error_median_frac": peer.error_frac(judged),
        "same_decisions": {
            "omnipilot": _brief(ours),
            **{name: _brief(found) for name, found in others.items()},
        },
    }


def document(evidence: Evidence, question: Holdout, value_per_token_usd: float) -> dict[str, Any]:
    """Figures of the backtest, as printed by ``omnipilot evaluate decision``.

    The keys at the top are at ``value_per_token_usd``; ``values`` repeats them at the customary
    values, ``operating_points`` at the profiles, ``precision`` for precision alone.
    """
    cells = evidence.decisions
    seed = question.seed
    point = OperatingPoint("asked", value_per_token_usd)
    ours = outcomes(cells, [choose(cell, point) for cell in cells], point)
    alone = precision_choices(cells)
    points = {}
    for name in PROFILE_POINTS:
        profile = OperatingPoint.of_profile(name)
        judged = with_limits(cells) if profile.has_limits else list(cells)
        points[name] = at_point(evidence, judged, profile, seed) if judged else None
    return {
        "split": question.split,
        "filter": {
            "sources": list(question.sources), "engine": question.engine or "all",
            "vendor": question.vendor or "all",
        },
        "target": evidence.target,
        "throughput": "aggregate where a cell has it, else output tokens per second",
        "tie_frac": TIE_FRAC,
        "rows": evidence.tested_rows,
        "rows_without_price": evidence.unpriced_rows,
        "cells_of_one_arm": len(evidence.cells) - len(cells),
        "arms": sum(len(cell.arms) for cell in cells),
        **at_point(evidence, cells, point, seed),
        "per_model": _grouped(ours, [cell.model for cell in cells]),
        "per_band": _by_size(ours, cells),
        "values": {
            f"{v:g}": at_point(evidence, cells, OperatingPoint("value", v), seed)
            for v in VALUES_USD_PER_TOKEN
        },
        "operating_points": points,
        "precision": at_point(evidence, alone, point, seed) if alone else None,
        "worst_cells": _worst(cells, ours, point),
    }  # fmt: skip


def _worst(
    cells: Sequence[DecisionCell], found: Outcomes, point: OperatingPoint, limit: int = 10
) -> list[dict[str, Any]]:
    """Decisions that cost most, with what was taken and what was best."""
    order = np.argsort(-found.regret_usd_per_h, kind="stable")[:limit]
    out = []
    for i in order.tolist():
        if found.regret_usd_per_h[i] <= 0:
            break
        cell = cells[i]
        best = best_of(cell, measured_utility_usd_per_h(cell, point))
        out.append(
            {
                "cell": cell.name,
                "chosen": cell.arms[choose(cell, point)].label,
                "best": cell.arms[best].label,
                "regret_usd_per_h": float(found.regret_usd_per_h[i]),
                "regret_relative": float(found.relative[i]),
            }
        )
    return out
