"""The cost model as its users see it: scenarios in, predictions with intervals out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omnipilot.costmodel.bundle import load_bundle
from omnipilot.costmodel.envelope import Evidence
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.prediction import TargetPrediction
from omnipilot.domain.targets import TARGET_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import Answers, FittedModel
    from omnipilot.domain.prediction import Source, SupportVerdict
    from omnipilot.domain.scenario import Scenario

__all__ = ["CostModel", "Evidence", "Prediction"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Answers to n scenarios.

    ``values`` maps a target to (n, 5): q10, q50, q90, lower, upper in the target's unit.
    """

    _answers: Answers
    _columns: dict[str, tuple[list[list[float]], str, Source, list[bool]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def values(self) -> dict[str, NDArray[np.float64]]:
        """Arrays (n, 5) by target."""
        return self._answers.values

    @property
    def source(self) -> dict[str, Source]:
        """By target: "model", or "prior" where no labelled row stands behind the answer."""
        return self._answers.source

    @property
    def crossed(self) -> dict[str, NDArray[np.bool_]]:
        """By target: whether the raw quantiles were out of order (n,)."""
        return self._answers.crossed

    @property
    def support(self) -> list[SupportVerdict]:
        """One verdict a scenario."""
        return self._answers.support

    def target_prediction(self, i: int, name: str) -> TargetPrediction:
        """One target of scenario ``i``."""
        column = self._columns.get(name)
        if column is None:  # lists are read ten times faster than arrays
            column = self._columns[name] = (
                self.values[name].tolist(), TARGET_BY_NAME[name].unit, self.source[name],
                self.crossed[name].tolist(),
            )  # fmt: skip
        rows, unit, source, crossed = column
        q10, q50, q90, lower, upper = rows[i]
        return TargetPrediction(q10, q50, q90, lower, upper, unit, source, crossed[i])


@dataclass(frozen=True, slots=True)
class CostModel:
    """A loaded bundle. ``version`` names it; ``card`` tells what it was fitted on."""

    fitted: FittedModel
    card: dict[str, Any]
    version: str

    @classmethod
    def load(cls, folder: Path) -> CostModel:
        """Load a bundle folder.

        Raises:
            BundleError: the bundle is missing, damaged or of another version.
        """
        return cls(*load_bundle(folder))

    def predict(self, scenarios: Sequence[Scenario]) -> Prediction:
        """Answer n scenarios on every target."""
        return Prediction(self.fitted.predict(build_frame(scenarios)))

    def evidence(self, scenario: Scenario, k: int = 5) -> list[Evidence]:
        """The ``k`` measured arms nearest to a scenario, nearest first."""
        return self.fitted.envelope.evidence(build_frame([scenario]), k)
