"""Columns that tables of formulas make of questions and their prior.

What a formula makes of the arms alone is kept beside the frame, so that another load of the same
arms works out the others only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics


class Column(Protocol):
    """One column: how it is computed, (n,), and whether the arms alone settle it."""

    @property
    def compute(self) -> Callable[[Frame, Physics], NDArray[np.float64]]:
        """From frame and prior."""
        ...

    @property
    def of_arm(self) -> bool:
        """Whether it is the same under every load."""
        ...


def columns(
    table: Sequence[Column], frame: Frame, physics: Physics, order: Literal["C", "F"]
) -> NDArray[np.float32]:
    """Every column of a table, float32 (n, len(table)), rows ("C") or columns ("F") in memory."""

    def filled(out: NDArray[np.float32], *, of_arm: bool) -> NDArray[np.float32]:
        for place, column in zip(out.T, table, strict=True):
            if column.of_arm == of_arm:
                place[:] = column.compute(frame, physics)
        return out

    empty = (frame.n, len(table))
    kept = frame.fixed(table, lambda: filled(np.empty(empty, np.float32, order), of_arm=True))
    return filled(kept.copy(order), of_arm=False)
