"""A promoted model, changed settings and a damaged folder, while requests run."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
from served_site import ASK, ROWS, Site, make_site
from stand_in import StandInModel

from omnipilot.advisor import Advisor
from omnipilot.domain import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def bundle_model(home: Path) -> StandInModel:
    """A stand-in whose version is what the site's bundle says."""
    document = home / "bundles" / "current" / "bundle.json"
    if not document.exists():
        return StandInModel()
    text = document.read_text(encoding="utf-8")
    if not text.startswith("{"):
        raise BundleError("the bundle is damaged: restore it or fit again")
    return StandInModel(version=json.loads(text)["version"])


def promote(home: Path, version: str) -> None:
    """Put a bundle in place as a promotion does: a folder of its own and a link that moves."""
    folder = home / "bundles" / version
    folder.mkdir(parents=True)
    (folder / "bundle.json").write_text(json.dumps({"version": version}), encoding="utf-8")
    link = home / "bundles" / f".{version}.link"
    link.symlink_to(folder.name)
    link.replace(home / "bundles" / "current")


@pytest.fixture
def clock() -> list[float]:
    return [1_700_000_000.0]


@pytest.fixture
def site(tmp_path: Path, clock: list[float]) -> Site:
    return make_site(
        tmp_path,
        clock=lambda: clock[0],
        open_advisor=lambda home: Advisor(home, model=bundle_model(home)),
    )


def version(site: Site) -> str:
    answer = site.client.post("/v1/advise", json=ASK)
    assert answer.status_code == 200
    found: str = answer.json()["model_version"]
    return found


def test_a_promoted_model_answers_without_a_restart(site: Site) -> None:
    assert version(site) == "stand-in"
    promote(site.home, "one")
    assert version(site) == "stand-in"
    assert site.service.keeper.look()
    assert version(site) == "one"
    assert site.client.get("/ready").json()["origin"] == "site"
    promote(site.home, "two")
    site.service.keeper.look()
    assert version(site) == "two"


def test_a_damaged_bundle_leaves_the_old_one_in_place_and_is_told_once(site: Site) -> None:
    promote(site.home, "one")
    site.service.keeper.look()
    bad = site.home / "bundles" / "current" / "bundle.json"
    bad.write_text("half", encoding="utf-8")
    for _ in range(3):
        assert not site.service.keeper.look()
    assert version(site) == "one"
    assert [x["event"] for x in site.lines()].count("reload refused") == 1
    assert site.service.metrics.value("omnipilot_reloads_total", "refused") == 1
    bad.write_text('{"version": "mended"}', encoding="utf-8")
    assert site.service.keeper.look()
    assert version(site) == "mended"


def test_changed_settings_are_taken_over_and_a_misspelt_one_is_not(site: Site) -> None:
    settings = site.home / "settings.toml"
    settings.write_text("value_usd_per_token = 0.001\n", encoding="utf-8")
    assert site.service.keeper.look()
    advisor = site.service.keeper.current.advisor
    assert advisor.settings.value_usd_per_token == 0.001
    settings.write_text("value_of_a_token = 1\n", encoding="utf-8")
    assert not site.service.keeper.look()
    assert site.service.keeper.current.advisor is advisor


def test_a_folder_that_vanishes_leaves_its_model_answering(site: Site) -> None:
    promote(site.home, "own")
    site.service.keeper.look()
    away = site.home.with_name("away")
    site.home.rename(away)
    assert not site.service.keeper.look()
    assert version(site) == "own"
    assert site.lines()[-2]["event"] == "reload refused"
    away.rename(site.home)
    site.service.keeper.look()
    assert version(site) == "own"


def test_nothing_changes_where_nothing_changed(site: Site) -> None:
    before = site.service.keeper.current
    assert not site.service.keeper.look()
    assert site.service.keeper.current is before


def test_the_cluster_is_read_anew_every_ten_seconds(site: Site, clock: list[float]) -> None:
    before = site.service.keeper.current
    clock[0] += 9.0
    assert not site.service.keeper.look()
    clock[0] += 1.5
    assert site.service.keeper.look()
    after = site.service.keeper.current
    assert after.now_s == clock[0]
    assert after.advisor.model is before.advisor.model
    # Nothing moved: answers given before hold on.
    assert after.serial == before.serial
    headers = {"content-type": "text/csv"} | site.token("writer", "write")
    assert site.client.post("/v1/rows", content=ROWS, headers=headers).json()["accepted"] == 1
    clock[0] += 10.5
    assert site.service.keeper.look()
    assert site.service.keeper.current.serial == before.serial + 1
    assert version(site) == "stand-in"


@pytest.fixture
def hammered(site: Site) -> Iterator[list[tuple[int, str]]]:
    """Requests from four threads while the test runs: statuses and versions."""
    seen: list[tuple[int, str]] = []
    stop = threading.Event()

    def hammer(seed: int) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            body = ASK | {"concurrency": 1 + (seed * 1000 + n) % 4000, "gpus": ["h100-80"]}
            answer = site.client.post("/v1/advise", json=body)
            seen.append((answer.status_code, answer.json().get("model_version", "")))

    threads = [threading.Thread(target=hammer, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    yield seen
    stop.set()
    for thread in threads:
        thread.join()
    assert {status for status, _ in seen} == {200}


def test_promotions_under_load_drop_no_request(site: Site, hammered: list[tuple[int, str]]) -> None:
    names = [f"v{i}" for i in range(5)]
    for name in names:
        seen = len(hammered)
        promote(site.home, name)
        site.service.keeper.look()
        while len(hammered) < seen + 12:
            threading.Event().wait(0.01)
    found = [v for _, v in hammered]
    assert {"stand-in", *names} >= set(found) >= set(names)
