"""The code is what ARCHITECTURE.md says of it, and holds nothing that nobody uses."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "omnipilot"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MODULES = sorted(SOURCE.rglob("*.py"))
WORD = re.compile(r"[A-Za-z_]\w*")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Called by name from outside: by click, httptools, asyncio and the standard library.
HOOKS: Final = frozenset({
    "data_received", "format_commands", "get_command", "list_commands", "on_chunk_header",
    "readinto",
})  # fmt: skip
# The exact form that the sampled worth of an observation is checked against.
CHECKS: Final = frozenset({"knowledge_gradient"})


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_its_purpose_in_one_sentence(path: Path) -> None:
    first = (ast.get_docstring(tree(path)) or "").split("\n\n")[0].replace("\n", " ")
    assert len(re.findall(r"[.!?](?= [A-Z]|$)", first)) == 1, first
    assert first[-1] in ".?"


def table_of_places() -> dict[str, str]:
    """Rows of "What lives where", by what stands in their first column."""
    rows = re.findall(r"^\| (`[^|]+`) \|(.*)\|$", TEXT, re.MULTILINE)
    return {place: rest for places, rest in rows for place in re.findall(r"`([a-z_]+)/?`", places)}


def test_every_package_is_in_the_table_and_the_table_names_nothing_else() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    alone = {"client", "settings"}
    data = {"base_model"}
    assert set(table_of_places()) == packages | alone | data
    assert all((SOURCE / f"{module}.py").is_file() for module in alone)


def test_every_package_is_in_the_drawing_of_the_layers() -> None:
    drawn = set(WORD.findall(re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)[0]))
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} <= drawn


@pytest.mark.parametrize(("place", "table"), [
    (place, table)
    for place, rest in table_of_places().items()
    for table in re.findall(r"one (?:entry )?of `([A-Z_]+)`", rest)
    + re.findall(r"entry of `([A-Z_]+)`", rest)
])  # fmt: skip
def test_a_table_to_add_to_is_where_it_is_said_to_be(place: str, table: str) -> None:
    files = (SOURCE / place).rglob("*.py") if (SOURCE / place).is_dir() else ()
    pairs = {p.strip("`/") for p in re.findall(r"\| (`[^|]+`) \|", TEXT) if place in p}
    together = [f for p in pairs for one in re.findall(r"[a-z_]+", p)
                for f in (SOURCE / one).rglob("*.py")]  # fmt: skip
    assert any(re.search(rf"^{table}\b", f.read_text("utf-8"), re.MULTILINE)
               for f in (*files, *together))  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z]+\.[a-z_]+)`", TEXT))))
def test_a_module_that_is_named_is_there(name: str) -> None:
    package, _, module = name.partition(".")
    if not (SOURCE / package).is_dir():
        pytest.skip(f"{name} is a file's name")
    if not (SOURCE / package / f"{module}.py").is_file():
        assert hasattr(importlib.import_module(f"omnipilot.{package}"), module)


def uses() -> Counter[str]:
    """How often each name is read in the sources; not where it is defined, exported or told of."""
    found: Counter[str] = Counter()
    for path in MODULES:
        told = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Module | Definition) and ast.get_docstring(node) is not None:
                told.add(node.body[0].value)  # type: ignore[attr-defined]
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                told.update(ast.walk(node.value))
        for node in ast.walk(tree(path)):
            match node:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                    found[name] += 1
                case ast.keyword(arg=str(name)):
                    found[name] += 1
                case ast.Constant(value=str(text)) if node not in told:
                    found.update(WORD.findall(text))
    return found


def test_every_function_and_class_is_used_outside_the_tests() -> None:
    others = [*SOURCE.rglob("*.html"), *(ROOT / "docs").glob("*.*"), *ROOT.glob("*.md")]
    used = uses()
    for path in others:
        used.update(WORD.findall(path.read_text(encoding="utf-8", errors="ignore")))
    idle = []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if not isinstance(node, Definition) or node.name.startswith("__"):
                continue
            registered = bool(node.decorator_list) and path.parent.name in {"cli", "mcp"}
            if not used[node.name] and not registered and node.name not in HOOKS | CHECKS:
                idle.append(f"{name_of(path)}:{node.lineno} {node.name}")
    assert idle == []
