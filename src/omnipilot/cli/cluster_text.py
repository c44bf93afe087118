"""The cluster behind an advice, in words and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnipilot.advisor.outlook import ArmOutlook, ClusterReport
    from omnipilot.domain import Arm

_MOST_NODES = 6


def age_words(seconds: float) -> str:
    """How long ago, for a person.

    >>> age_words(45.0), age_words(600.0)
    ('45 s ago', '10 min ago')
    """
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60.0:.0f} min ago"


def cluster_lines(report: ClusterReport) -> list[str]:
    """What is known of the cluster as a whole."""
    lines = list(report.notes)
    if report.origin == "none":
        return lines
    where = {"slurm": "Slurm", "cache": "Slurm, cached", "file": "a saved state"}[report.origin]
    free = ", ".join(
        f"{kind} {free} of {total} free" for kind, (free, total) in sorted(report.gpus.items())
    )
    version = f" {report.version}" if report.version and report.origin != "file" else ""
    lines.append(
        f"{where}{version}, read {age_words(report.age_s)}: {free}; "
        f"{report.pending_gpus} GPUs are waited for."
    )
    if report.closed:
        lines.append(f"Closed: {_few(report.closed)}.")
    if report.faulty:
        lines.append(f"Safety shield: {_few(report.faulty)}.")
    return lines


def arm_line(arm: Arm, outlook: ArmOutlook) -> str:
    """Where one arm would run, how long it waits, and whether it comes up."""
    place, wait = outlook.place, outlook.wait
    interval = f"{_hours(wait.lower_h)} to {_hours(wait.upper_h)}"
    words = [f"wait {_hours(wait.median_h)} ({interval}; {wait.note})"]
    if place is not None:
        state = "free now" if place.free_now else "not free now"
        words.insert(0, f"partition {place.partition}, {state}")
        if place.preemptible:
            words.append("jobs of a higher tier can push it out")
        if place.health:
            words.append(f"only nodes with faults are left: {place.health}")
        if place.avoid:
            words.append(f"keep away from {_few(dict(place.avoid))}")
    words.append(f"comes up with {outlook.chance.probability:.0%}: {outlook.chance.note}")
    return f"{arm.label}: {'; '.join(words)}."


def cluster_data(report: ClusterReport) -> dict[str, Any]:
    """The same as data."""
    return {
        "origin": report.origin,
        "age_s": report.age_s,
        "version": report.version,
        "gpus": {
            kind: {"free": free, "total": total} for kind, (free, total) in report.gpus.items()
        },
        "closed": report.closed,
        "faulty": report.faulty,
        "pending_gpus": report.pending_gpus,
        "notes": list(report.notes),
        "arms": [_arm_data(arm, outlook) for arm, outlook in report.arms.items()],
    }


def _arm_data(arm: Arm, outlook: ArmOutlook) -> dict[str, Any]:
    place, wait = outlook.place, outlook.wait
    return {
        "gpu_kind": arm.gpu_kind,
        "tensor_parallel": arm.tensor_parallel,
        "precision": arm.precision,
        "partition": place.partition if place else None,
        "gres": (f"gpu:{place.gpu}:{place.n_gpus}" if place.gpu else f"gpu:{place.n_gpus}")
        if place
        else None,
        "free_now": place.free_now if place else None,
        "avoid_nodes": dict(place.avoid) if place else {},
        "wait_h": {
            "expected": wait.expected_h,
            "lower": wait.lower_h,
            "median": wait.median_h,
            "upper": wait.upper_h,
            "note": wait.note,
        },
        "launch_success": {
            "probability": outlook.chance.probability,
            "note": outlook.chance.note,
        },
    }


def _few(items: dict[str, str]) -> str:
    shown = "; ".join(f"{name} {why}" for name, why in list(items.items())[:_MOST_NODES])
    rest = len(items) - _MOST_NODES
    return f"{shown}; and {rest} more" if rest > 0 else shown


def _hours(hours: float) -> str:
    if hours < 1.0 / 60.0:
        return "none"
    return f"{hours * 60.0:.0f} min" if hours < 2.0 else f"{hours:.1f} h"
