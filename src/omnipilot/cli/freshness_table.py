"""How much the site's own evidence counts by its age, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.store.evidence import MetricEvidence

__all__ = ["emit_freshness"]

_UNITS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def emit_freshness(metrics: Sequence[MetricEvidence]) -> None:
    """Print a line a metric; nothing where the site has no evidence of its own."""
    from omnipilot.cli import output  # noqa: PLC0415 - only this form renders

    if not metrics:
        return
    output.emit_heading("How fresh is the site's own evidence?")
    columns = (
        output.Column("metric", narrow=True), output.Column("says"),
        output.Column("rows", number=True), output.Column("newest", number=True),
        output.Column("halves in", number=True), output.Column("weight", number=True),
        output.Column("worth rows", number=True),
    )  # fmt: skip
    output.emit_table(
        columns,
        [
            (
                m.metric.replace("_", " "),
                "" if m.value is None else f"{output.number(m.value)} {m.unit}",
                f"{m.rows:,}",
                "" if m.newest_age_s is None else _duration(m.newest_age_s),
                _duration(m.window_s),
                f"{m.weight:.2f}",
                f"{m.total_weight:,.1f}",
            )
            for m in metrics
        ],
    )


def _duration(seconds: float) -> str:
    size, name = next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
    return f"{seconds / size:,.0f} {name}"
