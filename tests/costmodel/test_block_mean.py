"""The mean of a block without its covariance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from omnipilot.costmodel.block_mean import CHUNK_ROWS, BlockMean
from omnipilot.costmodel.hyperparameters import Scales
from omnipilot.costmodel.kernel import (
    GLOBAL_TERMS,
    KERNEL_TERMS,
    SOURCE_TERMS,
    KernelInputs,
    covariance,
)

SD = np.linspace(0.05, 0.3, len(KERNEL_TERMS))
LENGTHS = (0.7, 2.0)


def inputs(n: int, seed: int, levels: int = 6) -> KernelInputs:
    """Rows with ``levels`` codes a term; with a seed of 0 none is unknown."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1 if seed else 0, levels, (n, len(KERNEL_TERMS))).astype(np.int32)
    for j, term in enumerate(KERNEL_TERMS):
        if not term.same:
            codes[:, j] = 0
    return KernelInputs(
        codes,
        rng.standard_normal((n, 5)).astype(np.float32),
        rng.standard_normal((n, 19)).astype(np.float32),
        np.empty((n, 0), dtype=np.float32),
    )


@pytest.mark.parametrize("terms", [GLOBAL_TERMS, SOURCE_TERMS])
@pytest.mark.parametrize("n", [1, 30, CHUNK_ROWS + 7])
def test_mean_and_similarity_are_those_of_the_covariance(terms: tuple[int, ...], n: int) -> None:
    points, rows = inputs(80, 0), inputs(n, 1)
    alpha = np.random.default_rng(3).standard_normal(80)
    k = covariance(rows, points, SD, LENGTHS, terms)
    block = BlockMean.prepare(points, alpha, Scales(SD, LENGTHS), terms)
    mean, greatest = block.mean(rows, nearness=block.nearness(rows.codes))
    assert mean == pytest.approx(k @ alpha, abs=1e-4)
    assert greatest == pytest.approx(k.max(axis=1), rel=1e-4)


def test_levels_that_no_point_has_add_nothing() -> None:
    points, rows = inputs(40, 0, levels=3), inputs(20, 1)
    shared = [j for j in GLOBAL_TERMS if not KERNEL_TERMS[j].same]
    beyond = rows.codes.copy()
    beyond[:, [j for j in range(len(KERNEL_TERMS)) if j not in shared]] = 5
    alpha = np.ones(40)
    sd = SD.copy()
    sd[shared] = 0.0
    block = BlockMean.prepare(points, alpha, Scales(sd, LENGTHS), GLOBAL_TERMS)
    beyond_rows = replace(rows, codes=beyond)
    mean, greatest = block.mean(beyond_rows, nearness=block.nearness(beyond))
    assert np.abs(mean).max() == 0.0
    assert np.abs(greatest).max() == 0.0
    assert block.mean(rows)[1].max() == 0.0  # not asked for


def test_what_levels_settle_serves_other_places_of_the_same_levels() -> None:
    points, rows = inputs(80, 0), inputs(CHUNK_ROWS + 7, 1)
    block = BlockMean.prepare(points, np.ones(80), Scales(SD, LENGTHS), GLOBAL_TERMS)
    sums, nearness = block.level_sums(rows.codes), block.nearness(rows.codes)
    for seed in (2, 3):
        moved = replace(inputs(CHUNK_ROWS + 7, seed), codes=rows.codes)
        kept = block.mean(moved, levels=sums, nearness=nearness)
        anew = block.mean(moved, nearness=block.nearness(rows.codes))
        assert [a.tobytes() for a in kept] == [a.tobytes() for a in anew]
