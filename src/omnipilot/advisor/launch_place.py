"""Where a launch goes: the place that the advice found, else one that sinfo shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.advisor.job_scripts import gpus_of
from omnipilot.advisor.outlook import Outlook
from omnipilot.collect.live_nodes import gres_gpus
from omnipilot.decide.placement import NoPlace, lookalikes
from omnipilot.domain import BadInputError, ToolError
from omnipilot.launch.slurm import places_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.advisor.cluster_now import ClusterNow
    from omnipilot.advisor.question import Advice
    from omnipilot.decide.cluster_gpus import GpuNaming
    from omnipilot.decide.placement import ClusterView, Place
    from omnipilot.domain import Arm

__all__ = ["LaunchPlace", "check_gres", "find_place"]

_MOST_NAMED: Final = 4


class LaunchPlace(NamedTuple):
    """Partition and GPUs in Slurm's words ("" leaves them to it), and nodes to keep away from.

    ``max_time_s`` is the longest job that the partition allows, 0 where unlimited or not known.
    """

    partition: str = ""
    gres: str = ""
    exclude: tuple[str, ...] = ()
    max_time_s: int = 0


def check_gres(naming: GpuNaming, gres: str, arm: Arm) -> None:
    """Refuse GPUs that cannot be the arm's: its run would be kept as one of the arm.

    Args:
        naming: what the scheduler's names mean; one that says nothing is the operator's own.
        gres: as ``--gres`` has it, "" where it is left out.
        arm: what is launched.

    Raises:
        BadInputError: they are of another kind, or fewer than the arm takes.
    """
    word, n_gpus = gpus_of(gres)
    kinds = naming.kinds(word, ()) if word else ()
    if kinds and arm.gpu_kind not in kinds:
        told = f"is {' or '.join(kinds)}"
    elif 0 < n_gpus < arm.tensor_parallel:
        told = f"asks for {n_gpus} GPU{'s' if n_gpus > 1 else ''}"
    else:
        return
    raise BadInputError(
        f"--gres {gres} {told} and {arm.label} is launched: leave --gres out, or choose an arm "
        "that it fits"
    )


def find_place(
    now: ClusterNow, advice: Advice, arm: Arm, wish: LaunchPlace, least_s: float, notes: list[str]
) -> LaunchPlace:
    """Find where an arm goes.

    Args:
        now: the cluster.
        advice: what was found for the arm there.
        arm: the arm.
        wish: the operator's partition and GPUs, each "" for any.
        least_s: time limit that the partition must allow, if any does.
        notes: told what is kept away from, and what could not be found out.

    Raises:
        BadInputError: the operator's partition has GPUs of other kinds only, or all of its nodes
            that have the GPUs are faulty.
    """
    view = now.view
    if view is None:
        return wish if wish.gres else _by_sinfo(now.naming, arm, wish.partition, least_s, notes)
    if wish.gres:
        return _with_gres(view, arm, wish, notes)
    place = _place(now, view, advice, arm, wish.partition, least_s)
    if isinstance(place, NoPlace):
        if wish.partition and place.reason_code == "unhealthy_nodes":
            raise BadInputError(f"{place.reason}: another --partition, or --no-live")
        _check_kinds(view, arm, "", wish.partition)
        notes.append(place.reason)
        return _by_sinfo(now.naming, arm, wish.partition, least_s, notes)
    gres = place.gres
    others = lookalikes(view.state.nodes, view.gpus, arm.gpu_kind, place.gpu, place.partition)
    return LaunchPlace(
        place.partition,
        gres,
        _kept_away(place.avoid, others, gres, arm, notes),
        _max_time_s(view, place.partition),
    )


def _place(
    now: ClusterNow, view: ClusterView, advice: Advice, arm: Arm, partition: str, least_s: float
) -> Place | NoPlace:
    """The advice's place where it suits, else another one.

    Where no partition allows the time, the one that serves otherwise is given, with its limit.
    """
    outlook = advice.cluster.arms.get(arm) if advice.cluster else None
    place = outlook.place if outlook else None
    if place is not None and partition in ("", place.partition):
        most_s = _max_time_s(view, place.partition)
        if not most_s or least_s <= most_s:
            return place
    request, n_gpus = advice.recommendation.request, arm.tensor_parallel
    home = Outlook(now, request, 1.0, limit_s=least_s).home(arm.gpu_kind, n_gpus, partition)
    if isinstance(home, NoPlace):
        home = Outlook(now, request, 1.0, limit_s=0.0).home(arm.gpu_kind, n_gpus, partition)
    return home if isinstance(home, NoPlace) else home[0]


def _with_gres(view: ClusterView, arm: Arm, wish: LaunchPlace, notes: list[str]) -> LaunchPlace:
    """The operator's own words, away from faulty nodes of their partition."""
    default = next((p.name for p in view.state.partitions if p.is_default), "")
    partition = wish.partition or default
    faulty = {
        g.node: health.reason
        for g in view.gpus
        if not g.closed and (not partition or partition in g.partitions)
        and (health := view.shield.of(g.node)).level == "excluded"
    }  # fmt: skip
    others: Sequence[str] = ()
    for word in gres_gpus(wish.gres):
        _check_kinds(view, arm, word, partition)
        others = lookalikes(view.state.nodes, view.gpus, arm.gpu_kind, word, partition)
    exclude = _kept_away(faulty, others, wish.gres, arm, notes)
    return wish._replace(exclude=exclude, max_time_s=_max_time_s(view, partition))


def _check_kinds(view: ClusterView, arm: Arm, word: str, partition: str) -> None:
    """Refuse a partition all of whose GPUs under a word ("" for any) are of other, known kinds."""
    kinds = {(g.node, g.gpu): g.kinds for g in view.gpus}
    found = [
        kinds.get((node.name, gpu.kind), ())
        for node in view.state.nodes if partition in node.partitions
        for gpu in node.gpus if gpu.total and word in ("", gpu.kind)
    ]  # fmt: skip
    if found and all(found) and not any(arm.gpu_kind in each for each in found):
        there = ", ".join(dict.fromkeys(kind for each in found for kind in each))
        raise BadInputError(
            f"partition {partition} has no {arm.gpu_kind} but {there}, and {arm.label} is "
            "launched: name another --partition or arm"
        )


def _by_sinfo(
    naming: GpuNaming, arm: Arm, partition: str, least_s: float, notes: list[str]
) -> LaunchPlace:
    try:
        found = places_of(naming, arm.gpu_kind, arm.tensor_parallel)
    except ToolError as error:
        notes.append(f"GPU type not checked with Slurm: {error}")
        return LaunchPlace(partition)
    found = [p for p in found if partition in ("", p.partition)]
    if not found:
        where = f" in partition {partition}" if partition else ""
        what = f"{arm.tensor_parallel} x {arm.gpu_kind}{where}"
        notes.append(f"no node with {what} in sinfo: its type is left to Slurm (--gres)")
        return LaunchPlace(partition)
    at = next((p for p in found if p.allows(least_s)), found[0])
    gres = at.gres(arm.tensor_parallel)
    exclude = _kept_away({}, at.others, gres, arm, notes)
    return LaunchPlace(at.partition, gres, exclude, at.max_time_s)


def _kept_away(
    faulty: Mapping[str, str], others: Sequence[str], gres: str, arm: Arm, notes: list[str]
) -> tuple[str, ...]:
    """Nodes to exclude, sorted; the notes say why."""
    if faulty:
        why = "; ".join(f"{node}: {reason}" for node, reason in faulty.items())
        notes.append(f"keeping away from {why}")
    if others:
        named = ", ".join(others[:_MOST_NAMED])
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        notes.append(
            f"keeping away from {named}{more}: {gres} could be given there too, and is no "
            f"{arm.gpu_kind}"
        )
    return tuple(sorted({*faulty, *others}))


def _max_time_s(view: ClusterView, partition: str) -> int:
    found = view.partition(partition)
    return found.max_time_s if found else 0
