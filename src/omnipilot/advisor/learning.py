"""The use case "fit": refit on the site's rows, judge the candidate, promote it if it holds."""

from __future__ import annotations

from dataclasses import asdict, astuple, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import omnipilot
from omnipilot.advisor.answer_data import plain
from omnipilot.advisor.learning_data import FitReport, figures_data
from omnipilot.advisor.learning_rows import site_set, withheld_rows
from omnipilot.advisor.site_dataset import site_prices
from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.costmodel.bundle import base_model_path, load_bundle
from omnipilot.domain.errors import OlderBundleError, UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.decision_cells import Forecast, build_cells
from omnipilot.evaluate.decisions import OperatingPoint, choose, outcomes
from omnipilot.learn.cycle import Incumbent, Turn, turn
from omnipilot.learn.drift import watch
from omnipilot.learn.exchanged import exchanged, relabeller
from omnipilot.learn.gate import Verdict, judge_cards
from omnipilot.learn.local_fit import Recipe, answer
from omnipilot.learn.recalibrate import UNSCALED, Scale, rescaled
from omnipilot.learn.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.learn.dataset import Dataset
    from omnipilot.learn.drift import Stream
    from omnipilot.learn.exchanged import Relabel
    from omnipilot.learn.gate import Regret
    from omnipilot.learn.ledger import Entry
    from omnipilot.learn.local_fit import Answered
    from omnipilot.learn.local_rows import LocalSet

    Say = Callable[[str], None]

__all__ = ["FitOptions", "Standing", "fit_site", "new_row_streams", "standing"]

SHIPPED: Final = "shipped"
_MOST_TRIES: Final = 5
_THROUGHPUT: Final = "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What an operator may say of a refit.

    ``retire`` overrides entries of the setting of that name; ``accept`` learns from rows that would
    be held back; ``widths_only`` adapts interval widths and fits nothing; ``base`` names another
    base version; ``dry_run`` writes nothing.
    """

    retire: Mapping[str, float]
    accept: bool = False
    widths_only: bool = False
    base: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """The model that answers and the base model that the next one is conditioned from.

    ``pointer`` is the version in the site's folder, "" for the shipped base model; ``base_name`` is
    "shipped" or a version; ``own_base`` is the answering model without local rows, and ``rows`` are
    the weights of its local rows by hash. Where an earlier version of the program fitted the
    model that the pointer names (``is_older``), it cannot answer and the base stands for it.
    """

    pointer: str
    version: str
    card: dict[str, Any]
    own_base: FittedModel
    base_name: str
    base: FittedModel
    base_card: dict[str, Any]
    base_version: str
    rows: Mapping[str, float]
    is_older: bool = False

    @property
    def site(self) -> dict[str, Any]:
        """What its card tells of the site's rows."""
        return dict(self.card.get("site", {}))

    def scales(self, name: str) -> dict[str, Scale]:
        """Interval factors of its card, ``scales`` or ``widths``."""
        return scales_of(self.card, name)


def scales_of(card: Mapping[str, Any], name: str) -> dict[str, Scale]:
    """Interval factors that a card tells, ``scales`` or ``widths``, by head."""
    return {head: Scale.of(value) for head, value in card.get("site", {}).get(name, {}).items()}


def standing(registry: Registry, base_name: str = "") -> Standing:
    """Load the model that answers and the base model of the next one.

    Args:
        registry: of the site.
        base_name: "shipped" or a version; the incumbent's own where "".

    Raises:
        BundleError: a bundle is damaged.
        UsageError: no such base, or one that an earlier version of the program fitted.
    """
    pointer = registry.current
    shipped = load_bundle(base_model_path())
    is_older = False
    try:
        model, card, version = registry.load(pointer) if pointer else shipped
    except OlderBundleError:
        is_older = True
        model, card, version = shipped
    own = pointer if pointer and "site" not in card and not is_older else SHIPPED
    name = base_name or str(card.get("site", {}).get("base", own))
    try:
        base, base_card, base_version = shipped if name == SHIPPED else registry.load(name)
    except OlderBundleError as error:
        raise UsageError(
            f"{error}; for a base model: omnipilot fit --data, or --base {SHIPPED}"
        ) from error
    if "site" in base_card:
        raise UsageError(
            f"{name} is conditioned on rows of a site: name a base model, or {SHIPPED}"
        )
    same = card.get("site", {}).get("base_version", version) == base_version
    return Standing(
        pointer, version, card, base if same else _without_rows(model, card),
        SHIPPED if name == SHIPPED else base_version, base, base_card, base_version,
        {} if is_older else registry.rows(pointer), is_older,
    )  # fmt: skip


def _without_rows(model: FittedModel, card: Mapping[str, Any]) -> FittedModel:
    """The base that a model was conditioned from, with the interval widths that it had."""
    if not model.local:
        return model
    scales, widths = scales_of(card, "scales"), scales_of(card, "widths")
    back = {
        name: Scale(far=1.0 / total.far, near=1.0)
        for name in model.heads
        for total in [scales.get(name, UNSCALED).times(widths.get(name, UNSCALED))]
    }
    return replace(rescaled(model, back), local={})


def fit_site(
    advisor: Advisor, options: FitOptions, *, now_s: float, progress: Say = lambda _: None
) -> FitReport:
    """Condition the base model on the site's rows, judge the candidate, promote it if it holds.

    Where another process promotes a model or withholds rows meanwhile, the candidate is made and
    judged again. A kill at any moment leaves the model that answered answering, or the next one,
    whole.

    Raises:
        StateError: the ledger or a bundle is damaged, or the folder cannot be written.
        BadInputError: a file of the site cannot be read.
    """
    registry = Registry(advisor.home)
    for _ in range(_MOST_TRIES):
        entries = registry.ledger.entries()
        now = standing(registry, options.base)
        rows = site_set(advisor, now.base, entries, options.retire)
        progress(f"{rows.n:,} runs of the site, {now.base_card['rows']:,} rows in the base model")
        if now.is_older:
            progress("an earlier version fitted the model so far: the base model stands for it")
        took, seen = _turn(advisor, now, rows, entries, options, progress)
        report = _report(now, rows, took, dry_run=options.dry_run)
        if options.dry_run or (took is None and report.unchanged):
            return report
        if took is not None and took.recipe.is_base and not now.rows and not now.is_older:
            reason = "every run was left out, held back or retired: the base model keeps answering"
            return replace(report, verdict=Verdict(promoted=False, reason=reason), unchanged=True)
        known: dict[str, float] = {}
        model, card, version = now.base, now.base_card, now.base_version
        if took is not None:
            model = took.recipe.model(rows.data)
            known = _known_rows(rows, took, now, seen, widths_only=options.widths_only)
            card = _card(now, rows, took, known)
            version = registry.add(model, card, known)
        elif now.base_name == SHIPPED:
            version = ""  # no row is left: the shipped model answers
        with registry.ledger.locked():
            registry.settle()
            if registry.current != now.pointer:
                progress("another model was promoted meanwhile: judging again")
                continue
            if withheld_rows(registry.ledger.entries()) != withheld_rows(entries):
                progress("rows were withheld or admitted meanwhile: judging again")
                continue
            same = version == now.pointer
            report = replace(report, version=version, unchanged=same)
            if same:
                return report
            facts = plain(_facts(report, now, rows, card, model))
            registry.ledger.append("fit", version, facts, at_s=now_s)
            if report.verdict.promoted:
                registry.move("promote", version, {"reason": report.verdict.reason}, at_s=now_s)
        return report
    raise UsageError(
        "other commands keep promoting models or withholding rows: run omnipilot fit again when "
        "they are done"
    )


def _turn(
    advisor: Advisor,
    now: Standing,
    rows: LocalSet,
    entries: list[Entry],
    options: FitOptions,
    progress: Say,
) -> tuple[Turn | None, NDArray[np.bool_]]:
    """One turn of learning, None without a row; and which rows were seen before (n,)."""
    if rows.dataset is None:
        return None, np.zeros(0, dtype=bool)
    incumbent = _incumbent(now, rows, entries)
    dataset = rows.dataset

    def regret(judged: NDArray[np.bool_]) -> Regret:
        at = np.flatnonzero(judged)
        part = replace(
            dataset, data=rows.data.take(at), runs=tuple(dataset.runs[i] for i in at.tolist())
        )
        point = OperatingPoint("site", advisor.settings.value_usd_per_token)
        prices = site_prices(advisor)

        def of(answered: Answered) -> NDArray[np.float64]:
            forecast = Forecast(_THROUGHPUT, answered.log, answered.prior)
            cells = [c for c in build_cells(part, "cell", forecast, prices).cells
                     if len(c.arms) > 1]  # fmt: skip
            chosen = [choose(cell, point) for cell in cells]
            return outcomes(cells, chosen, point).regret_usd_per_h

        return of

    took = turn(
        rows.data, incumbent, now.base, rows.weight, rng=np.random.default_rng(0), regret=regret,
        relabel=_relabel(advisor, dataset), accept=options.accept,
        widths_only=options.widths_only, base_rows=int(now.base_card["rows"]), progress=progress,
    )  # fmt: skip
    return took, incumbent.seen


def _relabel(advisor: Advisor, dataset: Dataset) -> Relabel:
    builder = ScenarioBuilder(advisor.catalog)
    return relabeller(lambda i: builder.scenario(dataset.runs[i]))


def _incumbent(now: Standing, rows: LocalSet, entries: list[Entry]) -> Incumbent:
    hashes = rows.hashes.tolist()
    out = withheld_rows(entries)
    return Incumbent(
        Recipe(
            now.own_base,
            np.asarray([now.rows.get(h, 0.0) for h in hashes]),
            now.scales("scales"),
            now.scales("widths"),
        ),
        np.asarray([h in now.rows for h in hashes], dtype=bool),
        int(now.card["rows"]) + sum(h not in out for h in now.rows),
        first=now.is_older or not any(e.event == "promote" for e in entries),
    )


def _known_rows(
    rows: LocalSet,
    took: Turn,
    now: Standing,
    seen: NDArray[np.bool_],
    *,
    widths_only: bool,
) -> dict[str, float]:
    """Rows of the candidate by hash: what each counts, 0 where only the widths knew it."""
    if widths_only:
        fresh = rows.hashes[~took.held & ~seen].tolist()
        return {**dict.fromkeys(fresh, 0.0), **now.rows}
    kept = np.flatnonzero(~took.held)
    return {str(rows.hashes[i]): round(float(took.recipe.weight[i]), 9) for i in kept}


def _card(now: Standing, rows: LocalSet, took: Turn, known: Mapping[str, float]) -> dict[str, Any]:
    """Card of a candidate: that of its base and what it was conditioned on. No time, no parent.

    The same rows upon the same model then give the same version, on any day.
    """
    return {
        **now.base_card,
        "site": {
            "base": now.base_name,
            "base_version": now.base_version,
            "rows": sum(1 for w in known.values() if w > 0.0),
            "sources": dict(rows.sources),
            "rows_digest": rows.digest,
            "scales": {k: list(astuple(v)) for k, v in took.recipe.scales.items()},
            "widths": {k: list(astuple(v)) for k, v in took.recipe.widths.items()},
            "held_out": plain({k: asdict(f) for k, f in figures_data(took.candidate).items()}),
        },
    }


def _report(now: Standing, rows: LocalSet, took: Turn | None, *, dry_run: bool) -> FitReport:
    about: dict[str, Any] = {
        "version": "", "incumbent": now.version, "base": now.base_version, "rows": rows.n,
        "by_source": rows.sources, "excluded": rows.excluded_counts, "learned": rows.learned,
        "retired": rows.retirement.retired, "withheld": rows.withheld,
        "stacks": rows.retirement.groups, "dry_run": dry_run,
    }  # fmt: skip
    if took is None:
        unchanged = now.base_version == now.version and not now.is_older
        reason = "the site holds no usable run and keeps its base model"
        if now.is_older:
            reason = (
                "the base model takes over: the site holds no usable run, and the model so far was "
                "fitted by an earlier version of OmniPilot"
            )
        verdict = (
            Verdict(promoted=now.is_older, reason=reason)
            if now.base_version == now.version
            else judge_cards(now.base_card, now.card)
        )
        return FitReport(
            verdict=verdict, held_back=0, screened=(), drift=(), candidate={}, before={},
            unchanged=unchanged, **about,
        )  # fmt: skip
    return FitReport(
        verdict=took.verdict, held_back=int(took.held.sum()), screened=took.screened,
        drift=took.drift, candidate=figures_data(took.candidate),
        before=figures_data(took.incumbent), **about,
    )  # fmt: skip


def _facts(
    report: FitReport, now: Standing, rows: LocalSet, card: dict[str, Any], model: FittedModel
) -> dict[str, Any]:
    """Provenance of a candidate for the ledger."""
    envelope = model.envelope
    return {
        **report.data(),
        "parent": now.pointer,
        "code": omnipilot.__version__,
        "rows_digest": rows.digest,
        "site": card.get("site", {}),
        "envelope": {
            "levels": envelope.levels, "ranges": envelope.ranges,
            "engine_eras": envelope.engine_eras, "cells": len(envelope.cells),
        },
    }  # fmt: skip


def new_row_streams(
    advisor: Advisor, registry: Registry
) -> tuple[Standing, LocalSet, tuple[Stream, ...], int]:
    """Hold rows that the answering model has not seen against its predictions.

    Returns:
        The model, the site's rows, the streams, and how many rows are new.
    """
    now = standing(registry)
    rows = site_set(advisor, now.base, registry.ledger.entries(), {})
    if rows.dataset is None:
        return now, rows, (), 0
    fresh = np.asarray([h not in now.rows for h in rows.hashes.tolist()], dtype=bool)
    at = np.flatnonzero(fresh & (rows.weight > 0.0))
    if not len(at):
        return now, rows, (), 0
    model = registry.load(now.pointer)[0] if now.pointer else now.base
    part = rows.data.take(at)
    claim = exchanged(model, rows.data, at, _relabel(advisor, rows.dataset))
    return now, rows, watch(part.frame, answer(model, part), claim=claim), len(at)
