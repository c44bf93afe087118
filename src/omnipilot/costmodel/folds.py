"""Grouped folds: no group is ever split between training and test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A novelty class of fewer groups (the public sources are nine) says little of the next one.
FEW_GROUPS = 10


def group_folds(
    groups: NDArray[np.str_], n_folds: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Assign each row to a fold by its group.

    Groups are dealt in random order, each to the fold with fewest rows so far.

    Args:
        groups: group of each row (n,).
        n_folds: most folds; fewer where there are fewer groups.
        rng: orders the groups.

    Returns:
        Fold of each row (n,), 0 .. n_folds − 1.

    Example:
        >>> group_folds(np.array(["a", "a", "b"]), 5, np.random.default_rng(0)).max()
        np.int64(1)
    """
    names, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    folds = min(n_folds, len(names))
    filled = np.zeros(folds)
    fold_of = np.empty(len(names), dtype=np.int64)
    for g in rng.permutation(len(names)):
        fold = int(np.argmin(filled))
        fold_of[g] = fold
        filled[fold] += counts[g]
    return np.asarray(fold_of[inverse.ravel()])
