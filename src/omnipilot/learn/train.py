"""Training a bundle and writing its model card."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.costmodel.bundle import load_bundle, save_bundle
from omnipilot.costmodel.fit import fit_cost_model
from omnipilot.domain.targets import TARGET_NAMES
from omnipilot.learn.origins import ORIGINS, UNSTATED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.learn.dataset import Dataset
    from omnipilot.learn.kept_folds import KeptFolds

CARD_FILE = "MODEL_CARD.md"
MOST_WORKERS = 4  # folds fitted at once


def train_bundle(
    dataset: Dataset,
    out: Path,
    progress: Callable[[str], None] = lambda _: None,
    kept: KeptFolds | None = None,
) -> tuple[str, dict[str, Any]]:
    """Fit a cost model and write bundle and model card.

    Args:
        dataset: screened rows.
        out: bundle folder, created where missing.
        progress: told in words what is being done.
        kept: folds of the same fit that was cut; forgotten when it is done.

    Returns:
        The version and the card; the same rows give the same version.
    """
    workers = min(MOST_WORKERS, os.cpu_count() or 1)
    model = fit_cost_model(dataset.data, progress=progress, kept=kept, workers=workers)
    card = model_card(dataset, model)
    save_bundle(model, out, card)
    if kept:
        kept.clear()
    _, card, version = load_bundle(out)
    (out / CARD_FILE).write_text(render_card(version, card), encoding="utf-8")
    return version, card


def model_card(dataset: Dataset, model: FittedModel) -> dict[str, Any]:
    """Facts of a fit: rows by source with licences, what was left out, held-out errors."""
    frame = dataset.data.frame
    sources = {}
    for code in np.unique(frame.codes["source"]):
        name = frame.levels["source"][code]
        origin = ORIGINS.get(name, UNSTATED)
        sources[name] = {
            "rows": int(np.count_nonzero(frame.codes["source"] == code)),
            "repository": origin.repository,
            "licence": origin.licence,
            "notice": origin.notice,
        }
    return {
        "rows": frame.n,
        "cells": len(np.unique(dataset.data.cells)),
        "sources": sources,
        "left_out": asdict(dataset.excluded),
        "labels": {
            name: int(np.isfinite(dataset.data.labels[name]).sum()) for name in TARGET_NAMES
        },
        "held_out": {
            name: {
                label: {
                    "rows": s.n_rows,
                    "groups": s.n_groups,
                    "mape": round(s.mape, 5),
                    "median_ape": round(s.median_ape, 5),
                    "nested_coverage": round(s.nested_coverage, 5),
                    "crossing_rate": round(s.crossing_rate, 5),
                }
                for label, s in head.spreads.items()
            }
            for name, head in model.heads.items()
        },
    }


def render_card(version: str, card: dict[str, Any]) -> str:
    """The model card as Markdown."""
    lines = [
        f"# Cost model {version}", "",
        (f"Fitted on {card['rows']:,} measured rows in {card['cells']:,} workload cells. The "
         "bundle holds parameters (prior, inducing points, trees, offsets) and counts, not the "
         "rows."), "",
        "## Sources", "", "| source | rows | repository | licence |", "|---|---:|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {name} | {s['rows']:,} | {s['repository']} | {s['licence']}"
        f"{', ' + s['notice'] if s['notice'] else ''} |"
        for name, s in card["sources"].items()
    ]
    left = ", ".join(f"{v:,} {k.replace('_', ' ')}" for k, v in card["left_out"].items())
    lines += ["", f"Left out: {left}.", "", "## Labels", "", "| target | rows |", "|---|---:|"]
    lines += [f"| {name} | {n:,} |" for name, n in card["labels"].items()]
    lines += [
        "", "A target without labels is answered by the physics prior alone and marked so.", "",
        "## Held-out errors", "",
        ("Each class holds out whole groups: cells (seen), models, families, GPU kinds, sources. "
         "Coverage is of the 80 % interval with offsets sized on disjoint groups."), "",
        "| head | class | rows | groups | MAPE | median APE | coverage | raw crossing |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name, classes in card["held_out"].items():
        lines += [
            f"| {name} | {label} | {e['rows']:,} | {e['groups']:,} | {e['mape']:.1%} | "
            f"{e['median_ape']:.1%} | {e['nested_coverage']:.1%} | {e['crossing_rate']:.1%} |"
            for label, e in classes.items()
        ]
    return "\n".join(lines) + "\n"
