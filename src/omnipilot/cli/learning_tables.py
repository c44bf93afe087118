"""Tables of fits and health: criteria of the gate, streams of the drift watch, software."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from omnipilot.cli.output import Column, emit_heading, emit_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.learn.drift import Stream
    from omnipilot.learn.gate import Criterion
    from omnipilot.learn.retirement import StackGroup

__all__ = ["emit_criteria", "emit_stacks", "emit_streams"]


_WHOLE: Final = 1000.0


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:.4g}"


def emit_criteria(criteria: Sequence[Criterion]) -> None:
    """Every criterion with both numbers and what had to hold."""
    if not criteria:
        return
    emit_heading("Gate")
    emit_table(
        [Column("criterion", narrow=True), Column("candidate", number=True),
         Column("incumbent", number=True), Column("holds", narrow=True), Column("has to hold")],
        [
            [c.name, _number(c.candidate), _number(c.incumbent), "yes" if c.passed else "NO",
             c.limit + (f" ({c.note})" if c.note else "")]
            for c in criteria
        ],
    )  # fmt: skip


def emit_stacks(stacks: Sequence[StackGroup]) -> None:
    """Rows by runtime fingerprint and what one of them counts."""
    if not stacks:
        return
    emit_heading("Software under the runs")
    emit_table(
        [Column("engine", narrow=True), Column("version", narrow=True), Column("CUDA"),
         Column("driver"), Column("rows", number=True), Column("a row counts", number=True)],
        [[s.engine, s.engine_version, s.cuda, s.driver, f"{s.rows:,}", f"{s.weight:.2f}"]
         for s in stacks],
    )  # fmt: skip


def emit_streams(streams: Sequence[Stream]) -> None:
    """Streams of new rows against their intervals."""
    emit_table(
        [Column("head", narrow=True), Column("of"), Column("rows", number=True),
         Column("arms", number=True), Column("above", number=True), Column("below", number=True),
         Column("measured / predicted", number=True), Column("alarm", narrow=True),
         Column("measure again")],
        [
            [s.head, f"{s.level} ({s.kind})" if s.level else s.kind, f"{s.rows:,}", f"{s.arms:,}",
             f"{s.above:.0%}", f"{s.below:.0%}", f"{s.ratio:.2f}", "yes" if s.alarm else "no",
             "; ".join(s.again[:1])]
            for s in streams
        ],
    )  # fmt: skip
