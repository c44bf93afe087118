"""Templates to pages: every value is escaped, markup comes from the drawings alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from omnipilot import __version__

__all__ = ["FOLDER", "STATIC", "render"]

FOLDER: Final = Path(__file__).with_name("templates")
STATIC: Final = Path(__file__).with_name("static")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=select_autoescape(default=True),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    environment.globals["version"] = __version__
    return environment


def render(template: str, **values: Any) -> str:  # noqa: ANN401 - what a template takes
    """One page."""
    return _environment().get_template(template).render(**values)
