"""How fast the gate decides: 80 arms, 6 probes an arm, look-ahead of 3, on one core.

    OPENBLAS_NUM_THREADS=1 python benchmarks/gate_speed.py [--arms N] [--repeats N]

Made-up stakes: arms that share most of their errors, throughput and power both uncertain. The
second figure has limits of TTFT and TPOT too. Times are the process's own.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from omnipilot.decide.gate import plan_probes
from omnipilot.decide.stakes import Quantity, Stakes

PROBES = 6
LOADS = 4  # places an arm: the request's load and three others


def quantity(
    name: str, rng: np.random.Generator, n_arms: int, sd: float, *, limit: bool = False
) -> Quantity:
    """One target whose errors are shared by all arms, by kinds of eight, and of each arm."""
    n = n_arms * (1 + LOADS)
    arm = np.arange(n) % n_arms
    shared = 0.5 + 0.3 * (arm[:, None] // 8 == arm[None, :] // 8)
    shared = shared + 0.15 * (arm[:, None] == arm[None, :]) + 0.05 * np.eye(n)
    covariance = sd**2 * shared
    noise = np.where(rng.random(n_arms * PROBES) < 0.8, 0.06**2, np.inf)
    worth = np.zeros(n_arms) if limit else rng.uniform(4.0, 5.0, n_arms)
    return Quantity(
        name,
        np.diag(covariance)[:n_arms].copy(),
        covariance[:n_arms, n_arms:],
        covariance[n_arms:, n_arms:],
        noise,
        worth,
        rng.uniform(0.0, 0.3, n_arms) if limit else None,
    )


def stakes(n_arms: int, *, limits: bool) -> Stakes:
    """A close decision among many arms."""
    rng = np.random.default_rng(0)
    quantities = [quantity("throughput", rng, n_arms, 0.6), quantity("power", rng, n_arms, 0.3)]
    if limits:
        quantities += [quantity(n, rng, n_arms, 0.6, limit=True) for n in ("ttft", "tpot")]
    total = rng.uniform(1.0, 2.0, n_arms)
    m = n_arms * PROBES
    probe, arm = np.divmod(np.arange(m), n_arms)
    return Stakes(
        tuple(quantities),
        total,
        np.zeros(n_arms, dtype=np.int64),
        np.array([np.argmax(total)]),
        np.ones(n_arms, dtype=bool),
        arm,
        arm + n_arms * np.minimum(probe, LOADS - 1),
        rng.uniform(0.005, 0.05, m),
        rng.uniform(0.01, 0.05, m),
        penalty_usd=10.0 if limits else 0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--arms", type=int, default=80)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    for words, limits in (("throughput and power", False), ("and two limits", True)):
        asked = stakes(options.arms, limits=limits)
        plan = plan_probes(asked)
        times = []
        for _ in range(options.repeats):
            start = time.process_time()
            plan_probes(asked)
            times.append(time.process_time() - start)
        print(
            f"{options.arms} arms x {PROBES} probes, depth 3, {words}: "
            f"median {statistics.median(times) * 1e3:.0f} ms, best {min(times) * 1e3:.0f} ms "
            f"({len(plan.probes)} probes planned, {plan.gain_usd:.3f} USD, {plan.stop})"
        )


if __name__ == "__main__":
    main()
