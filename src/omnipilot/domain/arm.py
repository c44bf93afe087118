"""What can be launched."""

from __future__ import annotations

from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Arm:
    """One launch configuration on one node."""

    gpu_kind: str
    tensor_parallel: int
    precision: str
    engine: str = "vllm"
    memory_utilization_frac: float = 0.9

    @property
    def label(self) -> str:
        """Short form for tables, e.g. ``2x h100-80 fp8``."""
        return f"{self.tensor_parallel}x {self.gpu_kind} {self.precision}"

    @property
    def key(self) -> str:
        """As ``omnipilot launch --arm`` and addresses spell it, e.g. ``h100-80:2:fp8``."""
        return f"{self.gpu_kind}:{self.tensor_parallel}:{self.precision}"


@dataclass(frozen=True, slots=True)
class StackFingerprint:
    """The software under a measurement; empty where not recorded."""

    engine_version: str = ""
    cuda: str = ""
    driver: str = ""
    image_digest: str = ""
