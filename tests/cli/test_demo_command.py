"""``omnipilot demo`` from the outside, on a site of few runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from omnipilot.cli import app, demo_steps
from omnipilot.simulate import site
from omnipilot.simulate.plan import PlannedRun, plan_runs

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from omnipilot.catalog import Catalog


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(facts: Catalog, rng: np.random.Generator) -> tuple[PlannedRun, ...]:
        return tuple(r for r in plan_runs(facts, rng) if r.cell.concurrency <= 64)[:12]

    monkeypatch.setattr(site, "plan_runs", few)


def test_the_demo_leaves_a_site_and_the_answer_of_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A dozen runs are too few to hold some out.
    needs_runs = {"backtest", "report"}
    steps = tuple(s for s in demo_steps.STEPS if s.name not in needs_runs)
    monkeypatch.setattr(demo_steps, "STEPS", steps)
    home = tmp_path / "site"
    code = app.run(["demo", "--home", str(home), "--jobs", "1000", "--format", "json"])
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert code == 0
    assert answer["simulated"] is True
    assert answer["jobs"] == 1000
    assert [s["name"] for s in answer["steps"]] == [s.name for s in demo_steps.STEPS]
    for step in answer["steps"]:
        assert (home / "demo" / f"{step['name']}.txt").read_text(encoding="utf-8").strip()
        assert str(home) in step["command"]
    assert (home / "digest.json").exists()
    assert "were digested" not in (home / "demo" / "advise-7b.txt").read_text(encoding="utf-8")
    assert "running the engines" in captured.err
    assert f"step 1 of {len(demo_steps.STEPS)}" in captured.err


def test_the_table_says_first_that_all_of_it_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_steps, "STEPS", demo_steps.STEPS[:1])
    assert app.run(["demo", "--home", str(tmp_path / "site"), "--jobs", "1000"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Simulated: no figure below is a measurement.")
    assert "omnipilot data stats --home" in out


def test_a_step_that_fails_is_told_and_makes_the_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = demo_steps.Step("bad", "A step that fails", ("advise", "--home", "{home}"))
    monkeypatch.setattr(demo_steps, "STEPS", (bad,))
    assert app.run(["demo", "--home", str(tmp_path / "site"), "--jobs", "1000"]) == 1
    assert "failed: omnipilot: error:" in capsys.readouterr().out


def test_a_folder_with_rows_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history.jsonl").write_text("")
    assert app.run(["demo", "--home", str(tmp_path), "--jobs", "1000"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
