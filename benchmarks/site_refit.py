"""Time and memory of a site's refit with its whole gate: 2,000 local rows, all heads.

Run it as ``python benchmarks/site_refit.py [ROWS]``; it builds a site of made-up runs in a
temporary folder: what the shipped model predicts, times a factor and noise, labelled on every
target that a head answers.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from omnipilot.advisor import Advisor
from omnipilot.advisor.learning import FitOptions, fit_site
from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.costmodel.bundle import base_model_path, load_bundle
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.rows import InferenceRun
from omnipilot.store import Store

MODELS = (
    "Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B",
    "mistralai/Mistral-7B-Instruct-v0.3", "meta-llama/Llama-3.1-70B-Instruct",
)  # fmt: skip
GPUS = (("h100-80", 80.0), ("a100-80", 80.0), ("h200-141", 141.0), ("l40s-48", 48.0))
LABELS = ("output_tokens_per_s", "ttft_p50_s", "itl_p50_s", "tpot_p50_s", "power_mean_w")
NOW_S = 1_700_000_000.0


def runs(n: int) -> list[InferenceRun]:
    """The first ``n`` of a grid of models, GPUs, formats, counts, lengths and loads."""
    grid = [
        InferenceRun(
            source="ours", model=model, engine="vllm", gpu=gpu, gpu_memory_gb=memory, n_gpus=count,
            precision=precision, mode="online", status="ok", labels={}, prompt_tokens=prompt,
            output_tokens=output, concurrency=load, stack=StackFingerprint(engine_version="0.11.2"),
        )
        for load in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 192.0, 256.0)
        for prompt, output in ((512.0, 128.0), (1024.0, 256.0), (4096.0, 512.0))
        for model in MODELS
        for gpu, memory in GPUS
        for count in (1, 2)
        for precision in ("bf16", "fp8")
    ][:n]  # fmt: skip
    builder = ScenarioBuilder(Advisor(Path("none")).catalog)
    asked = [builder.scenario(replace(run, source="")) for run in grid]
    values = load_bundle(base_model_path())[0].predict(build_frame(asked)).values
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal((len(grid), len(LABELS))))
    return [
        replace(
            run,
            labels={
                name: float(1.1 * values[name][i, 1] * noise[i, j]) for j, name in enumerate(LABELS)
            },
        )
        for i, run in enumerate(grid)
    ]


def main() -> None:
    """Build the site, fit it, print what it took."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        Store(home).append(runs(wanted), now_s=NOW_S)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        report = fit_site(Advisor(home), FitOptions({}), now_s=NOW_S)
        first_s, first_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        more = [replace(r, concurrency=r.concurrency * 1.5) for r in runs(wanted)[:100]]
        Store(home).append(more, now_s=NOW_S + 1.0)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        second = fit_site(Advisor(home), FitOptions({}), now_s=NOW_S + 1.0)
        again_s, again_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"first fit: {report.rows} rows, {len(report.candidate)} heads, {first_s:.1f} s"
          f" ({first_cpu_s:.1f} s of one CPU), promoted: {report.promoted}")  # fmt: skip
    print(f"second fit against the first: {second.rows} rows, {again_s:.1f} s"
          f" ({again_cpu_s:.1f} s of one CPU), promoted: {second.promoted}")  # fmt: skip
    print(f"peak memory {peak_gib:.2f} GiB")


if __name__ == "__main__":
    main()
