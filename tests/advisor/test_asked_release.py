"""The engine's version in a question: read, refused, or taken for the newest known release."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from omnipilot.advisor import Advisor, Launch, Question
from omnipilot.advisor.asked_release import asked_release, release_of_row
from omnipilot.catalog.engines import engines
from omnipilot.cli import app
from omnipilot.domain import ServingRequest
from omnipilot.domain.errors import UnknownNameError

if TYPE_CHECKING:
    from omnipilot.advisor.question import Advice

MODEL = "Qwen/Qwen2.5-7B-Instruct"
NEWEST = ".".join(map(str, engines()["vllm"].latest))
UNREADABLE = ["abc", "99", "32", "v1", "2025.10.1"]
LATER = ["1.0.0", "99.0"]


def advised(version: str, engine: str = "vllm") -> Advice:
    request = ServingRequest(MODEL, 64, 4096, 3072, 1024, engine=engine, engine_version=version)
    return Advisor(Path("none")).advise(
        Question(request, gpus=("h100-80",), live=False, ask_starts=False)
    )


def figures(advice: Advice) -> list[Any]:
    return [
        (arm.arm.label, arm.utility.total_usd, sorted(arm.targets.items()))
        for arm in advice.recommendation.ranked
    ]


@pytest.mark.parametrize("version", ["", NEWEST, "latest", "nightly", *LATER])
def test_later_releases_are_answered_as_the_newest_and_that_is_said(version: str) -> None:
    advice = advised(version)
    assert figures(advice) == figures(advised(""))
    said = f"is newer than {NEWEST}, the newest known release: answered as that one."
    assert any(sentence.endswith(said) for sentence in advice.assumptions) is (version in LATER)


def test_another_spelling_of_a_release_is_the_same_release() -> None:
    assert figures(advised("vllm v0.6.3")) == figures(advised("0.6.3"))
    assert figures(advised("0.6.3")) != figures(advised(""))


def test_later_releases_of_other_engines_too_but_for_those_of_a_measured_line() -> None:
    assert figures(advised("1.0", "sglang")) == figures(advised("", "sglang"))
    assert asked_release("2.0.0", "trtllm").version == "1.1.0"
    assert asked_release("1.3.0", "trtllm").version == "1.3.0"  # rows of it are in the base model


@pytest.mark.parametrize("version", UNREADABLE)
@pytest.mark.parametrize("command", ["fits", "advise", "launch"])
def test_a_text_that_is_no_version_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, version: str
) -> None:
    rest = {
        "fits": ["--gpu", "h100-80"],
        "advise": ["--concurrency", "8", "--context", "4096", "--no-live"],
        "launch": ["--concurrency", "8", "--context", "4096", "--no-live", "--dry-run"],
    }[command]
    words = [command, "--model", MODEL, "--engine-version", version, "--home", str(tmp_path)]
    assert app.run([*words, *rest]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == (
        f"omnipilot: error: '{version}' is no version of vllm: say a release such as {NEWEST}, "
        "or latest"
    )


def test_fits_judges_a_later_release_as_the_newest_and_says_so() -> None:
    advisor = Advisor(Path("none"))
    newest, later = (
        advisor.fits(Launch(MODEL, "h100-80", engine_version=v)) for v in (NEWEST, "1.0.0")
    )
    assert later.assumptions[0].startswith(f"vllm 1.0.0 is newer than {NEWEST}")
    assert later.kv_gib_per_gpu == newest.kv_gib_per_gpu
    assert later.assumptions[1:] == newest.assumptions


def test_rows_of_a_later_or_unreadable_version_are_answered_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = ["", "abc", "99", NEWEST, "1.0.0", "0.6.3"]
    rows = tmp_path / "rows.csv"
    line = f"{MODEL},vllm,h100-80,1,bf16,512,256,16"
    rows.write_text(
        "model,engine,gpu,n_gpus,precision,isl,osl,concurrency,engine_version\n"
        + "".join(f"{line},{version}\n" for version in versions)
    )
    assert app.run(["predict", "--home", str(tmp_path), "--rows", str(rows)]) == 0
    answers = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    unknown, abc, bare, newest, later, older = (a["output_tokens_per_s_q50"] for a in answers)
    assert unknown == abc == bare
    assert newest == later
    assert len({unknown, newest, older}) == 3
    assert [a["verdict"] for a in answers] == ["fits"] * 6
    reasons = [a["reason"] for a in answers]
    assert reasons[0] == reasons[3] == reasons[5] == ""
    assert reasons[1] == "'abc' is no version of vllm: answered as a version not known"
    assert "answered as that one" in reasons[4]


def test_a_row_s_readable_version_stays_as_it_is_spelt() -> None:
    assert release_of_row("tensorrtllm0.7.1", "trtllm").version == "tensorrtllm0.7.1"
    with pytest.raises(UnknownNameError):
        asked_release("abc", "trtllm")
