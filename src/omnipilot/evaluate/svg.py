"""Small charts as inline SVG: they take the page's colours, so they work light, dark and printed.

The drawing area is 420 units wide, so that text keeps its size on a phone as in a column.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH: Final = 420.0
_PLOT_HEIGHT: Final = 230.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 12.0, 10.0, 40.0
_CHAR: Final = 6.7  # width of a character at 11 units, on the safe side
_BOLD_CHAR: Final = 7.6
_TITLE: Final = 18.0
_ROW: Final = 20.0
_BAR: Final = 13.0
_LABEL_SHARE: Final = 0.42
N_COLOURS: Final = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its label, length and where it begins; ``colour`` 0 to 7.

    ``low`` and ``high`` draw an interval, ``text`` stands at the end in place of the number.
    """

    label: str
    value: float
    begin: float = 0.0
    colour: int = 0
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind: ``line``, ``dots``, ``step`` or ``band`` (between ys and ``upper``)."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    kind: str = "line"
    colour: int = 0
    upper: Sequence[float] = ()
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: what it shows, whether it is logarithmic, and limits where they are fixed."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


def short(value: float) -> str:
    """A number for an axis: 1,234,567 is 1.2M.

    >>> [short(v) for v in (0, 0.003, 0.25, 12.0, 4500, 2e6, 2e-7)]
    ['0', '0.003', '0.25', '12', '4.5k', '2M', '2e-07']
    """
    if value == 0:
        return "0"
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}" if size >= 1e-3 else f"{value:.0e}"


def ticks(low: float, high: float, *, log: bool, most: int = 6) -> list[float]:
    """Round values between two ends: powers of ten (with 2 and 5 where few) or even steps."""
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        for parts in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
            found = [p * 10.0**e for e in range(first, last + 1) for p in parts]
            found = [v for v in found if low * 0.999 <= v <= high * 1.001]
            if len(found) <= most:
                return found
        every = math.ceil(len(found) / most)
        return found[::every]
    span = high - low
    if span <= 0:
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough)
    start = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(start, math.floor(high / step + 1e-9) + 1)]


class _Scale:
    """Places values of an axis on the drawing."""

    def __init__(self, axis: Axis, values: Iterable[float], begin: float, end: float) -> None:
        usable = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
        low = axis.low if axis.low is not None else min(usable, default=1.0 if axis.log else 0.0)
        high = axis.high if axis.high is not None else max(usable, default=low + 1.0)
        # Values that differ by rounding alone have one place.
        if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-300):
            high = low * 10.0 if axis.log else low + 1.0
        self.low, self.high, self.log = low, high, axis.log
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(v, 1e-300)) for v in (value, low, high))
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return self._begin + share * (self._end - self._begin)


def _svg(height: float, title: str, body: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{marked}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _fit(text: str, width: float) -> str:
    most = int(width / _CHAR + 1e-6)
    return text if len(text) <= most else f"{text[: max(most - 1, 1)]}…"


def bar_chart(title: str, bars: Sequence[Bar], axis: Axis, *, titled: bool = False) -> str:
    """Horizontal bars, one a row, each with its number.

    On a logarithmic axis bars begin at its low end and one of 0 has no length. ``titled`` writes
    the title above, for a drawing that stands among others.
    """
    shown = [b.text or short(b.value) for b in bars]
    room = max((len(b.label) for b in bars), default=1) * _CHAR + 8
    left = min(room, WIDTH * _LABEL_SHARE)
    right = WIDTH - max((len(t) for t in shown), default=1) * _BOLD_CHAR - 8
    values = [v for b in bars for v in (b.begin, b.begin + b.value, b.low, b.high) if v is not None]
    if not axis.log:
        values.append(0.0)
    scale = _Scale(axis, values, left, right)
    top = _TOP + (_TITLE if titled else 0.0)
    height = top + _ROW * len(bars) + _BOTTOM
    bottom = height - _BOTTOM
    body = [_text(2, _TOP + 5, title, "start", "title")] if titled else []
    for tick in ticks(scale.low, scale.high, log=axis.log, most=5):
        body += [_line(scale(tick), top, scale(tick), bottom, "grid"),
                 _text(scale(tick), bottom + 14, short(tick), "middle", "tick")]  # fmt: skip
    for i, (bar, text) in enumerate(zip(bars, shown, strict=True)):
        middle = top + _ROW * (i + 0.5)
        ends = sorted((scale(bar.begin), scale(bar.begin + bar.value)))
        if axis.log:
            ends = [left, scale(bar.value)] if bar.value > 0 else [left, left]
        last = ends[1]
        body.append(
            f'<rect x="{ends[0]:.1f}" y="{middle - _BAR / 2:.1f}" '
            f'width="{max(ends[1] - ends[0], 0.8):.1f}" height="{_BAR:g}" class="f{bar.colour}"/>'
        )
        if bar.low is not None and bar.high is not None:
            body.append(_line(scale(bar.low), middle, scale(bar.high), middle, "whisker"))
            last = max(last, scale(bar.high))
        body += [_text(left - 6, middle + 4, _fit(bar.label, left - 8), "end"),
                 _text(last + 5, middle + 4, text, "start", "number")]  # fmt: skip
    if scale.low < 0.0 < scale.high and not axis.log:
        body.append(_line(scale(0.0), top, scale(0.0), bottom, "axis"))
    body.append(_text((left + right) / 2, height - 6, axis.label, "middle", "label"))
    return _svg(height, title, body)


def _path(points: Sequence[tuple[float, float]], *, steps: bool = False) -> str:
    parts = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f},{y:.1f}")
    return "".join(parts)


def _drawn(one: Series, x: _Scale, y: _Scale) -> str:
    points = [
        (x(a), y(b)) for a, b in zip(one.xs, one.ys, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]  # fmt: skip
    if not points:
        return ""
    if one.kind == "dots":
        return "".join(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2" class="f{one.colour}"/>' for a, b in points
        )
    if one.kind == "band":
        upper = [(x(a), y(b)) for a, b in zip(one.xs, one.upper, strict=True)]
        return f'<path d="{_path([*points, *reversed(upper)])}Z" class="band f{one.colour}"/>'
    dashed = " dashed" if one.dashed else ""
    path = _path(points, steps=one.kind == "step")
    return f'<path d="{path}" class="curve s{one.colour}{dashed}"/>'


def xy_chart(title: str, series: Sequence[Series], x_axis: Axis, y_axis: Axis) -> str:
    """Lines, dots and bands over two axes, with a legend below where there are several."""
    xs = [v for s in series for v in s.xs]
    ys = [v for s in series for v in (*s.ys, *s.upper)]
    bottom = _TOP + _PLOT_HEIGHT
    x = _Scale(x_axis, xs, _LEFT, WIDTH - _RIGHT)
    y = _Scale(y_axis, ys, bottom, _TOP + 14)
    body = []
    for tick in ticks(x.low, x.high, log=x.log):
        body += [_line(x(tick), _TOP + 14, x(tick), bottom, "grid"),
                 _text(x(tick), bottom + 14, short(tick), "middle", "tick")]  # fmt: skip
    for tick in ticks(y.low, y.high, log=y.log):
        body += [_line(_LEFT, y(tick), WIDTH - _RIGHT, y(tick), "grid"),
                 _text(_LEFT - 5, y(tick) + 4, short(tick), "end", "tick")]  # fmt: skip
    body += [
        _line(_LEFT, bottom, WIDTH - _RIGHT, bottom, "axis"),
        _text((_LEFT + WIDTH - _RIGHT) / 2, bottom + 30, x_axis.label, "middle", "label"),
        _text(2, _TOP + 4, y_axis.label, "start", "label"),
    ]
    body += [_drawn(s, x, y) for s in sorted(series, key=lambda s: s.kind != "band")]
    legend, height = _legend(series, bottom + 46)
    return _svg(height, title, [*body, *legend])


def _legend(series: Sequence[Series], top: float) -> tuple[list[str], float]:
    named = [s for s in series if s.name]
    if len(named) < 2:
        return [], top - 6
    parts, at, line = [], 8.0, top
    for s in named:
        wide = len(s.name) * _CHAR + 26
        if at + wide > WIDTH and at > 8.0:
            at, line = 8.0, line + 17
        kind = f"f{s.colour} band" if s.kind == "band" else f"f{s.colour}"
        box = f'<rect x="{at:.1f}" y="{line - 8:.1f}" width="12" height="9" class="{kind}"/>'
        parts += [box, _text(at + 16, line, s.name)]
        at += wide
    return parts, line + 10
