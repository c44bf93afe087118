"""Recommendations on record: shown again with their numbers, bounded, and never in the way."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.decisions import DECISIONS_NAME, remember, replay
from omnipilot.domain import ServingRequest
from omnipilot.domain.errors import StateError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = Question(
    ServingRequest("Qwen/Qwen2.5-7B-Instruct", 64, 4096, 3072, 1024), gpus=("h100-80", "l40s-48"),
    now_s=1_700_000_000.0,
)  # fmt: skip


def made(home: Path, question: Question = QUESTION) -> str:
    home.mkdir(exist_ok=True)
    advisor = Advisor(home)
    return remember(advisor, question, advisor.advise(question))


def test_a_recommendation_is_shown_again_with_its_numbers(tmp_path: Path) -> None:
    name = made(tmp_path)
    found = replay(Advisor(tmp_path), name[:8])
    advice = found.advisor.advise(found.question)
    assert found.differences(advice) == []
    assert found.changed == ()
    assert found.model_version == advice.recommendation.model_version


def test_the_settings_of_then_hold_whatever_they_are_now(tmp_path: Path) -> None:
    name = made(tmp_path)
    (tmp_path / "settings.toml").write_text("[price_usd_per_gpu_h]\nh100-80 = 99.0\n")
    found = replay(Advisor(tmp_path), name)
    assert found.differences(found.advisor.advise(found.question)) == []
    now = Advisor(tmp_path).advise(QUESTION)
    assert found.differences(now) != []


def test_a_changed_catalogue_is_told(tmp_path: Path) -> None:
    name = made(tmp_path)
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "mine.toml").write_text('[mine-80]\nlike = "h100-80"\n')
    assert "GPU kinds or models" in replay(Advisor(tmp_path), name).changed[0]


def test_an_edited_record_is_refused(tmp_path: Path) -> None:
    name = made(tmp_path)
    path = tmp_path / DECISIONS_NAME
    path.write_bytes(path.read_bytes().replace(b'"concurrency":64', b'"concurrency":65'))
    with pytest.raises(StateError, match="was changed"):
        replay(Advisor(tmp_path), name)


def test_an_unknown_name_is_told_and_an_empty_one_finds_nothing(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(UsageError, match="no recommendation on record begins with 'zz'"):
        replay(Advisor(tmp_path), "zz")
    with pytest.raises(UsageError):
        replay(Advisor(tmp_path / "none"), "")


def test_nothing_is_kept_without_a_folder_or_against_the_site_s_will(tmp_path: Path) -> None:
    advisor = Advisor(tmp_path / "none")
    assert remember(advisor, QUESTION, advisor.advise(QUESTION)) == ""
    assert not (tmp_path / "none").exists()
    (tmp_path / "settings.toml").write_text("decisions_kept = 0\n")
    assert made(tmp_path) == ""
    assert not (tmp_path / DECISIONS_NAME).exists()


def test_a_folder_that_cannot_be_written_does_not_stop_the_advice(tmp_path: Path) -> None:
    (tmp_path / DECISIONS_NAME).mkdir()
    assert made(tmp_path) == ""


def test_the_newest_are_kept(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("decisions_kept = 3\n")
    advisor = Advisor(tmp_path)
    advice = advisor.advise(QUESTION)
    asked = [replace(QUESTION, now_s=1e9 + i) for i in range(8)]
    names = [remember(advisor, question, advice) for question in asked]
    lines = (tmp_path / DECISIONS_NAME).read_text(encoding="utf-8").splitlines()
    kept = [json.loads(line)["id"] for line in lines]
    assert kept == names[-len(kept) :]
    assert 3 <= len(kept) < 6


def rewritten(home: Path, **facts: object) -> str:
    """Put other facts into the only record, as another version would have; its ID."""
    path = home / DECISIONS_NAME
    record = json.loads(path.read_text(encoding="utf-8"))
    record.pop("id")
    text = json.dumps(record | facts, sort_keys=True, separators=(",", ":"))
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    path.write_text(f'{{"id":"{name}",{text[1:]}\n', encoding="utf-8")
    return name


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"model_version": "000000000000"}, "is gone"),
        ({"answer": {"abstained": False}}, "another form"),
        ({"answer": {"ranked": [{"arm": "1x h100-80 bf16", "total_usd": None}]}}, "another form"),
        ({"settings": "old_setting = 1\n"}, "^the settings of then, line 1: unknown setting"),
    ],
)
def test_a_record_that_this_version_cannot_ask_again_is_told(
    facts: dict[str, object], said: str, tmp_path: Path
) -> None:
    made(tmp_path)
    with pytest.raises(StateError, match=said):
        replay(Advisor(tmp_path), rewritten(tmp_path, **facts))
