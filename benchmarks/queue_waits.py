"""Back-test of the wait estimates in a simulated queue; prints the table of docs/cluster.md.

uv run python benchmarks/queue_waits.py [HARVESTS]

HARVESTS is how often the history is read anew in the 12 days that are asked about; 1 if left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "stand_ins"))

from wait_backtest import Backtest, backtest

SCENARIOS = ((0.8, 0), (0.8, 1), (0.9, 0), (0.9, 1), (1.0, 0), (1.0, 1))
# What the start is planned by.
WAYS = (("from --test-only", False), ("from the own plan", True))


def line(name: str, test: Backtest) -> str:
    asked = test.queued
    blend = np.abs(test.actual - test.median)[asked]
    alone = np.abs(test.actual - test.test_only)[asked]
    return (
        f"| {name} | {asked.sum()} of {len(asked)} | {test.covered[asked].mean():.1%} | "
        f"{test.covered.mean():.1%} | {np.median(blend):.2f} h | {np.median(alone):.2f} h | "
        f"{blend.mean():.2f} h | {alone.mean():.2f} h |"
    )


def main() -> None:
    print(
        "| load, seed | jobs not startable at once | covered | covered, all jobs | median error | "
        "of --test-only | mean error | of --test-only |"
    )
    print("|---|---|---|---|---|---|---|---|")
    harvests = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for name, own_plan in WAYS:
        tests = [
            backtest(seed=seed, load=load, own_plan=own_plan, harvests=harvests)
            for load, seed in SCENARIOS
        ]
        if not own_plan:
            for (load, seed), test in zip(SCENARIOS, tests, strict=True):
                print(line(f"{load}, {seed}", test), flush=True)
        total = tests[0]
        for test in tests[1:]:
            total += test
        print(line(f"all, {name}", total), flush=True)


if __name__ == "__main__":
    main()
