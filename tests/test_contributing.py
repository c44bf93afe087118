"""The worked examples of docs/contributing.md do what they say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from stand_in import StandInModel

from omnipilot.advisor import Advisor, Question
from omnipilot.catalog import engines, models, precisions
from omnipilot.domain import InferenceRun, ServingRequest

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


TARGET_CODE = """
import sys
from pathlib import Path
from omnipilot.domain import targets
from omnipilot.domain.targets import Target
(added,) = eval(compile(Path(sys.argv[1]).read_text(), "example", "eval"))
targets.TARGETS = (*targets.TARGETS, added)
from omnipilot.collect.csv_rows import collect_csv
from omnipilot.store.codec import encode_row
for row in collect_csv(Path(sys.argv[2])):
    encode_row(row)
    print(row.labels)
"""


def test_the_target_is_taken_in_from_its_column(tmp_path: Path) -> None:
    (tmp_path / "example").write_text(block("A target", "python"), encoding="utf-8")
    (tmp_path / "runs.csv").write_text(
        "source,model,engine,gpu,n_gpus,precision,isl,osl,concurrency,status,ttft_p99_ms\n"
        "site,m/7b,vllm,H100,1,bf16,512,128,8,ok,250\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", TARGET_CODE, str(tmp_path / "example"), str(tmp_path / "runs.csv")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "{'ttft_p99_s': 0.25}\n", done.stderr


def test_the_collector_is_called_by_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnipilot.collect import base, context  # noqa: PLC0415 - names of the example
    from omnipilot.domain.rejection import Rejection  # noqa: PLC0415 - same

    function, entry = re.findall(
        r"^```python\n(.*?)^```$",
        re.split(r"^### ", TEXT.split("### A collector")[1], flags=re.MULTILINE)[0],
        re.MULTILINE | re.DOTALL,
    )
    module = types.ModuleType("omnipilot.collect.acme")
    vars(module).update(
        Path=Path, Iterator=Iterator, InferenceRun=InferenceRun, Rejection=Rejection,
        RunContext=context.RunContext, NO_CONTEXT=context.NO_CONTEXT,
    )  # fmt: skip
    body = "    yield Rejection(1, context.source, 'example')\n"
    exec(compile(function + body, "example", "exec"), vars(module))  # noqa: S102 - our own page
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (added,) = eval(entry, vars(base))  # noqa: S307 - our own page
    collect = added.for_site(tmp_path, context.RunContext(source="lab"))
    assert list(collect(tmp_path / "any")) == [Rejection(1, "lab", "example")]


def test_every_property_that_was_broken_to_see_its_test_fail_is_still_there() -> None:
    spec = importlib.util.spec_from_file_location(
        "break_properties", ROOT / "benchmarks" / "break_properties.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    del sys.modules[spec.name]
    assert len(module.BREAKS) >= 20
    for broken in module.BREAKS:
        assert broken.old in (ROOT / broken.file).read_text(encoding="utf-8"), broken.name
        path, _, part = broken.test.partition("::")
        assert part in (ROOT / path).read_text(encoding="utf-8"), broken.name
        assert f"| {broken.breaks} |" in TEXT, broken.breaks


@pytest.mark.parametrize(
    "place", sorted(set(re.findall(r"`((?:src|tests|scripts|benchmarks)/[\w/.]+)`", TEXT)))
)
def test_every_place_that_an_example_names_is_there(place: str) -> None:
    if "test_acme" not in place:
        assert (ROOT / place).exists()


@pytest.mark.parametrize("tests", sorted(set(re.findall(r"`scripts/test (tests/[^`]+)`", TEXT))))
def test_every_test_that_an_example_names_is_there(tests: str) -> None:
    assert all((ROOT / name).exists() for name in tests.split())
