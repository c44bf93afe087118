"""Predictions for a file of questions, in chunks: one answer a row, never a refusal to queue."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.advisor.asked_release import release_of_row
from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.collect import QUESTIONS, collect_csv
from omnipilot.domain import TARGET_NAMES, InferenceRun, UsageError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

    from omnipilot.advisor.predictor import Predictor
    from omnipilot.catalog import Catalog
    from omnipilot.domain import FitVerdict, Scenario
    from omnipilot.domain.feasibility import Verdict
    from omnipilot.domain.prediction import Confidence
    from omnipilot.domain.rejection import Rejection

CHUNK_ROWS: Final = 4096
DEFAULT_ENGINE: Final = "vllm"
POINTS: Final = ("q10", "q50", "q90", "lower", "upper")
COLUMNS: Final = tuple(f"{name}_{point}" for name in TARGET_NAMES for point in POINTS)
_CACHE_ENTRIES: Final = 100_000


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What is said of one row apart from its numbers.

    ``reason`` is empty where it fits and nothing in the row was read otherwise than it says.
    """

    verdict: Verdict
    supported: bool
    confidence: Confidence
    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers to consecutive rows.

    ``first_row`` counts data rows from 0; ``values`` has shape (n, n_targets · 5) in the order of
    ``COLUMNS``, NaN where there is no answer.
    """

    first_row: int
    verdicts: tuple[RowVerdict, ...]
    values: npt.NDArray[np.float64]


class RowPredictor:
    """Answers rows with a cost model, judging each distinct launch once.

    A launch that cannot start still gets the numbers it would have if it did, marked low: the
    verdict is a column of its own and the caller's to act on. Rows of the sources that the model
    learned as the site's own are questions of the site.
    """

    def __init__(
        self, catalog: Catalog, model: Predictor, judge: Callable[[Scenario], FitVerdict]
    ) -> None:
        card = getattr(model, "card", {})
        self._own = frozenset(card.get("site", {}).get("sources", ()))
        self._builder = ScenarioBuilder(catalog)
        self._model = model
        self._judge = judge
        self._verdicts: dict[tuple[object, ...], FitVerdict] = {}
        self._unknown: dict[tuple[object, ...], str] = {}

    def file(self, path: Path, chunk_rows: int = CHUNK_ROWS) -> Iterator[Batch]:
        """Answer every row of a CSV file of the normalised columns, in order.

        Raises:
            BadInputError: the file cannot be read or lacks columns.
        """
        items = collect_csv(path, use=QUESTIONS)
        first = 0
        while chunk := list(islice(items, chunk_rows)):
            yield self.batch(chunk, first)
            first += len(chunk)

    def batch(self, items: list[InferenceRun | Rejection], first_row: int) -> Batch:
        """Answer a list of rows."""
        verdicts: list[RowVerdict] = []
        scenarios: list[Scenario] = []
        index: list[int] = []
        for i, item in enumerate(items):
            resolved, note = self._resolve(item)
            if resolved is None:
                verdicts.append(RowVerdict("unknown", supported=False, confidence="low",
                                           reason=note))  # fmt: skip
                continue
            fit = self._fit(resolved)
            reason = "; ".join(filter(None, ("" if fit.verdict == "fits" else fit.reason, note)))
            verdicts.append(RowVerdict(fit.verdict, supported=False, confidence="low",
                                       reason=reason))  # fmt: skip
            scenarios.append(resolved)
            index.append(i)
        values = np.full((len(items), len(COLUMNS)), math.nan)
        if scenarios:
            out = self._model.predict(scenarios)
            values[index] = np.hstack([out.values[name] for name in TARGET_NAMES])
            values[~np.isfinite(values)] = math.nan
            for i, support in zip(index, out.support, strict=True):
                known = verdicts[i]
                if known.verdict in ("fits", "unknown"):
                    verdicts[i] = RowVerdict(
                        known.verdict, support.supported, support.confidence, known.reason
                    )
        return Batch(first_row, tuple(verdicts), values)

    def _resolve(self, item: InferenceRun | Rejection) -> tuple[Scenario | None, str]:
        """The question of a row, and what has to be said of it; None where it is none."""
        if not isinstance(item, InferenceRun):
            return None, f"line {item.line}: {item.reason}"
        if not item.engine:
            item = replace(item, engine=DEFAULT_ENGINE)
        if item.source in self._own:
            item = replace(item, source="")
        key = (item.model, item.gpu, item.gpu_memory_gb, item.precision)
        if key in self._unknown:
            return None, self._unknown[key]
        release = release_of_row(item.stack.engine_version, item.engine)
        if release.note:
            item = replace(item, stack=replace(item.stack, engine_version=release.version))
        try:
            return self._builder.scenario(item), release.note
        except UsageError as error:
            if len(self._unknown) < _CACHE_ENTRIES:
                self._unknown[key] = str(error)
            return None, str(error)

    def _fit(self, scenario: Scenario) -> FitVerdict:
        s = scenario
        length = s.max_model_len or math.ceil(s.prompt_tokens + s.output_tokens)
        key = (
            s.model.model_id, s.gpu.kind, s.precision.name, s.n_gpus, s.pipeline_parallel,
            s.kv_dtype, s.engine, s.engine_version, length,
        )  # fmt: skip
        fit = self._verdicts.get(key)
        if fit is None:
            fit = self._judge(scenario)
            if len(self._verdicts) < _CACHE_ENTRIES:
                self._verdicts[key] = fit
        return fit
