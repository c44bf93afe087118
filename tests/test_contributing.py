"""The worked examples of docs/contributing.md do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from stand_in import StandInModel

from omnipilot.advisor import Advisor, Question
from omnipilot.catalog import engines, models, precisions
from omnipilot.domain import ServingRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
TEXT: Final = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
REQUEST: Final = ServingRequest("Qwen/Qwen2.5-7B-Instruct", 64, 4096, 3072, 1024)


def block(title: str, language: str) -> str:
    """The first block of that language under a heading."""
    section = re.split(rf"^### {re.escape(title)}", TEXT, flags=re.MULTILINE)[1]
    found = re.search(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


@pytest.fixture
def fresh_tables() -> Iterator[None]:
    """Tables are read once and kept: read them anew, and again after the test."""

    models._table.cache_clear()
    engines.engines.cache_clear()
    yield
    models._table.cache_clear()
    engines.engines.cache_clear()


def test_the_gpu_gets_arms_at_an_estimated_price(tmp_path: Path) -> None:
    text = block("A GPU kind", "toml")
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "acme.toml").write_text(text, encoding="utf-8")
    advisor = Advisor(tmp_path, model=StandInModel(measured={"h100-80"}))
    advice = advisor.advise(Question(REQUEST, gpus=("ACME Forge 64GB", "h100")))
    arms = [a for a in advice.recommendation.ranked if a.arm.gpu_kind == "acme-64"]
    assert arms
    assert {a.confidence for a in arms} == {"low"}
    assert advisor.settings.price_is_estimated(advisor.catalog.gpu("acme-64"))


def test_the_bundled_table_takes_the_gpu_s_text_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnipilot.catalog import gpus  # noqa: PLC0415 - patched here

    whole = tmp_path / "gpus.toml"
    whole.write_text(
        gpus.DATA_FILE.read_text(encoding="utf-8") + "\n" + block("A GPU kind", "toml")
    )
    monkeypatch.setattr(gpus, "DATA_FILE", whole)
    assert "acme-64" in {entry.spec.kind for entry in gpus.load_gpus()}


@pytest.mark.usefixtures("fresh_tables")
def test_the_model_has_the_size_that_its_publisher_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, line = block("A model", "text").splitlines()
    bundled = models.TABLE_FILE.read_text(encoding="utf-8")
    assert bundled.splitlines()[0] == header
    table = tmp_path / "models.csv"
    table.write_text(f"{bundled.rstrip()}\n{line}\n", encoding="utf-8")
    monkeypatch.setattr(models, "TABLE_FILE", table)
    models._table.cache_clear()
    arch = models.resolve_model("Forge 8B")
    assert arch.model_id == "acme/forge-8b"
    assert arch.total_params == pytest.approx(arch.published_params, rel=0.01)
    advice = Advisor(tmp_path, model=StandInModel()).advise(
        Question(ServingRequest("acme/forge-8b", 8, 4096, 3072, 1024), gpus=("h100",))
    )
    assert advice.recommendation.ranked


def test_the_precision_is_found_by_its_aliases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "precisions.toml"
    whole.write_text(
        precisions.DATA_FILE.read_text(encoding="utf-8") + "\n" + block("A precision", "toml")
    )
    monkeypatch.setattr(precisions, "DATA_FILE", whole)
    assert precisions.load_precisions().resolve("FP6 (E3M2)".replace("(", "").replace(")", ""))
    assert precisions.load_precisions().weights["fp6"].bytes_per_param == 0.75


@pytest.mark.usefixtures("fresh_tables")
def test_the_release_keeps_what_it_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engines.engines()["vllm"].eras[-1]
    for name in ("engines.toml", "launch_rules.toml"):
        text = (engines._DATA / name).read_text(encoding="utf-8")
        # An array of tables goes on where its table stands, so the example goes before the next.
        example = block("An engine, or a release", "toml")
        (tmp_path / name).write_text(text.replace("\n[sglang]\n", f"\n{example}\n[sglang]\n"))
    monkeypatch.setattr(engines, "_DATA", tmp_path)
    engines.engines.cache_clear()
    era = engines.engines()["vllm"].era((0, 99, 1), 9.0)
    assert (era.since, era.non_torch_gib) == ((0, 99, 0), 0.6)
    assert era.max_num_seqs == before.max_num_seqs


@pytest.mark.parametrize("place", sorted(set(re.findall(r"`((?:src|tests)/[\w/.]+)`", TEXT))))
def test_every_place_that_an_example_names_is_there(place: str) -> None:
    if "test_acme" not in place:
        assert (ROOT / place).exists()


@pytest.mark.parametrize("tests", sorted(set(re.findall(r"`scripts/test (tests/[^`]+)`", TEXT))))
def test_every_test_that_an_example_names_is_there(tests: str) -> None:
    assert all((ROOT / name).exists() for name in tests.split())
