"""Wait estimates against what then happened in the simulated queue, history before questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from queue_simulator import DAY_S, EPOCH_S, simulate_queue

from omnipilot.decide.queue_plan import plan_start
from omnipilot.decide.wait_replay import PoolHistory, learn_waits
from omnipilot.decide.waits import WaitEvidence, estimate_wait

if TYPE_CHECKING:
    import numpy.typing as npt

    from omnipilot.decide.waits import WaitModel

__all__ = ["Backtest", "backtest"]

HISTORY_FRAC = 0.7
_AT_ONCE_H = 1.0 / 60.0


@dataclass(frozen=True)
class Backtest:
    """Hours, arrays (n_questions,)."""

    actual: npt.NDArray[np.float64]
    test_only: npt.NDArray[np.float64]
    lower: npt.NDArray[np.float64]
    median: npt.NDArray[np.float64]
    upper: npt.NDArray[np.float64]

    @property
    def queued(self) -> npt.NDArray[np.bool_]:
        """Questions whose plan is not to start at once: where there is something to estimate."""
        return self.test_only > _AT_ONCE_H

    @property
    def covered(self) -> npt.NDArray[np.bool_]:
        """Whether the wait lies within the interval."""
        return (self.actual >= self.lower - 1e-9) & (self.actual <= self.upper + 1e-9)

    def __add__(self, other: Backtest) -> Backtest:
        names = ("actual", "test_only", "lower", "median", "upper")
        return Backtest(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in names))


def backtest(
    *,
    seed: int,
    load: float,
    days: float = 40.0,
    questions: int = 300,
    own_plan: bool = False,
    harvests: int = 1,
) -> Backtest:
    """Learn from the first 70 % of the days and estimate jobs of the rest at their submission.

    Args:
        seed: of the simulation.
        load: GPU-hours asked for over GPU-hours there.
        days: length of the simulation.
        questions: jobs estimated.
        own_plan: estimate from the own plan of the pool instead of from ``--test-only``.
        harvests: how often the history is read anew, evenly over the rest of the days.
    """
    jobs = simulate_queue(
        days=days, load=load, seed=seed, test_only_from=HISTORY_FRAC, n_test_only=questions
    )
    first_s = EPOCH_S + HISTORY_FRAC * days * DAY_S
    every_s = (1.0 - HISTORY_FRAC) * days * DAY_S / harvests
    models: dict[int, WaitModel | None] = {}
    pool = PoolHistory(jobs)
    rows = []
    for i, job in enumerate(jobs):
        if job.test_only_s is None:
            continue
        k = max(int((job.eligible_s - first_s) // every_s), 0)
        if k not in models:
            models[k] = learn_waits([j for j in jobs if j.end_s < first_s + k * every_s])
        now = pool.now(i)
        plan = plan_start(now, job.n_gpus, job.limit_s)
        evidence = WaitEvidence(
            planned_s=plan.behind_all_s if own_plan else job.test_only_s,
            first_in_line_s=plan.first_in_line_s,
            past_s=pool.past_median_s(i),
            pending_ratio=now.pending_gpu_h / now.total,
        )
        estimate = estimate_wait(evidence, models[k])
        actual_h = (job.start_s - job.eligible_s) / 3600.0
        rows.append(
            (actual_h, job.test_only_s / 3600.0, estimate.lower_h, estimate.median_h,
             estimate.upper_h)
        )  # fmt: skip
    return Backtest(*np.array(rows).T)
