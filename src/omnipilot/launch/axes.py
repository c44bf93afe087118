"""Axes of a benchmark grid, and whether the cost model has a feature for each of them.

Rows that differ only in something that no feature shows look to the model like noise: they widen
every interval and teach nothing. So an axis must change some feature before rows with it are
collected (feature before data, PAPER §3.2.1). The check asks the featurizer itself: values of the
axis that give equal rows of the feature matrix are not told apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.costmodel.features import FeatureSpace
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.physics import START_LOG, evaluate
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from omnipilot.costmodel.fit_question import FitQuestion
    from omnipilot.domain.scenario import Scenario

__all__ = ["AXES", "Axis", "axis_value", "check_represented"]

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Axis:
    """A further axis of a grid: how a value of it changes the launch.

    Args:
        name: as the command line says it.
        parse: reads a value, raising ValueError.
        scenario_field: field of the question to the cost model; "" where it has none.
        fit_field: field of the launch that is judged and started.
        row_field: where a stored run keeps it; "" where it does not, so that it would be forgotten.
    """

    name: str
    parse: Callable[[str], Value]
    scenario_field: str
    fit_field: str
    row_field: str = ""

    def of_scenario(self, scenario: Scenario, value: Value) -> Scenario:
        """The scenario with a value of the axis; unchanged where it has no such field."""
        if not self.scenario_field:
            return scenario
        return replace(scenario, **{self.scenario_field: value})  # type: ignore[arg-type]

    def of_question(self, question: FitQuestion, value: Value) -> FitQuestion:
        """The launch with a value of the axis."""
        return replace(question, **{self.fit_field: value})  # type: ignore[arg-type]


def _yes(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("say true or false")
    return text.lower() == "true"


AXES: Final[Mapping[str, Axis]] = {
    axis.name: axis
    for axis in (
        Axis("kv_dtype", str, "kv_dtype", "kv_dtype", "kv_dtype"),
        Axis("max_num_seqs", int, "max_num_seqs", "max_num_seqs"),
        Axis("gpu_memory_utilization", float, "memory_utilization_frac", "gpu_memory_utilization"),
        Axis("engine_version", str, "engine_version", "engine_version", "stack.engine_version"),
        Axis("max_num_batched_tokens", int, "", "max_num_batched_tokens"),
        Axis("enforce_eager", _yes, "", "enforce_eager"),
    )
}


def axis_value(name: str, text: str) -> Value:
    """Read one value of a further axis.

    Raises:
        BadInputError: an axis that a launch does not have, or a value that is none.
    """
    axis = AXES.get(name)
    if axis is None:
        raise BadInputError(
            f"axis '{name[:60]}' is not represented in the cost model's features, so rows with it "
            "would teach it nothing: add it to the featurizer first (feature before data); "
            f"further axes that a launch has are {', '.join(AXES)}"
        )
    if axis.scenario_field and not axis.row_field:
        raise BadInputError(
            f"axis {name} has a feature, but a stored run does not keep it, so that its rows would "
            "be taken for ones with the default: give the row the field first (feature before data)"
        )
    try:
        return axis.parse(text)
    except ValueError as error:
        raise BadInputError(f"axis {name}: '{text[:60]}' cannot be read: {error}") from error


def check_represented(
    name: str, values: Sequence[Value], scenarios: Callable[[Value], Sequence[Scenario]]
) -> None:
    """Refuse an axis whose values the featurizer does not tell apart.

    Args:
        name: of the axis.
        values: at least two different values of it.
        scenarios: the grid's questions at one value of the axis, the same loads in the same order
            for each value.

    Raises:
        BadInputError: naming two values with equal features at every load.
    """
    groups = [list(scenarios(value)) for value in values]
    n = len(groups[0])
    frame = build_frame([scenario for group in groups for scenario in group])
    physics = evaluate(frame, np.tile(START_LOG, (frame.n, 1)))
    table = FeatureSpace.from_frame(frame).matrix(frame, physics).reshape(len(values), n, -1)
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            if np.array_equal(table[i], table[j]):
                raise BadInputError(
                    f"axis {name}: the cost model's features do not tell {values[i]} from "
                    f"{values[j]} at any load of the grid, so rows with it would teach it nothing: "
                    "add the axis to the featurizer first (feature before data), or leave it out"
                )
