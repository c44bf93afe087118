"""Checked look-ups in hostile tables."""

from __future__ import annotations

import pytest

from omnipilot.catalog.hf_fields import ConfigFields, shorten
from omnipilot.domain.errors import BadInputError


def test_the_first_table_that_states_a_key_wins() -> None:
    fields = ConfigFields([{"a": 1}, {"a": 2, "b": 3}], "c")
    assert (fields.integer("a"), fields.integer("b")) == (1, 3)


def test_null_means_absent() -> None:
    fields = ConfigFields([{"a": None}, {"a": 2}], "c")
    assert fields.integer("a") == 2
    assert ConfigFields([{"a": None}], "c").integer("a", default=7) == 7


def test_a_whole_float_counts_as_a_number() -> None:
    assert ConfigFields([{"a": 4096.0}], "c").need("a") == 4096


def test_a_missing_need_names_both_spellings() -> None:
    with pytest.raises(BadInputError, match=r"c: 'a' \(or 'b'\) is missing"):
        ConfigFields([{}], "c").need("a", "b")


@pytest.mark.parametrize("value", [True, "1", [1], {}, 1.5, float("nan"), -1, 10**30])
def test_what_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(BadInputError, match="'a' must be a whole number from 0 to"):
        ConfigFields([{"a": value}], "c").integer("a")


@pytest.mark.parametrize("value", [True, "1", float("nan"), float("inf"), 11])
def test_what_is_no_number_in_range_is_refused(value: object) -> None:
    with pytest.raises(BadInputError, match="'a' must be a number from 0 to 10"):
        ConfigFields([{"a": value}], "c").number("a", 1.0, 0.0, 10.0)


@pytest.mark.parametrize(("value", "expected"), [(True, True), (0, False), (1, True)])
def test_a_flag_is_true_or_false(value: object, expected: bool) -> None:
    assert ConfigFields([{"a": value}], "c").flag("a") is expected
    with pytest.raises(BadInputError, match="true or false"):
        ConfigFields([{"a": "true"}], "c").flag("a")


def test_a_list_has_the_length_of_the_decoder() -> None:
    fields = ConfigFields([{"a": [1, 2]}], "c")
    assert fields.listing("a", length=2) == (1, 2)
    with pytest.raises(BadInputError, match="a list of 3 entries"):
        fields.listing("a", length=3)


def test_refused_values_are_shown_short() -> None:
    assert len(shorten("x" * 1000)) == 40
    assert shorten(10**5000) == "a number of more than 38 digits"
    assert shorten([1, 2]) == "a list of 2 entries"
