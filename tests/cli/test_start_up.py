"""What a quick command must not load: imports are half of an answer's time."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--concurrency", "200", "--context", "4096")
ARM = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--gpu", "h100-80", "--tp", "1")
# Libraries that no answer needs: each takes from 10 ms to a second.
LIBRARIES = (
    "asyncio", "catboost", "concurrent.futures", "difflib", "duckdb", "email", "fastapi",
    "http.client", "importlib.metadata", "importlib.resources", "jinja2", "logging", "matplotlib",
    "mcp", "multiprocessing", "numpy.ctypeslib", "numpy.fft", "numpy.ma", "numpy.polynomial",
    "numpy.random", "numpy.testing", "pandas", "pyarrow", "pydantic", "rich", "scipy", "sklearn",
    "ssl", "starlette", "subprocess", "transformers", "urllib.request", "uvicorn",
)  # fmt: skip
# Parts of the program that answer other questions; what reads rows, on a site that has none; what
# asks Slurm, where there is none; what learns.
PARTS = (
    "omnipilot.advisor.explaining", "omnipilot.advisor.harvest", "omnipilot.advisor.prior",
    "omnipilot.collect.csv_rows", "omnipilot.collect.live", "omnipilot.costmodel.fit",
    "omnipilot.domain.rows", "omnipilot.evaluate", "omnipilot.learn.train", "omnipilot.mcp",
    "omnipilot.simulate", "omnipilot.store.codec", "omnipilot.web",
)  # fmt: skip
# An advice on a new site needs 115 modules of the program and 145 of Python 3.11.
MOST_OWN, MOST_STANDARD = 120, 170
CODE = """
import sys
from omnipilot.cli import app
code = app.run(sys.argv[1:])
print("loaded:", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def loaded(home: Path, *args: str) -> set[str]:
    """Modules that a command of a new site has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *args, "--home", str(home)],
        capture_output=True, text=True, check=True, env={**os.environ, "PATH": str(home)},
    )  # fmt: skip
    return set(done.stderr.rpartition("loaded:")[2].split())


def heavy(modules: set[str], names: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(m == name or m.startswith(f"{name}.") for m in modules)]


@pytest.mark.parametrize(
    "args",
    [
        ("advise", *QUESTION),
        ("advise", *QUESTION, "--format", "json"),
        ("advise", *QUESTION, "--format", "csv"),
        ("fits", *ARM),
    ],
    ids=lambda args: " ".join((args[0], *args[7:])),
)
def test_an_answer_loads_nothing_that_it_does_not_need(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    modules = loaded(tmp_path, *args)
    assert heavy(modules, LIBRARIES) == []
    assert heavy(modules, PARTS) == []


def test_an_advice_loads_no_more_modules_than_before(tmp_path: Path) -> None:
    modules = loaded(tmp_path, "advise", *QUESTION)
    roots = [name.partition(".")[0] for name in modules]
    assert roots.count("omnipilot") <= MOST_OWN
    assert sum(root in sys.stdlib_module_names for root in roots) <= MOST_STANDARD


@pytest.mark.parametrize("args", [("--help",), ("advise", "--help"), ("--version",)], ids=" ".join)
def test_help_loads_the_command_line_alone(args: tuple[str, ...]) -> None:
    code = f"{CODE.rstrip().rpartition(chr(10))[0]}\n"
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    )
    modules = set(done.stderr.rpartition("loaded:")[2].split())
    own = {name for name in modules if name.startswith("omnipilot.")}
    assert {name.split(".")[1] for name in own} == {"cli", "domain"}
    # Types with fields are built anew in every process, half a millisecond each.
    assert {name for name in own if name.startswith("omnipilot.domain.")} == {
        "omnipilot.domain.errors",
        "omnipilot.domain.on_demand",
    }
    assert heavy(modules, ("dataclasses", "msgspec", "numpy", *LIBRARIES)) == []


def test_importing_the_package_loads_nothing_of_it() -> None:
    code = "import sys, omnipilot; print(*sorted(m for m in sys.modules if 'omnipilot' in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["omnipilot"]


def test_the_arithmetic_of_fits_needs_no_arrays(tmp_path: Path) -> None:
    assert heavy(loaded(tmp_path, "fits", *ARM), ("numpy",)) == []


def test_what_is_looked_for_would_be_found(tmp_path: Path) -> None:
    modules = loaded(tmp_path, "advise", *QUESTION)
    assert heavy(modules, ("numpy", "omnipilot.costmodel", "no.such")) == [
        "numpy",
        "omnipilot.costmodel",
    ]
