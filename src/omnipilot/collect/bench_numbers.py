"""Checked numbers of a benchmark result, as labels in the targets' units."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from omnipilot.collect.columns import NUMBER_COLUMNS
from omnipilot.collect.json_values import number_of
from omnipilot.collect.lines import printable
from omnipilot.collect.row_fault import RowFault
from omnipilot.domain.targets import TARGET_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MOST_FAILED_FRAC", "checked_labels", "close", "count_of", "offered_concurrency", "ordered",
    "status_of",
]  # fmt: skip

# A run in which more requests failed measured only those that survived, which are the short ones.
MOST_FAILED_FRAC: Final = 0.01
# How long a request of an open loop is taken to stay: its own latencies are what the row measured.
OPEN_LOOP_STAY_S: Final = 16.0


def count_of(name: str, value: Any, most: float = 1e12) -> float:  # noqa: ANN401 - any JSON
    """Read a count of things.

    Raises:
        RowFault: missing, no number, negative, fractional or absurd.
    """
    number = number_of(value)
    if number is None:
        raise RowFault(f"{name} missing", f"{name} is missing or no number")
    if not (0 <= number <= most and number.is_integer()):
        raise RowFault("out of range", f"{name} {printable(str(value))} is no count")
    return number


def offered_concurrency(rate_per_s: float, *most: float) -> float:
    """How many requests open arrivals keep in flight, by Little's law with an assumed stay.

    Args:
        rate_per_s: offered arrivals.
        most: what it cannot exceed (all requests of the run, a limit of the client); 0 where not
            told.
    """
    return min([rate_per_s * OPEN_LOOP_STAY_S, *(m for m in most if m > 0)])


def checked_labels(told: Mapping[str, Any]) -> dict[str, float]:
    """Turn numbers in the columns' units into labels; a missing or zero one is left out.

    Args:
        told: target name to the number as the tool wrote it (milliseconds for latencies).

    Raises:
        RowFault: a number that is none, is not finite or lies outside the column's bounds.
    """
    labels: dict[str, float] = {}
    for name, value in told.items():
        if value is None:
            continue
        target = TARGET_BY_NAME[name]
        low, high, _ = NUMBER_COLUMNS[target.column]
        number = number_of(value)
        if number is None or not math.isfinite(number):
            shown = printable(str(value))
            raise RowFault("not a number", f"{name} '{shown}' is not a finite number")
        if not low <= number <= high:
            raise RowFault("out of range", f"{name} {number:g} is outside {low:g} to {high:g}")
        if number > 0:
            labels[name] = number * target.column_scale
    return labels


def status_of(completed: float, failed: float) -> tuple[str, str]:
    """Judge a run by its failed requests: the status, and a note where some failed."""
    if failed <= 0:
        return "ok", ""
    note = f"{failed:.0f} of {completed + failed:.0f} requests failed"
    return ("ok" if failed <= MOST_FAILED_FRAC * (completed + failed) else "error"), note


def close(name: str, told: float | None, computed: float, tolerance_frac: float) -> None:
    """Check a number against what it must be by the others of the same result.

    Raises:
        RowFault: they contradict one another.
    """
    if told is None:
        return
    if not math.isclose(told, computed, rel_tol=tolerance_frac, abs_tol=1e-9):
        reason = f"{name} is {told:g} where the other numbers give {computed:g}"
        raise RowFault("contradiction", reason)


def ordered(name: str, statistics: Mapping[str, float | None]) -> None:
    """Check the statistics of one quantity against one another, those that are told.

    Whatever the values were: the median is the 50th percentile, not above the 99th, and within
    one (population) standard deviation of the mean.

    Args:
        name: of the quantity.
        statistics: "median", "p50", "p99", "mean", "std"; None where not told.

    Raises:
        RowFault: they contradict one another.
    """
    median = statistics.get("median")
    if median is None:
        return
    slack = 1e-6 * abs(median) + 1e-9
    p50, p99, mean, std = (statistics.get(key) for key in ("p50", "p99", "mean", "std"))
    if p50 is not None and not abs(median - p50) <= slack:
        raise RowFault("contradiction", f"the median {name} is not its 50th percentile")
    if p99 is not None and not median <= p99 + slack:
        raise RowFault("contradiction", f"the median {name} is above its 99th percentile")
    if mean is not None and std is not None and not abs(median - mean) <= std + slack:
        reason = f"the median {name} is further from the mean than the standard deviation"
        raise RowFault("contradiction", reason)
