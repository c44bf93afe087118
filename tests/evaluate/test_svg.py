from __future__ import annotations

import math
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omnipilot.evaluate.svg import WIDTH, Axis, Bar, Series, bar_chart, ticks, xy_chart

finite = st.floats(-1e9, 1e9, allow_nan=False)


def tags(svg: str, name: str) -> list[ET.Element]:
    return [e for e in ET.fromstring(svg).iter() if e.tag == name]  # noqa: S314 - our own text


def test_a_bar_is_as_long_as_its_share_of_the_axis() -> None:
    svg = bar_chart("t", [Bar("a", 50.0), Bar("b", 100.0)], Axis("x"))
    first, second = (float(r.attrib["width"]) for r in tags(svg, "rect"))
    assert second == pytest.approx(2 * first, rel=0.01)


def test_a_negative_bar_ends_where_the_next_one_of_a_waterfall_begins() -> None:
    svg = bar_chart("t", [Bar("up", 10.0), Bar("down", -4.0, 10.0), Bar("rest", 6.0)], Axis("x"))
    up, down, rest = tags(svg, "rect")
    ends = [float(r.attrib["x"]) + float(r.attrib["width"]) for r in (up, down, rest)]
    assert ends[0] == pytest.approx(ends[1], abs=0.2)
    assert ends[2] == pytest.approx(float(down.attrib["x"]), abs=0.2)


def test_a_zero_on_a_logarithmic_axis_has_no_length() -> None:
    axis = Axis("x", log=True, low=1e-3)
    zero, some = tags(bar_chart("t", [Bar("a", 0.0), Bar("b", 1.0)], axis), "rect")
    assert float(zero.attrib["width"]) < 1 < float(some.attrib["width"])


def test_words_are_escaped_and_a_long_label_is_cut() -> None:
    svg = bar_chart("a < b & c", [Bar("<script>" + "x" * 100, 1.0)], Axis("x"))
    shown = [e.text or "" for e in tags(svg, "text")]
    assert any(text.startswith("<script>") and text.endswith("…") for text in shown)
    assert "<script>" not in svg


@example([(1.0, 3.0), (1.0, 3.0000000000000004)], False, True)
@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_every_point_lies_inside_the_drawing(
    points: list[tuple[float, float]], log_x: bool, log_y: bool
) -> None:
    xs = [abs(a) + 1e-3 if log_x else a for a, _ in points]
    ys = [abs(b) + 1e-3 if log_y else b for _, b in points]
    svg = xy_chart("t", [Series("s", xs, ys, "dots")], Axis("x", log=log_x), Axis("y", log=log_y))
    height = float(ET.fromstring(svg).attrib["viewBox"].split()[3])  # noqa: S314 - our own text
    for dot in tags(svg, "circle"):
        assert 0 <= float(dot.attrib["cx"]) <= WIDTH
        assert 0 <= float(dot.attrib["cy"]) <= height
    assert "nan" not in svg
    assert not re.search(r"\binf", svg)


@given(st.floats(1e-6, 1e6), st.floats(1.001, 1e6), st.booleans())
def test_ticks_are_few_ascending_and_inside(low: float, factor: float, log: bool) -> None:
    high = low * factor
    found = ticks(low, high, log=log)
    assert len(found) <= 8
    assert found == sorted(found)
    assert all(low * 0.998 <= v <= high * 1.002 for v in found)


def test_points_that_are_not_finite_are_left_out_and_none_at_all_is_no_error() -> None:
    broken = Series("a", [1.0, math.nan], [math.inf, 2.0], "dots")
    svg = xy_chart("t", [broken, Series("b", [], [])], Axis("x"), Axis("y"))
    assert tags(svg, "circle") == []
