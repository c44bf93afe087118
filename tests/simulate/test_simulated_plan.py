"""The site's runs are the paper's in number and kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

import numpy as np
import pytest
from simulate_builders import catalog

from omnipilot.simulate.measure import closed_loop
from omnipilot.simulate.plan import (
    CELLS,
    GPU_KINDS,
    HELD_OUT,
    N_FAILED,
    N_RUNS,
    PRECISIONS,
    PlannedRun,
    plan_runs,
)
from omnipilot.simulate.startup import start


@cache
def plan(seed: int = 0) -> tuple[PlannedRun, ...]:
    return plan_runs(catalog(), np.random.default_rng(seed))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_runs_and_failures_are_as_many_as_in_the_paper(seed: int) -> None:
    failures = Counter(
        "fault" if run.faulty else start(run.deployment).failure or "ok" for run in plan(seed)
    )
    assert failures.total() == N_RUNS == 561
    assert failures["ok"] == N_RUNS - N_FAILED == 481
    assert failures["fault"] == 16
    assert {"oom_weights", "oom_profiling", "unsupported", "divisibility"} < set(failures)


def test_six_families_three_gpu_kinds_four_precisions_and_groups_of_up_to_eight() -> None:
    families = {run.deployment.model.family for run in plan()}
    assert len(families) == 6
    assert {run.deployment.gpu.kind for run in plan()} == set(GPU_KINDS)
    assert {run.deployment.precision.name for run in plan()} == set(PRECISIONS)
    assert {run.deployment.tensor_parallel for run in plan()} == {1, 2, 4, 8}
    assert max(cell.concurrency for cell in CELLS) == 2000
    assert max(cell.context_tokens for cell in CELLS) == 32768
    assert len({cell.model for cell in CELLS}) == 15
    assert len(set(CELLS)) == len(CELLS) == 68


def test_most_cells_have_several_arms_and_many_several_precisions() -> None:
    arms = defaultdict(set)
    for run in plan():
        if not run.faulty and start(run.deployment).ready:
            d = run.deployment
            arms[run.cell].add((d.gpu.kind, d.tensor_parallel, d.precision.name))
    assert sum(len(a) > 1 for a in arms.values()) >= 65
    assert sum(len({p for _, _, p in a}) > 1 for a in arms.values()) >= 60


def test_the_held_out_cells_of_the_paper_were_run() -> None:
    assert set(HELD_OUT) <= {run.cell for run in plan() if not run.faulty}


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    assert plan_runs(catalog(), np.random.default_rng(0)) == plan() != plan(1)


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: f"{c.model}-{c.context_tokens}")
def test_the_longest_request_of_a_cell_fits_its_context(cell: object) -> None:
    assert cell.prompt_tokens + 1.2 * cell.output_tokens <= cell.context_tokens  # type: ignore[attr-defined]


@pytest.mark.parametrize("clients", [1, 16, 500])
def test_outputs_vary_by_a_fifth_about_their_mean(clients: int) -> None:
    asked = closed_loop(clients, 100, 500)
    n = len(asked.output_tokens)
    assert n >= 2 * clients
    assert sum(asked.output_tokens) / n == pytest.approx(500, rel=0.01)
    assert 400 <= min(asked.output_tokens) < 420
    assert 580 < max(asked.output_tokens) <= 600
