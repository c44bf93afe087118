"""Folds of a fit that was cut, kept in a folder so that the next one takes up where it stopped."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class KeptFolds:
    """One file a fold below ``folder``, whose name stands for the rows and the code of the fit."""

    folder: Path

    def load(self, name: str) -> dict[str, NDArray[np.float64]] | None:
        """Arrays of a fold; None where it was never finished or its file is damaged."""
        try:
            with (
                (self.folder / f"{name}.npz").open("rb") as stream,
                np.load(stream, allow_pickle=False) as stored,
            ):
                return {key: np.asarray(stored[key], dtype=np.float64) for key in stored.files}
        # zipfile, zlib and numpy raise a dozen unrelated kinds on a file that was cut or damaged.
        except Exception:  # noqa: BLE001
            return None

    def save(self, name: str, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Keep a fold, whole or not at all; a folder that cannot be written keeps nothing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / f"{name}.{os.getpid()}.part"
            with part.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **arrays)
            part.replace(self.folder / f"{name}.npz")
        except OSError:
            return

    def clear(self) -> None:
        """Forget all of them: the fit is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
