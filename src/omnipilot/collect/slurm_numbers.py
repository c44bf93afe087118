"""Numbers of Slurm's JSON, which stand alone (22.05) or in ``{set, infinite, number}`` (24.11)."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["Number", "Wrapped", "number_or"]

_NO_VALUE: Final = 0xFFFFFFFE  # NO_VAL of slurm.h; INFINITE is one more


class Wrapped(msgspec.Struct):
    """A number with what is known of it."""

    set: bool = True
    infinite: bool = False
    number: int | float | None = None


Number = int | float | Wrapped | str | None


def number_or(value: Number, absent: int = 0) -> int:
    """Unwrap a number that is not below 0; ``absent`` where it is unset, infinite or no number.

    Example:
        >>> number_or(7), number_or(Wrapped(set=False, number=7)), number_or(0xFFFFFFFF, -1)
        (7, 0, -1)
    """
    if isinstance(value, Wrapped):
        value = value.number if value.set and not value.infinite else None
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
    if value is None or value != value or not 0 <= value < 2**63:  # noqa: PLR0124 - a NaN
        return absent
    return absent if value in {_NO_VALUE, _NO_VALUE + 1} else int(value)
