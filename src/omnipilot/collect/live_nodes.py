"""Nodes and their GPUs, as ``sinfo`` and ``scontrol show node`` print them.

JSON has a list under ``nodes`` (sinfo of Slurm 21.08-22.05, scontrol of 23.02 and later) or rows of
a node and a partition under ``sinfo`` (23.02 and later). Unknown members are passed over.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from omnipilot.collect.lines import printable
from omnipilot.collect.slurm_numbers import Number, number_or
from omnipilot.collect.slurm_values import MOST_GPUS, FieldError, duration_s
from omnipilot.domain.cluster import ClusterNode, GpuCount, Partition
from omnipilot.domain.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SINFO_FORMAT", "NodeList", "gres_gpus", "read_nodes_json", "read_nodes_text"]

# Some versions write (null) for the type of GPUs in use where the node's GRES name none.
_GRES: Final = re.compile(
    r"gpu(?::(?:\(null\)|(?P<kind>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})))?"
    r":(?P<n>[0-9]{1,7})(?:\([^)]*\))?",
    re.ASCII,
)
_OUTER_COMMA: Final = re.compile(r",(?![^(]*\))")
_LONGEST_WORDS: Final = 200

# Columns of ``sinfo -N -O`` for versions without JSON, and their widths in bytes.
_COLUMNS: Final = (
    ("NodeList", 128), ("PartitionName", 128), ("Available", 12), ("Time", 24),
    ("StateComplete", 128), ("Gres", 512), ("GresUsed", 512), ("Features", 512), ("Reason", 256),
)  # fmt: skip
SINFO_FORMAT: Final = ",".join(f"{name}:{width}" for name, width in _COLUMNS)


class NodeList(NamedTuple):
    """What one answer says; partitions only where the answer describes them."""

    nodes: tuple[ClusterNode, ...]
    partitions: tuple[Partition, ...] = ()
    version: str = ""


class _Version(msgspec.Struct):
    release: str = ""


class _Meta(msgspec.Struct):
    old: _Version | None = msgspec.field(default=None, name="Slurm")
    new: _Version | None = msgspec.field(default=None, name="slurm")


_Words = str | list[str] | None


class _Node(msgspec.Struct):
    name: str
    state: _Words = None
    state_flags: _Words = None
    partitions: list[str] | None = None
    gres: str | None = ""
    gres_used: str | None = ""
    features: _Words = None
    active_features: _Words = None
    reason: str | None = ""


class _Names(msgspec.Struct):
    nodes: list[str] = msgspec.field(default_factory=list)


class _State(msgspec.Struct):
    state: _Words = None


class _Gres(msgspec.Struct):
    total: str | None = ""
    used: str | None = ""


class _Features(msgspec.Struct):
    total: str | None = ""
    active: str | None = ""


class _Reason(msgspec.Struct):
    description: str | None = ""


class _Priority(msgspec.Struct):
    tier: Number = 1


class _Maximums(msgspec.Struct):
    time: Number = None


class _PartitionPart(msgspec.Struct):
    name: str = ""
    priority: _Priority | None = None
    maximums: _Maximums | None = None
    partition: _State | None = None


class _Group(msgspec.Struct):
    node: _State
    nodes: _Names
    gres: _Gres | None = None
    features: _Features | None = None
    reason: _Reason | None = None
    partition: _PartitionPart | None = None


class _Answer(msgspec.Struct):
    nodes: list[_Node] | None = None
    sinfo: list[_Group] | None = None
    meta: _Meta | None = None


_decoder = msgspec.json.Decoder(_Answer)


def read_nodes_json(data: bytes) -> NodeList:
    """Read the JSON of ``sinfo -N --json`` or ``scontrol show node --json``.

    Raises:
        ToolError: it is not JSON, or of a shape of neither.
    """
    try:
        answer = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ToolError(f"sinfo's JSON cannot be read: {printable(str(error), 120)}") from error
    meta = answer.meta or _Meta()
    version = ((meta.new or meta.old) or _Version()).release
    if answer.nodes is not None:
        return NodeList(tuple(_node(node) for node in answer.nodes), (), version)
    if answer.sinfo is None:
        raise ToolError("sinfo's JSON holds neither nodes nor sinfo: is it another tool's?")
    nodes = _joined(part for group in answer.sinfo for part in _group(group))
    partitions = {
        p.name: p for g in answer.sinfo if g.partition and (p := _partition(g.partition)).name
    }
    return NodeList(nodes, tuple(partitions.values()), version)


def read_nodes_text(data: bytes) -> NodeList:
    """Read ``sinfo -h -N -O`` with :data:`SINFO_FORMAT`: one line a node and partition."""
    parts: list[ClusterNode] = []
    partitions: dict[str, Partition] = {}
    for line in data.splitlines():
        cells, at = [], 0
        for _, width in _COLUMNS:
            cells.append(line[at : at + width].decode("utf-8", "replace").strip())
            at += width
        name, partition, available, limit, state, gres, used, features, reason = cells
        if not name:
            continue
        parts.append(
            ClusterNode(
                name=name,
                states=_states(state.replace("+", " ").split()),
                partitions=(partition,) if partition else (),
                gpus=_gpus(gres, used),
                reason=_words(reason),
                features=_feature_words(features),
            )
        )
        partitions[partition] = Partition(
            partition, is_up=available.lower() == "up", max_time_s=_limit_s(limit)
        )
    return NodeList(_joined(parts), tuple(partitions.values()))


def gres_gpus(text: str) -> dict[str, int]:
    """Count the GPUs of a GRES list by kind; other resources (mps, shard) are left out.

    Example:
        >>> gres_gpus("gpu:h100:4(S:0-1),gpu:1g.10gb:7(IDX:0,2),mps:100")
        {'h100': 4, '1g.10gb': 7}
    """
    counts: dict[str, int] = {}
    for item in _OUTER_COMMA.split(text):
        found = _GRES.fullmatch(item.strip())
        if found is not None and int(found["n"]) <= MOST_GPUS:
            kind = found["kind"] or ""
            counts[kind] = counts.get(kind, 0) + int(found["n"])
    return counts


def _gpus(gres: str, used: str) -> tuple[GpuCount, ...]:
    held = gres_gpus(used)
    return tuple(
        GpuCount(kind, n, min(held.get(kind, 0), n)) for kind, n in gres_gpus(gres).items()
    )


def _node(node: _Node) -> ClusterNode:
    return ClusterNode(
        name=node.name,
        states=_states([*_list(node.state), *_list(node.state_flags)]),
        partitions=tuple(node.partitions or ()),
        gpus=_gpus(node.gres or "", node.gres_used or ""),
        reason=_words(node.reason or ""),
        features=_feature_words(node.active_features or node.features),
    )


def _group(group: _Group) -> Iterator[ClusterNode]:
    gres = group.gres or _Gres()
    features = group.features or _Features()
    partition = group.partition.name if group.partition else ""
    for name in group.nodes.nodes:
        yield ClusterNode(
            name=name,
            states=_states(_list(group.node.state)),
            partitions=(partition,) if partition else (),
            gpus=_gpus(gres.total or "", gres.used or ""),
            reason=_words(group.reason.description or "") if group.reason else "",
            features=_feature_words(features.active or features.total),
        )


def _partition(part: _PartitionPart) -> Partition:
    states = _states(_list(part.partition.state)) if part.partition else ("UP",)
    minutes = number_or(part.maximums.time) if part.maximums else 0
    tier = number_or(part.priority.tier, 1) if part.priority else 1
    return Partition(part.name, is_up="UP" in states, max_time_s=60 * minutes, priority_tier=tier)


def _joined(parts: Iterable[ClusterNode]) -> tuple[ClusterNode, ...]:
    """Make one node of the lines that name it, one a partition."""
    nodes: dict[str, ClusterNode] = {}
    for part in parts:
        known = nodes.get(part.name)
        if known is None:
            nodes[part.name] = part
        elif not set(part.partitions) <= set(known.partitions):
            nodes[part.name] = replace(known, partitions=(*known.partitions, *part.partitions))
    return tuple(nodes.values())


def _states(words: Iterable[str]) -> tuple[str, ...]:
    """Capitals without the marks that sinfo appends, such as ``*`` for not responding."""
    states: list[str] = []
    for word in words:
        bare = word.rstrip("*~#!%$@^-").upper()
        if bare:
            states.append(bare)
        if "*" in word:
            states.append("NOT_RESPONDING")
    return tuple(dict.fromkeys(states))


def _list(words: _Words) -> list[str]:
    return [words] if isinstance(words, str) else list(words or ())


def _feature_words(features: _Words) -> tuple[str, ...]:
    words = features.split(",") if isinstance(features, str) else list(features or ())
    return tuple(w.strip() for w in words if w.strip() and w.strip() != "(null)")


def _words(reason: str) -> str:
    return "" if reason in {"none", "(null)"} else printable(reason, _LONGEST_WORDS)


def _limit_s(text: str) -> int:
    try:
        return duration_s(text, "Time") or 0
    except FieldError:
        return 0
