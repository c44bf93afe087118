"""Figures of a held-out evaluation, as printed by ``omnipilot evaluate``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE
from omnipilot.evaluate.holdout import ALL, HeldOut, Holdout
from omnipilot.evaluate.metrics import constant_width, errors
from omnipilot.evaluate.rowsets import row_set

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.learn.dataset import Dataset

# Bands of model size by parameters, as the paper's tables have them.
BANDS = (("under 3B", 0.0, 3e9), ("3-9B", 3e9, 9.5e9), ("10-35B", 9.5e9, 36e9),
         ("36-99B", 36e9, 1e11), ("100B and more", 1e11, np.inf))  # fmt: skip


def report(dataset: Dataset, question: Holdout, held: HeldOut) -> dict[str, Any]:
    """Figures of a held-out evaluation.

    The main figures are of the named row set where the filter has one; ``all_rows`` then holds the
    whole filter.
    """
    frame = dataset.data.frame.take(held.index)
    named = row_set(question.sources, question.engine)
    keep = named.mask(frame) if named is not None else np.ones(frame.n, dtype=bool)
    groups = dataset.data.groups(question.novelty)[held.index]
    shown = frame.category("model") if question.split == "cell" else groups

    def table(names: NDArray[np.str_]) -> dict[str, dict[str, float]]:
        return {
            str(g): asdict(errors(held.y[rows], held.log[rows]))
            for g in np.unique(names[keep])
            for rows in [np.flatnonzero(keep & (names == g))]
        }

    per_group = table(shown)
    main = errors(held.y[keep], held.log[keep])
    covered = [g["coverage"] for g in per_group.values()]
    prior_only = errors(held.y[keep], np.repeat(held.prior[:, None], 5, axis=1)[keep])
    band = np.asarray([b[0] for b in BANDS])[
        np.searchsorted([b[2] for b in BANDS], frame["params"], side="right")
    ]
    out: dict[str, Any] = {
        "target": question.target,
        "split": question.split,
        "filter": {
            "sources": list(question.sources), "engine": question.engine or ALL,
            "vendor": question.vendor or ALL, "status": "ok",
        },
        "row_set": named.meaning if named is not None else "every row of the filter",
        **asdict(main),
        "groups": len(np.unique(groups[keep])),
        "folds": held.n_folds,
        "nominal": NOMINAL_COVERAGE,
        "coverage_group_p25": float(np.percentile(covered, 25)),
        "crossing_rate": float(np.mean(held.crossed[keep])) if len(held.crossed) else None,
        "constant_log_width": constant_width(held.y[keep], held.log[keep]),
        "prior_alone": {
            "mape": prior_only.mape, "median_ape": prior_only.median_ape,
            "r2_log": prior_only.r2_log,
        },
        "confidence": table(held.confidence),
        "per_source": table(frame.category("source")),
        "per_band": table(band),
        "excluded": asdict(dataset.excluded) | {
            "physically_impossible_in_filter": sum(
                n for s, n in dataset.screened_by_source.items()
                if question.sources in ((ALL,), (s,)) or s in question.sources
            )
        },
        "per_group": per_group,
    }  # fmt: skip
    if named is not None:
        out["all_rows"] = asdict(errors(held.y, held.log))
    return out
