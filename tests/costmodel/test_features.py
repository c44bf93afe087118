"""Features: one column an entry, one-hot levels only where rows were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from costmodel_builders import made, prior_of, scenario

from omnipilot.costmodel.features import FEATURES, ONE_HOT, FeatureSpace
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.heads import HEADS

if TYPE_CHECKING:
    from numpy.typing import NDArray


def column(space: FeatureSpace, matrix: NDArray[np.float32], name: str) -> list[float]:
    values: list[float] = matrix[:, space.names.index(name)].tolist()
    return values


def test_names_and_columns_agree_and_every_value_is_finite() -> None:
    frame = made().data.frame
    space = FeatureSpace.from_frame(frame)
    matrix = space.matrix(frame, prior_of(frame))
    assert matrix.shape == (frame.n, len(space.names))
    assert matrix.dtype == np.float32
    assert np.isfinite(matrix).all()
    assert len(set(space.names)) == len(space.names)


def test_log_features_are_logs_and_linear_ones_are_not() -> None:
    frame = build_frame([scenario(concurrency=8, n_gpus=4)])
    space = FeatureSpace.from_frame(frame)
    matrix = space.matrix(frame, prior_of(frame))
    assert column(space, matrix, "concurrency") == pytest.approx([np.log(8)])
    assert column(space, matrix, "tensor_parallel") == [2.0]
    assert column(space, matrix, "memory_utilization") == pytest.approx([0.9])
    assert column(space, matrix, "effective_bits") == [16.0]


def test_the_shares_of_a_step_add_up_to_its_parts() -> None:
    frame = build_frame([scenario(n_gpus=2)])
    space = FeatureSpace.from_frame(frame)
    physics = prior_of(frame)
    matrix = space.matrix(frame, physics)
    for part in ("weights", "compute", "kv", "link", "host"):
        share = physics.terms[f"{part}_s"] / physics.terms["step_s"]
        assert column(space, matrix, f"{part}_share") == pytest.approx(share, rel=1e-6)


def test_one_hot_columns_mark_the_level_of_each_row() -> None:
    frame = build_frame([scenario(gpu="l40s-48"), scenario(gpu="a100-80")])
    space = FeatureSpace.from_frame(frame)
    matrix = space.matrix(frame, prior_of(frame))
    assert column(space, matrix, "gpu_kind=l40s-48") == [1.0, 0.0]
    assert column(space, matrix, "gpu_kind=a100-80") == [0.0, 1.0]


def test_an_unseen_level_is_all_zeros() -> None:
    space = FeatureSpace.from_frame(build_frame([scenario(gpu="l40s-48"), scenario(gpu="a100-80")]))
    new = build_frame([scenario(gpu="h100-80")])
    matrix = space.matrix(new, prior_of(new))
    at = [i for i, name in enumerate(space.names) if name.startswith("gpu_kind=")]
    assert len(at) == 2
    assert not matrix[:, at].any()


def test_a_withheld_category_has_no_column() -> None:
    frame = made().data.frame
    space = FeatureSpace.from_frame(frame, ("model", "source"))
    assert space.levels["model"] == space.levels["source"] == ()
    assert not any(name.startswith(("model=", "source=")) for name in space.names)


def test_a_withheld_feature_has_no_column_and_the_others_keep_their_values() -> None:
    frame = made().data.frame
    everything = FeatureSpace.from_frame(frame)
    fewer = FeatureSpace.from_frame(frame, ("prompt_tokens", "context"))
    assert set(everything.names) - set(fewer.names) == {"prompt_tokens", "context"}
    prior = prior_of(frame)
    assert column(fewer, fewer.matrix(frame, prior), "batch") == column(
        everything, everything.matrix(frame, prior), "batch"
    )


def test_what_a_head_withholds_are_features() -> None:
    names = {f.name for f in FEATURES} | set(ONE_HOT)
    assert all(set(head.withheld) <= names for head in HEADS)


def test_levels_without_rows_have_no_column() -> None:
    frame = made().data.frame
    part = frame.take(frame.category("gpu_kind") != "h100-80")
    assert FeatureSpace.from_frame(part).levels["gpu_kind"] == ("a100-80", "l40s-48")


def test_every_entry_of_the_tables_is_a_column() -> None:
    frame = made().data.frame
    names = FeatureSpace.from_frame(frame).names
    assert names[: len(FEATURES)] == tuple(f.name for f in FEATURES)
    assert {n.split("=")[0] for n in names[len(FEATURES) :]} == set(ONE_HOT)
