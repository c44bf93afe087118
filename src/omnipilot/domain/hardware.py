"""GPU kinds: what a part offers, in units."""

from __future__ import annotations

from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU kind (or MIG slice of one) as published by its vendor.

    ``memory_gib`` is what a framework can see (``torch.cuda`` total), below the marketing size.
    ``*_flops`` are dense peaks (no structured sparsity); 0.0 where the part has no such unit.
    ``link_bytes_per_s`` is one direction of one GPU's GPU-to-GPU link: NVLink or the vendor's
    fabric, PCIe where there is none.
    """

    kind: str
    name: str
    vendor: str
    architecture: str
    compute_capability: float
    memory_gib: float
    bandwidth_bytes_per_s: float
    bf16_flops: float
    fp16_flops: float
    fp8_flops: float
    fp4_flops: float
    int8_flops: float
    tdp_w: float
    link: str
    link_bytes_per_s: float
    source: str
    n_sms: int = 0
    form: str = ""
    parent: str = ""

    def __hash__(self) -> int:
        """By kind alone: GPUs are keys of caches that every answer looks into."""
        return hash(self.kind)

    @property
    def is_mig(self) -> bool:
        """True for a MIG slice, which cannot be combined by tensor parallelism."""
        return bool(self.parent)
