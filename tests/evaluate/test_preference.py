from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in import StandInModel

from omnipilot.advisor import Advisor
from omnipilot.cli import app
from omnipilot.evaluate.preference import (
    Choice,
    along,
    common_values,
    consistent_values,
    envelope,
    values_to_show,
)

if TYPE_CHECKING:
    from pathlib import Path


def choice(slopes: list[float], costs: list[float], chosen: int) -> Choice:
    marks = np.arange(len(slopes)) == chosen
    names = tuple(str(i) for i in range(len(slopes)))
    return Choice("c", names, np.asarray(slopes), np.asarray(costs), marks)


# Earns 10, 20 and 40 per USD of a token and costs 1, 2 and 6: crossings at 0.1 and 0.2.
SLOPES, COSTS = [10.0, 20.0, 40.0], [1.0, 2.0, 6.0]


def test_the_best_arm_changes_where_the_lines_cross() -> None:
    steps = envelope(choice(SLOPES, COSTS, 0))
    assert [arm for _, arm in steps] == [0, 1, 2]
    assert [value for value, _ in steps] == pytest.approx([0.0, 0.1, 0.2])


@pytest.mark.parametrize(
    ("chosen", "interval"), [(0, (0.0, 0.1)), (1, (0.1, 0.2)), (2, (0.2, math.inf))]
)
def test_a_choice_is_consistent_between_its_crossings(
    chosen: int, interval: tuple[float, float]
) -> None:
    assert consistent_values(choice(SLOPES, COSTS, chosen)) == [pytest.approx(interval)]


def test_choices_agree_where_their_intervals_overlap_and_may_contradict_one_another() -> None:
    middle, high = choice(SLOPES, COSTS, 1), choice([10.0, 20.0], [1.0, 2.5], 1)
    assert common_values([middle, high]) == [pytest.approx((0.15, 0.2))]
    assert common_values([choice(SLOPES, COSTS, 0), choice(SLOPES, COSTS, 2)]) == []


def test_an_arm_that_is_never_the_best_and_one_that_is_not_offered_have_no_value() -> None:
    assert consistent_values(choice([10.0, 10.0], [1.0, 2.0], 1)) == []
    missing = choice(SLOPES, COSTS, 9)
    assert consistent_values(missing) == []
    assert along([missing], [1.0])[0].regret_usd_per_h == math.inf


def test_regret_along_the_value_is_zero_exactly_where_the_choice_is_explained() -> None:
    rows = along([choice(SLOPES, COSTS, 1)], [0.05, 0.15, 0.3])
    assert [row.explained for row in rows] == [0, 1, 0]
    assert [row.regret_usd_per_h for row in rows] == pytest.approx([0.5, 0.0, 2.0])


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8),
    st.integers(0, 7),
    st.floats(1e-3, 100.0),
)
def test_the_intervals_agree_with_trying_every_arm(
    lines: list[tuple[int, int]], chosen: int, value: float
) -> None:
    it = choice([float(a) for a, _ in lines], [float(b) for _, b in lines], chosen % len(lines))
    edges = [edge for interval in consistent_values(it) for edge in interval]
    if any(abs(value - edge) < 1e-6 for edge in edges):
        return
    inside = any(low < value < high for low, high in consistent_values(it))
    regret = it.regret_usd_per_h(value)
    # Where lines coincide the envelope names one of them: no regret, and perhaps no interval.
    assert regret == pytest.approx(0.0, abs=1e-9) if inside else regret >= 0.0
    if regret > 1e-6:
        assert not inside


def test_the_ends_and_the_middle_of_an_interval_are_shown_on_the_grid() -> None:
    shown = values_to_show([(1.1e-7, 4.4e-7)])
    assert {1.1e-7, 2.2e-7, 4.4e-7} <= set(shown)
    assert shown == sorted(shown)


def test_the_command_explains_choices_that_the_model_makes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import json  # noqa: PLC0415 - beside its only use

    model = StandInModel(measured=None)
    monkeypatch.setattr(Advisor, "model", property(lambda _: model))
    head = "model,concurrency,context,gpu,n_gpus\n"
    line = "Qwen/Qwen2.5-7B-Instruct,64,4096,{},{}\n"
    file = tmp_path / "anchors.csv"
    file.write_text(head + line.format("A100", 1))
    arguments = ["evaluate", "preference", "--anchors", str(file), "--format", "json"]
    assert app.run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    best = found["choices"][0]["best_as_value_grows"][0]["arm"]
    gpus, kind, _ = best.split()
    file.write_text(head + line.format(kind, gpus.removesuffix("x")))
    assert app.run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["consistent_usd_per_token"][0][0] == 0.0
    assert {row["accuracy"] for row in found["along"]} <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model,context\n", "no column 'concurrency'"),
        ("model,concurrency,context,gpu,n_gpus,colour\n", "unknown column 'colour'"),
        ("model,concurrency,context,gpu,n_gpus\n", "states no choice"),
        ("model,concurrency,context,gpu,n_gpus\nm,x,4096,H100,1\n", "line 2: concurrency must"),
        ("model,concurrency,context,gpu,n_gpus\nm,1,4096,H100,0\n", "n_gpus must be from 1 to"),
        (
            f"model,concurrency,context,gpu,n_gpus\nm,{'9' * 400},4096,H100,1\n",
            "concurrency must be",
        ),
        (f"model,concurrency,context,gpu,n_gpus\n{'m' * 200_000},1,4096,H100,1\n", "field limit"),
        ("model,concurrency,context,gpu,n_gpus\nm,1,4096,zx81,1\n", "zx81"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_with_its_line(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "anchors.csv"
    file.write_text(text)
    assert app.run(["evaluate", "preference", "--anchors", str(file)]) == 2
    assert words in capsys.readouterr().err
