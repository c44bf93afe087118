"""The version of the rows' fields."""

from __future__ import annotations

from typing import Final

__all__ = ["SCHEMA_VERSION"]

SCHEMA_VERSION: Final = 1
