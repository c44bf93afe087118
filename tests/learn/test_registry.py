"""Versions and the pointer: atomic, repeatable, and settled after any kill."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from learn_builders import base

from omnipilot.domain.errors import BundleError, StateError, UsageError
from omnipilot.learn.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

NOW_S = 1_700_000_000.0


def card(name: str) -> dict[str, object]:
    return {"rows": 1, "name": name, "held_out": {}}


@pytest.fixture
def two(tmp_path: Path) -> tuple[Registry, str, str]:
    """A registry with two versions, the first one promoted."""
    registry = Registry(tmp_path)
    a = registry.add(base(), card("a"), {"h1": 1.0})
    b = registry.add(base(), card("b"), {"h1": 1.0, "h2": 0.5})
    with registry.ledger.locked():
        registry.move("promote", a, {}, at_s=NOW_S)
    return registry, a, b


def test_the_same_bundle_is_one_version(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    assert registry.add(base(), card("a"), {}) == registry.add(base(), card("a"), {})
    assert len(registry.versions()) == 1
    assert not list(registry.folder.glob(".partial*"))


def test_what_was_saved_is_loaded_with_its_rows(two: tuple[Registry, str, str]) -> None:
    registry, a, b = two
    model, found, version = registry.load(b[:6])
    assert (found["name"], version) == ("b", b)
    assert registry.rows(b) == {"h1": 1.0, "h2": 0.5}
    assert registry.rows("") == {}
    one, other = model.heads["ttft"], base().heads["ttft"]
    assert np.array_equal(one.layer.hyper.shared.sd, other.layer.hyper.shared.sd)
    assert a != b


def test_a_version_that_is_not_there_names_those_that_are(two: tuple[Registry, str, str]) -> None:
    registry, a, _ = two
    with pytest.raises(UsageError, match=a):
        registry.path("zzz")
    with pytest.raises(UsageError, match="omnipilot fit makes one"):
        Registry(registry.home / "none").path("a")


def test_the_pointer_follows_a_move_and_the_ledger_tells_what_was_before(
    two: tuple[Registry, str, str],
) -> None:
    registry, a, b = two
    assert registry.current == a
    with registry.ledger.locked():
        entry = registry.move("promote", b, {}, at_s=NOW_S)
    assert registry.current == b
    assert entry.facts["before"] == a
    assert (registry.folder / "current" / "bundle.json").is_file()


def test_a_move_that_was_cut_short_is_finished(two: tuple[Registry, str, str]) -> None:
    registry, a, b = two
    with registry.ledger.locked():
        registry.ledger.append("promote", b, {"before": a}, at_s=NOW_S)  # and then a kill
    assert registry.current == a
    with registry.ledger.locked():
        assert registry.settle() == b
    assert registry.current == b


def test_back_to_the_shipped_model_takes_the_pointer_away(two: tuple[Registry, str, str]) -> None:
    registry, _, _ = two
    with registry.ledger.locked():
        registry.move("rollback", "", {}, at_s=NOW_S)
    assert registry.current == ""
    assert not (registry.folder / "current").exists()


def test_an_exchanged_bundle_is_refused(two: tuple[Registry, str, str]) -> None:
    registry, a, b = two
    (registry.folder / b / "bundle.json").replace(registry.folder / a / "bundle.json")
    with pytest.raises(BundleError, match=r"digest|exchanged"):
        registry.load(a)
    with pytest.raises(BundleError):
        registry.load(b)


def test_a_folder_renamed_to_another_version_is_refused(two: tuple[Registry, str, str]) -> None:
    registry, a, b = two
    (registry.folder / a).rename(registry.folder / "old")
    (registry.folder / b).rename(registry.folder / a)
    with pytest.raises(BundleError, match="exchanged"):
        registry.load(a)


def test_damaged_rows_are_told(two: tuple[Registry, str, str]) -> None:
    registry, a, _ = two
    (registry.folder / a / "rows.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(BundleError, match=r"rows\.json"):
        registry.rows(a)


def test_a_pointer_that_is_a_folder_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "bundles" / "current").mkdir(parents=True)
    with pytest.raises(StateError, match="is a folder, not a pointer"):
        _ = Registry(tmp_path).current


def test_what_a_dead_process_left_behind_is_swept(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    dead = registry.folder / ".partial-999999999"
    dead.mkdir(parents=True)
    (dead / "bundle.json").write_text("", encoding="utf-8")
    living = registry.folder / f".partial-{os.getppid()}"
    living.mkdir()
    registry.add(base(), card("a"), {})
    assert not dead.exists()
    assert living.exists()
