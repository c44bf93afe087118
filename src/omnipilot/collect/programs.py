"""Which programs of the machine are there, found without loading what would ask them."""

from __future__ import annotations

import shutil
from typing import Final

__all__ = ["find_program", "slurm_is_here"]

_ASKED: Final = ("sinfo", "squeue")


def find_program(name: str) -> str | None:
    """Where a program lies on PATH; None where it does not."""
    return shutil.which(name)


def slurm_is_here() -> bool:
    """Whether Slurm's programs are on PATH."""
    return all(find_program(name) for name in _ASKED)
