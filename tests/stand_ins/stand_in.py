"""A cost model in round numbers, for tests of what stands above it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.envelope import Evidence
from omnipilot.domain import TARGET_BY_NAME, TARGET_NAMES, SupportVerdict, TargetPrediction

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from omnipilot.domain import Scenario

SPREAD = 1.25
PRIOR_ONLY = frozenset({"cold_start_s", "kv_cache_peak_frac"})


def median(scenario: Scenario, name: str) -> float:
    """Throughput is a tenth of the bandwidth in MB/s times GPUs, doubled by half the bytes."""
    speed = scenario.gpu.bandwidth_bytes_per_s / 1e8 * scenario.n_gpus
    speed *= 2.0 / scenario.precision.bytes_per_param
    return {
        "aggregate_tokens_per_s": speed,
        "output_tokens_per_s": speed / 4,
        "request_per_s": speed / 4 / max(scenario.output_tokens, 1),
        "ttft_p50_s": 1e4 / speed,
        "itl_p50_s": 1e2 / speed,
        "tpot_p50_s": 1e2 / speed,
        "cold_start_s": 60.0,
        "kv_cache_peak_frac": 0.5,
        "power_mean_w": 500.0 * scenario.n_gpus,
        "sm_active_frac": 0.5,
        "tensor_active_frac": 0.25,
    }[name]


@dataclass
class StandInPredictions:
    values: dict[str, NDArray[np.float64]]
    support: list[SupportVerdict]

    @property
    def supported(self) -> list[bool]:
        return [verdict.supported for verdict in self.support]

    def targets(self, i: int) -> dict[str, TargetPrediction]:
        return {name: self._target(i, name) for name in self.values}

    def _target(self, i: int, name: str) -> TargetPrediction:
        q10, q50, q90, lower, upper = self.values[name][i].tolist()
        source = "prior" if name in PRIOR_ONLY else "model"
        return TargetPrediction(
            q10, q50, q90, lower, upper, TARGET_BY_NAME[name].unit,
            source,  # type: ignore[arg-type]
        )  # fmt: skip


@dataclass
class StandInModel:
    """Knows the GPU kinds of ``measured``; all where it is None. Counts its questions."""

    measured: Collection[str] | None = None
    version: str = "stand-in"
    asked: list[int] = field(default_factory=list)

    def predict(self, scenarios: Sequence[Scenario]) -> StandInPredictions:
        self.asked.append(len(scenarios))
        values = {
            name: np.array([
                [m / SPREAD, m, m * SPREAD, m / SPREAD, m * SPREAD]
                for m in (median(s, name) for s in scenarios)
            ])
            for name in TARGET_NAMES
        }  # fmt: skip
        return StandInPredictions(values, [self._support(s) for s in scenarios])

    def _support(self, scenario: Scenario) -> SupportVerdict:
        if self.measured is None or scenario.gpu.kind in self.measured:
            return SupportVerdict(True, (), "seen", 0.1, "high")
        out = (f"GPU kind {scenario.gpu.kind} was never measured",)
        return SupportVerdict(False, out, "gpu", 2.0, "low")

    def evidence(self, scenario: Scenario, k: int) -> list[Evidence]:
        cell = Evidence(
            "round_numbers", scenario.model.base_id, scenario.gpu.kind, scenario.n_gpus,
            scenario.precision.name, 10, (1.0, 256.0), (1024.0, 4096.0), 0.5,
        )  # fmt: skip
        return [cell] * min(k, 2)
