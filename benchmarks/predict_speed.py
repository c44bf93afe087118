"""How fast the cost model answers: rows/s over all targets, and advise-sized batches of 80 arms.

    python benchmarks/predict_speed.py [--bundle FOLDER] [--data FOLDER] [--rows N]

Takes the shipped bundle where there is one. Rows come from a data folder, or are made up from the
catalogue. The last figures are ratios, which carry over between machines better than seconds. Exit
code 1 below 20,000 rows/s, which a calm machine is to give.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from omnipilot.catalog.catalog import Catalog
from omnipilot.costmodel.bundle import base_model_path
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.predict import CostModel
from omnipilot.domain.errors import BundleError
from omnipilot.domain.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

ADVISE_ARMS = 80
LEAST_ROWS_PER_S = 20_000.0
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen3-30B-A3B")
GPUS = ("a100-80", "h100-80", "h200-141", "l40s-48", "b200-180")
PRECISIONS = ("bf16", "fp8", "awq", "int8")


def made_up(catalog: Catalog, n: int) -> list[Scenario]:
    """The first ``n`` of a grid of arms and loads; the first 80 are the arms of one request."""
    grid = itertools.product(
        [(load, prompt) for load in (1.0, 8.0, 64.0, 200.0, 1024.0) for prompt in (256.0, 3072.0)]
        * (n // 2400 + 1),
        MODELS, GPUS, (1, 2, 4, 8), PRECISIONS,
    )  # fmt: skip
    return [
        Scenario(
            model=catalog.model(model), gpu=catalog.gpu(gpu),
            precision=catalog.precision(precision), n_gpus=degree,
            prompt_tokens=prompt, output_tokens=prompt / 3, concurrency=load,
            engine_version="0.11.0",
        )
        for (load, prompt), model, gpu, degree, precision in itertools.islice(grid, n)
    ]  # fmt: skip


def measured(catalog: Catalog, folder: Path, n: int) -> list[Scenario]:
    """Questions of the first ``n`` usable rows of a data folder."""
    from omnipilot.catalog.scenario import ScenarioBuilder  # noqa: PLC0415 - only with --data
    from omnipilot.learn.dataset import build_dataset, read_runs  # noqa: PLC0415 - as above

    builder = ScenarioBuilder(catalog)
    runs = build_dataset(read_runs(folder), catalog).runs[:n]
    return [builder.scenario(run) for run in runs]


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median wall time of ``work``, once warm."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bundle", type=Path, default=base_model_path())
    parser.add_argument("--data", type=Path, help="folder of measured rows")
    parser.add_argument("--rows", type=int, default=4800)
    options = parser.parse_args()
    catalog = Catalog.load()
    start = time.perf_counter()
    try:
        model = CostModel.load(options.bundle)
    except BundleError as error:
        raise SystemExit(str(error)) from error
    load_s = time.perf_counter() - start
    if options.data:
        rows = measured(catalog, options.data, options.rows)
    else:
        rows = made_up(catalog, options.rows)
    arms = made_up(catalog, ADVISE_ARMS)
    frame = build_frame(rows)
    all_s = seconds(lambda: model.predict(rows), 3)
    prior_s = seconds(lambda: model.fitted.physics.evaluate(frame), 3)
    frame_s = seconds(lambda: build_frame(rows), 3)
    advise_s = seconds(lambda: model.predict(arms), 9)
    one_s = seconds(lambda: model.predict(arms[:1]), 9)
    print(
        f"bundle {model.version}: loaded in {load_s * 1e3:.0f} ms, heads {len(model.fitted.heads)}"
    )
    print(f"{len(rows):,} rows, all targets: {len(rows) / all_s:,.0f} rows/s ({all_s:.2f} s)")
    print(
        f"one request of {ADVISE_ARMS} arms: {advise_s * 1e3:.1f} ms; 1 arm: {one_s * 1e3:.1f} ms"
    )
    print(f"ratio, whole answer / physics prior alone: {all_s / prior_s:.1f}")
    print(f"ratio, building the frame / whole answer: {frame_s / all_s:.3f}")
    per_row = all_s / len(rows)
    print(f"ratio, an arm of a request / a row of the file: {advise_s / ADVISE_ARMS / per_row:.2f}")
    print(f"ratio, 1 arm alone / {ADVISE_ARMS} arms together: {one_s / advise_s:.2f}")
    return int(len(rows) / all_s < LEAST_ROWS_PER_S)


if __name__ == "__main__":
    sys.exit(main())
