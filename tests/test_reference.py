"""The reference is what the program's own tables say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnipilot.cli.app import COMMANDS
from omnipilot.collect import COLLECTORS
from omnipilot.costmodel.features import FEATURES
from omnipilot.costmodel.physics import PARAMETERS
from omnipilot.decide.utility import TERMS
from omnipilot.domain import TARGETS

if TYPE_CHECKING:
    from types import ModuleType

DOCS = Path(__file__).resolve().parents[1] / "docs"
USED = re.compile(r"^```\{omnipilot-table\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    for needed in ("sphinx", "fastapi"):
        pytest.importorskip(needed)
    spec = importlib.util.spec_from_file_location("reference_tables", DOCS / "reference_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference_tables"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["reference_tables"]
    return module


def test_every_table_stands_on_a_page_and_every_page_names_a_table(reference: ModuleType) -> None:
    named = [name for page in DOCS.glob("*.md") for name in USED.findall(page.read_text("utf-8"))]
    assert sorted(named) == sorted(reference.TABLES)


def test_every_table_has_a_cell_for_every_column(reference: ModuleType) -> None:
    for name, table in reference.TABLES.items():
        rows = [tuple(row) for row in table.rows()]
        assert rows, name
        assert {len(row) for row in rows} == {len(table.columns)}, name
        assert all(str(row[0]) for row in rows), name


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("targets", [t.name for t in TARGETS]),
        ("terms", [t.name for t in TERMS]),
        ("physics", [p.name for p in PARAMETERS]),
        ("features", [f.name for f in FEATURES]),
        ("collectors", [c.name.replace("_", "-") for c in COLLECTORS]),
        ("commands", [f"omnipilot {name}" for name in COMMANDS]),
    ],
)
def test_the_rows_are_the_entries_of_the_program_in_their_order(
    name: str, entries: list[str], reference: ModuleType
) -> None:
    lines = reference.markdown(reference.TABLES[name]).splitlines()[2:]
    assert [line.split("`")[1] for line in lines][: len(entries)] == entries


def test_every_endpoint_with_its_method_is_a_row(reference: ModuleType) -> None:
    from omnipilot.web.endpoints import ENDPOINTS  # noqa: PLC0415 - an extra

    rows = list(reference.TABLES["endpoints"].rows())
    assert [(row[0], row[1]) for row in rows] == [(e.method, f"`{e.path}`") for e in ENDPOINTS]
    assert all(row[3].endswith(".") for row in rows)
