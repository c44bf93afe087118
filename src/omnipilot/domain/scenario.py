"""One question to the cost model, with catalogue facts resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, overload

from omnipilot.domain.frozen import dataclass

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
    ``source`` names the data set or site ("" for the requesting site itself);
    ``engine_settings`` the flags that differ from the engine's defaults.
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
    expert_parallel: bool = False
    engine_settings: str = ""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ScenarioGroup:
    """Scenarios that are asked together, under one load after another.

    Two groups are never equal: who answers may keep beside a group what follows from its arms.
    """

    scenarios: tuple[Scenario, ...]

    def under(
        self,
        prompt_tokens: float,
        output_tokens: float,
        concurrency: float,
        max_model_len: int = 0,
    ) -> SharedLoad:
        """The group under one load; ``max_model_len`` 0 for the engine's default."""
        return SharedLoad(self, prompt_tokens, output_tokens, concurrency, max_model_len)


@dataclass(frozen=True, slots=True, eq=False)
class SharedLoad(Sequence[Scenario]):
    """The scenarios of a group, all under the same load; each is made when it is looked at."""

    group: ScenarioGroup
    prompt_tokens: float
    output_tokens: float
    concurrency: float
    max_model_len: int = 0

    @property
    def is_told(self) -> bool:
        """Whether every quantity of the load is known; 0 means that it is not."""
        return min(self.prompt_tokens, self.output_tokens, self.concurrency) > 0

    def __len__(self) -> int:
        """Number of scenarios."""
        return len(self.group.scenarios)

    @overload
    def __getitem__(self, index: int) -> Scenario: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scenario]: ...
    def __getitem__(self, index: int | slice) -> Scenario | list[Scenario]:
        """One scenario, or some."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return replace(
            self.group.scenarios[index],
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            concurrency=self.concurrency,
            max_model_len=self.max_model_len,
        )
