"""What the advisor asks of a cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from omnipilot.costmodel.predict import Evidence
    from omnipilot.domain import Scenario, SupportVerdict, TargetPrediction


class Predictions(Protocol):
    """Answers to n scenarios.

    ``values`` maps a target to an array (n, 5) of q10, q50, q90, lower, upper in its unit;
    ``support`` has one verdict a scenario, ``supported`` what each says first.
    """

    @property
    def values(self) -> Mapping[str, NDArray[np.float64]]:
        """Arrays (n, 5) by target."""
        ...

    @property
    def support(self) -> Sequence[SupportVerdict]:
        """One verdict a scenario."""
        ...

    @property
    def supported(self) -> Sequence[bool]:
        """Whether each scenario lies inside what was measured."""
        ...

    def targets(self, i: int, /) -> Mapping[str, TargetPrediction]:
        """Every target of scenario ``i``, by name."""
        ...


class Predictor(Protocol):
    """A cost model, or a stand-in for one in tests."""

    @property
    def version(self) -> str:
        """Digest of the bundle."""
        ...

    def predict(self, scenarios: Sequence[Scenario], /) -> Predictions:
        """Answer n scenarios."""
        ...

    def evidence(self, scenario: Scenario, /, k: int) -> Sequence[Evidence]:
        """The ``k`` measured cells nearest to a scenario, nearest first."""
        ...
