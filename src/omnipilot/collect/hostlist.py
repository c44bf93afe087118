"""Slurm's short form of node names: ``h100n[1-3,07],login``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MOST_NODES", "expand_hosts"]

MOST_NODES: Final = 100_000
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def expand_hosts(text: str) -> tuple[str, ...]:
    """Name all nodes of a list; what is no list of nodes is left as it is.

    Example:
        >>> expand_hosts("h100n[1-2,07],login")
        ('h100n1', 'h100n2', 'h100n07', 'login')
    """
    if text in {"", "(null)", "None", "N/A"}:
        return ()
    names: list[str] = []
    for part in _split(text):
        for name in _expand(part):
            names.append(name)
            if len(names) >= MOST_NODES:
                return tuple(names)
    return tuple(names)


def _split(text: str) -> Iterator[str]:
    """Split at the commas that are outside brackets."""
    depth, begin = 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            yield text[begin:i]
            begin = i + 1
    yield text[begin:]


def _expand(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    inside, closed, tail = rest.partition("]")
    if not (bracket and closed):
        if part:
            yield part
        return
    for item in inside.split(","):
        found = _RANGE.fullmatch(item)
        if found is None:
            yield part
            return
        first, last = found[1], found[2] or found[1]
        for number in range(int(first), min(int(last), int(first) + MOST_NODES) + 1):
            for end in _expand(tail) if "[" in tail else (tail,):
                yield f"{head}{number:0{len(first)}d}{end}"
