"""Narrowed bands still cover: calibrated on simulated sites, tested on others."""

from __future__ import annotations

import numpy as np
import pytest
from costmodel_builders import made, prior_of

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE, interval
from omnipilot.costmodel.deviation import DEVIATION_TERMS, LEFT_EDGES, Deviation
from omnipilot.costmodel.informed import calibrate_informed
from omnipilot.costmodel.novelty import NOVELTY
from omnipilot.costmodel.spread import fit_spread

pytest.importorskip("catboost", reason="training needs catboost (extra 'fit')")

MODEL = next(n for n in NOVELTY if n.name == "model")


def test_bands_narrowed_by_a_few_rows_cover_on_sites_not_calibrated_on() -> None:
    frame = made().data.frame
    physics = prior_of(frame)
    rng = np.random.default_rng(5)
    # Each simulated site is off by its own amount; odd rows are more frequent than a Gaussian's.
    sites = np.asarray([str(i // 12) for i in range(frame.n)])
    shift = 0.4 * rng.standard_normal(frame.n // 12 + 1)[np.arange(frame.n) // 12]
    error = shift + 0.08 * rng.standard_t(3, frame.n)
    half = np.asarray(sites, dtype=int) % 2 == 0
    mine = np.flatnonzero(half)
    spread = fit_spread(
        frame.take(mine), physics.take(mine), error[mine], sites[mine], ("model",),
        by_source=False, seed=0,
    )  # fmt: skip
    # A deviation that is far too sure of what a row tells.
    whole_site = np.zeros(len(DEVIATION_TERMS))
    whole_site[0] = 0.5
    sure = Deviation("model", whole_site, (3.0, 3.0), 0.01)
    calibrated = calibrate_informed(
        sure, spread, frame.take(mine), physics.take(mine), error[mine], sites[mine], rng
    )
    assert len(calibrated.offsets) == len(LEFT_EDGES) + 1

    def coverage(deviation: Deviation, offset: float | None) -> float:
        inside = []
        for site in np.unique(sites[~half]):
            rows = np.flatnonzero(sites == site)
            seen, rest = rows[:3], rows[3:]
            local = deviation.condition(frame.take(seen), physics.take(seen), error[seen])
            part, at = frame.take(rest), physics.take(rest)
            mean, left = local.shift(part, at)
            q = spread.quantiles(part, at)[0] * deviation.narrowing(left)[:, None]
            by = deviation.offset_after(left) if offset is None else offset
            lower, upper = interval(q, by)
            r = error[rest] - mean
            inside.append((r >= lower) & (r <= upper))
        return float(np.mean(np.concatenate(inside)))

    assert coverage(sure, spread.offset) < 0.6
    assert abs(coverage(calibrated, None) - NOMINAL_COVERAGE) < 0.12


def test_without_a_group_large_enough_the_offset_is_the_class_s_own() -> None:
    frame = made().data.frame
    physics = prior_of(frame)
    error = 0.1 * np.random.default_rng(0).standard_normal(frame.n)
    alone = np.arange(frame.n).astype(str)
    spread = fit_spread(frame, physics, error, alone, ("model",), by_source=False, seed=0)
    deviation = Deviation("model", np.full(len(DEVIATION_TERMS), 0.1), (1.0, 1.0), 0.1)
    found = calibrate_informed(
        deviation, spread, frame, physics, error, alone, np.random.default_rng(0)
    )
    assert set(found.offsets) == {spread.offset}
