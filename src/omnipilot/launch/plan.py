"""A benchmark grid as a file: what to run, in which order, and what was left out and why."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.launch.spec import LaunchSpec, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Plan", "PlannedRun", "SkippedRun", "read_plan", "runs_folder", "write_plan"]

PLAN_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a grid.

    Args:
        spec: the launch.
        node_h: node-hours that it is predicted to take: the node's share of its GPUs × hours.
        information: what it is expected to tell for a node-hour; the order is by it.
        node_share: GPUs of the run over GPUs of a node.
    """

    spec: LaunchSpec
    node_h: float
    information: float
    node_share: float

    @property
    def run_id(self) -> str:
        """Name of the run, and of its folder."""
        return self.spec.run_id


@dataclass(frozen=True, slots=True)
class SkippedRun:
    """One point of the grid that is not run: "cannot_start", "known", "needs" or "budget"."""

    label: str
    why: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A grid of benchmarks.

    Args:
        axes: values by axis, as text.
        budget_node_h: node-hours that may be spent.
        max_gpus: GPUs that may be in use at a time.
        runs: in the order in which they are started.
    """

    axes: dict[str, tuple[str, ...]]
    budget_node_h: float
    max_gpus: int
    model_version: str
    runs: tuple[PlannedRun, ...]
    skipped: tuple[SkippedRun, ...]
    version: int = PLAN_VERSION

    def __post_init__(self) -> None:
        names = [run.run_id for run in self.runs]
        if len(set(names)) != len(names):
            raise BadInputError("the plan names a run twice")
        wide = next((r for r in self.runs if r.spec.arm.tensor_parallel > self.max_gpus), None)
        if wide is not None:
            raise BadInputError(
                f"{wide.spec.arm.label} takes more than the limit of {self.max_gpus} GPUs"
            )


def run_name(parts: object) -> str:
    """Name a run by what it is: the same point of a grid has the same name in every plan."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]


def runs_folder(plan: Path) -> Path:
    """Where the runs of a plan have their folders: beside it."""
    return plan.with_name(f"{plan.stem}.runs")


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan.

    Raises:
        StateError: the file cannot be written.
    """
    write_atomically(path, msgspec.json.format(msgspec.json.encode(plan)) + b"\n")


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        BadInputError: the file is no plan.
    """
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"{path} is no plan of a benchmark grid: {error}") from error
    if plan.version != PLAN_VERSION:
        raise BadInputError(f"{path} is of version {plan.version}: plan again with this version")
    return plan
