"""How many seconds of serving the simulated engine runs in one second of one core.

python benchmarks/simulate_speed.py
"""

from __future__ import annotations

import time

import numpy as np

from omnipilot.catalog import Catalog
from omnipilot.simulate.measure import measure
from omnipilot.simulate.plan import plan_runs


def main() -> None:
    """Run all engines of the simulated site of seed 0."""
    plan = plan_runs(Catalog.load(), np.random.default_rng([0, 0]))
    plan = tuple(run for run in plan if not run.faulty)
    rates = []
    engine_s = cpu_s = 0.0
    for i, run in enumerate(plan):
        begin_s = time.process_time()
        cell = run.cell
        result = measure(
            run.deployment, cell.concurrency, cell.prompt_tokens, cell.output_tokens,
            np.random.default_rng([0, 1, i]),
        )  # fmt: skip
        took_s = time.process_time() - begin_s
        if result.trace is not None:
            rates.append(result.trace.seconds / took_s)
            engine_s += result.trace.seconds
            cpu_s += took_s
    low, middle, high = np.quantile(rates, [0.1, 0.5, 0.9])
    print(f"{len(rates)} runs: {engine_s:,.0f} engine seconds in {cpu_s:.1f} s of CPU time")
    print(f"{engine_s / cpu_s:,.0f} engine seconds a second; by run {low:,.0f} (10 %), ", end="")
    print(f"{middle:,.0f} (50 %), {high:,.0f} (90 %)")


if __name__ == "__main__":
    main()
