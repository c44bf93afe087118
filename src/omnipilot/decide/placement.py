"""Where an arm would run on the cluster as it is: partition, nodes, and what stands in the way."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.decide.queue_plan import DEFAULT_LIMIT_S, MOST_WAITING, PoolNow
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from omnipilot.decide.shield import Shield
    from omnipilot.domain.cluster import ClusterNode, ClusterState, Partition

__all__ = ["ClusterView", "NoPlace", "NodeGpus", "Place", "gres_of", "lookalikes", "places_for"]

_MOST_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """GPUs of one kind on one node.

    Args:
        gpu: kind as the scheduler names it, "" where it does not.
        kinds: kinds of the catalogue that this may be, usually one.
        closed: why the node takes no job, "" where it does.
        reason: what the administrator wrote.
    """

    node: str
    gpu: str
    kinds: tuple[str, ...]
    total: int
    free: int
    partitions: tuple[str, ...]
    closed: str = ""
    reason: str = ""


class _Queue(NamedTuple):
    """(Seconds left, GPUs) of jobs that run; (GPUs, limit) and nodes of those in line, in order."""

    running: list[tuple[float, int]]
    waiting: list[tuple[int, float]]
    n_nodes: list[int]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster with its GPUs named as the catalogue does and its nodes' health."""

    state: ClusterState
    gpus: tuple[NodeGpus, ...]
    shield: Shield
    now_s: float
    _queues: dict[tuple[str, str, frozenset[str]], _Queue] = field(
        default_factory=dict, compare=False, repr=False
    )

    def queue(self, partition: str, gpu: str, sharing: frozenset[str]) -> _Queue:
        """Who holds GPUs of a kind in any partition of ``sharing``, and who is in line there.

        Jobs that wait in a partition of a lower tier come after those of this one.
        """
        key = (partition, gpu, sharing)
        if key not in self._queues:
            self._queues[key] = _queue(self, *key)
        return self._queues[key]

    def partition(self, name: str) -> Partition | None:
        """One partition by its name."""
        return next((p for p in self.state.partitions if p.name == name), None)

    def most_in_a_node(self, kind: str) -> int:
        """GPUs of a kind in its largest node, closed ones too; 0 where the cluster has none."""
        return max((g.total for g in self.gpus if kind in g.kinds), default=0)


@dataclass(frozen=True, slots=True)
class Place:
    """A partition that can take an arm.

    Args:
        gpu: kind as the scheduler names it.
        free_now: a node has the GPUs free.
        nodes: nodes that may take the arm.
        avoid: nodes to keep away from, with the reason for each.
        success_factor: what the chance to come up is multiplied by for the best node's health.
        health: why, in words; "" where nothing is held against the node.
        pool: the queue for these GPUs.
        preemptible: jobs of another partition can push the server out.
    """

    partition: str
    gpu: str
    n_gpus: int
    free_now: bool
    nodes: tuple[str, ...]
    avoid: Mapping[str, str]
    success_factor: float
    health: str
    pool: PoolNow
    preemptible: bool
    is_default: bool = False

    @property
    def gres(self) -> str:
        """What --gres says for its GPUs."""
        return gres_of(self.gpu, self.n_gpus)


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why the cluster cannot take an arm."""

    reason_code: str
    reason: str


def gres_of(word: str, n_gpus: int) -> str:
    """What --gres says for GPUs of a type in the scheduler's word, "" for any."""
    return f"gpu:{word}:{n_gpus}" if word else f"gpu:{n_gpus}"


def places_for(
    view: ClusterView, kind: str, n_gpus: int, limit_s: float, partition: str = ""
) -> tuple[Place, ...] | NoPlace:
    """Partitions that can take an arm, the ones that others cannot preempt first.

    Args:
        view: the cluster.
        kind: GPU kind of the catalogue.
        n_gpus: GPUs of one node.
        limit_s: how long the job may run.
        partition: the only one to look at, "" for all.

    Returns:
        At least one place, or why there is none.
    """
    what = f"{kind} in partition {partition}" if partition else kind
    there = [g for g in view.gpus if not partition or partition in g.partitions]
    mine = [g for g in there if kind in g.kinds]
    if not mine:
        return NoPlace("not_on_cluster", f"this cluster has no {what}: --no-live leaves it aside")
    large = [g for g in mine if g.total >= n_gpus]
    if not large:
        most = max(g.total for g in mine)
        return NoPlace("too_few_gpus_in_node", f"a node of this cluster has at most {most} {what}")
    open_nodes = [g for g in large if not g.closed]
    if not open_nodes:
        return NoPlace("no_usable_node", f"{_count(large, what)}: {_closed_words(large)}")
    sound = [g for g in open_nodes if view.shield.of(g.node).level != "excluded"]
    if not sound:
        faults = "; ".join(
            f"{g.node}: {view.shield.of(g.node).reason}" for g in open_nodes[:_MOST_NAMED]
        )
        return NoPlace("unhealthy_nodes", f"{_count(open_nodes, what)} with faults: {faults}")
    found = _places(view, sound, large, n_gpus, limit_s)
    found = [place for place in found if partition in ("", place.partition)]
    if not found:
        names = partition or ", ".join(sorted({p for g in sound for p in g.partitions})) or "none"
        allows = f" and allows {limit_s / 3600.0:.1f} h" if limit_s else ""
        return NoPlace("no_partition", f"no partition with {kind} is up{allows} ({names})")
    return tuple(found)


def lookalikes(
    nodes: Iterable[ClusterNode], gpus: Iterable[NodeGpus], kind: str, word: str, partition: str
) -> tuple[str, ...]:
    """Nodes that a request by the scheduler's word may be given, and that lack the kind meant.

    One word may stand for several kinds (``a100`` of 40 and of 80 GB), and a request without a type
    for all of them. Closed nodes count, since they may come back while the job waits.

    Args:
        nodes: of the cluster.
        gpus: their GPUs as far as the catalogue knows them.
        kind: GPU kind of the catalogue.
        word: the GPU type asked for, "" for none.
        partition: of the request, "" where it is not known.

    Returns:
        Their names; none where no node with the word has the kind, for then the word says more.
    """
    right = {g.node for g in gpus if kind in g.kinds}
    found = [
        node.name
        for node in nodes
        if (not partition or partition in node.partitions)
        and any(gpu.total and (not word or gpu.kind == word) for gpu in node.gpus)
    ]
    others = dict.fromkeys(name for name in found if name not in right)
    return tuple(others) if len(others) < len(set(found)) else ()


def _places(
    view: ClusterView,
    sound: Sequence[NodeGpus],
    large: Sequence[NodeGpus],
    n_gpus: int,
    limit_s: float,
) -> list[Place]:
    by_partition: defaultdict[str, list[NodeGpus]] = defaultdict(list)
    for gpus in sound:
        for name in gpus.partitions:
            by_partition[name].append(gpus)
    found = [
        _place(view, name, nodes, large, n_gpus, limit_s)
        for name, nodes in by_partition.items()
        if _takes(view.partition(name), limit_s)
    ]
    return sorted(found, key=lambda p: (p.preemptible, not p.is_default, p.partition))


def _takes(partition: Partition | None, limit_s: float) -> bool:
    return partition is None or (
        partition.is_up and (not partition.max_time_s or limit_s <= partition.max_time_s)
    )


def _place(
    view: ClusterView,
    name: str,
    nodes: list[NodeGpus],
    large: Sequence[NodeGpus],
    n_gpus: int,
    limit_s: float,
) -> Place:
    # Nodes of the best health that the partition has; the others are kept away from.
    health = {g.node: view.shield.of(g.node) for g in nodes}
    factor = max(h.success_factor for h in health.values())
    best = [g for g in nodes if health[g.node].success_factor == factor]
    avoid = {
        g.node: verdict.reason
        for g in large
        if name in g.partitions and not g.closed
        and (verdict := view.shield.of(g.node)).level in {"penalised", "excluded"}
        and g not in best
    }  # fmt: skip
    rooms_s = {g.node: _room_s(g.node, view) for g in best}
    usable = [g for g in best if rooms_s[g.node] >= limit_s]
    partition = view.partition(name)
    return Place(
        partition=name,
        gpu=best[0].gpu,
        n_gpus=n_gpus,
        free_now=any(g.free >= n_gpus for g in usable),
        nodes=tuple(g.node for g in best),
        avoid=avoid,
        success_factor=factor,
        health=health[best[0].node].reason if factor < 1.0 else "",
        pool=_pool(view, name, best, usable, rooms_s),
        preemptible=_preemptible(view, partition, best),
        is_default=partition is not None and partition.is_default,
    )


def _room_s(node: str, view: ClusterView) -> float:
    """How long a job that starts now can run before a reservation of the node begins."""
    starts = (
        r.start_s - view.now_s
        for r in view.state.reservations
        if r.end_s > view.now_s and node in r.nodes
    )
    return min(starts, default=math.inf)


def _preemptible(view: ClusterView, partition: Partition | None, nodes: Sequence[NodeGpus]) -> bool:
    """Whether a partition of a higher tier on these nodes may push jobs out."""
    if partition is None or not partition.preempts:
        return False
    sharing = {name for g in nodes for name in g.partitions}
    return any(
        p.name in sharing and p.priority_tier > partition.priority_tier
        for p in view.state.partitions
    )


def _pool(
    view: ClusterView,
    name: str,
    nodes: Sequence[NodeGpus],
    usable: Sequence[NodeGpus],
    rooms_s: Mapping[str, float],
) -> PoolNow:
    queue = view.queue(name, nodes[0].gpu, frozenset(p for g in nodes for p in g.partitions))
    # Those who would run into a reservation everywhere wait for its end and keep nobody out.
    room_s = max((rooms_s[g.node] for g in usable), default=math.inf)
    waiting, n_nodes = queue.waiting, queue.n_nodes
    if room_s < math.inf:
        n_nodes = [n for n, (_, job_s) in zip(n_nodes, waiting, strict=True) if job_s <= room_s]
        waiting = [job for job in waiting if job[1] <= room_s]
    free = sorted((g.free for g in usable), reverse=True)
    scattered = (
        place
        for place, ((wanted, _), n) in enumerate(zip(waiting[:MOST_WAITING], n_nodes, strict=False))
        if len(free) < n or free[n - 1] < -(-wanted // n)
    )
    return PoolNow(
        total=sum(g.total for g in nodes),
        free=sum(free),
        running=queue.running,
        waiting=waiting,
        scattered=frozenset(scattered),
    )


def _queue(view: ClusterView, name: str, gpu: str, sharing: frozenset[str]) -> _Queue:
    running, waiting = [], []
    tiers = {p.name: p.priority_tier for p in view.state.partitions}
    least = tiers.get(name, 1)
    for job in view.state.jobs:
        if (job.gpu and gpu and job.gpu != gpu) or sharing.isdisjoint(job.partitions):
            continue
        if job.running:
            left_s = job.end_s - view.now_s if job.end_s else DEFAULT_LIMIT_S
            running.append((max(left_s, 0.0), job.n_gpus))
        elif job.competes:
            tier = max(tiers.get(p, 1) for p in sharing.intersection(job.partitions))
            if tier < least:
                continue
            limit_s = float(job.time_limit_s or DEFAULT_LIMIT_S)
            turn = (-tier, -job.priority, job.submit_s)
            waiting += [(turn, job.n_gpus, limit_s, job.n_nodes)] * min(job.n_tasks, 100)
    waiting.sort()
    return _Queue(running, [(n, s) for _, n, s, _ in waiting], [nodes for *_, nodes in waiting])


def _count(nodes: Sequence[NodeGpus], kind: str) -> str:
    n = len(nodes)
    return f"the only node with {kind}" if n == 1 else f"all {n} nodes with {kind}"


def _closed_words(nodes: Sequence[NodeGpus]) -> str:
    states = Counter(g.closed for g in nodes)
    words = ", ".join(f"{n} {closed}" if len(nodes) > 1 else closed for closed, n in states.items())
    reasons = list(dict.fromkeys(g.reason for g in nodes if g.reason))
    return f"{words} ({'; '.join(reasons[:2])})" if reasons else words
