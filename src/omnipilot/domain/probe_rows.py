"""Typed rows of training, of recovery after faults, and of probes of the hardware.

They are accepted, stored and listed; the inference advisor does not use them (PAPER, Stores).
"""

from __future__ import annotations

from dataclasses import field

from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.schema import SCHEMA_VERSION

__all__ = ["HardwareProbe", "RecoveryRun", "TrainingRun"]


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One measured (or failed) training run.

    Args:
        framework: the training program.
        parallelism: how the model was spread, in the site's words ("tp2,pp4,dp8").
        status: "ok", or "oom", "error", "crash", "preempted", "cancelled".
        labels: names of :data:`omnipilot.domain.labels.TRAINING_LABELS` to values.
        start_s: Unix seconds, 0 where not told, as ``end_s``.
    """

    source: str
    model: str
    framework: str
    gpu: str
    n_gpus: int
    precision: str
    status: str
    labels: dict[str, float]
    n_nodes: int = 0
    parallelism: str = ""
    sequence_tokens: int = 0
    global_batch: int = 0
    cluster: str = ""
    job_id: str = ""
    start_s: float = 0.0
    end_s: float = 0.0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "training_run"
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class RecoveryRun:
    """One interruption of a job and what it took to go on.

    Args:
        cause: "node_fail", "gpu_fault", "oom", "preempted", "time_limit", "crash" or "other".
        status: "recovered", "failed" or "abandoned".
        labels: names of :data:`omnipilot.domain.labels.RECOVERY_LABELS` to values.
        at_s: of the interruption, Unix seconds, 0 where not told.
    """

    source: str
    cause: str
    status: str
    gpu: str
    n_gpus: int
    labels: dict[str, float]
    cluster: str = ""
    job_id: str = ""
    at_s: float = 0.0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "recovery_run"
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class HardwareProbe:
    """One short test that fingerprints the hardware of a node.

    Args:
        probe: "node_admission" (may the node take jobs), "flop_utilization" (a baseline of what
            matrix products reach) or "checkpoint_throughput" (how fast state is written and read).
        status: "pass", "fail" or "error" (the probe itself did not run).
        labels: names of :data:`omnipilot.domain.labels.PROBE_LABELS` to values.
        host: node, "" where not told.
        at_s: Unix seconds, 0 where not told.
    """

    source: str
    probe: str
    status: str
    gpu: str
    n_gpus: int
    labels: dict[str, float]
    precision: str = ""
    host: str = ""
    cluster: str = ""
    at_s: float = 0.0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "hardware_probe"
    schema_version: int = SCHEMA_VERSION
