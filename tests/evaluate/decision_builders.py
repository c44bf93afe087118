"""Small made-up decisions with round numbers, shared by the tests of backtests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.arm import Arm
from omnipilot.evaluate.decision_cells import DecisionCell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

A100 = Arm("a100-40", 1, "bf16")
H100 = Arm("h100-80", 1, "bf16")
H100_FP8 = Arm("h100-80", 1, "fp8")
FOUR_H100 = Arm("h100-80", 4, "bf16")
PRICES = {"a100-40": 1.5, "h100-80": 3.0}
BANDWIDTH = {"a100-40": 1.555e12, "h100-80": 3.35e12}
BITS = {"bf16": 16.0, "fp16": 16.0, "fp8": 8.0}


def cell(
    arms: Sequence[Arm],
    measured: Sequence[float],
    predicted: Sequence[float] | None = None,
    *,
    name: str = "cell",
    group: str = "",
    model: str = "m",
    params: float = 7e9,
    load: float = 0.0,
    width: float = 0.0,
    latency: Mapping[str, tuple[float, ...]] | None = None,
) -> DecisionCell:
    """A decision; predictions are the measurements unless given, ``width`` their log half-width."""
    tokens = np.asarray(measured, dtype=float)
    middle = tokens if predicted is None else np.asarray(predicted, dtype=float)
    steps = np.exp(np.array([-width, 0.0, width, -width, width]))
    seconds = {k: np.asarray(v, dtype=float) for k, v in (latency or {}).items()}
    return DecisionCell(
        name=name, group=group or name, model=model, family="f", params=params, arms=tuple(arms),
        price_usd_per_gpu_h=np.array([PRICES[a.gpu_kind] for a in arms]),
        measured=tokens,
        predicted=middle[:, None] * steps,
        prior=middle,
        bits=np.array([BITS[a.precision] for a in arms]),
        bandwidth=np.array([BANDWIDTH[a.gpu_kind] for a in arms]),
        likeness=np.array([np.log(params), 0.0, load, 0.0, 0.0]),
        latency=seconds,
        latency_predicted={k: np.repeat(v[:, None], 5, axis=1) for k, v in seconds.items()},
        rows=tuple((i,) for i in range(len(arms))),
    )  # fmt: skip
