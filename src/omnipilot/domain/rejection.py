"""A line of an input that could not become a row."""

from __future__ import annotations

from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Rejection:
    """One refused line of a file.

    ``line`` counts physical lines from 1 (the header is line 1). ``reason`` is for a person;
    ``code`` is the short class of it that reports count by, so that a report stays small however
    many values are wrong.
    """

    line: int
    reason: str
    code: str
