"""Series out of a Prometheus server's answers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from dcgm_stand_in import T0, answer

from omnipilot.collect.json_values import JsonValue
from omnipilot.collect.prometheus_json import Series, series_of
from omnipilot.domain.rejection import Rejection

UP = {"metric": {"__name__": "up", "job": "dcgm"}, "values": [[T0, "1"], [T0 + 1.5, "NaN"]]}


def read(text: str) -> list[Any]:
    return list(series_of(JsonValue(3, text.encode())))


def test_a_range_answer_gives_each_series_with_its_labels() -> None:
    first, second = read(answer(UP, UP))
    assert isinstance(first, Series)
    assert (first.line, first.name, first.labels) == (3, "up", {"job": "dcgm"})
    assert first.times_s.tolist() == [T0, T0 + 1.5]
    assert first.values[0] == 1
    assert math.isnan(first.values[1])
    assert second.name == "up"


def test_an_instant_answer_gives_one_reading_a_series() -> None:
    result = {"metric": {"__name__": "up"}, "value": [T0, "1"]}
    (series,) = read(
        json.dumps({"status": "success", "data": {"resultType": "vector", "result": [result]}})
    )
    assert (series.times_s.tolist(), series.values.tolist()) == ([T0], [1.0])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"metric": {}}, "empty series"),
        ({"values": []}, "empty series"),
        ({"values": [[T0, 1]]}, "wrong shape"),
        ({"values": [[T0, "1 "]]}, "not a number"),
        ({"values": [[T0, "\u0661"]]}, "not a number"),
        ({"values": [[T0, "9" * 65]]}, "not a number"),
        ({"values": [[1.0, "1"]]}, "time out of range"),
        ({"values": [[1e300, "1"]]}, "time out of range"),
        ({"values": [[T0 + 1, "1"], [T0, "1"]]}, "times out of order"),
        ({"values": [[T0, "1"], [T0, "2"]]}, "times out of order"),
        ({"metric": {"__name__": "up", "x": "y" * 2000}}, "huge labels"),
    ],
)
def test_a_series_that_is_none_is_refused_alone(change: dict[str, Any], code: str) -> None:
    refused, kept = read(answer(UP | change, UP))
    assert isinstance(refused, Rejection)
    assert refused.code == code
    assert isinstance(kept, Series)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"status":"error","error":"too \\u0007 many"}', "error answer"),
        ('{"status":"success"}', "error answer"),
        ('{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}', "no series"),
        ('{"status":"success","data":{"resultType":"string","result":[]}}', "no series"),
        ('{"status":', "not JSON"),
        ("[]", "wrong shape"),
    ],
)
def test_an_answer_without_series_is_one_refusal(text: str, code: str) -> None:
    (refused,) = read(text)
    assert refused.code == code
    assert refused.reason.isprintable()
