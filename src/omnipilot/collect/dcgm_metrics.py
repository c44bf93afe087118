"""The metrics of NVIDIA's dcgm-exporter that are read, each with its label, scale and bounds.

Units: dcgm-exporter's default counters (power W, framebuffer MiB, profiling ratios 0-1, XID the
last number and no count). A reading at or above :data:`BLANK` is DCGM's "not recorded"
(``DCGM_FP64_BLANK`` of dcgm_structs.h; that of integers is larger).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "BLANK", "BLANK_INT32", "FAULTS", "FAULT_BY_METRIC", "GAUGES", "GAUGE_BY_METRIC", "JOB_METRIC",
    "METRICS", "Fault", "Gauge",
]  # fmt: skip

BLANK: Final = 140_737_488_355_328.0
BLANK_INT32: Final = range(2_147_483_632, 2_147_483_648)

# jobscope's exporter: the value is the number of the job that holds the GPU (0 for none).
JOB_METRIC: Final = "nvidia_gpu_jobId"


class Gauge(NamedTuple):
    """One metric that is averaged.

    ``label`` is its name in :data:`omnipilot.domain.labels.GPU_LABELS`, ``scale`` brings it to
    that unit, ``most`` is the largest reading that a GPU can give, ``peak`` a second label for
    the largest reading, ``summed`` tells that GPUs add up rather than average.
    """

    metric: str
    label: str
    scale: float
    most: float
    peak: str = ""
    summed: bool = False


class Fault(NamedTuple):
    """One metric that tells of faults; ``event`` is of :data:`omnipilot.domain.gpu_health`."""

    metric: str
    event: str
    most: float


# Ratios may be a little above 1: they are quotients of counters read one after the other.
_RATIO: Final = 1.05

GAUGES: Final[tuple[Gauge, ...]] = (
    Gauge("DCGM_FI_DEV_POWER_USAGE", "power_mean_w", 1.0, 10_000.0, summed=True),
    Gauge("DCGM_FI_PROF_SM_ACTIVE", "sm_active_frac", 1.0, _RATIO),
    Gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active_frac", 1.0, _RATIO),
    Gauge("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active_frac", 1.0, _RATIO),
    Gauge("DCGM_FI_DEV_GPU_UTIL", "gpu_utilization_frac", 0.01, 100.0),
    Gauge("DCGM_FI_DEV_FB_USED", "fb_used_mean_gib", 1 / 1024, 2.0**21, peak="fb_used_peak_gib"),
)
FAULTS: Final[tuple[Fault, ...]] = (
    Fault("DCGM_FI_DEV_XID_ERRORS", "xid", 9_999),
    Fault("DCGM_FI_DEV_ROW_REMAP_FAILURE", "row_remap_failure", 1e6),
    Fault("DCGM_FI_DEV_ROW_REMAP_PENDING", "row_remap_pending", 1e6),
    Fault("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows_remapped_uncorrectable", 1e6),
    Fault("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_double_bit", 1e12),
    Fault("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "ecc_double_bit_total", 1e12),
    Fault("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_single_bit", 1e12),
    Fault("DCGM_FI_DEV_RETIRED_DBE", "pages_retired_double_bit", 1e6),
)
GAUGE_BY_METRIC: Final = {g.metric: g for g in GAUGES}
FAULT_BY_METRIC: Final = {f.metric: f for f in FAULTS}
METRICS: Final = (*GAUGE_BY_METRIC, *FAULT_BY_METRIC, JOB_METRIC)
