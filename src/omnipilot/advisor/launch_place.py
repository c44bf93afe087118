"""Where a launch goes: the place that the advice found, else one that sinfo shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from omnipilot.domain import ToolError
from omnipilot.launch.slurm import places_of

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.question import Advice
    from omnipilot.domain import Arm

__all__ = ["LaunchPlace", "find_place"]


class LaunchPlace(NamedTuple):
    """Partition and GPUs in Slurm's words ("" leaves them to it), and nodes to keep away from."""

    partition: str = ""
    gres: str = ""
    exclude: tuple[str, ...] = ()


def find_place(
    advisor: Advisor, advice: Advice, arm: Arm, partition: str, notes: list[str]
) -> LaunchPlace:
    """Find where an arm goes.

    Args:
        advisor: the site.
        advice: with the cluster's state, where that is known.
        arm: the arm.
        partition: the operator's, "" for any.
        notes: told what could not be found out.
    """
    outlook = advice.cluster.arms.get(arm) if advice.cluster else None
    place = outlook.place if outlook else None
    if place is not None and partition in ("", place.partition):
        if place.avoid:
            why = "; ".join(f"{node}: {reason}" for node, reason in place.avoid.items())
            notes.append(f"keeping away from {why}")
        return LaunchPlace(
            place.partition, _gres(place.gpu, arm.tensor_parallel), tuple(sorted(place.avoid))
        )
    try:
        found = places_of(advisor.catalog, arm.gpu_kind, arm.tensor_parallel)
    except ToolError as error:
        notes.append(f"GPU type not checked with Slurm: {error}")
        return LaunchPlace(partition)
    found = [p for p in found if partition in ("", p.partition)]
    if not found:
        where = f" in partition {partition}" if partition else ""
        what = f"{arm.tensor_parallel} x {arm.gpu_kind}{where}"
        notes.append(f"no node with {what} in sinfo: its type is left to Slurm (--gres)")
        return LaunchPlace(partition)
    return LaunchPlace(found[0].partition, _gres(found[0].gres_type, arm.tensor_parallel))


def _gres(gpu_type: str, n_gpus: int) -> str:
    return f"gpu:{gpu_type}:{n_gpus}" if gpu_type else f"gpu:{n_gpus}"
