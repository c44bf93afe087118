"""Telemetry in round numbers: answers of Prometheus and pages of dcgm-exporter, made up."""

from __future__ import annotations

import json
from typing import Any

T0 = 1_795_957_500.0
STEP_S = 30.0
MODEL = "NVIDIA H100 80GB HBM3"


def labels(gpu: int, job: str | None = "12", host: str = "h100n1") -> dict[str, str]:
    """Labels as dcgm-exporter gives them; ``job`` None leaves the job's label out."""
    given = {
        "Hostname": host, "UUID": f"GPU-{host}-{gpu}", "gpu": str(gpu), "device": f"nvidia{gpu}",
        "modelName": MODEL,
    }  # fmt: skip
    return given if job is None else given | {"hpc_job": job}


def series(
    metric: str,
    values: list[float],
    gpu: int = 0,
    job: str | None = "12",
    *,
    start_s: float = T0,
    host: str = "h100n1",
) -> dict[str, Any]:
    """One series of a range answer, a reading every 30 s."""
    return {
        "metric": {"__name__": metric} | labels(gpu, job, host),
        "values": [[start_s + n * STEP_S, str(value)] for n, value in enumerate(values)],
    }


def answer(*results: dict[str, Any]) -> str:
    """One answer of ``query_range``."""
    data = {"resultType": "matrix", "result": list(results)}
    return json.dumps({"status": "success", "data": data})


# PAPER, §2.3: 10 readings of a start-up at 92 W and without activity, then 7 of serving at 189 W
# and 51 % SM activity. The whole job: (920 + 1323) / 17 = 131.9 W and 0.51 × 7 / 17 = 21 %.
SLOW_START = 10
SERVING = 7
SERVE_START_S = T0 + SLOW_START * STEP_S
SERVE_END_S = T0 + (SLOW_START + SERVING - 1) * STEP_S


def slow_start(gpu: int = 0, job: str | None = "12", host: str = "h100n1") -> list[dict[str, Any]]:
    """The run of §2.3 on one GPU."""
    per_metric = {
        "DCGM_FI_DEV_POWER_USAGE": (92.0, 189.0),
        "DCGM_FI_PROF_SM_ACTIVE": (0.0, 0.51),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.0, 0.17),
        "DCGM_FI_PROF_DRAM_ACTIVE": (0.0, 0.34),
        "DCGM_FI_DEV_FB_USED": (20_480.0, 71_680.0),
    }
    return [
        series(metric, [before] * SLOW_START + [after] * SERVING, gpu, job, host=host)
        for metric, (before, after) in per_metric.items()
    ]


def page(readings: dict[str, list[float]], job: str = "12") -> str:
    """An exporter's page: metric to one reading a GPU."""
    lines = []
    for metric, values in readings.items():
        lines.append(f"# TYPE {metric} gauge")
        for gpu, value in enumerate(values):
            named = ",".join(f'{k}="{v}"' for k, v in labels(gpu, job).items())
            lines.append(f"{metric}{{{named}}} {value}")
    return "\n".join(lines) + "\n"
