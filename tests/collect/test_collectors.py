"""The table of collectors."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from omnipilot.collect import COLLECTOR_BY_NAME, COLLECTORS, CollectorEntry


@pytest.mark.parametrize("entry", COLLECTORS, ids=lambda entry: entry.name)
def test_every_collector_is_called_with_a_path_alone_and_is_documented(
    entry: CollectorEntry,
) -> None:
    first, *others = inspect.signature(entry.collect).parameters.values()
    assert first.name == "path"
    assert all(p.default is not p.empty and p.kind is p.KEYWORD_ONLY for p in others)
    assert "Raises:" in (entry.collect.__doc__ or "")
    assert entry.reads


@pytest.mark.parametrize("entry", COLLECTORS, ids=lambda entry: entry.name)
def test_every_collector_has_its_own_test_file(entry: CollectorEntry) -> None:
    module = entry.place.split(":")[0]
    assert (Path(__file__).parent / f"test_{module}.py").exists()


def test_names_are_unique() -> None:
    assert len(COLLECTOR_BY_NAME) == len(COLLECTORS)
