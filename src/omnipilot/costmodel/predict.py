"""The cost model as its users see it: scenarios in, predictions with intervals out."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from omnipilot.costmodel.bundle import load_bundle
from omnipilot.costmodel.envelope import Evidence
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.prediction import TargetPrediction
from omnipilot.domain.scenario import ScenarioGroup, SharedLoad
from omnipilot.domain.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import Answers, FittedModel
    from omnipilot.costmodel.frame import Frame
    from omnipilot.domain.prediction import Source, SupportVerdict
    from omnipilot.domain.scenario import Scenario

__all__ = ["CostModel", "Evidence", "Prediction"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Answers to n scenarios.

    ``values`` maps a target to (n, 5): q10, q50, q90, lower, upper in the target's unit.
    """

    _answers: Answers

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
    def support(self) -> Sequence[SupportVerdict]:
        """One verdict a scenario."""
        return self._answers.support

    @property
    def supported(self) -> Sequence[bool]:
        """Whether each scenario lies inside what was measured."""
        return self._answers.support.supported

    def targets(self, i: int) -> dict[str, TargetPrediction]:
        """Every target of scenario ``i``, by name."""
        answers = self._answers
        rows, crossed = answers.table[:, i].tolist(), answers.out_of_order[:, i].tolist()
        source = answers.source
        return {
            target.name: TargetPrediction(
                q10, q50, q90, lower, upper, target.unit, source[target.name], is_crossed
            )
            for target, (q10, q50, q90, lower, upper), is_crossed in zip(
                TARGETS, rows, crossed, strict=True
            )
        }


@dataclass(frozen=True, slots=True)
class CostModel:
    """A loaded bundle. ``version`` names it; ``card`` tells what it was fitted on.

    ``frames`` holds the columns of groups of scenarios for as long as the groups are there.
    """

    fitted: FittedModel
    card: dict[str, Any]
    version: str
    frames: WeakKeyDictionary[ScenarioGroup, Frame] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    @classmethod
    def load(cls, folder: Path) -> CostModel:
        """Load a bundle folder.

        Raises:
            BundleError: the bundle is missing, damaged or of another version.
        """
        return cls(*load_bundle(folder))

    def predict(self, scenarios: Sequence[Scenario]) -> Prediction:
        """Answer n scenarios on every target."""
        return Prediction(self.fitted.predict(self._frame(scenarios)))

    def _frame(self, scenarios: Sequence[Scenario]) -> Frame:
        """Columns of n scenarios; of a group asked before, only its load is new."""
        if not isinstance(scenarios, SharedLoad):
            return build_frame(scenarios)
        if not scenarios.is_told:
            return build_frame(scenarios[:])
        frame = self.frames.get(scenarios.group)
        if frame is None:
            frame = replace(build_frame(scenarios[:]), kept={})
            self.frames[scenarios.group] = frame
        return frame.under(scenarios.prompt_tokens, scenarios.output_tokens, scenarios.concurrency)

    def evidence(self, scenario: Scenario, k: int = 5) -> list[Evidence]:
        """The ``k`` measured arms nearest to a scenario, nearest first."""
        return self.fitted.envelope.evidence(build_frame([scenario]), k)
