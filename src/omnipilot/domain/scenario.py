"""One question to the cost model, with catalogue facts resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch
    from omnipilot.domain.precision import PrecisionSpec

MODES = ("static", "online", "saturated", "lowlat", "poisson")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload on an arm.

    ``mode``: "static" (one batch, all start together), "online" (closed loop of ``concurrency``
    clients), "saturated" (the engine's batch limit kept full), "lowlat" (batch 1 first-token
    latency), "poisson" (open arrivals). ``prompt_tokens`` or ``concurrency`` is 0 where the source
    does not tell. ``memory_utilization_frac`` and ``max_num_seqs`` are 0 for the engine's default.
    ``source`` names the data set or site ("" for the requesting site itself).
    """

    model: ModelArch
    gpu: GpuSpec
    precision: PrecisionSpec
    n_gpus: int
    prompt_tokens: float
    output_tokens: float
    concurrency: float
    mode: str = "online"
    pipeline_parallel: int = 1
    kv_dtype: str = "auto"
    engine: str = "vllm"
    engine_version: str = ""
    memory_utilization_frac: float = 0.0
    max_num_seqs: int = 0
    max_model_len: int = 0
    attention_dp: bool = False
    source: str = ""
    workload: str = ""
