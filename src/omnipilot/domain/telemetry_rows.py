"""Typed rows of GPU telemetry: averages over a job, health events, and readings of one moment."""

from __future__ import annotations

from dataclasses import field

from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.schema import SCHEMA_VERSION

__all__ = ["GpuHealth", "GpuSnapshot", "GpuWindow"]


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """Telemetry of one job's GPUs, over the time that it served and over all of its life.

    Both mappings go from names of :data:`omnipilot.domain.labels.GPU_LABELS` to values; what was
    not recorded is absent. Loading weights and waiting for requests drag the averages over the
    whole job down (PAPER, Telemetry), so only ``labels`` describe serving.

    Args:
        cluster: name of the cluster, "" where not told.
        job_id: as the scheduler shows it.
        gpu: GPU as the exporter names it, kinds joined with "+" where there are several.
        n_gpus: GPUs with readings in the job.
        labels: over [``serve_start_s``, ``serve_end_s``]; empty where the window is not known.
        job_labels: over [``start_s``, ``end_s``], all readings of the job.
        serve_start_s: Unix seconds, 0 where not told, as the times below.
        coverage_frac: readings in the serving window over those that its length and the usual
            step between readings lead one to expect, of the metric with the fewest; 1 at most.
        n_samples: readings in the serving window, of all metrics and GPUs.
        job_samples: readings in the job.
    """

    source: str
    job_id: str
    gpu: str
    n_gpus: int
    labels: dict[str, float]
    job_labels: dict[str, float]
    cluster: str = ""
    serve_start_s: float = 0.0
    serve_end_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    coverage_frac: float = 0.0
    n_samples: int = 0
    job_samples: int = 0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "gpu_window"
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One fault that a GPU reported.

    Args:
        host: node, as the exporter names it.
        gpu_uuid: the GPU, "" where not told.
        gpu: GPU as the exporter names it.
        event: name of :data:`omnipilot.domain.gpu_health.GPU_EVENTS`.
        code: XID number; 0 for other events.
        count: how many the counter tells, 0 for an XID (the exporter tells the last one only).
        severity: "hardware" (take the node out), "application" (the job's own doing) or "watch".
        job_id: the job on the GPU then, "" where there was none.
        first_s: first reading that showed it, Unix seconds, 0 where not told.
        last_s: last reading that showed it.
    """

    source: str
    host: str
    gpu_uuid: str
    gpu: str
    event: str
    severity: str
    code: int = 0
    count: int = 0
    cluster: str = ""
    job_id: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "gpu_health"
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """What all GPUs of one kind did at one moment.

    Args:
        gpu: GPU as the exporter names it.
        n_gpus: GPUs with a reading.
        n_hosts: nodes that they are in.
        n_busy: GPUs that a job held.
        n_faulty: GPUs with an event of severity "hardware".
        labels: as in :class:`GpuWindow`, over the GPUs.
        at_s: of the readings, Unix seconds, 0 where not told.
    """

    source: str
    gpu: str
    n_gpus: int
    labels: dict[str, float]
    n_hosts: int = 0
    n_busy: int = 0
    n_faulty: int = 0
    cluster: str = ""
    at_s: float = 0.0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "gpu_snapshot"
    schema_version: int = SCHEMA_VERSION
