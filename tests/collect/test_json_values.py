"""Finding JSON values in untrusted files."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnipilot.collect.json_values import (
    JSON_LIMITS,
    JsonValue,
    decode_json,
    number_of,
    read_json_values,
)
from omnipilot.domain import BadInputError
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "values.json"


def read(path: Path, data: bytes) -> list[JsonValue | Rejection]:
    path.write_bytes(data)
    return list(read_json_values(path, "a test file"))


objects = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=6,
    ),
    max_size=4,
)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    values=st.lists(objects, min_size=1, max_size=5),
    indent=st.sampled_from([None, 1, 4]),
    between=st.sampled_from(["", "\n", ",\n", "\r\n \n"]),
    ascii_only=st.booleans(),
)
def test_every_value_comes_out_as_it_went_in(
    file: Path, values: list[Any], indent: int | None, between: str, ascii_only: bool
) -> None:
    texts = [json.dumps(value, indent=indent, ensure_ascii=ascii_only) for value in values]
    items = read(file, between.join(texts).encode())
    assert [json.loads(item.data) for item in items if isinstance(item, JsonValue)] == values


def test_values_carry_the_line_they_begin_on(file: Path) -> None:
    items = read(file, b'\n{"a": 1}\n{\n "b": 2\n}\n{"c": 3}')
    assert [item.line for item in items] == [2, 3, 6]


def test_a_pretty_value_cut_short_costs_only_itself(file: Path) -> None:
    items = read(file, b'{\n "a": {\n  "b": 1\n{\n "c": 2\n}\n{\n "d": 3\n}')
    assert [isinstance(item, Rejection) for item in items] == [True, False, False]


@pytest.mark.parametrize(
    ("data", "n_good"),
    [
        (b'{"a": "unclosed}\n{"b": 1}', 1),
        (b'{"a": 1}}\n{"b": 1}', 2),
        (b'junk\n{"b": 1}', 1),
        (b'{"a": [[1, 2}\n{"b": 1}', 1),
        (b"[" * 100 + b'\n{"b": 1}', 1),
        (b'{"a": "\\', 0),
    ],
)
def test_damage_is_refused_and_reading_goes_on(file: Path, data: bytes, n_good: int) -> None:
    items = read(file, data)
    assert sum(isinstance(item, JsonValue) for item in items) == n_good
    assert any(isinstance(item, Rejection) and item.code == "not JSON" for item in items)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 300_000, b"{" * 300_000, b'{"' * 150_000, b'\\"' * 150_000, b'{"a":' * 60_000,
        b"{\n" * 150_000, b'{"a":[\n' * 40_000, b"}" * 300_000 + b"{",
        b"{\n{\n" + b"{}\n" * 90_000, b'[\n"' * 80_000, b'{"a": "\\"' * 40_000,
        b'{"a":[1\n' * 40_000,
    ],
)  # fmt: skip
def test_no_text_takes_long(file: Path, data: bytes) -> None:
    began_s = time.process_time()
    items: list[JsonValue | Rejection] = []
    with contextlib.suppress(BadInputError):
        items = read(file, data)
    assert time.process_time() - began_s < 1.0
    assert not any(isinstance(item, JsonValue) for item in items[:1])


def test_a_file_of_too_many_values_or_bytes_is_refused(file: Path) -> None:
    with pytest.raises(BadInputError, match="more than 20000 values"):
        read(file, b"{}\n" * 20_001)
    file.write_bytes(b"{}" * 1000)
    with pytest.raises(BadInputError, match="MiB"):
        list(read_json_values(file, "a test file", replace(JSON_LIMITS, file_bytes=1000)))


def test_what_does_not_decode_is_a_refusal() -> None:
    for data in (b'{"a": 1e999}', b'{"a": NaN}', b'{"a": "\xff"}', b'{"a": 01}'):
        refused = decode_json(JsonValue(7, data), dict[str, float])
        assert isinstance(refused, Rejection)
        assert refused.line == 7
    refused = decode_json(JsonValue(7, b'{"a": "x"}'), dict[str, float])
    assert isinstance(refused, Rejection)
    assert refused.code == "wrong shape"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0), (2.5, 2.5), ("2.5", 2.5), ("inf", float("inf")), (True, None), (None, None),
        ([1], None), ("fast", None), ("9" * 100, None), (10**400, None),
    ],
)  # fmt: skip
def test_numbers_are_read_as_numbers_or_text(value: object, number: float | None) -> None:
    assert number_of(value) == number
