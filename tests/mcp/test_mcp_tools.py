"""An agent's session with the tools, in this process and over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from stand_in import StandInModel

from mcp import Client, StdioServerParameters
from omnipilot.advisor import Advisor
from omnipilot.mcp.server import make_server
from omnipilot.mcp.site import Site

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

ASK = {"model": "Qwen/Qwen2.5-7B-Instruct", "concurrency": 200, "context_tokens": 4096}
READING = {"advise", "cluster", "explain", "fits", "probe", "script"}


def site_of(home: Path, measured: Collection[str] | None = None) -> Site:
    def opened(path: Path) -> Advisor:
        return Advisor(path, model=StandInModel(measured=measured))

    return Site(home, False, lambda: 1_700_000_000.0, opened)


def call(site: Site, name: str, arguments: dict[str, Any], *, allow_launch: bool = False) -> Any:
    """Call one tool in a session of its own."""

    async def session() -> Any:
        async with Client(make_server(site, allow_launch=allow_launch)) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(session())


def answer(site: Site, name: str, **more: Any) -> dict[str, Any]:
    result = call(site, name, ASK | more)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return site_of(tmp_path / "home")


def tools(site: Site, *, allow_launch: bool) -> list[Any]:
    async def session() -> list[Any]:
        async with Client(make_server(site, allow_launch=allow_launch)) as client:
            return (await client.list_tools()).tools

    return asyncio.run(session())


def test_every_tool_reads_unless_launching_was_allowed(site: Site) -> None:
    listed = tools(site, allow_launch=False)
    assert {tool.name for tool in listed} == READING
    assert all(tool.annotations.read_only_hint for tool in listed)
    more = {tool.name: tool for tool in tools(site, allow_launch=True)}
    assert set(more) == READING | {"launch"}
    assert not more["launch"].annotations.read_only_hint


def test_every_tool_says_what_it_takes_and_what_it_answers(site: Site) -> None:
    for tool in tools(site, allow_launch=True):
        assert tool.description
        assert tool.output_schema
        for name, schema in tool.input_schema["properties"].items():
            assert {"type", "anyOf"} & set(schema), (tool.name, name)


def test_advise_recommends_with_intervals(site: Site) -> None:
    found = answer(site, "advise", top=3)
    assert found["recommended"]
    assert found["headline"].startswith("Take ")
    assert len(found["ranked"]) == 3
    assert found["n_ranked"] > 3
    best = found["ranked"][0]["tokens_per_s"]
    assert best["low"] < best["median"] < best["high"]
    assert not found["ranked"][0]["slo_violation_prob"]


def test_an_abstention_tells_the_axis_the_fallback_and_the_probe(tmp_path: Path) -> None:
    site = site_of(tmp_path, measured=set())
    found = answer(site, "advise")
    assert not found["recommended"]
    assert found["violations"]
    assert found["fallback"].count(":") == 2
    assert found["probe"]


def test_probes_that_pay_are_planned_from_the_shipped_model(tmp_path: Path) -> None:
    shipped = Site(tmp_path, False, lambda: 1_700_000_000.0)
    found = answer(shipped, "probe", hours=24, concurrency=1000)
    assert found["needed"] == bool(found["probes"])
    # Several together may pay where the first alone does not.
    assert (found["utility_usd_with"] > found["utility_usd_without"]) == found["needed"]
    for planned in found["probes"]:
        assert planned["value_usd"] >= 0.0
        assert planned["cost_usd"] > 0.0


def test_explain_names_terms_evidence_and_other_loads(site: Site) -> None:
    found = answer(site, "explain")
    assert found["utility_terms"]["total_usd"] == found["ranked"][0]["utility_usd"]
    assert found["evidence"]
    assert len(found["other_loads"]) == 4


def test_fits_judges_one_configuration(site: Site) -> None:
    launch = {"model": "meta-llama/Llama-3.1-70B-Instruct", "gpu": "h100-80"}
    assert call(site, "fits", launch).structured_content["verdict"] == "oom"


def test_the_cluster_is_unknown_without_slurm(site: Site) -> None:
    assert call(site, "cluster", {}).structured_content["known"] is False


def test_a_script_is_told_and_nothing_is_written(site: Site) -> None:
    found = answer(site, "script", arm="h100-80:2:bf16")
    assert found["arm"] == "h100-80:2:bf16"
    assert found["script"].startswith("#!/bin/bash")
    assert not (site.home / "launches").exists()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("advise", {"model": "no/such"}, "no/such"),
        ("advise", {"concurrency": 0}, "greater than or equal to 1"),
        ("advise", {"gpus": ["warp-core"]}, "warp-core"),
        ("advise", {"precision": ["bf16"]}, "precision"),
        ("script", {"arm": "h100-80"}, "GPU:TP:PRECISION"),
        ("launch", {}, "launch"),
    ],
)
def test_what_cannot_be_answered_is_an_error_in_words(
    name: str, change: dict[str, Any], said: str, site: Site
) -> None:
    result = call(site, name, ASK | change)
    assert result.is_error
    assert said in result.content[0].text
    assert "Traceback" not in result.content[0].text


def test_settings_that_cannot_be_read_are_an_error_in_words(site: Site) -> None:
    site.home.mkdir(parents=True)
    (site.home / "settings.toml").write_text('pue = "high"\n', encoding="utf-8")
    for name in ("advise", "cluster", "explain", "script"):
        result = call(site, name, {} if name == "cluster" else ASK)
        assert result.is_error
        assert "pue must be a number" in result.content[0].text, name


def test_a_site_whose_settings_change_is_read_again(site: Site) -> None:
    before = site.advisor
    assert site.advisor is before
    site.home.mkdir(parents=True)
    (site.home / "settings.toml").write_text("value_usd_per_token = 0.001\n", encoding="utf-8")
    assert site.advisor is not before
    assert site.advisor.settings.value_usd_per_token == 0.001


def test_the_command_speaks_the_protocol_and_nothing_else_on_standard_output(
    tmp_path: Path,
) -> None:
    async def session() -> tuple[set[str], Any]:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "omnipilot", "mcp", "--home", str(tmp_path)],
            env={"OMNIPILOT_LIVE": "0", "PATH": os.environ["PATH"]},
        )  # fmt: skip
        async with Client(server) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            return names, await client.call_tool("advise", ASK)

    names, result = asyncio.run(session())
    assert names == READING
    assert result.structured_content["ranked"]
