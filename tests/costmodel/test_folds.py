"""Grouped folds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.costmodel.folds import group_folds

groups_of_rows = st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=80)


@given(groups=groups_of_rows, n=st.integers(1, 7), seed=st.integers(0, 99))
def test_no_group_is_split(groups: list[str], n: int, seed: int) -> None:
    names = np.array(groups)
    fold = group_folds(names, n, np.random.default_rng(seed))
    for name in np.unique(names):
        assert len(np.unique(fold[names == name])) == 1


@given(groups=groups_of_rows, n=st.integers(1, 7), seed=st.integers(0, 99))
def test_every_fold_has_rows_and_there_are_as_many_as_asked_or_as_groups(
    groups: list[str], n: int, seed: int
) -> None:
    fold = group_folds(np.array(groups), n, np.random.default_rng(seed))
    assert set(fold.tolist()) == set(range(min(n, len(set(groups)))))


@given(groups=groups_of_rows, n=st.integers(2, 7), seed=st.integers(0, 99))
def test_folds_differ_by_no_more_than_the_largest_group(
    groups: list[str], n: int, seed: int
) -> None:
    names = np.array(groups)
    sizes = np.bincount(group_folds(names, n, np.random.default_rng(seed)))
    assert sizes.max() - sizes.min() <= max(np.unique(names, return_counts=True)[1])


def test_the_seed_decides_the_folds() -> None:
    names = np.repeat(np.array([f"g{i}" for i in range(40)]), 3)
    a, b, c = (group_folds(names, 5, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert (a == b).all()
    assert (a != c).any()


def test_groups_not_rows_decide_whatever_the_order_of_the_rows() -> None:
    names = np.array(["a", "b", "c", "d", "a", "b", "c", "d"])
    forward = group_folds(names, 3, np.random.default_rng(0))
    backward = group_folds(names[::-1], 3, np.random.default_rng(0))
    assert (forward == backward[::-1]).all()
