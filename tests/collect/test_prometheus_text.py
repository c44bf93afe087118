"""The Prometheus text format and its histograms."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.collect.prometheus_text import Histogram, Sample, read_samples
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from pathlib import Path

INF = math.inf


def read(folder: Path, text: str, *names: str) -> list[Sample | Rejection]:
    path = folder / "metrics.prom"
    path.write_text(text)
    return list(read_samples(path, names or ("a",), "a metrics page"))


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("a 1", {}, 1.0),
        ("a{} 1.5e3", {}, 1500.0),
        ('a{x="1",y="two"} 3', {"x": "1", "y": "two"}, 3.0),
        ('a{x="1",} 3 1795957523356', {"x": "1"}, 3.0),
        ('a{ x = "1" , y="" }\t3', {"x": "1", "y": ""}, 3.0),
        (r'a{x="q\"b\\n\n}{"} 3', {"x": 'q"b\\n\n}{'}, 3.0),
    ],
)
def test_samples_are_read(tmp_path: Path, line: str, labels: dict[str, str], value: float) -> None:
    assert read(tmp_path, f"# HELP a b\n{line}\n") == [Sample(2, "a", labels, value)]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("a", "not a sample"),
        ("a{x=1} 2", "not a sample"),
        ('a{x="1" 2', "not a sample"),
        ('a{x="1",x="2"} 2', "not a sample"),
        ("a two", "not a number"),
        ("a 1_000", "not a number"),
        ("a ١", "not a number"),
        ("a NaN", "out of range"),
        ("a +Inf", "out of range"),
        ("a -1", "out of range"),
        ("{} 1", "not a sample"),
        ("a\0 1", "NUL byte"),
        ("a " + "9" * 70_000, "line too long"),
    ],
)
def test_what_is_no_sample_is_refused_and_reading_goes_on(
    tmp_path: Path, line: str, code: str
) -> None:
    refused, good = read(tmp_path, f"{line}\na 1\n")
    assert isinstance(refused, Rejection)
    assert (refused.code, refused.line) == (code, 1)
    assert good == Sample(2, "a", {}, 1.0)


def test_other_metrics_are_passed_over(tmp_path: Path) -> None:
    assert read(tmp_path, "b{nonsense\nab 1\na 1\n") == [Sample(3, "a", {}, 1.0)]


@pytest.mark.parametrize(
    "line", ["a{" + "}" * 60_000, "a{" + 'x="' * 20_000, "a{" + "\\" * 60_000, "a" * 60_000,
             'a{x="' + '\\"' * 30_000, "a" + " " * 60_000, "a{" + "} 1" * 20_000]
)  # fmt: skip
def test_no_line_takes_long(tmp_path: Path, line: str) -> None:
    began_s = time.process_time()
    read(tmp_path, f"{line}\n")
    assert time.process_time() - began_s < 1.0


def test_a_quantile_lies_where_its_rank_falls_in_the_bucket() -> None:
    # 10 values in (0, 1], 20 in (1, 3], 10 in (3, 7]; ranks 10, 20, 36 of 40.
    histogram = Histogram({1.0: 10.0, 3.0: 30.0, 7.0: 40.0, INF: 40.0})
    assert histogram.quantile(0.25) == 1.0
    assert histogram.quantile(0.5) == 2.0
    assert histogram.quantile(0.9) == pytest.approx(3 + 4 * 6 / 10)


def test_above_the_last_bound_there_is_no_estimate() -> None:
    assert Histogram({1.0: 1.0, INF: 10.0}).quantile(0.5) is None
    assert Histogram({1.0: 0.0, INF: 0.0}).quantile(0.5) is None


def test_an_estimate_that_the_mean_rules_out_is_lowered() -> None:
    # All waits were microseconds, in a first bucket of 0.3 s.
    histogram = Histogram({0.3: 100.0, INF: 100.0}, sum=0.002)
    assert histogram.quantile(0.5) == pytest.approx(4e-5)


@given(values=st.lists(st.floats(0.001, 99.0), min_size=1, max_size=200), q=st.floats(0.01, 0.99))
def test_an_estimate_lies_in_the_bucket_of_the_true_quantile_or_below_it_by_the_mean(
    values: list[float], q: float
) -> None:
    bounds = (0.01, 0.1, 1.0, 10.0, 100.0, INF)
    cumulative = {b: float(sum(v <= b for v in values)) for b in bounds}
    histogram = Histogram(cumulative, sum=math.fsum(values))
    assert histogram.fault() == ""
    true = sorted(values)[max(math.ceil(q * len(values)) - 1, 0)]
    estimate = histogram.quantile(q)
    assert estimate is not None
    low, high = next((a, b) for a, b in zip((0.0, *bounds), bounds, strict=False) if true <= b)
    assert estimate <= high + 1e-9
    assert estimate >= low - 1e-9 or estimate == pytest.approx(
        math.fsum(values) / len(values) / (1 - q)
    )


def test_a_window_is_what_was_added_and_engines_add_up() -> None:
    early = Histogram({1.0: 2.0, INF: 3.0}, sum=4.0)
    late = Histogram({1.0: 5.0, INF: 9.0}, sum=20.0)
    assert late.since(early) == Histogram({1.0: 3.0, INF: 6.0}, sum=16.0)
    assert early.since(late) is None
    assert late.since(Histogram({2.0: 0.0, INF: 0.0})) is None
    assert early.plus(late) == Histogram({1.0: 7.0, INF: 12.0}, sum=24.0)
    assert early.plus(Histogram({INF: 1.0})) is None


@pytest.mark.parametrize(
    ("histogram", "word"),
    [
        (Histogram({1.0: 2.0}), "+Inf"),
        (Histogram({1.0: 5.0, 2.0: 4.0, INF: 6.0}), "fewer"),
        (Histogram({1.0: 5.0, 2.0: 6.0, INF: 6.0}, sum=8.0), "sum"),
        (Histogram({1.0: 5.0, 2.0: 9.0, INF: 9.0}, sum=3.0), "sum"),
    ],
)
def test_what_is_no_histogram_is_told(histogram: Histogram, word: str) -> None:
    assert word in histogram.fault()
