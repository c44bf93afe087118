"""The use case "bench plan": a grid, with the site's cost model and what its store knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnipilot.advisor.fitting import default_utilization_frac
from omnipilot.launch.grid import make_plan
from omnipilot.launch.known import KnownRuns

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.launch.grid import Grid
    from omnipilot.launch.plan import Plan

__all__ = ["plan_grid"]


def plan_grid(advisor: Advisor, grid: Grid) -> Plan:
    """Plan a grid of benchmarks.

    Raises:
        UsageError: an unknown name, an axis without a feature, or a grid that is too large.
        BundleError: no usable cost model.
        StateError: the store cannot be read.
    """
    return make_plan(
        grid,
        advisor.catalog,
        advisor.settings.gpus_per_node,
        advisor.model.predict,
        KnownRuns.of_store(advisor.home, advisor.catalog),
        model_version=advisor.model.version,
        default_utilization_frac=default_utilization_frac("vllm", grid.engine_version),
    )
