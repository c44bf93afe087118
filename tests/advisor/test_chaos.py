"""The advice under random combinations of what may be missing or wrong around it.

200 combinations here; ``OMNIPILOT_CHAOS=1000`` asks for as many as are wanted.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest
from chaos import FAULTS, NOW_S, ChaosModel, Fault, Scene, fill_home

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.answer_data import advice_data, plain
from omnipilot.advisor.decisions import remember
from omnipilot.catalog import Catalog
from omnipilot.domain import BundleError, OmniPilotError, ServingRequest, Slo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omnipilot.advisor import Advice

COMBINATIONS = int(os.environ.get("OMNIPILOT_CHAOS", "200"))
SEED = 10
MOST_FAULTS = 5
BUNDLED = Catalog.load()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site whose digest is made."""
    home = tmp_path_factory.mktemp("chaos") / "home"
    fill_home(home)
    Advisor(home, model=ChaosModel()).digest(NOW_S)
    return home


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scene], None]:
    def put(scene: Scene) -> None:
        monkeypatch.setattr("omnipilot.collect.live.run_commands", scene.run_commands)
        monkeypatch.setattr("omnipilot.collect.programs.find_program", scene.find_program)

    return put


def question_in(scene: Scene) -> Question:
    slo = scene.rng.choice((Slo(), Slo(ttft_p50_s=1.0, tpot_p50_s=0.05)))
    request = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 200, 4096, 3072, 1024, slo=slo)
    gpus = scene.rng.choice(((), ("h100", "l40s"), ("h100", "b200")))
    return Question(request, live=True, gpus=gpus, now_s=scene.now_s, state_file=scene.state_file)


def check_numbers(advice: Advice) -> None:
    """Every number of the answer is one, and a probability is between 0 and 1."""
    for arm in advice.recommendation.ranked:
        terms = (arm.utility.total_usd, arm.utility.lower_usd, arm.utility.upper_usd)
        assert all(map(math.isfinite, (*terms, arm.usd_per_h))), arm
        assert 0.0 <= arm.slo_violation_prob <= 1.0
    assert advice.cluster is not None
    for outlook in advice.cluster.arms.values():
        assert 0.0 <= outlook.chance.probability <= 1.0
        assert 0.0 <= outlook.wait.expected_h < math.inf
        assert outlook.wait.note
        assert outlook.chance.note
    assert advice.cluster.age_s >= 0.0
    json.dumps(plain(advice_data(advice)), allow_nan=False)


def check_confidence(scene: Scene, question: Question, advice: Advice) -> None:
    """No label promises more than the evidence that is left."""
    model = scene.model
    assert isinstance(model, ChaosModel)
    slo = question.request.slo
    limited = slo.ttft_p50_s is not None and "ttft_p50_s" in model.prior_only
    for arm in advice.recommendation.ranked:
        unmeasured = model.measured is not None and arm.arm.gpu_kind not in model.measured
        if unmeasured or "aggregate_tokens_per_s" in model.prior_only:
            assert arm.confidence == "low", arm
        elif limited:
            assert arm.confidence != "high", arm
    known = {r.arm.gpu_kind for r in advice.recommendation.ranked}
    if known and model.measured is not None and known.isdisjoint(model.measured):
        assert advice.recommendation.abstention is not None


def ask(scene: Scene, faults: list[Fault]) -> None:
    """Ask once, and hold the answer or the refusal against the faults."""
    question = question_in(scene)
    refusals = [f.refuses for f in faults if f.refuses]
    try:
        advisor = Advisor(scene.home, model=scene.model)
        if not (scene.home / "gpus").exists():
            advisor.__dict__["catalog"] = BUNDLED  # half of the time would go into reading it
        advice = advisor.advise(question)
        remember(advisor, question, advice)
    except OmniPilotError as error:
        said = str(error)
        assert any(words in said for words in refusals), said
        assert "\n" not in said
        assert len(said) < 500
        return
    assert not refusals, "an answer, although it was to be refused"
    check_numbers(advice)
    check_confidence(scene, question, advice)
    for fault in faults:
        if fault.said is not None:
            notes = advice.cluster.notes if advice.cluster else ()
            assert fault.said(scene, advice), f"{fault.name} is not said: {notes}"


def chosen(rng: random.Random) -> list[Fault]:
    """One to five faults of different things."""
    taken: list[Fault] = []
    for fault in rng.sample(FAULTS, rng.randint(1, MOST_FAULTS)):
        if not any(set(fault.of) & set(t.of) for t in taken):
            taken.append(fault)
    return taken


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_each_fault_alone_is_said_or_refused(
    fault: Fault, template: Path, tmp_path: Path, stage: Callable[[Scene], None]
) -> None:
    home = shutil.copytree(template, tmp_path / "home")
    scene = Scene(home, random.Random(SEED))  # noqa: S311 - a repeatable draw
    fault.apply(scene)
    stage(scene)
    ask(scene, [fault])


def test_no_combination_of_faults_gives_a_traceback_or_a_silent_loss(
    template: Path, tmp_path: Path, stage: Callable[[Scene], None]
) -> None:
    for n in range(COMBINATIONS):
        rng = random.Random(f"{SEED}-{n}")  # noqa: S311 - a repeatable draw
        home = shutil.copytree(template, tmp_path / f"home-{n}")
        scene, faults = Scene(home, rng), chosen(rng)
        try:
            for fault in faults:
                fault.apply(scene)
            stage(scene)
            ask(scene, faults)
        except BaseException as error:
            error.add_note(f"combination {n}: {', '.join(f.name for f in faults)}")
            raise
        shutil.rmtree(home)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_without_the_shipped_model_there_is_a_refusal_and_no_guess(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnipilot.costmodel import bundle  # noqa: PLC0415 - patched here

    shipped = bundle.base_model_path()
    copy = tmp_path / "base"
    copy.mkdir()
    if damage != "gone":
        shutil.copy(shipped / "bundle.json", copy)
        data = bytearray((shipped / "arrays.npz").read_bytes())
        data[len(data) // 2] ^= 0xFF
        (copy / "arrays.npz").write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    monkeypatch.setattr(bundle, "base_model_path", lambda: copy)
    request = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 200, 4096, 3072, 1024)
    with pytest.raises(BundleError, match=r"fit|restore") as caught:
        Advisor(tmp_path / "home").advise(Question(request))
    assert "\n" not in str(caught.value)


def test_the_shipped_model_is_never_highly_confident_on_a_site_without_rows(tmp_path: Path) -> None:
    advisor = Advisor(tmp_path / "home")
    for model, concurrency in (("Qwen/Qwen2.5-7B-Instruct", 64), ("openai/gpt-oss-120b", 16)):
        request = ServingRequest(model, concurrency, 2048, 1024, 1024)
        ranked = advisor.advise(Question(request)).recommendation.ranked
        assert {arm.confidence for arm in ranked} <= {"low", "medium"}
