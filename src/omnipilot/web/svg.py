"""Drawings of the pages: plain SVG whose colours the style sheet decides.

Nothing here is the only place of a number: every drawing stands beside a table or a sentence with
the same figures, and is told to screen readers by its label alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Area",
    "FanPoint",
    "Scale",
    "Span",
    "fan_chart",
    "interval_bar",
    "load_map",
    "shade_of",
    "term_bar",
]

_BAR: Final = 100.0
_HEIGHT: Final = 340


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values drawn from 0 to ``length``, by ratio where ``log``."""

    low: float
    high: float
    length: float = _BAR
    log: bool = False

    @classmethod
    def over(cls, values: Sequence[float], length: float = _BAR, *, log: bool = False) -> Scale:
        """The scale that just holds some values; those that a ratio cannot show are left out."""
        shown = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0, 2.0]
        low, high = min(shown), max(shown)
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 1.0, high + 1.0)
        return cls(low, high, length, log)

    def at(self, value: float) -> float:
        """Where a value lies; ends where it lies outside."""
        if not math.isfinite(value):
            return self.length if value > 0 else 0.0
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0) * self.length

    def ticks(self, most: int = 6) -> list[float]:
        """Round values on the scale."""
        if self.log:
            return _log_ticks(self.low, self.high, most)
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step) * step
        count = int((self.high - first) / step + 1e-9) + 1
        return [first + i * step for i in range(count)]


@dataclass(frozen=True, slots=True)
class Span:
    """A quantity: its interval, the range of its quantiles and its median."""

    lower: float
    q10: float
    q50: float
    q90: float
    upper: float


def interval_bar(span: Span, scale: Scale, label: str) -> Markup:
    """An interval with its median on a scale shared by all rows of a table."""
    outer, inner = (
        (scale.at(a), max(scale.at(b) - scale.at(a), 0.6))
        for a, b in ((span.lower, span.upper), (span.q10, span.q90))
    )
    middle = min(max(scale.at(span.q50) - 0.5, 0.0), _BAR - 1.0)
    return _svg(
        "bar", 100, 14, label,
        f'<rect class="track" x="0" y="6" width="100" height="2"/>'
        f'<rect class="outer" x="{outer[0]:.2f}" y="4" width="{outer[1]:.2f}" height="6"/>'
        f'<rect class="inner" x="{inner[0]:.2f}" y="2" width="{inner[1]:.2f}" height="10"/>'
        f'<rect class="median" x="{middle:.2f}" y="0" width="1" height="14"/>',
        stretch=True,
    )  # fmt: skip


def term_bar(start: float, end: float, scale: Scale, kind: str, label: str) -> Markup:
    """One step of a waterfall: from one level to the next; ``kind`` decides the colour."""
    left, right = sorted((scale.at(start), scale.at(end)))
    zero = scale.at(0.0)
    return _svg(
        "bar", 100, 14, label,
        f'<rect class="zero" x="{min(zero, 99.6):.2f}" y="0" width="0.4" height="14"/>'
        f'<rect class="{escape(kind)}" x="{left:.2f}" y="2" '
        f'width="{max(right - left, 0.5):.2f}" height="10"/>',
        stretch=True,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Area:
    """Loads that rows cover: from and to on both axes; ``is_own`` marks the request's model."""

    x: tuple[float, float]
    y: tuple[float, float]
    rows: int
    is_own: bool


@dataclass(frozen=True, slots=True)
class FanPoint:
    """One load and what is predicted there."""

    x: float
    span: Span


def fan_chart(
    points: Sequence[FanPoint],
    *,
    width: int,
    label: str,
    x_title: str,
    y_title: str,
    limit: float | None = None,
    limit_title: str = "",
    knee: float | None = None,
    knee_title: str = "",
    here: float | None = None,
) -> Markup:
    """Median, quantiles and interval over the load, with the SLO, the KV knee and the request.

    Args:
        points: by rising load.
        width: of the drawing, in pixels at which its text is legible.
        label: for screen readers.
        x_title: of the axis of loads.
        y_title: of the predicted quantity.
        limit: the SLO in the quantity's unit.
        limit_title: words at its line.
        knee: load at which the KV cache is nearly full.
        knee_title: words at its line.
        here: the request's own load.
    """
    height, left, right, top, bottom = _HEIGHT, 62, 14, 26, 44
    inner_w, inner_h = width - left - right, height - top - bottom
    values = [v for p in points for v in (p.span.lower, p.span.upper)]
    values += [limit] if limit is not None else []
    xs = Scale.over([p.x for p in points], inner_w, log=True)
    ys = Scale.over(values, inner_h, log=True)

    def x(value: float) -> float:
        return left + xs.at(value)

    def y(value: float) -> float:
        return top + inner_h - ys.at(value)

    def band(low: str, high: str) -> str:
        upper = [f"{x(p.x):.1f},{y(getattr(p.span, high)):.1f}" for p in points]
        lower = [f"{x(p.x):.1f},{y(getattr(p.span, low)):.1f}" for p in reversed(points)]
        return " ".join([*upper, *lower])

    median = " ".join(f"{x(p.x):.1f},{y(p.span.q50):.1f}" for p in points)
    parts = [
        *(_grid(left, y(t), left + inner_w, _short(t)) for t in ys.ticks(5)),
        *(_tick(x(t), top + inner_h, _short(t)) for t in xs.ticks(max(3, width // 90))),
        f'<polygon class="fan-outer" points="{band("lower", "upper")}"/>',
        f'<polygon class="fan-inner" points="{band("q10", "q90")}"/>',
        f'<polyline class="fan-median" points="{median}"/>',
    ]
    if knee is not None and xs.low <= knee <= xs.high:
        parts.append(_upright(x(knee), top, inner_h, "knee", knee_title, left + inner_w))
    if here is not None:
        parts.append(_upright(x(here), top, inner_h, "here", "", left + inner_w))
    if limit is not None:
        parts.append(
            f'<line class="limit" x1="{left}" x2="{left + inner_w}" y1="{y(limit):.1f}" '
            f'y2="{y(limit):.1f}"/><text class="limit-text" x="{left + inner_w - 4}" '
            f'y="{y(limit) - 5:.1f}" text-anchor="end">{escape(limit_title)}</text>'
        )
    parts.append(
        f'<text class="axis-title" x="{left + inner_w / 2:.0f}" y="{height - 8}" '
        f'text-anchor="middle">{escape(x_title)}</text>'
        f'<text class="axis-title" x="{left - 54}" y="14">{escape(y_title)}</text>'
    )
    return _svg("chart", width, height, label, "".join(parts))


def load_map(
    areas: Sequence[Area],
    point: tuple[float, float],
    *,
    width: int,
    label: str,
    x_title: str,
    y_title: str,
) -> Markup:
    """How many rows cover each load, the request among them; both axes by ratio."""
    height, left, right, top, bottom = _HEIGHT, 62, 14, 26, 44
    inner_w, inner_h = width - left - right, height - top - bottom
    xs = Scale.over([*(v for a in areas for v in a.x), point[0]], inner_w, log=True)
    ys = Scale.over([*(v for a in areas for v in a.y), point[1]], inner_h, log=True)
    n_x, n_y = max(8, width // 45), 10
    step_x, step_y = inner_w / n_x, inner_h / n_y
    counts: dict[tuple[int, int], int] = {}
    for area in areas:
        for i in _bins(xs, area.x, step_x, n_x):
            for j in _bins(ys, area.y, step_y, n_y):
                counts[i, j] = counts.get((i, j), 0) + area.rows
    most = max(counts.values(), default=1)
    parts = [
        f'<rect class="shade{shade_of(n, most)}" x="{left + i * step_x:.1f}" '
        f'y="{top + inner_h - (j + 1) * step_y:.1f}" width="{step_x + 0.3:.1f}" '
        f'height="{step_y + 0.3:.1f}"/>'
        for (i, j), n in sorted(counts.items())
    ]
    parts += [_outline(area, xs, ys, left, top + inner_h) for area in areas if area.is_own]
    parts += (_grid(left, top + inner_h - ys.at(t), left + inner_w, _short(t)) for t in ys.ticks(5))
    parts += (
        _tick(left + xs.at(t), top + inner_h, _short(t)) for t in xs.ticks(max(3, width // 90))
    )
    px, py = left + xs.at(point[0]), top + inner_h - ys.at(point[1])
    parts.append(
        f'<circle class="request" cx="{px:.1f}" cy="{py:.1f}" r="7"/>'
        f'<text class="axis-title" x="{left + inner_w / 2:.0f}" y="{height - 8}" '
        f'text-anchor="middle">{escape(x_title)}</text>'
        f'<text class="axis-title" x="{left - 54}" y="14">{escape(y_title)}</text>'
    )
    return _svg("chart", width, height, label, "".join(parts))


def shade_of(rows: int, most: int) -> int:
    """How dark a count is drawn, 0 (none) to 5, by ratio.

    >>> shade_of(0, 100), shade_of(1, 100), shade_of(100, 100)
    (0, 1, 5)
    """
    if rows <= 0:
        return 0
    return int(Scale(1.0, max(float(most), 2.0), 4.0, log=True).at(float(rows)) + 1e-9) + 1


def _bins(scale: Scale, ends: tuple[float, float], step: float, count: int) -> range:
    first, last = (min(int(scale.at(v) / step), count - 1) for v in ends)
    return range(first, last + 1)


def _outline(area: Area, xs: Scale, ys: Scale, left: float, floor: float) -> str:
    w = max(xs.at(area.x[1]) - xs.at(area.x[0]), 5.0)
    h = max(ys.at(area.y[1]) - ys.at(area.y[0]), 5.0)
    return (
        f'<rect class="mine" x="{left + xs.at(area.x[0]):.1f}" '
        f'y="{floor - ys.at(area.y[0]) - h:.1f}" width="{w:.1f}" height="{h:.1f}"/>'
    )


def _svg(
    kind: str, width: int, height: int, label: str, inner: str, *, stretch: bool = False
) -> Markup:
    how = ' preserveAspectRatio="none"' if stretch else ""
    said = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    return Markup(  # noqa: S704 - every text in it was escaped above
        f'<svg class="{kind}" viewBox="0 0 {width} {height}"{how} {said} focusable="false">'
        f"{inner}</svg>"
    )


def _grid(left: float, y: float, right: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    )


def _tick(x: float, y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}"/>'
        f'<text class="tick" x="{x:.1f}" y="{y + 18}" text-anchor="middle">{text}</text>'
    )


def _upright(x: float, top: float, height: float, kind: str, title: str, right: float) -> str:
    anchor, at = ("end", x - 5) if x > right * 0.6 else ("start", x + 5)
    text = (
        f'<text class="{kind}-text" x="{at:.1f}" y="{top + 12}" text-anchor="{anchor}">'
        f"{escape(title)}</text>"
        if title
        else ""
    )
    return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}"/>{text}'


def _short(value: float) -> str:
    """A number as an axis says it.

    >>> _short(1500.0), _short(0.25), _short(2e6)
    ('1.5k', '0.25', '2M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= rough * 0.999)


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        found = [step * 10.0**d for d in decades for step in steps if low <= step * 10.0**d <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]
