"""Typed rows of the stores."""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.probe_rows import HardwareProbe, RecoveryRun, TrainingRun
from omnipilot.domain.schema import SCHEMA_VERSION
from omnipilot.domain.telemetry_rows import GpuHealth, GpuSnapshot, GpuWindow

__all__ = [
    "SCHEMA_VERSION", "ClusterJob", "InferenceRun", "JobStatistics", "LabelledRun", "Row",
    "ServingWindow", "StartupRun",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class InferenceRun:
    """One measured (or failed) serving run, in the normalised columns.

    ``labels`` maps target names to values in the target's unit; a missing label is absent.
    ``status`` is "ok" or a failure class ("oom", "error", "unsupported", "crash"). ``n_gpus`` are
    those of all pipeline stages. ``engine_settings`` names the flags that differ from the engine's
    defaults, "" where none does: runs are of one kind where the text is the same.
    """

    source: str
    model: str
    engine: str
    gpu: str
    n_gpus: int
    precision: str
    mode: str
    status: str
    labels: dict[str, float]
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    concurrency: float = 0.0
    kv_dtype: str = ""
    max_model_len: int = 0
    gpu_memory_gb: float = 0.0
    attention_dp: bool = False
    workload: str = ""
    notes: str = ""
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    engine_settings: str = ""
    kind: str = "inference_run"
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """One serving run with what other tools told of it: its log, metrics, telemetry and job.

    Fields that :class:`InferenceRun` has mean the same here; the run takes part in learning in
    place of the bare one of hash ``run_hash``.

    Args:
        labels: of the run, then of the other sources, by the names of
            :mod:`omnipilot.domain.labels`.
        label_sources: what each label is from: "run", "log", "metrics", "dcgm" or "jobstats".
        label_weights: what each label counts, in [0, 1], by the time between it and the run.
        left_out: "source: reason" of what was given and does not belong to the run.
        job_id: as the scheduler shows it, "" where not told.
        serve_start_s: Unix seconds, 0 where not told, as ``serve_end_s``.
        run_hash: content hash of the bare run.
    """

    source: str
    model: str
    engine: str
    gpu: str
    n_gpus: int
    precision: str
    mode: str
    status: str
    labels: dict[str, float]
    label_sources: dict[str, str]
    label_weights: dict[str, float]
    run_hash: str
    left_out: tuple[str, ...] = ()
    cluster: str = ""
    job_id: str = ""
    serve_start_s: float = 0.0
    serve_end_s: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    concurrency: float = 0.0
    kv_dtype: str = ""
    max_model_len: int = 0
    gpu_memory_gb: float = 0.0
    attention_dp: bool = False
    workload: str = ""
    notes: str = ""
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    engine_settings: str = ""
    kind: str = "labelled_run"
    schema_version: int = SCHEMA_VERSION


# Not frozen, though nothing changes one: a harvest makes millions, and freezing takes five times
# as long as making.
@dataclass(slots=True, unsafe_hash=True)
class ClusterJob:
    """One ended run of one scheduler job; a requeued job has one row a run.

    Times are Unix seconds, 0 where there is none (``start_s`` of a job that never started).
    ``gpu`` is the kind as the site's scheduler names it: "" where untyped or without GPUs, kinds
    joined with "+" where there are several. GPUs are those allocated, or those requested where the
    job never started. Of people only keyed hashes are kept, of the job's name only its class.

    Args:
        job_id: as Slurm shows it: ``123``, ``123_4`` (array task), ``123+0`` (heterogeneous part),
            ``123_[5-9]`` (array tasks that never started).
        n_tasks: array tasks that this record stands for.
        state: Slurm's state of an ended job; ``ended_by`` tells for CANCELLED whether the "user"
            or the "system" (root) did it, "" where not told.
        exit_code: -1 where not told, as ``exit_signal`` and ``restarts``.
        job_class: "vllm" where the job's name looks like a vLLM server, "other", "" without a name.
        time_limit_s: 0 where unlimited or not told.
        jobstats: "ok" where the three tuples below are filled, else why not: "" (no record),
            "short", "none", "damaged", "oversized".
        gpu_utilization_frac: mean over the run, one a GPU, (n_gpus,).
        gpu_memory_used_gib: peak over the run, one a GPU, (n_gpus,).
        gpu_memory_total_gib: one a GPU, (n_gpus,).
    """

    source: str
    cluster: str
    job_id: str
    state: str
    gpu: str
    n_gpus: int
    raw_job_id: int = 0
    n_tasks: int = 1
    partition: str = ""
    user_hash: str = ""
    account_hash: str = ""
    job_class: str = ""
    ended_by: str = ""
    exit_code: int = -1
    exit_signal: int = -1
    restarts: int = -1
    submit_s: int = 0
    eligible_s: int = 0
    start_s: int = 0
    end_s: int = 0
    elapsed_s: int = 0
    time_limit_s: int = 0
    n_nodes: int = 0
    n_cpus: int = 0
    jobstats: str = ""
    gpu_utilization_frac: tuple[float, ...] = ()
    gpu_memory_used_gib: tuple[float, ...] = ()
    gpu_memory_total_gib: tuple[float, ...] = ()
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "cluster_job"
    schema_version: int = SCHEMA_VERSION

    @property
    def queue_wait_s(self) -> int | None:
        """Seconds from eligible to start; None where either is unknown or they are out of order.

        Counted from eligible, not from submission: a requeued job is held back on purpose first.
        """
        if 0 < self.eligible_s <= self.start_s:
            return self.start_s - self.eligible_s
        return None


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """What jobstats recorded of one job, apart from its accounting record.

    Args:
        job_id: "" where the source does not tell.
        elapsed_s: seconds that the job ran.
        n_nodes: nodes in the record.
        gpu_utilization_frac: mean over the run, one a GPU, (n_gpus,).
        gpu_memory_used_gib: peak over the run, one a GPU, (n_gpus,).
        gpu_memory_total_gib: one a GPU, (n_gpus,).
        n_cpus: over all nodes.
        cpu_seconds: CPU time over all nodes.
        memory_used_gib: sum over nodes of the peak main memory.
        memory_total_gib: sum over nodes of the main memory allotted.
    """

    source: str
    job_id: str
    elapsed_s: float
    n_nodes: int
    gpu_utilization_frac: tuple[float, ...] = ()
    gpu_memory_used_gib: tuple[float, ...] = ()
    gpu_memory_total_gib: tuple[float, ...] = ()
    n_cpus: int = 0
    cpu_seconds: float = 0.0
    memory_used_gib: float = 0.0
    memory_total_gib: float = 0.0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "job_statistics"
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class StartupRun:
    """One start of an engine, as its log tells it.

    ``labels`` maps names of :data:`omnipilot.domain.labels.STARTUP_LABELS` to values; what the
    log does not print is absent. No text of the log is kept, so no path and no user name.

    Args:
        n_gpus: GPUs of the deployment, 0 where not told, as the parallel sizes below.
        status: "ok" for a start that got ready (however it was stopped later), else the status
            that :data:`omnipilot.domain.labels.FAILURES` gives the failure.
        failure: class of the failure, "" for none.
        stage: how far the start came: "config", "weights", "profiling", "kv_cache",
            "graph_capture", "initialised", "ready".
        error_type: name of the exception that decided the class, "" for none.
        stopped: the server was told to stop, so that what follows in the log is no failure.
    """

    source: str
    model: str
    engine: str
    gpu: str
    n_gpus: int
    precision: str
    status: str
    labels: dict[str, float]
    failure: str = ""
    stage: str = ""
    error_type: str = ""
    stopped: bool = False
    tensor_parallel: int = 0
    pipeline_parallel: int = 0
    data_parallel: int = 0
    kv_dtype: str = ""
    max_model_len: int = 0
    memory_utilization_frac: float = 0.0
    gpu_memory_gb: float = 0.0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "startup_run"
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class ServingWindow:
    """What one model's engines counted over a window of serving.

    ``labels`` maps names of :data:`omnipilot.domain.labels.WINDOW_LABELS` to values; what the
    source does not tell is absent.

    Args:
        n_gpus: GPUs of the deployment, 0 where not told.
        n_engines: engines (data-parallel ranks) that the counts are sums of.
        n_snapshots: readings that the window consists of. With one, the counters span the life of
            the server; peaks are the largest values *seen*, so few readings see too little.
        start_s: begin of the window, Unix seconds, 0 where not told.
        end_s: end of the window, Unix seconds, 0 where not told.
    """

    source: str
    model: str
    engine: str
    gpu: str
    n_gpus: int
    precision: str
    labels: dict[str, float]
    n_engines: int = 1
    n_snapshots: int = 1
    start_s: float = 0.0
    end_s: float = 0.0
    kv_dtype: str = ""
    max_model_len: int = 0
    memory_utilization_frac: float = 0.0
    gpu_memory_gb: float = 0.0
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    kind: str = "serving_window"
    schema_version: int = SCHEMA_VERSION


Row: TypeAlias = (
    InferenceRun
    | LabelledRun
    | StartupRun
    | ServingWindow
    | ClusterJob
    | JobStatistics
    | GpuWindow
    | GpuHealth
    | GpuSnapshot
    | TrainingRun
    | RecoveryRun
    | HardwareProbe
)
