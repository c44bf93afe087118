"""OmniPilot: which GPU kind, tensor parallel and precision to serve an LLM on, and how sure.

``Advisor``, ``Question``, ``ServingRequest`` and ``Slo`` are the Python API (docs/python-api.md);
they are imported when first asked for. Their types are in ``__init__.pyi``.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = [
    "Advice", "Advisor", "Launch", "Question", "ServingRequest", "Slo", "__version__",
]  # fmt: skip

_HOMES = {
    "Advice": "omnipilot.advisor", "Advisor": "omnipilot.advisor", "Launch": "omnipilot.advisor",
    "Question": "omnipilot.advisor", "ServingRequest": "omnipilot.domain",
    "Slo": "omnipilot.domain",
}  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import a name of the API when it is first used, so that the command line stays quick."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'omnipilot' has no attribute '{name}'")
    import importlib  # noqa: PLC0415 - not needed for the version

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """Names of the API."""
    return sorted(__all__)
