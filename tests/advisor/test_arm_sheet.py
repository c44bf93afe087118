"""What is kept of one advice for the next, and that no answer is older than what it rests on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import pytest
from stand_in import StandInModel, StandInPredictions

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.advisor import MOST_GROUPS, MOST_SHEETS
from omnipilot.advisor.answer_data import advice_data
from omnipilot.advisor.kept import Kept
from omnipilot.domain import ServingRequest
from omnipilot.domain.cluster import ClusterNode, ClusterState, GpuCount, Partition
from omnipilot.domain.scenario import SharedLoad

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from omnipilot.domain import Scenario

MODEL = "Qwen/Qwen2.5-7B-Instruct"
ASKED = Question(ServingRequest(MODEL, 200, 4096, 3072, 1024), ask_starts=False)


@dataclass
class Listening(StandInModel):
    """Keeps what it is asked."""

    heard: list[SharedLoad] = field(default_factory=list)

    def predict(self, scenarios: Sequence[Scenario]) -> StandInPredictions:
        assert isinstance(scenarios, SharedLoad)
        self.heard.append(scenarios)
        return super().predict(scenarios)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def advisor(home: Path) -> Advisor:
    return Advisor(home, model=StandInModel())


def fresh(advisor: Advisor, question: Question, top: int | None = None) -> bytes:
    """The answer of an advisor that was never asked before."""
    other = Advisor(advisor.home, model=StandInModel())
    return said(other, question, top)


def said(advisor: Advisor, question: Question, top: int | None = None) -> bytes:
    return msgspec.json.encode(advice_data(advisor.advise(question, top=top)))


def other(**changes: object) -> Question:
    return replace(ASKED, request=replace(ASKED.request, **changes))  # type: ignore[arg-type]


CHANGED = (
    other(concurrency=7),
    other(context_tokens=131_072),
    other(context_tokens=8192, prompt_tokens=100, output_tokens=10),
    other(duration_h=48.0),
    other(engine="sglang"),
    other(engine_version="0.6.3"),
    other(model_id="meta-llama/Llama-3.1-70B-Instruct"),
    replace(ASKED, gpus=("h100-80", "l40s-48")),
    replace(ASKED, precisions=("fp8",)),
    replace(ASKED, wait_cost_usd_per_h=9.0, weights={"compute": 2.0}),
)


@pytest.mark.parametrize("question", CHANGED)
def test_an_advisor_that_was_asked_before_answers_like_one_that_was_not(
    advisor: Advisor, question: Question
) -> None:
    for before in (ASKED, *CHANGED[:3]):
        advisor.advise(before)
    assert said(advisor, question) == fresh(advisor, question)
    assert said(advisor, question) == fresh(advisor, question)


def test_another_load_finds_the_arms_judged(advisor: Advisor) -> None:
    advisor.advise(ASKED)
    sheets = [advisor.sheets.get(key) for key in list(advisor.sheets)]
    advisor.advise(other(concurrency=3))
    assert [advisor.sheets.get(key) for key in list(advisor.sheets)] == sheets
    advisor.advise(other(context_tokens=8192))
    assert len(list(advisor.sheets)) == 2


def test_the_same_arms_are_one_group_to_the_cost_model_at_every_length(home: Path) -> None:
    model = Listening()
    advisor = Advisor(home, model=model)
    for length in (4096, 8192):
        advisor.advise(other(context_tokens=length))
    one, two = model.heard
    assert one.group is two.group
    assert (one[0].max_model_len, two[0].max_model_len) == (4096, 8192)


def test_only_so_many_sheets_and_groups_are_kept(advisor: Advisor) -> None:
    versions = [f"0.{minor}.{patch}" for minor in (8, 9, 10) for patch in range(20)]
    lengths = range(4096, 4096 + MOST_SHEETS + 5)
    for length, version in zip(lengths, itertools.cycle(versions), strict=False):
        question = other(context_tokens=length, engine_version=version)
        advisor.advise(replace(question, gpus=("h100-80",), precisions=("fp8",)))
    assert len(list(advisor.sheets)) == MOST_SHEETS
    assert len(list(advisor.groups)) == MOST_GROUPS


@pytest.mark.parametrize("top", [1, 3, 500])
def test_the_first_arms_are_those_of_the_whole_answer(advisor: Advisor, top: int) -> None:
    every = advisor.advise(ASKED).recommendation
    some = advisor.advise(ASKED, top=top).recommendation
    assert some.ranked == every.ranked[:top]
    assert replace(some, ranked=every.ranked) == every


def test_a_cluster_that_moved_moves_the_places(advisor: Advisor, tmp_path: Path) -> None:
    def state(used: int) -> Path:
        node = ClusterNode("n1", ("IDLE",), ("gpu",), (GpuCount("h100", 8, used),))
        path = tmp_path / f"{used}.json"
        path.write_bytes(msgspec.json.encode(ClusterState(1e9, (node,), (Partition("gpu"),))))
        return path

    free = replace(ASKED, state_file=state(0), now_s=1e9)
    full = replace(free, state_file=state(8))
    for question in (free, full, free, replace(free, request=replace(free.request, duration_h=9))):
        report = advisor.advise(question).cluster
        assert report is not None
        free_now = {o.place.free_now for o in report.arms.values() if o.place}
        assert free_now == {question is not full}
        assert said(advisor, question) == fresh(advisor, question)


def test_what_was_not_asked_for_longest_goes() -> None:
    kept: Kept[int] = Kept(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]
