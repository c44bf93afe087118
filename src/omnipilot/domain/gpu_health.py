"""What GPU faults mean: events by name, and XID numbers by who has to act.

Sources: NVIDIA "XID Errors" (docs.nvidia.com/deploy/xid-errors), catalogue and common XIDs;
NVIDIA "GPU Memory Error Management" (row remapping and ECC).
"""

from __future__ import annotations

from typing import Final

from omnipilot.domain.frozen import dataclass

__all__ = ["GPU_EVENTS", "SEVERITIES", "GpuEvent", "xid_severity"]

# Who acts: the operator takes the node out, the job's owner mends the program, nobody yet.
SEVERITIES: Final = ("hardware", "application", "watch")


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """One class of faults; ``severity`` is "" where the XID's number decides it."""

    name: str
    severity: str
    meaning: str


GPU_EVENTS: Final[tuple[GpuEvent, ...]] = (
    GpuEvent("xid", "", "the driver reported an error, of the number told"),
    GpuEvent("row_remap_failure", "hardware", "a faulty memory row could not be replaced"),
    GpuEvent("row_remap_pending", "hardware", "a row is replaced at the GPU's next reset"),
    GpuEvent("rows_remapped_uncorrectable", "watch", "rows replaced after uncorrectable errors"),
    GpuEvent("ecc_double_bit", "hardware", "uncorrectable memory errors since the driver loaded"),
    GpuEvent("ecc_double_bit_total", "watch", "uncorrectable memory errors of the GPU's life"),
    GpuEvent("ecc_single_bit", "watch", "corrected memory errors since the driver loaded"),
    GpuEvent("pages_retired_double_bit", "watch", "pages retired after uncorrectable errors"),
)

_XID_HARDWARE: Final = frozenset(
    {
        48,  # double-bit ECC error
        62,  # internal micro-controller halt
        64,  # row remapper could not record a row
        74,  # NVLink error
        79,  # the GPU has fallen off the bus
        95,  # uncontained memory error
        119, # GSP does not answer
        120, # GSP error
        140, # unrecovered ECC error
    }
)  # fmt: skip
_XID_APPLICATION: Final = frozenset(
    {
        13,  # exception of the graphics engine: an access out of bounds, an illegal instruction
        31,  # memory page fault
        43,  # the GPU stopped processing one program
        45,  # clean-up after a program that was ended
    }
)  # fmt: skip


def xid_severity(number: int) -> str:
    """Say who has to act on an XID; "watch" for numbers that tell it only with others.

    Example:
        >>> [xid_severity(n) for n in (79, 31, 63)]
        ['hardware', 'application', 'watch']
    """
    if number in _XID_HARDWARE:
        return "hardware"
    return "application" if number in _XID_APPLICATION else "watch"
