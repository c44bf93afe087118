"""Slurm's short form of node names: ``h100n[1-3,07],login``."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MOST_NODES", "expand_hosts"]

MOST_NODES: Final = 100_000
# Slurm's own lists have one pair of brackets, or two (rack and node).
_MOST_BRACKETS: Final = 8
_LONGEST_NAME: Final = 256
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def expand_hosts(text: str, most: int = MOST_NODES) -> tuple[str, ...]:
    """Name the nodes of a list, ``most`` of them; what is no list of nodes is left as it is.

    Example:
        >>> expand_hosts("h100n[1-2,07],login")
        ('h100n1', 'h100n2', 'h100n07', 'login')
    """
    if text in {"", "(null)", "None", "N/A"}:
        return ()
    names = (name for part in _split(text) if part for name in _expand(part, most))
    return tuple(islice(names, most))


def _split(text: str) -> Iterator[str]:
    """Split at the commas that are outside brackets."""
    depth, begin = 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            yield text[begin:i]
            begin = i + 1
    yield text[begin:]


def _expand(part: str, most: int) -> list[str]:
    """Name the nodes of one part; the part itself where a bracket holds no numbers."""
    names = [""]
    rest = part
    for _ in range(_MOST_BRACKETS):
        head, bracket, inside = rest.partition("[")
        inside, closed, after = inside.partition("]")
        if not bracket and len(rest) <= _LONGEST_NAME:
            return [f"{name}{rest}" for name in names]
        numbers = _numbers(inside, most)
        if not closed or numbers is None or len(head) > _LONGEST_NAME:
            return [part]
        names = list(islice((f"{n}{head}{number}" for n in names for number in numbers), most))
        rest = after
    return [part]


def _numbers(text: str, most: int) -> list[str] | None:
    """Give the numbers of ``1-3,07`` as they are written; None where it holds anything else."""
    found: list[str] = []
    for item in text.split(","):
        ends = _RANGE.fullmatch(item)
        if ends is None:
            return None
        first, last = int(ends[1]), int(ends[2] or ends[1])
        last = min(last, first + most - len(found) - 1)
        found += [f"{number:0{len(ends[1])}d}" for number in range(first, last + 1)]
    return found
