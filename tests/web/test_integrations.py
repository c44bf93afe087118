"""Files for other programs name what the service really has."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from served_site import ASK, make_site

from omnipilot.advisor import Advisor
from omnipilot.cli.serve import serve
from omnipilot.web.endpoints import ENDPOINTS
from omnipilot.web.metrics import METRICS
from omnipilot.web.pages import PAGES
from omnipilot.web.problems import PROBLEMS

INTEGRATIONS = Path(__file__).resolve().parents[2] / "integrations"
SUFFIXES = ("_bucket", "_sum", "_count")


def test_every_query_of_the_dashboard_asks_for_a_metric_and_labels_that_there_are() -> None:
    board = json.loads((INTEGRATIONS / "grafana" / "omnipilot.json").read_text(encoding="utf-8"))
    known = {metric.name: {*metric.labels, "le", "instance"} for metric in METRICS}
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [note["expr"] for note in board["annotations"]["list"]]
    asked = set()
    for query in queries:
        for name, labels in re.findall(r"(omnipilot_\w+)(?:\{([^}]*)\})?", query):
            base = next((name[: -len(s)] for s in SUFFIXES if name.endswith(s)), name)
            assert base in known, query
            assert set(re.findall(r"(\w+)=~?", labels)) <= known[base], query
            asked.add(base)
        for group in re.findall(r"by \(([^)]*)\)", query):
            names = {label.strip() for label in group.split(",")}
            assert any(names <= labels for labels in known.values()), query
    assert asked >= {m.name for m in METRICS} - {
        "omnipilot_requests_in_flight", "omnipilot_answers_cached_total",
    }  # fmt: skip


def test_panels_have_their_own_numbers_and_do_not_overlap() -> None:
    board = json.loads((INTEGRATIONS / "grafana" / "omnipilot.json").read_text(encoding="utf-8"))
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def test_the_unit_and_the_container_start_the_service_with_options_that_there_are() -> None:
    unit = (INTEGRATIONS / "systemd" / "omnipilot.service").read_text(encoding="utf-8")
    container = (INTEGRATIONS / "container" / "Containerfile").read_text(encoding="utf-8")
    lines = [line.split(" serve ")[1] for line in unit.splitlines() if " serve " in line]
    lines.append(
        " ".join(json.loads(re.findall(r"^CMD (\[.*\])$", container, re.MULTILINE)[0])[1:])
    )
    assert len(lines) == 3
    for line in lines:
        context = click.Context(serve)
        _, left, _ = serve.make_parser(context).parse_args(shlex.split(line))
        assert left == []


def test_prometheus_s_own_checker_finds_no_fault_in_the_page(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine")
    site = make_site(tmp_path)
    site.client.post("/v1/advise", json=ASK)
    site.client.get("/nowhere")
    page = site.client.get("/metrics").text
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_documentation_has_every_address_refusal_and_metric_of_the_service() -> None:
    text = (INTEGRATIONS.parent / "docs" / "service.md").read_text(encoding="utf-8")
    for endpoint in ENDPOINTS:
        assert f"| `{endpoint.method} {endpoint.path}` |" in text
    for problem in PROBLEMS.values():
        assert problem.slug == "internal" or f"`{problem.slug}`" in text
    for metric in METRICS:
        assert f"| `{metric.name}`" in text
        assert f"| {metric.meaning} |" in text


@pytest.mark.parametrize(
    ("library", "command", "extra"), [("fastapi", "serve", "web"), ("mcp", "mcp", "mcp")]
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    library: str, command: str, extra: str
) -> None:
    code = (
        f"import sys; sys.modules['{library}'] = None\n"
        f"from omnipilot.cli.app import main; main(['{command}'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert f"omnipilot[{extra}]" in lines[0]


def test_every_page_is_made_from_the_base_model_on_a_fresh_machine(tmp_path: Path) -> None:
    site = make_site(tmp_path / "nothing-here", open_advisor=Advisor)
    query = {name: str(value) for name, value in ASK.items()} | {"precisions": "bf16"}
    for page in PAGES:
        answer = site.client.get(page.path, params=query)
        assert answer.status_code == 200, page.path
        assert "<h1" in answer.text
    assert site.service.metrics.value("omnipilot_requests_total", "/", "GET", "200") == 1
