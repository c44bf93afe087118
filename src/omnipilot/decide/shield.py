"""Which nodes a launch keeps away from, and why: faults that their GPUs reported.

What a fault means is a table (:mod:`omnipilot.domain.gpu_health`). Old good news is no good news:
where telemetry has not been read of late, a node is "unknown", not "ok".
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, Literal

from omnipilot.domain.frozen import dataclass
from omnipilot.domain.gpu_health import GPU_EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from omnipilot.domain import GpuHealth

__all__ = [
    "LEVELS", "NodeHealth", "Shield", "ShieldRules", "build_shield", "short_host",
]  # fmt: skip

Level = Literal["ok", "unknown", "penalised", "excluded"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "unknown", "penalised", "excluded")

_MEANING: Final = {event.name: event.meaning for event in GPU_EVENTS}
_HOUR_S: Final = 3600.0
_CLOCK_SLIP_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ShieldRules:
    """How long faults count, and what a launch's chance to come up is multiplied by.

    The factors are choices: a node that is penalised is taken only where no other will do.

    Args:
        exclude_s: a hardware fault excludes its node for so long after it was last seen.
        penalise_s: it penalises the node for so long, as a fault to watch does for ``exclude_s``.
        penalised_factor: chance of a penalised node.
        unknown_factor: chance of a node whose telemetry is stale.
        fresh_s: age at which telemetry is stale: four windows of 10 min (PAPER, Telemetry).
    """

    exclude_s: float = 24 * _HOUR_S
    penalise_s: float = 96 * _HOUR_S
    penalised_factor: float = 0.8
    unknown_factor: float = 0.98
    fresh_s: float = 4 * 600.0


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What is held against a node; ``success_factor`` multiplies the chance of a launch there."""

    node: str
    level: Level
    reason: str
    success_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Shield:
    """Health of the nodes.

    Args:
        faulty: by node, those that are penalised or excluded.
        seen_s: newest telemetry, Unix seconds; None where none was ever collected.
        stale: whether that is too old to call a node healthy.
        unknown_factor: what a launch's chance is multiplied by then.
    """

    faulty: Mapping[str, NodeHealth]
    seen_s: float | None = None
    stale: bool = False
    unknown_factor: float = 1.0

    def of(self, node: str) -> NodeHealth:
        """Health of one node, by the name that the scheduler gives it."""
        found = self.faulty.get(short_host(node))
        if found is not None:
            return found
        if self.seen_s is None:
            return NodeHealth(node, "unknown", "no GPU telemetry has been collected")
        if self.stale:
            return NodeHealth(
                node, "unknown", "its telemetry is too old to call it healthy", self.unknown_factor
            )
        return NodeHealth(node, "ok", "")


def short_host(name: str) -> str:
    """Name of a node without domain and port, as schedulers say it.

    >>> short_host("H100n1.cluster.example:9400")
    'h100n1'
    """
    return name.partition(":")[0].partition(".")[0].lower()


def build_shield(
    events: Iterable[GpuHealth],
    *,
    now_s: float,
    seen_s: float | None,
    rules: ShieldRules | None = None,
) -> Shield:
    """Judge nodes by the faults on record.

    Args:
        events: faults, in any order; those of severity "application" are the job's own doing and
            count for nothing.
        now_s: Unix seconds.
        seen_s: when telemetry was last read, None for never.
        rules: how long faults count.

    Returns:
        The shield.
    """
    rules = rules or ShieldRules()
    by_node: defaultdict[str, list[NodeHealth]] = defaultdict(list)
    newest = seen_s
    for event in events:
        if event.last_s > 0 and event.last_s <= now_s + _CLOCK_SLIP_S:
            newest = max(newest or 0.0, event.last_s)
        judged = _judge(event, now_s, rules)
        if judged is not None:
            by_node[judged.node].append(judged)
    return Shield(
        faulty={
            node: max(found, key=lambda h: (LEVELS.index(h.level), h.reason))
            for node, found in by_node.items()
        },
        seen_s=newest,
        # Dated ahead, the clock of the exporter or of this machine is wrong: no news is old news.
        stale=newest is not None and not -_CLOCK_SLIP_S <= now_s - newest <= rules.fresh_s,
        unknown_factor=rules.unknown_factor,
    )


def _judge(event: GpuHealth, now_s: float, rules: ShieldRules) -> NodeHealth | None:
    """What one fault means for its node today; None for nothing."""
    age_s = max(now_s - event.last_s, 0.0)
    until = {
        "hardware": (("excluded", rules.exclude_s), ("penalised", rules.penalise_s)),
        "watch": (("penalised", rules.exclude_s),),
    }
    levels: tuple[tuple[Level, float], ...] = until.get(event.severity, ())  # type: ignore[assignment]
    level = next((level for level, most_s in levels if age_s <= most_s), None)
    if level is None or not event.host:
        return None
    what = f"XID {event.code}" if event.event == "xid" else _MEANING.get(event.event, event.event)
    count = f" ({event.count})" if event.count > 1 else ""
    factor = rules.penalised_factor if level == "penalised" else 0.0
    return NodeHealth(short_host(event.host), level, f"{what}{count}, {_ago(age_s)}", factor)


def _ago(age_s: float) -> str:
    if age_s < 2 * _HOUR_S:
        return f"{age_s / 60.0:.0f} min ago"
    return f"{age_s / _HOUR_S:.0f} h ago"
