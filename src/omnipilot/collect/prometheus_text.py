"""Samples of the Prometheus text exposition format, and percentiles of its histograms.

Format: prometheus.io, "Exposition formats" (text-based, version 0.0.4).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.collect.lines import Limits, decode_line, open_lines, printable
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

__all__ = ["EXPOSITION_LIMITS", "Histogram", "Sample", "read_samples"]

EXPOSITION_LIMITS: Final = replace(Limits(), line_bytes=2**16, file_bytes=64 * 2**20)

_SAMPLE: Final = re.compile(
    r"([A-Za-z_:][\w:]*+)\s*+(?:\{(.*)\})?\s*+([^\s{}]++)(?:\s++-?\d++)?\s*+"
)
_NAME: Final = re.compile(r"[A-Za-z_:][\w:]*+")
_LABEL: Final = re.compile(r'\s*+([A-Za-z_]\w*+)\s*+=\s*+"((?:[^"\\]++|\\.)*+)"\s*+(?:,|$)')
_ESCAPE: Final = re.compile(r'\\([\\"n])')
_ESCAPED: Final = {"n": "\n", '"': '"', "\\": "\\"}


class Sample(NamedTuple):
    """One reading of one series; a timestamp on the line is passed over."""

    line: int
    name: str
    labels: dict[str, str]
    value: float


def read_samples(
    path: Path,
    names: Collection[str],
    wanted: str,
    limits: Limits = EXPOSITION_LIMITS,
    *,
    most: float = 1e18,
) -> Iterator[Sample | Rejection]:
    """Read the samples of the metrics asked for, in file order.

    Args:
        path: exposition text, plain or gzip-compressed.
        names: metrics to read; others are passed over unread.
        wanted: what the file should be, with its article.
        limits: what the file may cost.
        most: every value must be below it.

    Raises:
        BadInputError: the file cannot be opened, is no text or is too large.
    """
    with open_lines(path, limits, wanted) as lines:
        for number, line in lines:
            if line.startswith(b"#") or not line.strip():
                continue
            text = decode_line(number, line, limits)
            if isinstance(text, Rejection):
                yield text
                continue
            name = _NAME.match(text)
            if name is None:
                shown = printable(text)
                yield Rejection(number, f"'{shown}' is no sample", "not a sample")
            elif name[0] in names:
                yield _sample(number, text, most)


def _sample(number: int, text: str, most: float) -> Sample | Rejection:
    found = _SAMPLE.fullmatch(text)
    labels = _labels(found[2] or "") if found else None
    if found is None or labels is None:
        return Rejection(number, f"'{printable(text)}' is no sample", "not a sample")
    try:
        value = float(found[3]) if "_" not in found[3] and found[3].isascii() else None
    except ValueError:
        value = None
    if value is None:
        return Rejection(number, f"'{printable(found[3])}' is no number", "not a number")
    if not 0 <= value < most:
        reason = f"{found[1]} is {value:g}, which no count or time can be"
        return Rejection(number, reason, "out of range")
    return Sample(number, found[1], labels, value)


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None or found[1] in labels:
            return None
        labels[found[1]] = _ESCAPE.sub(lambda m: _ESCAPED[m[1]], found[2])
        at = found.end()
    return labels


@dataclass(slots=True)
class Histogram:
    """A cumulative histogram: counts by upper bound, and the sum of the values.

    Args:
        cumulative: upper bound (``inf`` last) to the count of values up to it.
        sum: of the values, None where not told.
    """

    cumulative: dict[float, float] = field(default_factory=dict)
    sum: float | None = None

    @property
    def count(self) -> float:
        """Number of values."""
        return self.cumulative.get(math.inf, 0.0)

    def fault(self) -> str:
        """Say why these numbers are no histogram; "" where they are one.

        The counts must not fall with the bound, and the sum must be one that values in these
        buckets can have.
        """
        if math.inf not in self.cumulative:
            return "has no +Inf bucket"
        low = high = below = 0.0
        floor = 0.0
        for bound, upto in sorted(self.cumulative.items()):
            if upto < below:
                return f"holds fewer values up to {bound:g} than below"
            n = upto - below
            low += n * floor
            high += n * bound if n else 0.0
            floor, below = bound, upto
        slack = 1e-6 * (low + 1)
        if self.sum is not None and not low - slack <= self.sum <= high * (1 + 1e-6) + 1e-9:
            return f"has a sum of {self.sum:g} that values in its buckets cannot have"
        return ""

    def since(self, earlier: Histogram) -> Histogram | None:
        """Give what was added after ``earlier``; None where the two do not fit together."""
        if earlier.cumulative.keys() != self.cumulative.keys():
            return None
        added = {b: n - earlier.cumulative[b] for b, n in self.cumulative.items()}
        if min(added.values(), default=0.0) < 0:
            return None
        total = None
        if self.sum is not None and earlier.sum is not None:
            total = self.sum - earlier.sum
        return Histogram(added, total)

    def plus(self, other: Histogram) -> Histogram | None:
        """Add the histogram of another engine; None where its buckets differ."""
        if other.cumulative.keys() != self.cumulative.keys():
            return None
        both = {b: n + other.cumulative[b] for b, n in self.cumulative.items()}
        total = None if self.sum is None or other.sum is None else self.sum + other.sum
        return Histogram(both, total)

    def quantile(self, q: float) -> float | None:
        """Estimate a quantile by linear interpolation within its bucket.

        Values count as spread evenly over their bucket, the first of which begins at 0, as
        Prometheus's ``histogram_quantile`` has it: the error is at most the bucket's width. An
        estimate that the mean rules out (Markov: at most ``1 - q`` of the values lie above
        ``mean / (1 - q)``) is lowered to that bound. Where the quantile lies above the last
        finite bound there is no estimate.

        Args:
            q: in (0, 1).

        Example:
            >>> Histogram({0.1: 10.0, 0.3: 30.0, float("inf"): 30.0}).quantile(0.5)
            0.15
        """
        rank = q * self.count
        if rank <= 0:
            return None
        most = math.inf if self.sum is None else self.sum / self.count / (1 - q)
        floor = below = 0.0
        for bound, upto in sorted(self.cumulative.items()):
            if upto >= rank:
                if math.isinf(bound):
                    return None
                return min(floor + (bound - floor) * (rank - below) / (upto - below), most)
            floor, below = bound, upto
        return None
