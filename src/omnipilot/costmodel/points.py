"""Inducing points as arrays of a bundle, and arrays that are checked before they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.costmodel.kernel import (
    N_PHYSICS_COORDINATES,
    N_REGIME_COORDINATES,
    N_WORKLOAD_COORDINATES,
    KernelInputs,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.kernel import KernelTerm


def encode_points(at: str, points: KernelInputs) -> dict[str, NDArray[Any]]:
    """Arrays of some points, named below ``at``."""
    few = points.codes.max(initial=0) < 2**15
    arrays = {
        f"{at}/codes": points.codes.astype(np.int16 if few else np.int32),
        f"{at}/workload": points.workload,
        f"{at}/physics": points.physics,
    }
    return arrays | ({f"{at}/regime": points.regime} if points.regime.size else {})


def decode_points(
    arrays: dict[str, NDArray[Any]], at: str, m: int, table: tuple[KernelTerm, ...]
) -> KernelInputs:
    """The m points that :func:`encode_points` named, under a table of terms.

    Raises:
        KeyError: an array is missing.
        ValueError: one has another shape or holds NaN.
    """
    asked = any(term.distance == "regime" for term in table)
    return KernelInputs(
        array_of(arrays, f"{at}/codes", (m, len(table))).astype(np.int32),
        array_of(arrays, f"{at}/workload", (m, N_WORKLOAD_COORDINATES)),
        array_of(arrays, f"{at}/physics", (m, N_PHYSICS_COORDINATES)),
        array_of(arrays, f"{at}/regime", (m, N_REGIME_COORDINATES))
        if asked
        else np.empty((m, 0), dtype=np.float32),
    )


def array_of(
    arrays: dict[str, NDArray[Any]], name: str, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """An array whose shape and values can be computed with; None stands for any length.

    Raises:
        KeyError: it is missing.
        ValueError: it has another shape or holds NaN.
    """
    array = arrays[name]
    fits = array.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in "fi":
        raise ValueError(f"array '{name}' has shape {array.shape} of {array.dtype}")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"array '{name}' holds NaN")
    return array
