"""The cost models of a site: which there are, what differs, which answers, and how it fares."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.advisor.learning import new_row_streams
from omnipilot.advisor.learning_data import Health, ModelEntry, alarm_note, untrue_words
from omnipilot.costmodel.bundle import base_model_path, load_bundle
from omnipilot.domain.errors import OlderBundleError, UsageError
from omnipilot.learn.drift import FALSE_ALARM_RATE
from omnipilot.learn.local_fit import DECISION_HEAD, answer
from omnipilot.learn.local_rows import local_set, stored_runs
from omnipilot.learn.registry import Registry
from omnipilot.learn.retirement import version_key
from omnipilot.store import Store

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.learn.ledger import Entry

__all__ = ["diff", "health", "history", "listed", "promote", "roll_back", "show", "withhold"]

SHIPPED: Final = "shipped"
_MOVES: Final = ("promote", "rollback")
_MOST_NOTES: Final = 6


def listed(advisor: Advisor) -> list[ModelEntry]:
    """Every cost model of a site, the one that answers first, the newest next.

    Raises:
        StateError: the ledger is damaged.
        BundleError: a bundle is.
    """
    registry = Registry(advisor.home)
    entries = registry.ledger.entries()
    pointer = registry.current
    found = [_entry(registry, version, pointer, entries) for version in registry.versions()]
    found.sort(key=lambda e: (not e.answers, -(e.fitted_s or 0.0), e.version))
    _, card, version = load_bundle(base_model_path())
    seen = card["held_out"].get(DECISION_HEAD, {}).get("seen", {})
    shipped = ModelEntry(
        version, SHIPPED, not pointer, "", card["rows"], 0, None, None, "",
        seen.get("mape"), seen.get("nested_coverage"),
    )  # fmt: skip
    return [shipped, *found] if not pointer else [*found, shipped]


def _entry(registry: Registry, version: str, pointer: str, entries: list[Entry]) -> ModelEntry:
    try:
        _, card, _ = registry.load(version)
    except OlderBundleError as error:
        return ModelEntry(
            version, "older", version == pointer, "", 0, 0, None, None, str(error), None, None
        )
    fits = [e for e in entries if e.event == "fit" and e.version == version]
    moves = [e for e in entries if e.event in _MOVES and e.version == version]
    site = card.get("site", {})
    found = site.get("held_out", {}).get(DECISION_HEAD) or card["held_out"].get(
        DECISION_HEAD, {}
    ).get("seen", {})
    return ModelEntry(
        version=version, kind="site" if site else "base", answers=version == pointer,
        base=site.get("base_version", ""), rows=card["rows"], site_rows=site.get("rows", 0),
        fitted_s=fits[-1].at_s if fits else None, promoted_s=moves[-1].at_s if moves else None,
        verdict=fits[-1].facts["reason"] if fits else "", mape=found.get("mape"),
        coverage=found.get("coverage", found.get("nested_coverage")),
    )  # fmt: skip


def history(advisor: Advisor) -> list[Entry]:
    """The verified ledger.

    Raises:
        StateError: it is damaged.
    """
    return Registry(advisor.home).ledger.entries()


def show(advisor: Advisor, version: str) -> tuple[FittedModel, dict[str, Any], str, list[Entry]]:
    """One version with its card and what the ledger tells of it.

    Args:
        advisor: the site.
        version: or the first characters of it; "shipped", or "" for the one that answers.

    Raises:
        UsageError: no such version.
        StateError: the ledger or the bundle is damaged.
    """
    registry = Registry(advisor.home)
    entries = registry.ledger.entries()
    version = version or registry.current or SHIPPED
    model, card, found = (
        load_bundle(base_model_path()) if version == SHIPPED else registry.load(version)
    )
    return model, card, found, [e for e in entries if e.version == found]


def diff(advisor: Advisor, one: str, other: str) -> dict[str, Any]:
    """What differs between two versions: rows, widths, errors, and answers on the site's rows.

    Raises:
        UsageError: no such version.
        StateError: the ledger or a bundle is damaged.
    """
    registry = Registry(advisor.home)
    sides = [show(advisor, version) for version in (one, other)]
    rows = [registry.rows(v) if v in registry.versions() else {} for _, _, v, _ in sides]
    out: dict[str, Any] = {
        "versions": [v for _, _, v, _ in sides],
        "base": [c.get("site", {}).get("base_version", v) for _, c, v, _ in sides],
        "rows_added": len(rows[1].keys() - rows[0].keys()),
        "rows_removed": len(rows[0].keys() - rows[1].keys()),
        "rows_reweighted": sum(
            abs(rows[0][h] - rows[1][h]) > 0 for h in rows[0].keys() & rows[1].keys()
        ),
        "widths": [c.get("site", {}).get("widths", {}) for _, c, _, _ in sides],
        "scales": [c.get("site", {}).get("scales", {}) for _, c, _, _ in sides],
        "held_out": [c.get("site", {}).get("held_out", {}) for _, c, _, _ in sides],
    }
    own = local_set(
        stored_runs(Store(advisor.home)), advisor.catalog, learned=frozenset(),
        policy={}, window_s=np.inf,
    )  # fmt: skip
    if own.dataset is None:
        return {**out, "answers": {}}
    answers = [answer(model, own.data) for model, _, _, _ in sides]
    changed = {}
    for head in answers[0].keys() & answers[1].keys():
        step = answers[1][head].log[:, 1] - answers[0][head].log[:, 1]
        width = [float(np.mean(a[head].log[:, 4] - a[head].log[:, 3])) for a in answers]
        changed[head] = {
            "rows": len(step),
            "median_change_frac": float(np.expm1(np.median(step))),
            "largest_change_frac": float(np.expm1(np.max(np.abs(step)))),
            "mean_log_width": width,
        }
    return {**out, "answers": dict(sorted(changed.items()))}


def promote(
    advisor: Advisor, version: str, *, now_s: float, force: bool = False
) -> tuple[str, str]:
    """Make a version the one that answers.

    Args:
        advisor: the site.
        version: or the first characters of it.
        now_s: present time, Unix seconds.
        force: also where the gate rejected it; the ledger tells so.

    Returns:
        The version that answers now and the one that did, "" for the shipped model.

    Raises:
        UsageError: no such version, or the gate rejected it.
        StateError: the ledger or the bundle is damaged.
    """
    registry = Registry(advisor.home)
    _, _, found = registry.load(version)
    with registry.ledger.locked():
        before = registry.settle()
        fits = [e for e in registry.ledger.entries() if e.event == "fit" and e.version == found]
        reason = fits[-1].facts["reason"] if fits else "never judged by the gate"
        passed = bool(fits) and all(c["passed"] for c in fits[-1].facts["criteria"])
        if not passed and not force:
            raise UsageError(f"{found}: {reason}; --force promotes it all the same")
        if before != found:
            facts = {"reason": f"by hand: {reason}", "forced": not passed}
            registry.move("promote", found, facts, at_s=now_s)
    return found, before


def roll_back(advisor: Advisor, version: str, *, now_s: float) -> tuple[str, str]:
    """Make an earlier version answer again; each time one promotion further back where "".

    Returns:
        The version that answers now and the one that did, "" for the shipped model.

    Raises:
        UsageError: no such version, or nothing earlier.
        StateError: the ledger or the bundle is damaged.
    """
    registry = Registry(advisor.home)
    with registry.ledger.locked():
        before = registry.settle()
        moves = [e for e in registry.ledger.entries() if e.event in _MOVES]
        if version == SHIPPED:
            target = ""
        elif version:
            target = registry.load(version)[2]
        else:
            earlier = _line(moves)[:-1]
            if not earlier:
                raise UsageError(f"nothing earlier: {before or 'the shipped base model'} answers")
            target = earlier[-1]
            if target:
                registry.load(target)
        if target != before:
            registry.move("rollback", target, {"reason": "by hand"}, at_s=now_s)
    return target, before


def _line(moves: list[Entry]) -> list[str]:
    """The versions that were made to answer one after the other, without what was rolled back."""
    line = [moves[0].facts["before"]] if moves else []
    for move in moves:
        if move.event == "rollback" and move.version in line:
            del line[len(line) - 1 - line[::-1].index(move.version) :]
        line.append(move.version)
    return line


def withhold(advisor: Advisor, version: str, *, now_s: float, admit: bool = False) -> int:
    """Take the rows out of further fits that a version learned and its parent did not.

    Args:
        advisor: the site.
        version: or the first characters of it.
        now_s: present time, Unix seconds.
        admit: let them in again instead.

    Returns:
        How many rows.

    Raises:
        UsageError: no such version, or no fit of it is on record.
        StateError: the ledger or the bundle is damaged.
    """
    registry = Registry(advisor.home)
    _, _, found = registry.load(version)
    with registry.ledger.locked():
        registry.settle()
        fits = [e for e in registry.ledger.entries() if e.event == "fit" and e.version == found]
        if not fits:
            raise UsageError(f"no fit of {found} is on record: its new rows are not known")
        parent = registry.rows(fits[0].facts["parent"])
        rows = sorted(h for h in registry.rows(found) if h not in parent)
        registry.ledger.append("admit" if admit else "withhold", found, {"rows": rows}, at_s=now_s)
    return len(rows)


def health(advisor: Advisor) -> Health:
    """Tell how the model that answers stands up to rows measured since.

    Raises:
        StateError: the ledger, the store or a bundle is damaged.
    """
    registry = Registry(advisor.home)
    registry.ledger.entries()
    now, rows, streams, n_new = new_row_streams(advisor, registry)
    notes = [alarm_note(s) for s in streams if s.alarm][:_MOST_NOTES]
    if n_new:
        notes.append(
            f"{n_new:,} runs are newer than the model: omnipilot fit learns from them"
            + ("; omnipilot fit --widths-only adapts its intervals alone" if now.pointer else "")
        )
    notes += [f"runs of the site: {words}" for words in untrue_words(rows.excluded_counts)]
    engines: dict[str, str] = {}
    if rows.dataset is not None:
        versions = Counter((r.engine, r.stack.engine_version) for r in rows.dataset.runs)
        for engine, text in versions:
            if version_key(text) >= version_key(engines.get(engine, "")):
                engines[engine] = text
    if not rows.n:
        notes.append("the site holds no usable run: omnipilot data import or collect takes some in")
    return Health(now.version, n_new, streams, FALSE_ALARM_RATE, engines, notes)
