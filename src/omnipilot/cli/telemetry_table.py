"""A job's telemetry while it served beside its whole life, as a table, JSON or CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.domain import GpuWindow

__all__ = ["emit_windows", "emit_windows_csv"]

_FRACTIONS: Final = (
    ("SM", "sm_active_frac"),
    ("tensor", "tensor_active_frac"),
    ("DRAM", "dram_active_frac"),
)


def emit_windows(rows: Sequence[GpuWindow]) -> None:
    """Print two lines a job: over its serving window, and over all of it."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    columns = (
        output.Column("job", narrow=True), output.Column("over", narrow=True),
        output.Column("minutes", number=True), output.Column("GPUs", number=True),
        output.Column("W a GPU", number=True),
        *(output.Column(f"{name} %", number=True) for name, _ in _FRACTIONS),
        output.Column("GiB a GPU", number=True), output.Column("covered %", number=True),
    )  # fmt: skip
    cells: list[tuple[str, ...]] = []
    for row in rows:
        if row.labels:
            length_s = row.serve_end_s - row.serve_start_s
            covered = f"{100 * row.coverage_frac:.0f}"
            cells.append(_cells(row, "serving", length_s, row.labels, covered))
        cells.append(_cells(row, "whole job", row.end_s - row.start_s, row.job_labels, ""))
    output.emit_table(columns, cells)
    if not any(row.labels for row in rows):
        click.echo("No serving window is known: give --serve-start and --serve-end, or --windows.")


def _cells(
    row: GpuWindow, over: str, length_s: float, labels: Mapping[str, float], covered: str
) -> tuple[str, ...]:
    power_w = labels.get("power_mean_w")
    memory_gib = labels.get("fb_used_mean_gib")
    return (
        row.job_id,
        over,
        f"{length_s / 60:,.1f}",
        str(row.n_gpus),
        "-" if power_w is None else f"{power_w / row.n_gpus:,.0f}",
        *(
            "-" if (share := labels.get(label)) is None else f"{100 * share:.0f}"
            for _, label in _FRACTIONS
        ),
        "-" if memory_gib is None else f"{memory_gib:,.1f}",
        covered,
    )


def emit_windows_csv(rows: Sequence[GpuWindow]) -> None:
    """Print a line a job, time and quantity."""
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    output.emit_csv(
        ("job_id", "over", "label", "value"),
        [
            (row.job_id, over, label, value)
            for row in rows
            for over, labels in (("serving", row.labels), ("whole job", row.job_labels))
            for label, value in labels.items()
        ],
    )
