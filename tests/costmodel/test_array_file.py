"""Arrays in one file: what comes back is what NumPy itself reads, to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from omnipilot.costmodel.array_file import read_arrays, write_arrays
from omnipilot.costmodel.bundle import ARRAYS, base_model_path
from omnipilot.domain.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MOST_BYTES = 2**24
arrays = hn.arrays(
    st.sampled_from(["<f8", "<f4", "<i2", "<i4", "<i8", "|i1", ">f8", "|b1", "<u4", "<U3", "<c16"]),
    hn.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


def same(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    flags = ("c_contiguous", "writeable", "aligned")
    return (
        (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        and all(getattr(one.flags, flag) == getattr(other.flags, flag) for flag in flags)
    )  # fmt: skip


@given(st.dictionaries(st.text("ab/", min_size=1, max_size=4), arrays, max_size=4), st.booleans())
@settings(max_examples=80, deadline=None)
def test_what_is_read_is_what_numpy_reads(
    tmp_path_factory: pytest.TempPathFactory,
    made: dict[str, NDArray[np.generic]],
    turned: bool,
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "x.npz"
    write_arrays(path, {name: a.T if turned else a for name, a in made.items()})
    found = read_arrays(path, MOST_BYTES)
    with np.load(path, allow_pickle=False) as file:
        assert list(found) == file.files
        assert all(same(found[name], file[name]) for name in file.files)


def test_the_shipped_bundle_is_read_to_the_bit() -> None:
    found = read_arrays(base_model_path() / ARRAYS, MOST_BYTES)
    with np.load(base_model_path() / ARRAYS, allow_pickle=False) as file:
        assert list(found) == file.files
        assert all(same(found[name], file[name]) for name in file.files)


def test_a_file_that_is_gone_or_too_large_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        read_arrays(tmp_path / "x.npz", MOST_BYTES)
    write_arrays(tmp_path / "x.npz", {"a": np.zeros(100)})
    with pytest.raises(BundleError, match="too much"):
        read_arrays(tmp_path / "x.npz", 800)
