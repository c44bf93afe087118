from __future__ import annotations

import csv
import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_rows import AGG, GPUS, MODELS, made, right_answers
from stand_in import StandInModel

from omnipilot.advisor import Advisor
from omnipilot.cli import app
from omnipilot.domain.errors import UnknownNameError, UsageError
from omnipilot.evaluate import decision_report, material
from omnipilot.evaluate.ablations import ABLATIONS, share_of_cells
from omnipilot.evaluate.decision_tables import TABLES
from omnipilot.evaluate.figures import FIGURES
from omnipilot.evaluate.holdout import HeldOut, Holdout
from omnipilot.evaluate.material import ArmFact, FanPoint, Material, SiteFacts
from omnipilot.evaluate.prices import PRICES_USD_PER_GPU_H
from omnipilot.evaluate.recalibration import RECALIBRATIONS, offset
from omnipilot.evaluate.report import NAMES, PAGE, make_report, write_report, written_as

if TYPE_CHECKING:
    from omnipilot.evaluate.figures import FigureEntry
    from omnipilot.evaluate.report import Report
    from omnipilot.evaluate.tables import TableEntry
    from omnipilot.learn.dataset import Dataset

PARTS: list[TableEntry | FigureEntry] = [*TABLES, *FIGURES]
SITE = SiteFacts(
    freshness_s={"queue": 60.0, "power": 3600.0},
    launches={"1x H100": (72.0, 100.0), "4x H100": (19.0, 50.0)},
    request="Qwen/Qwen2.5-7B-Instruct & others",
    command="omnipilot explain --model Qwen/Qwen2.5-7B-Instruct",
    arms=(
        ArmFact("1x h100-80 fp8", "h100-80", "fp8", 3.1, 9000.0, 4.0, True,
                {"serving_value": 7.1, "compute": -3.1}),
        ArmFact("1x a100-80 bf16", "a100-80", "bf16", 1.9, 4000.0, 1.5, True,
                {"serving_value": 3.4, "compute": -1.9}),
    ),
    fan_arm="1x h100-80 fp8",
    fan=tuple(FanPoint(n, 80.0 * n, 90.0 * n, 100.0 * n, 110.0 * n, 120.0 * n)
              for n in (1.0, 8.0, 64.0)),
)  # fmt: skip


def answer(dataset: Dataset, question: Holdout, *_: object) -> HeldOut:
    """Right answers for throughput; the made-up rows have no other label."""
    if question.target not in (AGG, "output_tokens_per_s"):
        raise UsageError("no such label")
    return right_answers(dataset, question, lambda _: None)


@pytest.fixture
def always_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decision_report, material):
        monkeypatch.setattr(module, "held_out", answer)
        monkeypatch.setattr(module, "is_kept", lambda *_: True)


def stuff(effort: str = "all") -> Material:
    return Material(
        dataset=made(), question=Holdout(AGG, "cell", ("alpha",)), prices=PRICES_USD_PER_GPU_H,
        value_per_token_usd=2e-7, home=None, effort=effort, site=SITE,
        words="--data rows --source alpha",
    )  # fmt: skip


def page(only: tuple[str, ...] = (), *, simulated: bool = False) -> Report:
    return make_report(
        stuff("kept"), title="A <report>", subtitle="rows", again="omnipilot report --out here",
        only=only, simulated=simulated,
    )  # fmt: skip


class Page(HTMLParser):
    """Ids, links and references of a page, and whether its tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.drawings = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        if tag not in {"meta", "line", "rect", "circle", "path"}:
            self.open.append(tag)
        self.ids += [of["id"] or ""] if "id" in of else []
        self.links += [of["href"] or ""] if tag == "a" else []
        self.loaded += [v or "" for k, v in attrs if k in {"src", "srcset"}]
        self.loaded += [tag] if tag in {"script", "link", "iframe", "img"} else []
        self.drawings += tag == "svg"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag, attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.usefixtures("always_right")
def test_the_page_is_whole_loads_nothing_and_links_every_part_to_its_command(
    tmp_path: Path,
) -> None:
    files = write_report(page(), tmp_path)
    text = (tmp_path / PAGE).read_text(encoding="utf-8")
    read = Page()
    read.feed(text)
    assert read.open == []
    assert read.loaded == []
    assert "http" not in text.replace("http-equiv", "")
    assert len(read.ids) == len(set(read.ids))
    local = [link for link in read.links if not link.startswith("#")]
    assert {link[1:] for link in read.links if link.startswith("#")} <= set(read.ids)
    assert {path.name for path in files} == {PAGE, *local}
    for entry in PARTS:
        assert f"command-{entry.name}" in read.ids
        assert f"#command-{entry.name}" in read.links
    assert read.drawings >= 10
    assert "A &lt;report&gt;" in text
    assert "omnipilot evaluate decision --data rows --source alpha\n" in text


@pytest.mark.usefixtures("always_right")
def test_every_part_is_made_or_says_why_not() -> None:
    made_report = page()
    assert [m.entry.name for m in made_report.tables] == [t.name for t in TABLES]
    missing = {m.entry.name: m.reason for m in made_report.tables if m.table is None}
    missing |= {m.entry.name: m.reason for m in made_report.figures if not m.drawings}
    assert missing == {"precision": "no cell measured two precisions on the same GPUs"}
    for table in made_report.tables:
        assert table.table is None or all(
            len(row) == len(table.table.columns) for row in table.table.rows
        ), table.entry.name


@pytest.mark.usefixtures("always_right")
def test_csv_files_hold_the_numbers_as_they_are(tmp_path: Path) -> None:
    write_report(page(("policies", "labels")), tmp_path)
    with (tmp_path / "policies.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["policy"] == "omnipilot"
    assert float(rows[0]["top-1"]) == 1.0
    assert int(rows[0]["cells"]) == 10
    with (tmp_path / "labels.csv").open(encoding="utf-8") as file:
        counts = {row["target"]: int(row["labelled rows"]) for row in csv.DictReader(file)}
    assert counts[AGG] == 30
    assert counts["ttft_p50_s"] == 0


@pytest.mark.usefixtures("always_right")
def test_a_simulated_site_says_so_on_the_page(tmp_path: Path) -> None:
    write_report(page(("labels",), simulated=True), tmp_path)
    assert "no figure on this page is a measurement" in (tmp_path / PAGE).read_text("utf-8")


@pytest.mark.usefixtures("always_right")
def test_an_unknown_part_and_a_folder_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no part 'sums': say one of policies"):
        page(("sums",))
    (tmp_path / "file").write_text("")
    report = page(("labels",))
    with pytest.raises(Exception, match="cannot be written"):
        write_report(report, tmp_path / "file" / "report")


def test_without_kept_answers_nothing_is_computed_and_the_report_says_how() -> None:
    made_report = make_report(
        stuff("kept"), title="t", subtitle="s", again="a", only=("policies", "regret", "labels")
    )
    reasons = {m.entry.name: m.reason for m in made_report.tables}
    assert reasons == {"policies": "not computed: report with --effort usual", "labels": ""}
    assert made_report.figures[0].reason == reasons["policies"]


@pytest.mark.usefixtures("always_right")
def test_the_page_opens_in_a_browser_without_errors(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser on PATH")
    write_report(page(), tmp_path)
    for width in (1280, 390):
        shown = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900",
             "--virtual-time-budget=2000", "--dump-dom", f"file://{tmp_path / PAGE}"],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert shown.returncode == 0
        assert 'id="commands"' in shown.stdout
        assert "CONSOLE" not in shown.stderr


def test_the_documentation_lists_every_part_of_a_report() -> None:
    text = (Path(__file__).parents[2] / "docs" / "decisions.md").read_text(encoding="utf-8")
    for entry in PARTS:
        assert f"| {entry.name} | {entry.title} | {entry.paper} |" in text
    assert len(NAMES) == len(set(NAMES))


def test_numbers_are_written_for_readers() -> None:
    assert written_as(None, "share") == written_as(float("nan"), "number") != "nan"
    assert written_as(1.0, "share") == "100.0 %"
    assert written_as(1_234_567.0, "number") == "1,234,567"


def test_each_ablation_hides_its_thing_and_leaves_the_rest() -> None:
    rows = made()
    for ablation in ABLATIONS:
        hidden = ablation.hide(rows)
        assert hidden.data.frame.n == rows.data.frame.n
        np.testing.assert_array_equal(hidden.data.cells, rows.data.cells)
        changed = [
            name for name, column in hidden.data.frame.columns.items()
            if not np.array_equal(column, rows.data.frame.columns[name])
        ]  # fmt: skip
        changed += [
            name for name, levels in hidden.data.frame.levels.items()
            if levels != rows.data.frame.levels[name]
        ]  # fmt: skip
        assert changed, ablation.name
        assert "source" not in changed
    quantisation = next(a for a in ABLATIONS if a.name == "quantisation").hide(rows)
    assert set(quantisation.data.frame["weight_bytes"]) == {2.0}


def test_a_share_of_cells_keeps_whole_cells() -> None:
    rows = made()
    half = share_of_cells(rows, 0.5)
    assert len(np.unique(half.data.cells)) == 5
    assert half.data.frame.n == 15


def test_calibration_on_the_same_cells_covers_the_nominal_share_and_raw_quantiles_need_not() -> (
    None
):
    rng = np.random.default_rng(0)
    y = rng.normal(size=1000)
    steps = np.array([-0.5, 0.0, 0.5, -3.0, 3.0])
    held = HeldOut(np.arange(1000), y, np.zeros((1000, 5)) + steps, y, np.full(1000, "high"), 5)
    cells = np.asarray([f"c{i % 50}" for i in range(1000)])
    random = replace(held, log=held.log + np.array([0.0, 0.0, 0.0, 2.0, -2.0]))
    found = {}
    for way in RECALIBRATIONS:
        low, high = way.interval(held, cells, random)
        found[way.name] = float(np.mean((y >= low) & (y <= high)))
    assert found["raw"] == pytest.approx(0.38, abs=0.05)
    assert found["grouped folds"] == pytest.approx(0.80, abs=0.005)
    assert found["random rows"] == pytest.approx(0.68, abs=0.05)
    assert found["nested"] == pytest.approx(0.80, abs=0.04)
    assert found["as shipped"] > 0.98
    assert offset(held) > 0


HEADER = (
    "source,model,engine,gpu,n_gpus,precision,isl,osl,concurrency,status,mode,agg_tok_s,out_tok_s"
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with 60 measured runs and a stand-in cost model."""
    lines = [HEADER]
    for m, model in enumerate(MODELS):
        for g, gpu in enumerate(GPUS):
            for load in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
                rate = 20.0 * load**0.5 * (g + 1) / (m + 1)
                lines.append(
                    f"here,{model},vllm,{gpu},1,bf16,512,128,{load},ok,online,{5 * rate},{rate}"
                )
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines) + "\n")
    home = tmp_path / "home"
    stand_in = StandInModel(measured=None)
    monkeypatch.setattr(Advisor, "model", property(lambda _: stand_in))
    assert app.run(["data", "import", str(file), "--home", str(home)]) == 0
    return home


@pytest.mark.usefixtures("always_right")
def test_backtest_decides_on_the_site_s_own_runs_at_its_prices(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    arguments = ["backtest", "--home", str(site), "--no-trees", "--format"]
    assert app.run([*arguments, "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cells"] == 20
    assert found["arms"] == 60  # the site's settings price every kind
    assert found["top1"] == 1.0
    assert app.run([*arguments, "table"]) == 0
    assert "20 decisions among 60 measured arms" in capsys.readouterr().out
    assert app.run([*arguments, "csv"]) == 0
    assert capsys.readouterr().out.startswith("point,policy,cells,top1,")


def test_a_site_with_no_or_few_runs_is_told_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["backtest", "--home", str(tmp_path / "none")]) == 2
    assert "omnipilot data import" in capsys.readouterr().err


@pytest.mark.usefixtures("always_right")
def test_the_report_command_writes_the_page_of_a_site(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my report"
    capsys.readouterr()
    arguments = ["report", "--home", str(site), "--out", str(out), "--effort", "kept"]
    assert app.run([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    why = {part["name"]: part["why_missing"] for part in found["parts"]}
    assert set(why) == set(NAMES)
    assert why["policies"] is None
    assert why["decision-space"] is None
    assert "no launches on record" in why["launches"]
    text = (out / PAGE).read_text(encoding="utf-8")
    assert "OmniPilot report of this site" in text
    assert f"--out {shlex.quote(str(out))} --effort kept" in unescape(text)
    assert app.run([*arguments, "--only", "sums"]) == 2


@pytest.mark.usefixtures("always_right")
def test_one_throughput_gives_the_answers_on_the_others() -> None:
    m = stuff("kept")
    held = m.cells
    output = m.as_target(held, AGG, "output_tokens_per_s")
    assert output is not None
    assert output.log[:, 1] == pytest.approx(output.y)
    assert m.as_target(held, AGG, "request_per_s") is None
    assert replace(held, n_folds=1).n_folds == 1
