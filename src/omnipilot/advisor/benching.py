"""The use case "bench plan": a grid, with the site's cost model and what its store knows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from omnipilot.advisor.asked_release import asked_release
from omnipilot.advisor.cluster_now import observe
from omnipilot.advisor.engine import weights_folder
from omnipilot.advisor.fitting import default_utilization_frac
from omnipilot.advisor.launch_place import check_gres
from omnipilot.catalog.models import config_path
from omnipilot.domain import BadInputError
from omnipilot.launch.grid import make_plan
from omnipilot.launch.known import KnownRuns

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.domain import Scenario
    from omnipilot.launch.grid import Grid
    from omnipilot.launch.plan import Plan

__all__ = ["plan_grid"]


def plan_grid(
    advisor: Advisor,
    grid: Grid,
    *,
    live: bool = False,
    state_file: Path | None = None,
    now_s: float = 0.0,
) -> Plan:
    """Plan a grid of benchmarks.

    Args:
        advisor: the site.
        grid: what to measure.
        live: ask Slurm how large the nodes are, where its programs are on PATH.
        state_file: a saved state of the cluster that is taken instead.
        now_s: Unix seconds.

    Raises:
        UsageError: an unknown name or engine version, an axis without a feature, or a grid that
            is too large.
        BundleError: no usable cost model.
        BadInputError: the file holds no cluster state, a model given by its config has neither
            weights beside it nor a checkpoint, or ``gres`` names GPUs that are not an arm's.
        StateError: the store cannot be read.
    """
    for version in (grid.engine_version, *grid.further.get("engine_version", ())):
        asked_release(version, "vllm")
    now = observe(advisor, live=live, state_file=state_file, now_s=now_s)
    plan = make_plan(
        replace(grid, checkpoints=_folders(advisor, grid) | grid.checkpoints),
        advisor.catalog,
        lambda gpu: now.gpus_per_node(gpu, advisor.settings),
        lambda scenarios: advisor.model.predict(list(map(_as_asked, scenarios))),
        KnownRuns.of_store(advisor.home, advisor.catalog),
        model_version=advisor.model.version,
        default_utilization_frac=default_utilization_frac("vllm", grid.engine_version),
    )
    for run in plan.runs:
        check_gres(now.naming, grid.job.gres, run.spec.arm)
    return plan


def _as_asked(scenario: Scenario) -> Scenario:
    """Of the release that advice is asked for where the same version is stated."""
    version = asked_release(scenario.engine_version, scenario.engine).version
    return replace(scenario, engine_version=version)


def _folders(advisor: Advisor, grid: Grid) -> dict[tuple[str, str], str]:
    """What the engine loads of models that are given by their config: its folder."""
    found = {}
    told = {model_id for model_id, _ in grid.checkpoints}
    for name in grid.models:
        path = config_path(name)
        if path is None:
            continue
        model_id, folder = advisor.catalog.model(name).model_id, weights_folder(path)
        if folder is not None:
            found[model_id, ""] = str(folder)
        elif model_id not in told:
            raise BadInputError(
                f"{name} has no weights beside it that an engine loads: name what it loads with "
                f"--checkpoint {name}:PRECISION=CHECKPOINT"
            )
    return found
