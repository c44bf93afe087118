"""The cluster behind an advice: asked once, cached with its age, or known from the history only."""

from __future__ import annotations

import time
from dataclasses import field
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from omnipilot.advisor.digest import Digest, read_digest
from omnipilot.decide.cluster_gpus import GpuNaming, name_gpus
from omnipilot.decide.placement import ClusterView
from omnipilot.domain import ToolError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.arm_sheet import ArmSheet
    from omnipilot.advisor.placing import Placed
    from omnipilot.domain import GpuSpec
    from omnipilot.domain.cluster import ClusterState, StartEstimate
    from omnipilot.settings import Settings

__all__ = ["ClusterNow", "observe"]

# Answers this young are used again: a loop of advices does not ask the controller each time.
REUSE_S: Final = 5.0
_LEAST_WAIT_S: Final = 0.1  # for a further answer, where the first ones took all the time
_STALE_WINDOWS: Final = 4.0  # a reading counts nothing after four of its windows


@dataclass(frozen=True)
class ClusterNow:
    """What is known of the cluster.

    Args:
        view: the cluster as it is; None where it was not asked or did not answer.
        digest: what the site's logs say.
        naming: the scheduler's GPU names.
        notes: what a reader must know, in sentences.
        now_s: when the advice was asked for.
        timeout_s: longest wait for further answers of Slurm's: what the first ones left of it.
        starts: what ``sbatch --test-only`` said, by partition, scheduler's kind, GPUs and limit.
        placed: arms asked about, where they would run, and what else that rests on.
    """

    view: ClusterView | None
    digest: Digest
    naming: GpuNaming
    notes: tuple[str, ...]
    now_s: float
    timeout_s: float
    starts: dict[tuple[str, str, int, float], StartEstimate] = field(default_factory=dict)
    placed: WeakKeyDictionary[ArmSheet, tuple[Hashable, Placed]] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False
    )

    @property
    def age_s(self) -> float:
        """Seconds since the cluster was read."""
        return max(self.now_s - self.view.state.taken_s, 0.0) if self.view else 0.0

    def gpus_per_node(self, gpu: GpuSpec, site: Settings) -> int:
        """GPUs of the cluster's largest node of a kind; the site's setting where it has none."""
        return (self.view.most_in_a_node(gpu.kind) if self.view else 0) or site.gpus_per_node(gpu)


def observe(advisor: Advisor, *, live: bool, state_file: Path | None, now_s: float) -> ClusterNow:
    """Read what is known of the cluster.

    Args:
        advisor: the site.
        live: ask Slurm, where its programs are on PATH.
        state_file: a saved state that is taken instead.
        now_s: Unix seconds.

    Raises:
        BadInputError: the file holds no state.
        StateError: a log cannot be read.
    """
    site = advisor.settings
    notes: list[str] = []
    digest, lag = read_digest(advisor.home, now_s=now_s, site=site)
    if lag:
        notes.append(f"{lag[0].upper()}{lag[1:]}.")
    if digest.damaged:
        notes.append(
            f"{digest.damaged:,} lines of the site's own log are damaged or of a later version; "
            "what they said of runs and faults does not count: omnipilot doctor."
        )
    if digest.damaged_jobs:
        notes.append(
            f"{digest.damaged_jobs:,} lines of the cluster's history are damaged or of a later "
            "version; those jobs count for no wait and no launch: omnipilot doctor."
        )
    began_s = time.monotonic()
    state = _state(advisor, live=live, state_file=state_file, now_s=now_s, notes=notes)
    left_s = max(site.slurm_timeout_s - (time.monotonic() - began_s), _LEAST_WAIT_S)
    if state is not None and state_file is not None:
        now_s = state.taken_s  # a saved moment is judged as of then
    naming = GpuNaming(advisor.catalog, site.gpu_kinds)
    view = None
    if state is not None:
        from omnipilot.decide.shield import (  # noqa: PLC0415 - only where the cluster is known
            ShieldRules,
            build_shield,
        )

        rules = ShieldRules(fresh_s=_STALE_WINDOWS * site.freshness_s["node_health"])
        shield = build_shield(digest.faults, now_s=now_s, seen_s=digest.seen_s or None, rules=rules)
        view = ClusterView(state, name_gpus(state, naming), shield, now_s)
        notes += state.notes
        if not view.gpus:
            notes.append(
                "Slurm names no GPU that the catalogue knows, so the cluster is left aside: give "
                "the GPUs types in gres.conf, or add the kind to the gpus folder."
            )
            view = None
        elif shield.stale:
            age_s = now_s - (shield.seen_s or now_s)
            when = f"was last read {_age(age_s)} ago"
            if age_s < 0:
                when = f"is dated {_age(-age_s)} ahead, so a clock is wrong"
            notes.append(f"GPU telemetry {when}: no node counts as healthy by it.")
    return ClusterNow(view, digest, naming, tuple(notes), now_s, left_s)


def _state(
    advisor: Advisor, *, live: bool, state_file: Path | None, now_s: float, notes: list[str]
) -> ClusterState | None:
    if state_file is None and not live:
        return None
    from omnipilot.collect.programs import slurm_is_here  # noqa: PLC0415 - only if live

    if state_file is None and not slurm_is_here():
        return None
    from omnipilot.collect.live import read_cluster  # noqa: PLC0415 - only where Slurm is
    from omnipilot.collect.live_cache import load_state, read_cache, write_cache  # noqa: PLC0415

    if state_file is not None:
        return load_state(state_file)
    site = advisor.settings
    recent = read_cache(advisor.home, now_s=now_s, most_age_s=REUSE_S)
    if recent is not None:
        return recent
    try:
        state = read_cluster(now_s=now_s, timeout_s=site.slurm_timeout_s)
    except ToolError as error:
        most_age_s = _STALE_WINDOWS * site.freshness_s["gpus_free"]
        older = read_cache(advisor.home, now_s=now_s, most_age_s=most_age_s)
        what = "waits are those of the history" if older is None else "an answer of before is used"
        notes.append(f"Slurm did not answer, so {what}: {_first_words(str(error))}.")
        return older
    write_cache(advisor.home, state)
    return state


def _first_words(text: str, most: int = 160) -> str:
    text = " ".join(text.split())
    return (text if len(text) <= most else f"{text[:most]}…").rstrip(".")


def _age(seconds: float) -> str:
    return f"{seconds / 60.0:.0f} min" if seconds < 7200 else f"{seconds / 3600.0:.0f} h"
