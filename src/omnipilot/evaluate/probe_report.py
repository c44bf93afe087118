"""The document of ``omnipilot evaluate probes``: means over decisions with bootstrap intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.evaluate.probe_decisions import AS_IT_PAYS, CHOSEN, NO_PROBE, POLICIES, RANDOM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.evaluate.holdout import Holdout
    from omnipilot.evaluate.probe_decisions import GroupResult, Terms

    FloatArray = NDArray[np.float64]

_RESAMPLES: Final = 2000


def probe_document(
    results: Sequence[GroupResult], question: Holdout, probes: int, terms: Terms
) -> dict[str, Any]:
    """Average over decisions; see docs/commands.md for the keys.

    Regrets are shares of the best arm's revenue; ``regret_usd_per_h`` repeats them in USD. Net
    utilities are USD a decision over its hours, its probes paid.

    Args:
        results: at least one group with a decision.
        question: what was asked.
        probes: K.
        terms: value of a token, hours, prices.
    """
    decided = [r for r in results if r.decisions]
    rng = np.random.default_rng(question.seed)
    n = sum(r.decisions for r in decided)
    drawn = rng.integers(n, size=(_RESAMPLES, n))
    share = {p: np.concatenate([r.revenue_frac[p] for r in decided]) for p in POLICIES}
    regret = {p: np.concatenate([r.regret_usd_per_h[p] for r in decided]) for p in POLICIES}
    net = {p: np.concatenate([r.utility_usd[p] - r.cost_usd[p] for r in decided]) for p in POLICIES}
    keys: dict[str, Any] = {}
    for name, values in share.items():
        keys |= _both(f"regret_{name}", values, drawn)
    for name, values in net.items():
        keys |= _both(f"net_utility_{name}", values, drawn)
    gained = net[CHOSEN] - net[NO_PROBE]
    saved = regret[NO_PROBE] - regret[CHOSEN]
    made = np.concatenate([r.probes[AS_IT_PAYS] for r in decided])
    paid = float(np.concatenate([r.cost_usd[CHOSEN] for r in decided]).mean())
    return {
        "split": question.split,
        "filter": {
            "sources": list(question.sources), "engine": question.engine or "all",
            "vendor": question.vendor or "all",
        },
        "probes": probes,
        "value_per_token_usd": terms.point.value_per_token_usd,
        "hours": terms.hours,
        "groups": len(decided),
        "cells": n,
        **keys,
        "regret_usd_per_h": {
            k: v for p in POLICIES for k, v in _both(p, regret[p], drawn).items()
        },
        "reduction": {
            "of_no_probe": _reduction(share, NO_PROBE, drawn),
            "of_random": _reduction(share, RANDOM, drawn),
            "of_no_probe_usd": _reduction(regret, NO_PROBE, drawn),
            "of_random_usd": _reduction(regret, RANDOM, drawn),
        },
        **_both("net_gain", gained, drawn),
        **_both("net_gain_as_it_pays", net[AS_IT_PAYS] - net[NO_PROBE], drawn),
        **_both("probes_as_it_pays", made, drawn),
        "probe_cost_usd": paid,
        "pays_from_hours": paid / float(saved.mean()) if saved.mean() > 0 else None,
        "mape_by_probes": {
            p: _errors([(r.ape[p], r.cells) for r in results], question.seed)
            for p in (CHOSEN, RANDOM)
        },
        "per_group": {r.name: _group(r, probes) for r in results},
    }  # fmt: skip


def _both(name: str, values: FloatArray, drawn: NDArray[np.int64]) -> dict[str, Any]:
    """Mean and 2.5 and 97.5 % points of its bootstrap, under two keys."""
    low, high = np.percentile(values[drawn].mean(axis=1), [2.5, 97.5])
    return {name: float(values.mean()), f"{name}_ci": [float(low), float(high)]}


def _reduction(
    regret: Mapping[str, FloatArray], other: str, drawn: NDArray[np.int64]
) -> dict[str, Any] | None:
    """How much of another policy's mean regret the gate's probes take away."""
    if regret[other].mean() <= 0:
        return None
    ours, theirs = (regret[p][drawn].mean(axis=1) for p in (CHOSEN, other))
    ratio = 1.0 - ours / np.maximum(theirs, 1e-12)
    low, high = np.percentile(ratio, [2.5, 97.5])
    return {
        "frac": float(1.0 - regret[CHOSEN].mean() / regret[other].mean()),
        "ci": [float(low), float(high)],
    }


def _errors(
    parts: Sequence[tuple[FloatArray, NDArray[np.str_]]], seed: int
) -> list[dict[str, Any]]:
    """MAPE after 0, 1, … probes over all hidden rows, its interval by workload cells."""
    table = np.concatenate([ape for ape, _ in parts], axis=1)
    names = np.concatenate([np.char.add(f"{i} ", c.astype(str)) for i, (_, c) in enumerate(parts)])
    cell = np.unique(names, return_inverse=True)[1].ravel()
    n = int(cell.max()) + 1
    drawn = np.random.default_rng(seed).integers(n, size=(_RESAMPLES, n))
    found = []
    for k, errors in enumerate(table):
        known = np.isfinite(errors)
        total = np.bincount(cell[known], errors[known], minlength=n)
        count = np.bincount(cell[known], minlength=n)
        means = total[drawn].sum(axis=1) / np.maximum(count[drawn].sum(axis=1), 1)
        low, high = np.percentile(means, [2.5, 97.5])
        found.append(
            {
                "probes": k,
                "mape": float(errors[known].mean()),
                "mape_ci": [float(low), float(high)],
                "median_ape": float(np.median(errors[known])),
            }
        )
    return found


def _group(r: GroupResult, probes: int) -> dict[str, Any]:
    def mean(values: Mapping[str, FloatArray]) -> dict[str, float | None]:
        return {p: float(values[p].mean()) if r.decisions else None for p in POLICIES}

    return {
        "decisions": r.decisions,
        "rows": len(r.cells),
        "probed": list(r.probed),
        "regret": mean(r.revenue_frac),
        "regret_usd_per_h": mean(r.regret_usd_per_h),
        "probe_cost_usd": float(r.cost_usd[CHOSEN].mean()) if r.decisions else None,
        "mape": {
            p: [float(np.nanmean(r.ape[p][k])) for k in range(probes + 1)] for p in (CHOSEN, RANDOM)
        },
    }
