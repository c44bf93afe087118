"""Number formats of weights."""

from __future__ import annotations

from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class PrecisionSpec:
    """One weight format.

    ``bytes_per_param`` includes scales and zero points. ``compute`` is the unit that multiplies:
    "bf16", "fp16", "fp8", "int8" or "fp4". ``embeddings_16bit``: embeddings and head stay 16 bit.
    ``effective_bits`` is the paper's monotone feature (bits stored per weight).
    ``experts_only``: the routed experts alone are in this format, all other weights in 16 bit.
    """

    name: str
    bytes_per_param: float
    effective_bits: float
    compute: str
    embeddings_16bit: bool
    group_size: int
    min_compute_capability: float
    source: str
    experts_only: bool = False

    def __hash__(self) -> int:
        """By name alone: formats are keys of caches that every answer looks into."""
        return hash(self.name)
