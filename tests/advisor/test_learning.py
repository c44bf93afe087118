"""Learning on a site: fit, promote, roll back, health; kills at any moment and fits at a time."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from omnipilot.advisor import Advisor
from omnipilot.advisor import learning_models as use
from omnipilot.advisor.learning import FitOptions, fit_site
from omnipilot.advisor.learning_data import alarm_note, untrue_words
from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.costmodel.bundle import base_model_path, load_bundle
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.errors import OmniPilotError, StateError, UsageError
from omnipilot.domain.rows import InferenceRun
from omnipilot.learn.drift import EXCHANGED, Stream
from omnipilot.learn.registry import Registry
from omnipilot.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.advisor.learning_data import FitReport

NOW_S = 1_700_000_000.0
PLAIN = FitOptions({})
MODEL = "Qwen/Qwen2.5-7B-Instruct"


def site_runs(factor: float = 1.2, loads: Sequence[float] = (4.0, 16.0, 64.0, 128.0),
              version: str = "0.11.2") -> list[InferenceRun]:  # fmt: skip
    """One model on three kinds: ``factor`` times as fast as the shipped model says."""
    catalog = Advisor(Path("none")).catalog
    plain = [
        InferenceRun(
            source="ours", model=MODEL, engine="vllm", gpu=gpu, gpu_memory_gb=memory, n_gpus=n,
            precision="bf16", mode="online", status="ok", labels={}, prompt_tokens=prompt,
            output_tokens=256.0, concurrency=load, stack=StackFingerprint(engine_version=version),
        )
        for gpu, memory in (("h100-80", 80.0), ("a100-80", 80.0))
        for n in (1, 2)
        for load in loads
        for prompt in (512.0, 1024.0)
    ]  # fmt: skip
    builder = ScenarioBuilder(catalog)
    base = load_bundle(base_model_path())[0]
    asked = build_frame([builder.scenario(replace(r, source="")) for r in plain])
    rates = base.predict(asked).values["output_tokens_per_s"][:, 1]
    rng = np.random.default_rng(len(loads))
    noise = factor * np.exp(0.03 * rng.standard_normal(len(plain)))
    return [
        replace(r, labels={"output_tokens_per_s": float(v * e)})
        for r, v, e in zip(plain, rates, noise, strict=True)
    ]


def store(home: Path, runs: Sequence[InferenceRun], at_s: float = NOW_S) -> None:
    Store(home).append(runs, now_s=at_s)


def fitted(home: Path, **options: Any) -> FitReport:
    return fit_site(Advisor(home), replace(PLAIN, **options), now_s=NOW_S)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A site with 32 runs."""
    site = tmp_path / "site"
    store(site, site_runs())
    return site


def test_a_site_without_rows_keeps_the_base_model(tmp_path: Path) -> None:
    report = fitted(tmp_path)
    assert report.unchanged
    assert not (tmp_path / "bundles").exists()
    assert Advisor(tmp_path).model.version == load_bundle(base_model_path())[2]


def test_the_first_fit_answers_with_what_the_site_measured(home: Path) -> None:
    report = fitted(home)
    assert report.promoted
    assert report.verdict.first
    advisor = Advisor(home)
    assert advisor.model.version == report.version
    assert report.candidate["throughput"].mape < 0.06 < report.before["throughput"].mape
    assert json.dumps(report.data(), allow_nan=False, default=str)


def test_fitting_again_changes_nothing_and_writes_nothing(home: Path) -> None:
    first = fitted(home)
    ledger = (home / "bundles" / "ledger.jsonl").read_bytes()
    again = fitted(home)
    assert again.unchanged
    assert again.version == first.version
    assert (home / "bundles" / "ledger.jsonl").read_bytes() == ledger


def test_the_same_rows_give_the_same_version_on_any_day(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    store(other, site_runs(), at_s=NOW_S + 9e6)
    one = fitted(home)
    two = fit_site(Advisor(other), PLAIN, now_s=NOW_S + 1e7)
    assert one.version == two.version


def test_a_dry_run_writes_nothing_and_shows_the_effect_of_retiring(home: Path) -> None:
    store(home, site_runs(loads=(8.0, 32.0), version="0.9.1"), at_s=NOW_S)
    report = fitted(home, dry_run=True, retire={"engine_minor": 0.0})
    assert not (home / "bundles").exists()
    assert report.retired == 16
    assert {g.engine_version: g.weight for g in report.stacks} == {"0.11.2": 1.0, "0.9.1": 0.0}
    assert fitted(home, dry_run=True).retired == 0


def test_the_ledger_tells_where_a_model_came_from(home: Path) -> None:
    report = fitted(home)
    fit, promoted = use.history(Advisor(home))
    assert (fit.event, promoted.event) == ("fit", "promote")
    assert fit.version == promoted.version == report.version
    assert fit.facts["rows_by_source"] == {"ours": 32}
    assert fit.facts["stacks"][0]["engine_version"] == "0.11.2"
    assert len(fit.facts["rows_digest"]) == 64
    assert fit.facts["parent"] == ""
    assert {c["name"] for c in fit.facts["criteria"]} >= {"mape", "rows", "coverage"}
    assert fit.facts["envelope"]["cells"] > 0


def test_new_rows_make_a_second_version_judged_on_all_rows(home: Path) -> None:
    first = fitted(home)
    store(home, site_runs(loads=(8.0, 32.0, 256.0)), at_s=NOW_S + 1)
    second = fitted(home)
    assert second.promoted
    assert second.incumbent == first.version
    assert second.rows == 56
    found = use.diff(Advisor(home), first.version, second.version)
    assert (found["rows_added"], found["rows_removed"]) == (24, 0)


def test_a_month_of_rows_three_times_too_fast_reaches_no_recommendation_unnoticed(
    home: Path,
) -> None:
    first = fitted(home)
    bad = [
        replace(r, labels={k: v * 3.0 for k, v in r.labels.items()})
        for r in site_runs(loads=(8.0, 32.0, 256.0))
    ]
    store(home, bad, at_s=NOW_S + 1)
    report = fitted(home)
    assert report.held_back or not report.promoted or any(s.alarm for s in report.drift)
    if not report.promoted:
        assert Advisor(home).model.version == first.version


def with_latencies(run: InferenceRun, unit_s: float = 1.0) -> InferenceRun:
    """The run with the latencies that its rate means for its clients, told in another unit."""
    request_s = run.concurrency * run.output_tokens / run.labels["output_tokens_per_s"]
    told = {"ttft_p50_s": 0.1 * request_s, "tpot_p50_s": 0.9 * request_s / run.output_tokens}
    return replace(run, labels={**run.labels, **{k: v / unit_s for k, v in told.items()}})


def test_runs_with_latencies_in_wrong_units_are_left_out_and_told(tmp_path: Path) -> None:
    store(tmp_path, [with_latencies(r) for r in site_runs()])
    first = fitted(tmp_path)
    assert "contradictory" not in first.excluded
    assert untrue_words(first.excluded) == []
    bad = [with_latencies(r, unit_s=1e3) for r in site_runs(loads=(8.0, 32.0))]
    store(tmp_path, bad, at_s=NOW_S + 1)
    report = fitted(tmp_path)
    assert (report.unchanged, report.rows, report.incumbent) == (True, 32, first.version)
    assert report.data()["rows_excluded"]["contradictory"] == 16
    assert untrue_words(report.excluded) == [
        "16 left out: their latencies contradict their rate or the GPUs, check the units"
    ]
    assert any("16 left out" in note for note in use.health(Advisor(tmp_path)).notes)


def test_a_site_of_nothing_but_wrong_units_keeps_the_base_model(tmp_path: Path) -> None:
    store(tmp_path, [with_latencies(r, unit_s=1e3) for r in site_runs()])
    report = fitted(tmp_path)
    assert report.unchanged
    assert "left out" in report.verdict.reason
    assert report.data()["rows_excluded"]["contradictory"] == 32
    assert not (tmp_path / "bundles").exists()


def test_rollback_restores_the_exact_answers_of_before(home: Path) -> None:
    first = fitted(home)
    before = _answers(home)
    store(home, site_runs(loads=(8.0, 32.0)), at_s=NOW_S + 1)
    second = fitted(home)
    assert second.promoted
    assert _answers(home) != before
    assert use.roll_back(Advisor(home), "", now_s=NOW_S) == (first.version, second.version)
    assert _answers(home) == before
    assert use.roll_back(Advisor(home), "shipped", now_s=NOW_S) == ("", first.version)
    assert Advisor(home).model.version == load_bundle(base_model_path())[2]


def test_each_rollback_goes_one_promotion_further_back(home: Path) -> None:
    a = fitted(home).version
    advisor, registry = Advisor(home), Registry(home)
    model, card, _ = registry.load(a)
    b, c = (registry.add(model, {**card, "note": note}, {}) for note in "bc")

    def promote(*versions: str) -> None:
        for version in versions:
            use.promote(advisor, version, now_s=NOW_S, force=True)

    def back(to: str = "") -> str:
        return use.roll_back(advisor, to, now_s=NOW_S)[0]

    promote(b, c)
    assert [back(), back(), back()] == [b, a, ""]
    for _ in range(2):
        with pytest.raises(UsageError, match="nothing earlier: the shipped base model answers"):
            back()
    promote(a, b)
    assert back() == a
    promote(c)  # upon a: b was rolled back
    assert [back(), back()] == [a, ""]
    promote(a, b, c)
    assert back(a) == a
    assert [back(c), back(), back()] == [c, a, ""]


def _answers(home: Path) -> bytes:
    advisor = Advisor(home)
    builder = ScenarioBuilder(advisor.catalog)
    asked = [builder.scenario(replace(r, source="")) for r in site_runs()]
    values = advisor.model.predict(asked).values
    return b"".join(np.ascontiguousarray(values[name]).tobytes() for name in sorted(values))


def test_a_rejected_version_is_promoted_by_force_alone(home: Path) -> None:
    first = fitted(home)
    registry = Registry(home)
    model, card, _ = registry.load(first.version)
    never = registry.add(model, {**card, "note": "never judged"}, {})
    with pytest.raises(UsageError, match="never judged by the gate; --force"):
        use.promote(Advisor(home), never, now_s=NOW_S)
    assert use.promote(Advisor(home), never, now_s=NOW_S, force=True) == (never, first.version)
    assert use.history(Advisor(home))[-1].facts["forced"] is True


def test_withheld_rows_leave_the_next_fit_and_come_back(home: Path) -> None:
    fitted(home)
    store(home, site_runs(loads=(8.0, 32.0)), at_s=NOW_S + 1)
    second = fitted(home)
    assert use.withhold(Advisor(home), second.version, now_s=NOW_S) == 16
    assert fitted(home, dry_run=True).withheld == 16
    assert use.withhold(Advisor(home), second.version, now_s=NOW_S, admit=True) == 16
    assert fitted(home, dry_run=True).withheld == 0


def test_rows_withheld_while_a_fit_computes_are_not_promoted(home: Path) -> None:
    fitted(home)
    store(home, site_runs(loads=(8.0, 32.0)), at_s=NOW_S + 1)
    second = fitted(home)
    assert second.promoted
    store(home, site_runs(loads=(2.0,)), at_s=NOW_S + 2)
    said: list[str] = []

    def withhold_meanwhile(words: str) -> None:
        """The operator withholds what the second version learned, in another process."""
        if not said:
            use.withhold(Advisor(home), second.version, now_s=NOW_S)
        said.append(words)

    report = fit_site(Advisor(home), PLAIN, now_s=NOW_S, progress=withhold_meanwhile)
    assert any("withheld or admitted meanwhile" in words for words in said)
    assert (report.rows, report.withheld) == (40, 16)
    registry = Registry(home)
    withheld = set(registry.ledger.entries()[-3].facts["rows"])
    assert len(withheld) == 16
    assert not withheld & registry.rows(report.version).keys()


def test_health_is_quiet_about_expected_rows_and_names_drifted_ones(home: Path) -> None:
    fitted(home)
    assert use.health(Advisor(home)).new_rows == 0
    store(home, site_runs(loads=(8.0, 32.0)), at_s=NOW_S + 1)
    quiet = use.health(Advisor(home))
    assert quiet.new_rows == 16
    assert quiet.alarms == []
    assert [s.level for s in quiet.streams if s.kind == EXCHANGED] == ["a100-80 and h100-80"]
    assert any("omnipilot fit learns from them" in note for note in quiet.notes)
    faster = [
        replace(r, n_gpus=n, stack=StackFingerprint(engine_version="0.12.0"),
                labels={k: v * 4.0 for k, v in r.labels.items()})
        for r in site_runs(loads=(12.0, 48.0, 96.0, 192.0))
        for n in (1, 2, 4, 8)
    ]  # fmt: skip
    store(home, faster, at_s=NOW_S + 2)
    found = use.health(Advisor(home))
    assert any(s.level == "vllm 0.12" for s in found.alarms)
    assert "Measure again" in found.notes[0]
    assert found.engines == {"vllm": "0.12.0"}
    assert json.dumps(found.data(), allow_nan=False, default=str)


def test_an_alarm_of_exchanged_kinds_says_to_check_what_the_runs_state() -> None:
    about: dict[str, Any] = {
        "head": "throughput", "rows": 1200, "arms": 9, "above": 0.1, "below": 0.1, "ratio": 1.1,
        "wealth": 1e6, "limit": 300.0, "again": ("a", "b"),
    }  # fmt: skip
    both = alarm_note(Stream(kind=EXCHANGED, level="a100-80 and h100-80", **about))
    assert both.startswith("throughput of a100-80 and h100-80: the 1,200 new runs fall as if")
    assert "Check the GPU that they state, first of: a; b" in both
    assert "models withhold" in both
    one = alarm_note(Stream(kind="GPU kind", level="h100-80", **about))
    assert "Measure again: a; b" in one


def test_widths_alone_keep_every_median(home: Path) -> None:
    fitted(home)
    medians = _medians(home)
    store(home, site_runs(factor=1.5, loads=(8.0, 32.0)), at_s=NOW_S + 1)
    report = fitted(home, widths_only=True)
    assert report.promoted
    assert _medians(home) == pytest.approx(medians)
    again = fitted(home, widths_only=True)
    assert again.unchanged  # the same rows do not count twice


def _medians(home: Path) -> np.ndarray:
    advisor = Advisor(home)
    builder = ScenarioBuilder(advisor.catalog)
    asked = [builder.scenario(replace(r, source="")) for r in site_runs()]
    return advisor.model.predict(asked).values["output_tokens_per_s"][:, 1]


def test_an_edited_ledger_stops_fits_and_not_advice(home: Path) -> None:
    report = fitted(home)
    path = home / "bundles" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"rows":32', b'"rows":99', 1))
    with pytest.raises(StateError, match="line 1: it was changed"):
        fitted(home)
    assert Advisor(home).model.version == report.version


def test_a_cut_bundle_is_refused_in_words(home: Path) -> None:
    report = fitted(home)
    arrays = home / "bundles" / report.version / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:-100])
    with pytest.raises(OmniPilotError, match="restore it or fit again"):
        _ = Advisor(home).model


def of_an_earlier_version(home: Path) -> str:
    """Make the model that answers one that an earlier version of the program fitted."""
    registry = Registry(home)
    earlier = home / "bundles" / "0123456789ab"
    (home / "bundles" / registry.current).rename(earlier)
    with registry.ledger.locked():
        registry.move("promote", earlier.name, {"reason": ""}, at_s=NOW_S)
    path = earlier / "bundle.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "format": document["format"] - 1}))
    return earlier.name


def test_a_model_of_an_earlier_version_is_refused_in_words_and_fitted_anew(home: Path) -> None:
    fitted(home)
    old = of_an_earlier_version(home)
    with pytest.raises(StateError, match=r"earlier version of OmniPilot.*omnipilot fit"):
        _ = Advisor(home).model
    told = {m.version: m for m in use.listed(Advisor(home))}[old]
    assert (told.kind, told.answers) == ("older", True)
    assert "earlier version" in told.verdict
    report = fitted(home)
    assert report.verdict is not None
    assert report.verdict.promoted
    assert "base model stands for the incumbent" in report.verdict.reason
    assert Advisor(home).model.version == report.version != old
    assert Registry(home).rows(report.version) == Registry(home).rows(old)
    with pytest.raises(StateError, match="earlier version"):
        use.promote(Advisor(home), old, now_s=NOW_S, force=True)


def test_a_site_whose_rows_are_gone_leaves_a_model_of_an_earlier_version(home: Path) -> None:
    fitted(home)
    of_an_earlier_version(home)
    for path in home.glob("history.jsonl*"):
        path.unlink()
    fitted(home)
    assert Registry(home).current == ""
    assert Advisor(home).model.version


def test_two_fits_at_a_time_give_candidates_and_one_winner_by_the_rules(home: Path) -> None:
    fitted(home)
    store(home, site_runs(loads=(8.0, 32.0)), at_s=NOW_S + 1)
    reports: list[FitReport] = []
    widths = [False, True]
    threads = [
        Thread(target=lambda w=w: reports.append(fitted(home, widths_only=w))) for w in widths
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = use.history(Advisor(home))
    moves = [e for e in entries if e.event == "promote"]
    assert Registry(home).current == moves[-1].version
    # Each move names the version that answered when it was made: nobody's was overwritten unseen.
    assert [m.facts["before"] for m in moves] == ["", *[m.version for m in moves[:-1]]]
    assert len(reports) == 2


_CHILD = """
import sys, time
from pathlib import Path
from omnipilot.advisor import Advisor
from omnipilot.advisor.learning import FitOptions, fit_site
print("ready", flush=True)
fit_site(Advisor(Path(sys.argv[1])), FitOptions({}), now_s=1.7e9)
print("done", flush=True)
"""


def test_a_kill_at_any_moment_leaves_the_incumbent_answering_and_the_ledger_whole(
    home: Path,
) -> None:
    first = fitted(home)
    started_s = time.monotonic()
    fitted(home, dry_run=True)
    whole_s = time.monotonic() - started_s
    rng = np.random.default_rng(0)
    versions = set()
    for round_ in range(4):
        store(home, site_runs(loads=(8.0 + round_,)), at_s=NOW_S + 1 + round_)
        _killed_after(home, float(rng.uniform(0.3, 1.3)) * whole_s)
        advisor = Advisor(home)
        versions.add(advisor.model.version)
        entries = use.history(advisor)
        fits = {e.version for e in entries if e.event == "fit"}
        assert advisor.model.version in fits
        assert _answers(home)
    report = fitted(home)
    assert Advisor(home).model.version == (report.version or first.version)
    assert not [p for p in (home / "bundles").glob(".partial*") if p.name.endswith("-pointer")]


def _killed_after(home: Path, seconds: float) -> None:
    """Run a fit in a process of its own and kill it."""
    read, write = os.pipe()
    child = os.posix_spawn(
        sys.executable, [sys.executable, "-c", _CHILD, str(home)], os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read) as stream:
        assert stream.readline() == "ready\n"
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
