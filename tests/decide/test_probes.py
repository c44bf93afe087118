"""The menu of probes: its file, what a probe takes, and which tell a decision nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from omnipilot.decide.probes import SETUP_S, Load, expense, load_menu, usable
from omnipilot.domain import BadInputError, ServingRequest
from omnipilot.domain.targets import TARGET_BY_NAME

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = ServingRequest("org/model", 1000, 4096, 3072, 1024)
RATES = {"output_tokens_per_s", "aggregate_tokens_per_s", "request_per_s"}


def test_the_menu_holds_the_six_benchmarks_and_each_says_what_it_measures() -> None:
    menu = load_menu()
    assert [p.name for p in menu] == [
        "launch-smoke", "short-decode", "prefill-heavy", "target-short", "kv-ramp", "full-cell",
    ]  # fmt: skip
    for probe in menu:
        assert probe.meaning
        assert set(probe.measures) <= set(TARGET_BY_NAME)


def test_loads_follow_the_request() -> None:
    loads = {p.name: p.load(REQUEST) for p in load_menu()}
    assert loads["full-cell"] == loads["target-short"] == Load(1000, 3072, 1024)
    assert loads["short-decode"] == Load(4, 768, 1024)
    assert loads["prefill-heavy"] == Load(64, 3072, 64)
    assert loads["kv-ramp"].concurrency == 2000
    assert loads["launch-smoke"].concurrency == 1


def test_what_a_probe_takes_is_closed_form() -> None:
    (short,) = (p for p in load_menu() if p.name == "target-short")
    load = short.load(REQUEST)
    # 10 requests a second for 60 s: 600, and never fewer than one a client.
    assert short.requests(load, 10.0) == 1000
    assert short.requests(load, 30.0) == 1800
    assert short.requests(load, 1000.0) == 2000  # two a client are enough
    assert short.seconds(load, 10.0, cold_start_s=200.0) == 200.0 + SETUP_S + 100.0
    taken = expense(360.0, 4, 8, 3.0, power_w=2000.0, usd_per_kwh=0.5)
    assert taken.node_h == pytest.approx(0.05)
    assert taken.cost_usd == pytest.approx(1.2 + 0.1)


def test_longer_cold_starts_and_slower_arms_cost_more() -> None:
    for probe in load_menu():
        load = probe.load(REQUEST)
        assert probe.seconds(load, 5.0, 200.0) > probe.seconds(load, 5.0, 100.0)
        assert probe.seconds(load, 1.0, 100.0) >= probe.seconds(load, 5.0, 100.0)


def test_a_probe_that_measures_nothing_the_decision_depends_on_is_rejected_with_the_reason() -> (
    None
):
    kept, rejected = usable(load_menu(), RATES)
    assert [r.probe.name for r in rejected] == ["launch-smoke"]
    assert "measures cold_start_s, and the decision depends on" in rejected[0].reason
    assert "output_tokens_per_s" in rejected[0].reason
    assert len(kept) == 5
    kept, rejected = usable(load_menu(), ())
    assert kept == ()
    assert "nothing that is uncertain" in rejected[0].reason


GOOD = """
[[probe]]
name = "one"
meaning = "m"
measures = { power_mean_w = 0.1 }
concurrency = 1.0
at_most = 4
prompt = 1.0
output = 1.0
requests_a_client = 1
least_requests = 1
longest_s = 10
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no"),
        ("[[probe]", "cannot be read"),
        (GOOD.replace('name = "one"', ""), "without a name"),
        (GOOD.replace("power_mean_w", "happiness"), "no target 'happiness'"),
        (GOOD.replace("{ power_mean_w = 0.1 }", "{}"), "measures nothing"),
        (GOOD.replace("0.1", "-1"), "at least 0"),
        (GOOD.replace("longest_s = 10", "longest_s = nan"), "at least 0"),
        (GOOD.replace("longest_s", "longest"), "unknown key 'longest'"),
        (GOOD.replace("prompt = 1.0\n", ""), "no 'prompt'"),
        (GOOD + GOOD, "one name"),
    ],
)
def test_a_malformed_menu_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "menu.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match=words):
        load_menu(path)


def test_a_menu_of_one_s_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "menu.toml"
    path.write_text(GOOD, encoding="utf-8")
    (probe,) = load_menu(path)
    assert probe.measures == {"power_mean_w": 0.1}
    assert probe.load(REQUEST).concurrency == 4
