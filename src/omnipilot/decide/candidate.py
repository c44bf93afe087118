"""A feasible arm with everything that the decision needs to know about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.decide.economics import ArmCosts
from omnipilot.decide.priors import DEFAULT_SUCCESS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def costs_of(candidates: Sequence[Candidate]) -> ArmCosts:
    """Costs of all candidates as arrays (n_arms,)."""
    return ArmCosts(
        n_gpus=np.array([float(c.arm.tensor_parallel) for c in candidates]),
        price_usd_per_gpu_h=np.array([c.price_usd_per_gpu_h for c in candidates]),
        wait_h=np.array([c.wait_h for c in candidates]),
        launch_success=np.array([c.launch_success for c in candidates]),
    )
