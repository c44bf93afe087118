"""The report's tables on decisions, and the list of all tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from omnipilot.evaluate import tables as t
from omnipilot.evaluate.baselines import POLICIES, WITHOUT_INTERVALS
from omnipilot.evaluate.material import NotComputedError
from omnipilot.evaluate.tables import COUNT, NUMBER, SHARE, TEXT, Table, TableEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.evaluate.material import Material
    from omnipilot.evaluate.tables import Cell

_FIGURES: Final = (
    ("cells", COUNT), ("top-1", SHARE), ("regret, USD/h", NUMBER), ("relative regret", NUMBER),
    ("regret of revenue", NUMBER),
)  # fmt: skip
OURS: Final = "omnipilot"


def _figures(f: Mapping[str, Any]) -> list[Cell]:
    return [
        f["cells"], f["top1"], f["regret_usd_per_h"], f["regret_relative"],
        f["regret_revenue_frac"],
    ]  # fmt: skip


def policies(m: Material) -> Table:
    """Our decisions beside those of simpler policies."""
    d = m.decisions
    meaning = {p.name: p.meaning for p in (*POLICIES, WITHOUT_INTERVALS)}
    rows = [[OURS, *_figures(d), "the utility that ships, on out-of-fold predictions"]]
    others = d["baselines"] | d["variants"]
    rows += [[name, *_figures(f), meaning[name]] for name, f in others.items()]
    low, high = d["top1_ci"]
    regret = d["regret_ci"]
    note = (
        f"{d['cells']} decisions among {d['arms']} measured arms at {d['value_per_token_usd']:g} "
        f"USD a token; 95 % intervals of ours: top-1 {low:.1%} to {high:.1%}, relative regret "
        f"{regret[0]:.4f} to {regret[1]:.4f}."
    )
    return Table((("policy", TEXT), *_FIGURES, ("what it does", TEXT)), rows, note)


def values(m: Material) -> Table:
    """Our decisions and the best baseline at several values of a token and operating points."""
    named = {f"{v} USD a token": at for v, at in m.decisions["values"].items()}
    rows: list[list[Cell]] = []
    for point, at in (named | m.decisions["operating_points"]).items():
        if at is None:
            continue
        name, best = min(at["baselines"].items(), key=lambda item: item[1]["regret_relative"])
        rows.append([point, *_figures(at), name, best["regret_relative"]])
    note = "slo-constrained counts cells whose arms all have TTFT and TPOT labels."
    columns = (("point", TEXT), *_FIGURES, ("best baseline", TEXT), ("its regret", NUMBER))
    return Table(columns, rows, note)


def precision(m: Material) -> Table:
    """Decisions on precision alone: the GPUs stay the same."""
    at = m.decisions["precision"]
    if at is None:
        raise NotComputedError("no cell measured two precisions on the same GPUs")
    rows = [[OURS, *_figures(at)]]
    rows += [[name, *_figures(f)] for name, f in at["baselines"].items()]
    return Table((("policy", TEXT), *_FIGURES), rows)


def _grouped(m: Material, key: str, title: str) -> Table:
    rows = [[name, *_figures(f)] for name, f in m.decisions[key].items()]
    return Table(((title, TEXT), *_FIGURES), rows)


def worst(m: Material) -> Table:
    """The decisions that cost most."""
    rows = [
        [w["cell"], w["chosen"], w["best"], w["regret_usd_per_h"], w["regret_relative"]]
        for w in m.decisions["worst_cells"]
    ]
    columns = (("cell", TEXT), ("chosen", TEXT), ("best", TEXT), ("regret, USD/h", NUMBER),
               ("relative regret", NUMBER))  # fmt: skip
    return Table(columns, rows)


_EVALUATE: Final = "omnipilot evaluate {rows} --target TARGET --split SPLIT"
_DECIDE: Final = "omnipilot evaluate decision {rows}"

# A further table is one entry. They stand in the report in this order.
TABLES: Final[tuple[TableEntry, ...]] = (
    TableEntry("policies", "Decisions against simpler policies", "Table 2", policies, _DECIDE),
    TableEntry("values", "Decisions at several operating points", "Table 2", values, _DECIDE),
    TableEntry("precision", "Decisions on precision alone", "§4", precision, _DECIDE),
    TableEntry("per-band", "Decisions by model size", "Table 5",
               lambda m: _grouped(m, "per_band", "size"), _DECIDE),
    TableEntry("per-model", "Decisions by model", "§4",
               lambda m: _grouped(m, "per_model", "model"), _DECIDE),
    TableEntry("worst", "The decisions that cost most", "", worst, _DECIDE),
    TableEntry("errors", "Errors of every target", "Table 1, Figure 8", t.target_errors, _EVALUATE),
    TableEntry("novelty", "Errors where something is new", "OOD hold-out", t.novelty_errors,
               _EVALUATE),
    TableEntry("families", "Each family left out", "leave-one-family-out", t.family_errors,
               _EVALUATE),
    TableEntry("coverage", "Coverage before and after recalibration", "Table 4, C.3", t.coverage),
    TableEntry("confidence", "Errors by confidence label", "Table 6", t.confidence_errors,
               _EVALUATE),
    TableEntry("ablations", "Component ablations", "ablations", t.ablations),
    TableEntry("labels", "Label counts", "Table 7", t.label_counts),
    TableEntry("withheld", "Withheld features", "Table 7", t.withheld_features),
    TableEntry("models", "Models of the tested rows", "Table 8", t.models),
    TableEntry("shrinkage", "Launch success under weaker and stronger shrinkage",
               "shrinkage sensitivity", t.shrinkage),
)  # fmt: skip
