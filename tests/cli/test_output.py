"""Forms of the answer."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stdout
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.cli import output
from omnipilot.cli.visible import visible


@dataclass
class Pair:
    first: float
    rest: tuple[float, ...]


def test_json_holds_null_where_a_number_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_json({"a": Pair(math.nan, (math.inf, 1.5))})
    assert json.loads(capsys.readouterr().out) == {"a": {"first": None, "rest": [None, 1.5]}}


def test_csv_leaves_a_missing_number_empty(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_csv(("a", "b", "c", "d"), [(None, math.nan, True, 'say "x", y')])
    assert capsys.readouterr().out == 'a,b,c,d\n,,true,"say ""x"", y"\n'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (12345.678, "12,300"), (999.9, "1,000"), (0.012345, "0.0123"), (7.0, "7.00"),
        (None, "-"), (math.nan, "-"), (-45.678, "-45.7"),
    ],
)  # fmt: skip
def test_numbers_for_people_have_three_significant_digits(value: float, text: str) -> None:
    assert output.number(value) == text


@given(st.floats(1e-9, 1e12))
def test_a_printed_number_is_within_half_a_unit_of_its_third_digit(value: float) -> None:
    printed = float(output.number(value).replace(",", ""))
    assert printed == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(("value", "text"), [(0.0415, "41.5 ms"), (1.0, "1.00 s"), (90, "90.0 s")])
def test_times_below_a_second_are_in_milliseconds(value: float, text: str) -> None:
    assert output.seconds(value) == text


def test_a_table_keeps_markup_of_names_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_table((output.Column("name"),), [("[bold]x[/bold]",)])
    assert "[bold]x[/bold]" in capsys.readouterr().out


cells = st.sampled_from(["", "x", "12,000", "two words", " lead", "trail ", "h100-80", "a\x1bb"])


@given(st.data(), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_a_table_that_needs_no_wrapping_looks_the_same_without_the_renderer(
    data: st.DataObject, kinds: list[tuple[bool, bool]]
) -> None:
    columns = [output.Column(f"c{i} {'long' * i}", *kind) for i, kind in enumerate(kinds)]
    rows = data.draw(st.lists(st.tuples(*[cells] * len(kinds)), max_size=4))
    drawn = []
    for emit in (output._emit_plain, output._emit_wrapped):
        with redirect_stdout(io.StringIO()) as out:
            emit(columns, [tuple(map(visible, row)) for row in rows])
        drawn.append(out.getvalue())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("cell", ["word " * 40, "first\nsecond", "日本語"])
def test_what_needs_wrapping_or_is_wider_than_its_letters_is_left_to_the_renderer(
    cell: str,
) -> None:
    assert not output._emit_plain((output.Column("name"),), [(cell,)])


def test_times_in_json_keep_their_seconds() -> None:
    assert output.plain({"at_s": 1_795_957_803.25, "share": 0.123456789}) == {
        "at_s": 1_795_957_803.25,
        "share": 0.1234568,
    }
