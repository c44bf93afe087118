"""Names of a package that are imported when first asked for, so that a command stays quick."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["on_demand"]


def on_demand(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Make a package's ``__getattr__``.

    Args:
        package: its full name.
        names: by module of the package.
    """
    homes = {name: module for module, group in names.items() for name in group}

    def get(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
