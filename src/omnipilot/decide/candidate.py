"""A feasible arm with everything that the decision needs to know about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.decide.economics import ArmCosts
from omnipilot.decide.priors import DEFAULT_SUCCESS
from omnipilot.decide.sampling import stack_predictions
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from omnipilot.domain import Arm, FitVerdict, SupportVerdict, TargetPrediction


@dataclass(frozen=True, slots=True)
class Candidate:
    """One arm that starts, with its predictions, support and costs.

    ``price_usd_per_gpu_h`` is the price of one GPU (or MIG slice) for an hour, ``wait_h`` the
    expected queue wait and ``launch_success`` the probability that a launch comes up.
    """

    arm: Arm
    fit: FitVerdict
    targets: Mapping[str, TargetPrediction]
    support: SupportVerdict
    price_usd_per_gpu_h: float
    wait_h: float = 0.0
    launch_success: float = DEFAULT_SUCCESS


@dataclass(frozen=True, slots=True)
class Columns:
    """What candidates are compared by, a row a candidate.

    ``predictions`` has an array (n_arms, 5) of q10, q50, q90, lower, upper for each sampled target;
    ``supported`` tells which are inside what was measured (n_arms,).
    """

    predictions: Mapping[str, npt.NDArray[np.float64]]
    costs: ArmCosts
    supported: npt.NDArray[np.bool_]


def columns_of(candidates: Sequence[Candidate]) -> Columns:
    """The columns of candidates that are at hand one by one."""
    return Columns(
        predictions=stack_predictions([c.targets for c in candidates]),
        costs=ArmCosts(
            n_gpus=np.array([float(c.arm.tensor_parallel) for c in candidates]),
            price_usd_per_gpu_h=np.array([c.price_usd_per_gpu_h for c in candidates]),
            wait_h=np.array([c.wait_h for c in candidates]),
            launch_success=np.array([c.launch_success for c in candidates]),
        ),
        supported=np.array([c.support.supported for c in candidates], dtype=bool),
    )
