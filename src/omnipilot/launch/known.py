"""What the site's store knows already, so that it is not measured again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import UsageError
from omnipilot.domain.rows import InferenceRun
from omnipilot.store import Store, is_usable

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.catalog import Catalog
    from omnipilot.domain.model import ModelArch
    from omnipilot.domain.scenario import Scenario

__all__ = ["KnownRuns"]

# Failures that the same launch meets again; others (a lost link, a taken port) are worth a try.
_LASTING: Final = frozenset(("oom", "unsupported"))
_LENGTH_TOLERANCE_FRAC: Final = 0.1
_RELEASE: Final = re.compile(r"\d+\.\d+")

_Launch = tuple[str, str, int, str, str]


class KnownRuns:
    """Measured loads and lasting failures, by launch.

    A run answers a point of a grid where model, GPU kind, GPUs, precision and cache format are the
    same, the engine is of the same release (0.11) where both are told, and the load is.
    """

    def __init__(self) -> None:
        self._loads: dict[_Launch, list[InferenceRun]] = {}
        self._failures: dict[_Launch, list[InferenceRun]] = {}

    @classmethod
    def of_store(cls, home: Path, catalog: Catalog) -> KnownRuns:
        """Read the runs of a site.

        Raises:
            StateError: the store cannot be read.
        """
        known = cls()
        models: dict[str, ModelArch] = {}
        for stored in Store(home).rows():
            if isinstance(stored.row, InferenceRun):
                known.add(stored.row, catalog, models)
        return known

    def add(self, run: InferenceRun, catalog: Catalog, models: dict[str, ModelArch]) -> None:
        """Take one run in; one with names that the catalogue lacks is passed over.

        Args:
            run: the run.
            catalog: resolves its names.
            models: by name, filled in as it goes.
        """
        try:
            if run.model not in models:
                models[run.model] = catalog.model(run.model)
            model = models[run.model]
            kind = catalog.gpu(run.gpu, run.gpu_memory_gb or None).kind
            named = catalog.model_precision(run.precision, model) if run.precision else None
        except UsageError:
            return
        kv_dtype = run.kv_dtype or "auto"
        launch = (model.base_id, kind, run.n_gpus, named.name if named else "", kv_dtype)
        if is_usable(run) and run.labels:
            self._loads.setdefault(launch, []).append(run)
        elif run.status in _LASTING:
            self._failures.setdefault(launch, []).append(run)

    def answer(self, scenario: Scenario, base_id: str) -> str:
        """Say in words what is known of a point; "" where nothing is."""
        launch = (base_id, scenario.gpu.kind, scenario.n_gpus, scenario.precision.name,
                  scenario.kv_dtype)  # fmt: skip
        for run in self._failures.get(launch, ()):
            longer = run.max_model_len <= scenario.max_model_len
            if longer and _same_release(run, scenario):
                return f"failed here already ({run.notes or run.status})"
        for run in self._loads.get(launch, ()):
            if _same_load(run, scenario) and _same_release(run, scenario):
                return f"measured already by {run.source}"
        return ""


def _same_load(run: InferenceRun, scenario: Scenario) -> bool:
    return run.concurrency == scenario.concurrency and all(
        abs(a - b) <= _LENGTH_TOLERANCE_FRAC * b
        for a, b in (
            (run.prompt_tokens, scenario.prompt_tokens),
            (run.output_tokens, scenario.output_tokens),
        )
    )


def _same_release(run: InferenceRun, scenario: Scenario) -> bool:
    found = [_RELEASE.search(v) for v in (run.stack.engine_version, scenario.engine_version)]
    told = [match[0] for match in found if match]
    return len(told) < 2 or told[0] == told[1]
