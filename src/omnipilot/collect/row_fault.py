"""Why a part of a text is no row: caught by its reader, which turns it into a rejection."""

from __future__ import annotations

__all__ = ["RowFault"]


class RowFault(Exception):  # noqa: N818 - becomes a Rejection, never reaches a user as an error
    """What is wrong.

    Args:
        code: short class that reports count by.
        reason: for a person.
    """

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        super().__init__(reason)
