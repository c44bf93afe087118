"""The ledger and the cost models of a site, killed and unplugged at every call."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest
from crashing import Crash, crashes, refusals

from omnipilot.domain.errors import StateError
from omnipilot.learn import registry as registry_module
from omnipilot.learn.ledger import Ledger
from omnipilot.learn.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omnipilot.costmodel.fitted import FittedModel


def append_three(folder: Path, tell: Callable[[str], None]) -> None:
    ledger = Ledger(folder / "bundles")
    for n in range(1, 4):
        with ledger.locked():
            ledger.append("fit", f"v{n}", {"n": n}, at_s=float(n))
        tell(f"v{n}")


def place(crash: Crash) -> str:
    return f"call {crash.n}, {crash.call}"


def test_a_ledger_killed_or_unplugged_at_any_call_keeps_what_it_told(tmp_path: Path) -> None:
    for crash in crashes(tmp_path, append_three):
        for disk in (crash.killed, crash.unplugged):
            ledger = Ledger(disk / "bundles")
            found = [entry.version for entry in ledger.entries()]
            assert found[: len(crash.told)] == list(crash.told), place(crash)
            assert len(found) <= len(crash.told) + 1, place(crash)
            with ledger.locked():
                ledger.append("fit", "next", {}, at_s=9.0)
            assert [e.version for e in ledger.entries()] == [*found, "next"], place(crash)
    assert crash.told == ("v1", "v2", "v3")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_refused_call_leaves_a_ledger_that_verifies(tmp_path: Path, code: int) -> None:
    def program(folder: Path, tell: Callable[[str], None]) -> None:
        ledger = Ledger(folder / "bundles")
        for n in range(1, 4):
            try:
                with ledger.locked():
                    ledger.append("fit", f"v{n}", {"n": n}, at_s=float(n))
            except StateError as error:
                words = str(error)
                assert "\n" not in words
                continue
            tell(f"v{n}")

    for crash in refusals(tmp_path, program, error=code):
        found = [entry.version for entry in Ledger(crash.killed / "bundles").entries()]
        assert set(crash.told) <= set(found), place(crash)
        assert len(crash.told) >= 2, place(crash)


def save_stand_in(_model: FittedModel, folder: Path, card: dict[str, Any]) -> str:
    """Write two files as the cost model's own ``save_bundle`` does, without fitting anything."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("arrays.npz", "bundle.json"):
        partial = folder / f".{name}.partial"
        partial.write_text(f"{name} of {card['name']}", encoding="utf-8")
        partial.replace(folder / name)
    return str(card["name"])


def is_whole(registry: Registry, version: str) -> bool:
    folder = registry.folder / version
    return all(
        (folder / name).read_text(encoding="utf-8") == f"{name} of {version}"
        for name in ("arrays.npz", "bundle.json")
    ) and registry.rows(version) == {"row": 1.0}


def add(registry: Registry, version: str) -> None:
    model: Any = None
    registry.add(model, {"name": version}, {"row": 1.0})
    with registry.ledger.locked():
        registry.move("promote", version, {}, at_s=1.0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "save_bundle", save_stand_in)


@pytest.mark.usefixtures("stand_in")
def test_a_promotion_killed_or_unplugged_at_any_call_leaves_a_whole_model(tmp_path: Path) -> None:
    def program(folder: Path, tell: Callable[[str], None]) -> None:
        add(Registry(folder), "new")
        tell("new")

    for crash in crashes(tmp_path, program, before=lambda home: add(Registry(home), "old")):
        for disk in (crash.killed, crash.unplugged):
            registry = Registry(disk)
            answering = registry.current
            assert answering in (["new"] if crash.told else ["old", "new"]), place(crash)
            assert is_whole(registry, answering), place(crash)
            assert answering in {e.version for e in registry.ledger.entries()}, place(crash)
            for version in registry.versions():
                assert is_whole(registry, version), f"{version} at {place(crash)}"
            # The next command settles what was decided, sweeps, and can go on.
            with registry.ledger.locked():
                settled = registry.settle()
            assert settled == registry.ledger.entries()[-1].version
            assert is_whole(registry, settled), place(crash)
            add(registry, "next")
            assert registry.current == "next"
            assert not list(registry.folder.glob(".partial-*")), place(crash)


@pytest.mark.usefixtures("stand_in")
def test_a_promotion_whose_calls_are_refused_leaves_the_incumbent(tmp_path: Path) -> None:
    def program(folder: Path, tell: Callable[[str], None]) -> None:
        try:
            add(Registry(folder), "new")
        except (StateError, OSError):
            return
        tell("new")

    for crash in refusals(tmp_path, program, before=lambda home: add(Registry(home), "old")):
        registry = Registry(crash.killed)
        assert registry.current in (["new"] if crash.told else ["old", "new"]), place(crash)
        assert all(is_whole(registry, version) for version in registry.versions()), place(crash)
