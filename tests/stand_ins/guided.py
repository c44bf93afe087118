"""Fuzzing that is guided by coverage: an input that reaches new code is damaged further.

What a text reaches is seen by the interpreter's own tracing of lines, in the package's files only;
a step from one line to another counts as a place of its own. It is a tenth as fast as atheris,
which ``benchmarks/fuzz_parsers.py`` takes where it is installed, and needs nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from fuzzing import damaged
from parsers import LIMIT_S, fault_of

if TYPE_CHECKING:
    import random
    from pathlib import Path
    from types import FrameType

    from parsers import Parser

__all__ = ["Found", "Trace", "guided"]

PACKAGE: Final = "/omnipilot/"
# Traced code is slower by about this.
_SLOWER: Final = 20.0
_MOST_BYTES: Final = 20_000


class Trace:
    """Steps between lines of the package (``steps``) and the files they are in (``files``)."""

    def __init__(self, package: str = PACKAGE) -> None:
        self.steps: set[tuple[str, int, int]] = set()
        self.files: set[str] = set()
        self._package = package

    def __enter__(self) -> Self:
        self.steps = set()
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, _: str, __: Any) -> Any:
        name = frame.f_code.co_filename
        if self._package not in name:
            return None
        self.files.add(name)
        steps, last = self.steps, 0

        def at_line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                steps.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return at_line

        return at_line


@dataclass
class Found:
    """What a run came to.

    ``faults`` maps what was wrong to the first input that showed it; ``kept`` are the inputs that
    reached new code.
    """

    inputs: int = 0
    steps: set[tuple[str, int, int]] = field(default_factory=set)
    kept: list[bytes] = field(default_factory=list)
    faults: dict[str, bytes] = field(default_factory=dict)


def guided(
    parser: Parser, folder: Path, inputs: int, rng: random.Random, *, package: str = PACKAGE,
    learns: bool = True,
) -> Found:  # fmt: skip
    """Feed a parser damaged examples; those that reach new code become examples.

    Args:
        parser: whom.
        folder: empty; the parser may write there.
        inputs: how many.
        rng: the damage.
        package: part of the paths of the files that are watched.
        learns: False damages the first examples only, as a blind fuzzer does.
    """
    found, trace = Found(), Trace(package)
    for seed in parser.seeds:
        with trace:
            fault_of(parser, seed, folder)
        found.steps |= trace.steps
    pool = list(parser.seeds)
    while found.inputs < inputs:
        # Half of the time one of the newest: it stands where no other has been.
        data = pool[-rng.randint(1, min(4, len(pool)))] if rng.randrange(2) else rng.choice(pool)
        if rng.randrange(8) == 0:
            other = rng.choice(pool)
            data = data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]
        data = damaged(rng, data)[0]
        with trace:
            fault = fault_of(parser, data, folder, limit_s=_SLOWER * LIMIT_S)
        if fault.startswith("took"):
            fault = fault_of(parser, data, folder)
        found.inputs += 1
        if fault:
            found.faults.setdefault(fault, data)
        if trace.steps - found.steps:
            found.steps |= trace.steps
            if learns and len(data) <= max(_MOST_BYTES, *map(len, parser.seeds)):
                pool.append(data)
                found.kept.append(data)
    return found
