"""What an hour, a kWh and a broken promise cost, and how much each term of the utility counts."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.domain import UsageError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from omnipilot.domain import ServingRequest


@dataclass(frozen=True, slots=True)
class Economics:
    """Prices and limits that are the same for every arm of one request.

    The defaults suit an example; the advisor fills every field from the site's settings.

    ``kv_knee_frac`` is the KV-cache occupancy above which throughput is discounted and
    ``kv_floor`` the factor left at occupancy 1.0. A limit is None where the operator set none.

    Raises:
        UsageError: a value that is not finite or outside its range.
    """

    duration_h: float = 1.0
    value_per_token_usd: float = 2e-7
    pue: float = 1.3
    electricity_usd_per_kwh: float = 0.12
    carbon_kg_per_kwh: float = 0.4
    carbon_usd_per_kg: float = 0.0
    wait_cost_usd_per_h: float = 0.0
    slo_penalty_usd_per_h: float = 0.0
    lost_setup_h: float = 0.0
    kv_knee_frac: float = 0.85
    kv_floor: float = 0.5
    ttft_limit_s: float | None = None
    tpot_limit_s: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} must be a number of at least 0, got {value}")
        if self.duration_h <= 0:
            raise UsageError(f"duration_h must be above 0, got {self.duration_h}")
        for name in ("ttft_limit_s", "tpot_limit_s"):
            if getattr(self, name) == 0:
                raise UsageError(f"{name} must be above 0; leave it out for no limit")
        if self.pue < 1:
            raise UsageError(f"pue must be at least 1, got {self.pue}")
        for name in ("kv_knee_frac", "kv_floor"):
            if getattr(self, name) > 1:
                raise UsageError(f"{name} must be between 0 and 1, got {getattr(self, name)}")


def for_request(economics: Economics, request: ServingRequest) -> Economics:
    """Economics with the request's hours, and its limits where it sets any."""
    ttft_limit_s = request.slo.ttft_p50_s or economics.ttft_limit_s
    tpot_limit_s = request.slo.tpot_p50_s or economics.tpot_limit_s
    wanted = (request.duration_h, ttft_limit_s, tpot_limit_s)
    if wanted == (economics.duration_h, economics.ttft_limit_s, economics.tpot_limit_s):
        return economics
    return replace(
        economics,
        duration_h=request.duration_h,
        ttft_limit_s=ttft_limit_s,
        tpot_limit_s=tpot_limit_s,
    )


@dataclass(frozen=True, slots=True)
class DecisionWeights:
    """How much each term of the utility counts; 1 is its price, 0 leaves it out.

    One field for each entry of :data:`omnipilot.decide.utility.TERMS`.

    Raises:
        UsageError: a weight that is negative or not finite.
    """

    serving_value: float = 1.0
    kv_saturation: float = 1.0
    compute: float = 1.0
    queue: float = 1.0
    failure: float = 1.0
    slo: float = 1.0
    carbon: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"the weight of {name} must be at least 0, got {value}")


@dataclass(frozen=True, slots=True)
class ArmCosts:
    """What differs between arms apart from the predictions; every array has shape (n_arms,).

    ``wait_h`` is the expected queue wait in hours, ``launch_success`` the probability that one
    launch comes up.

    Raises:
        ValueError: a value that is not finite or outside its range.
    """

    n_gpus: npt.NDArray[np.float64]
    price_usd_per_gpu_h: npt.NDArray[np.float64]
    wait_h: npt.NDArray[np.float64]
    launch_success: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, low, high in _COST_RANGES:
            values = getattr(self, name)
            # Neither comparison is true of a NaN.
            if not ((values >= low).all() and (values <= min(high, _LARGEST)).all()):
                raise ValueError(f"{name} must be finite and within [{low:g}, {high:g}]")


_LARGEST: Final = sys.float_info.max
_COST_RANGES: Final = (
    ("n_gpus", 1.0, math.inf),
    ("price_usd_per_gpu_h", 0.0, math.inf),
    ("wait_h", 0.0, math.inf),
    ("launch_success", 0.0, 1.0),
)
