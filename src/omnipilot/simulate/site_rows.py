"""The rows that a simulated run leaves: the run itself, its job's statistics, telemetry, log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.labels import FAILURE_BY_NAME
from omnipilot.domain.rows import InferenceRun, JobStatistics, StartupRun
from omnipilot.domain.telemetry_rows import GpuSnapshot, GpuWindow
from omnipilot.simulate.jobs import CLUSTER, SOURCE

if TYPE_CHECKING:
    from omnipilot.domain.rows import Row
    from omnipilot.simulate.deployment import Deployment
    from omnipilot.simulate.jobs import History
    from omnipilot.simulate.measure import Measurement
    from omnipilot.simulate.plan import Cell

__all__ = ["ENGINE_VERSION", "SiteRun", "rows_of_run", "snapshots"]

ENGINE_VERSION: Final = "0.11.2"
_STACK: Final = StackFingerprint(
    engine_version=ENGINE_VERSION, cuda="12.8", driver="570.86", image_digest="simulated"
)
_IDLE_W: Final = {"ampere": 54.0, "hopper": 72.0}
_IDLE_W_ELSE: Final = 60.0
_READING_S: Final = 60.0
_READINGS_OF: Final = 6  # metrics that a telemetry window averages
_CPUS_PER_GPU: Final = 12
_NODE_GIB_PER_GPU: Final = 120.0
N_SNAPSHOTS: Final = 11
_SNAPSHOT_STEP_S: Final = 7 * 86400.0
_BUSY_W: Final = 310.0


@dataclass(frozen=True, slots=True)
class SiteRun:
    """One run as the site knows it; times in Unix seconds, those of its job."""

    cell: Cell
    deployment: Deployment
    result: Measurement
    job_id: str
    start_s: float
    end_s: float
    seed: int

    @property
    def serving_s(self) -> float:
        """Seconds of serving, 0 for a failed start."""
        return self.result.trace.seconds if self.result.trace is not None else 0.0


def rows_of_run(
    run: SiteRun, rng: np.random.Generator, *, with_statistics: bool, with_startup: bool
) -> list[Row]:
    """Give the rows of one run.

    Args:
        run: the run.
        rng: what telemetry's spread is drawn with.
        with_statistics: whether the scheduler kept the job's statistics.
        with_startup: whether the engine's log was kept.
    """
    rows: list[Row] = [_inference_run(run)]
    if run.result.trace is not None:
        rows.append(_window(run, rng))
    if with_statistics:
        rows.append(_statistics(run, rng))
    if with_startup:
        rows.append(_startup(run))
    return rows


def _inference_run(run: SiteRun) -> InferenceRun:
    deployment, failure = run.deployment, run.result.started.failure
    return InferenceRun(
        source=SOURCE,
        model=run.cell.model,
        engine="vllm",
        gpu=deployment.gpu.kind,
        n_gpus=deployment.tensor_parallel,
        precision=deployment.precision.name,
        mode="online",
        status=run.result.status,
        labels=run.result.labels,
        prompt_tokens=float(run.cell.prompt_tokens),
        output_tokens=float(run.cell.output_tokens),
        concurrency=float(run.cell.concurrency),
        kv_dtype="auto",
        max_model_len=run.cell.context_tokens,
        gpu_memory_gb=_marketing_gb(deployment),
        notes=f"simulated, seed {run.seed}, job {run.job_id}" + (f": {failure}" if failure else ""),
        stack=_STACK,
    )


def _startup(run: SiteRun) -> StartupRun:
    deployment, started = run.deployment, run.result.started
    status = FAILURE_BY_NAME[started.failure].status if started.failure else "ok"
    return StartupRun(
        source=SOURCE,
        model=run.cell.model,
        engine="vllm",
        gpu=deployment.gpu.kind,
        n_gpus=deployment.tensor_parallel,
        precision=deployment.precision.name,
        status=status,
        labels=started.labels,
        failure=started.failure,
        stage=started.stage,
        tensor_parallel=deployment.tensor_parallel,
        pipeline_parallel=1,
        data_parallel=1,
        kv_dtype="auto",
        max_model_len=run.cell.context_tokens,
        memory_utilization_frac=deployment.memory_utilization_frac,
        gpu_memory_gb=_marketing_gb(deployment),
        stack=_STACK,
    )


def _statistics(run: SiteRun, rng: np.random.Generator) -> JobStatistics:
    deployment, trace = run.deployment, run.result.trace
    n, total_gib = deployment.tensor_parallel, deployment.gpu.memory_gib
    elapsed_s = run.end_s - run.start_s
    if trace is None:
        used_gib = min(run.result.started.labels.get("weights_gib", 0.6), total_gib)
        busy_frac = 0.01
    else:
        used_gib = total_gib * deployment.memory_utilization_frac + 0.9
        busy_frac = trace.busy_s / elapsed_s
    each = np.clip(busy_frac * rng.normal(1.0, 0.02, n), 0.0, 1.0)
    loaded_gib = deployment.model.total_params * deployment.precision.bytes_per_param / 2**30
    return JobStatistics(
        source=SOURCE,
        job_id=run.job_id,
        elapsed_s=elapsed_s,
        n_nodes=1,
        gpu_utilization_frac=tuple(np.round(each, 3).tolist()),
        gpu_memory_used_gib=(round(used_gib, 2),) * n,
        gpu_memory_total_gib=(total_gib,) * n,
        n_cpus=_CPUS_PER_GPU * n,
        cpu_seconds=round(elapsed_s * (0.8 + 0.5 * n) * float(rng.uniform(0.9, 1.1)), 1),
        memory_used_gib=round(min(9.0 + 4.0 * n + 0.4 * loaded_gib, _NODE_GIB_PER_GPU * n), 2),
        memory_total_gib=_NODE_GIB_PER_GPU * n,
        stack=_STACK,
    )


def _window(run: SiteRun, rng: np.random.Generator) -> GpuWindow:
    """Telemetry over the serving window, and over the whole job, which idling drags down."""
    deployment, trace, labels = run.deployment, run.result.trace, run.result.labels
    if trace is None:
        raise ValueError("a failed start has no serving window")
    n = deployment.tensor_parallel
    serve_start_s = run.start_s + labels["cold_start_s"]
    elapsed_s = run.end_s - run.start_s
    served = run.serving_s / elapsed_s
    idle_w = n * _IDLE_W.get(deployment.gpu.architecture, _IDLE_W_ELSE)
    full_gib = deployment.gpu.memory_gib * deployment.memory_utilization_frac
    window = {
        "power_mean_w": labels["power_mean_w"] * float(rng.normal(1.0, 0.01)),
        "sm_active_frac": labels["sm_active_frac"],
        "tensor_active_frac": labels["tensor_active_frac"],
        "gpu_utilization_frac": min(trace.busy_s / trace.seconds, 1.0),
        "fb_used_mean_gib": full_gib,
        "fb_used_peak_gib": full_gib + 0.9,
    }
    return GpuWindow(
        source=SOURCE,
        job_id=run.job_id,
        gpu=deployment.gpu.name,
        n_gpus=n,
        labels=window,
        job_labels={
            "power_mean_w": served * window["power_mean_w"] + (1.0 - served) * idle_w,
            **{
                name: served * window[name]
                for name in ("sm_active_frac", "tensor_active_frac", "gpu_utilization_frac")
            },
            "fb_used_mean_gib": full_gib * (0.5 + 0.5 * served),
            "fb_used_peak_gib": full_gib + 0.9,
        },
        cluster=CLUSTER,
        serve_start_s=serve_start_s,
        serve_end_s=serve_start_s + run.serving_s,
        start_s=run.start_s,
        end_s=run.end_s,
        coverage_frac=1.0,
        n_samples=_READINGS_OF * n * max(int(run.serving_s / _READING_S), 1),
        job_samples=_READINGS_OF * n * max(int(elapsed_s / _READING_S), 1),
        stack=_STACK,
    )


def snapshots(history: History, rng: np.random.Generator) -> list[tuple[float, GpuSnapshot]]:
    """Give readings of whole pools, one after another week by week, with their times."""
    requests, outcome = history.requests, history.outcome
    last_s = float(outcome.end_s.max(initial=0.0))
    found = []
    for i in range(N_SNAPSHOTS):
        index = i % len(history.pools)
        pool = history.pools[index]
        at_s = last_s - (i // len(history.pools)) * _SNAPSHOT_STEP_S - float(rng.uniform(0, 3600))
        held = (requests.pool == index) & (outcome.start_s <= at_s) & (at_s < outcome.end_s)
        n_gpus = pool.n_nodes * pool.gpus_per_node
        n_busy = min(int(requests.n_gpus[held].sum()), n_gpus)
        busy_frac = n_busy / n_gpus
        snapshot = GpuSnapshot(
            source=SOURCE,
            gpu=pool.gpu,
            n_gpus=n_gpus,
            labels={
                "power_mean_w": n_busy * _BUSY_W + (n_gpus - n_busy) * _IDLE_W_ELSE,
                "gpu_utilization_frac": busy_frac * float(rng.uniform(0.55, 0.75)),
                "sm_active_frac": busy_frac * float(rng.uniform(0.3, 0.5)),
            },
            n_hosts=pool.n_nodes,
            n_busy=n_busy,
            cluster=CLUSTER,
            at_s=at_s,
            stack=StackFingerprint(driver=_STACK.driver),
        )
        found.append((at_s, snapshot))
    return found


def _marketing_gb(deployment: Deployment) -> float:
    """The size that the kind's name says, as ``a100-40``."""
    return float(deployment.gpu.kind.rsplit("-", maxsplit=1)[-1])
