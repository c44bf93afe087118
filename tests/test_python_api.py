"""The names that a program imports, and the examples of the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import omnipilot

ROOT = Path(__file__).resolve().parents[1]


def test_every_name_of_the_api_can_be_imported() -> None:
    for name in omnipilot.__all__:
        assert getattr(omnipilot, name)
    assert set(omnipilot.__all__) <= set(dir(omnipilot))


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="oracle"):
        _ = omnipilot.oracle  # type: ignore[attr-defined]


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, omnipilot; print([m for m in ('numpy', 'msgspec') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_five_lines_of_the_documentation_recommend(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    exec(compile(example, "python-api.md", "exec"), {})  # noqa: S102 - our own documentation
    assert "best of" in capsys.readouterr().out
