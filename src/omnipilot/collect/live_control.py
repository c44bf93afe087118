"""Partitions and reservations, as ``scontrol -o`` prints them: ``Name=value`` words, one a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from omnipilot.collect.hostlist import MOST_NODES, expand_hosts
from omnipilot.collect.slurm_numbers import number_or
from omnipilot.collect.slurm_values import FieldError, duration_s, time_s
from omnipilot.domain.cluster import Partition, Reservation

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CONTROL_QUESTIONS", "read_partitions", "read_reservations"]

# What scontrol is told on its standard input: both answers for one call.
CONTROL_QUESTIONS: Final = b"show partition\nshow reservation\n"
_PROMPT: Final = "scontrol: "
# The look behind keeps a long word without "=" from being read anew from each of its letters.
_PAIR: Final = re.compile(r"(?<![A-Za-z_/])([A-Za-z_/]+)=(\S*)", re.ASCII)


def read_partitions(data: bytes) -> tuple[Partition, ...]:
    """Read the partitions among what scontrol printed."""
    return tuple(
        Partition(
            name=line["PartitionName"],
            is_up=line.get("State", "UP").startswith("UP"),
            is_default=line.get("Default") == "YES",
            max_time_s=_seconds(line.get("MaxTime", "")),
            priority_tier=number_or(line.get("PriorityTier"), 1),
            preempts=line.get("PreemptMode", "OFF") != "OFF",
        )
        for line in _lines(data, "PartitionName=")
    )


def read_reservations(data: bytes) -> tuple[Reservation, ...]:
    """Read the reservations of whole nodes among what scontrol printed."""
    found = []
    left = MOST_NODES  # of all together: a short line may name very many
    for line in _lines(data, "ReservationName="):
        nodes = expand_hosts(line.get("Nodes", ""), left)
        left -= len(nodes)
        start_s, end_s = _time(line.get("StartTime", "")), _time(line.get("EndTime", ""))
        if nodes and end_s:
            found.append(Reservation(line["ReservationName"], start_s, end_s, nodes))
    return tuple(found)


def _lines(data: bytes, head: str) -> Iterator[dict[str, str]]:
    for raw in data.decode("utf-8", "replace").splitlines():
        # Reading from a pipe, scontrol prints its prompt before an answer.
        line = raw.removeprefix(_PROMPT)
        if line.startswith(head):
            yield {key: value for key, value in _PAIR.findall(line) if value != "(null)"}


def _seconds(text: str) -> int:
    try:
        return duration_s(text, "MaxTime") or 0
    except FieldError:
        return 0


def _time(text: str) -> int:
    try:
        return time_s(text, "time")
    except FieldError:
        return 0
