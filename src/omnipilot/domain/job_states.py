"""Slurm's states of a job: job_state in slurm/slurm.h, by their names in ``man squeue``."""

from __future__ import annotations

from typing import Final

__all__ = ["ENDED_STATES", "LIVE_STATES"]

ENDED_STATES: Final = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REQUEUED", "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
LIVE_STATES: Final = frozenset(
    {
        "COMPLETING", "CONFIGURING", "EXPEDITING", "PENDING", "POWER_UP_NODE", "REQUEUE_FED",
        "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "RUNNING", "SIGNALING", "SPECIAL_EXIT",
        "STAGE_OUT", "STOPPED", "SUSPENDED", "UPDATE_DB",
    }
)  # fmt: skip
