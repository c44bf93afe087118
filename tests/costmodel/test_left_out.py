"""Left-out means agree with fits that never saw the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from omnipilot.costmodel.left_out import left_out_means

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_ROWS = 60


def _dense(
    shared: NDArray[np.float32],
    factors: dict[str, NDArray[np.float32]],
    members: dict[str, NDArray[np.int64]],
) -> NDArray[np.float64]:
    """All blocks' factors under one another (m_total, n)."""
    parts = [shared.astype(np.float64)]
    for name, rows in members.items():
        parts.append(np.zeros((len(factors[name]), N_ROWS)))
        parts[-1][:, rows] = factors[name]
    return np.concatenate(parts)


def _mean(
    design: NDArray[np.float64], label: NDArray[np.float64], precision: NDArray[np.float64]
) -> NDArray[np.float64]:
    weighted = design * precision
    beta = np.linalg.solve(np.eye(len(design)) + weighted @ design.T, weighted @ label)
    return np.asarray(beta @ design)


@pytest.mark.parametrize("n_groups", [1, 2, 7, N_ROWS])
def test_a_group_s_means_are_those_of_a_fit_without_the_group(n_groups: int) -> None:
    pytest.importorskip("scipy", reason="training needs scipy (extra 'fit')")
    rng = np.random.default_rng(n_groups)
    # Rows of two sources and, at the end, of none; groups run across the sources.
    members = {"a": np.arange(25), "b": np.arange(25, 50)}
    shared = rng.normal(size=(6, N_ROWS)).astype(np.float32)
    factors = {name: rng.normal(size=(4, 25)).astype(np.float32) for name in members}
    precision = rng.uniform(0.2, 30.0, N_ROWS)
    label = rng.normal(size=N_ROWS)
    groups = np.arange(N_ROWS) % n_groups
    design = _dense(shared, factors, members)
    error = label - _mean(design, label, precision)
    found = left_out_means(
        shared, factors, members, precision, label, error, groups.astype(np.str_)
    )
    for group in range(n_groups):
        mine = groups == group
        without = _mean(design, label, np.where(mine, 0.0, precision))
        assert found[mine] == pytest.approx(without[mine], abs=1e-8)
    assert np.abs(found - (label - error)).max() > 0.1  # leaving out makes a difference
