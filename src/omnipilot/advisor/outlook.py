"""The outlook of an arm: where it would run, how long it would wait, whether it would come up."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from omnipilot.decide.launch_chance import LaunchChance, LaunchOdds
from omnipilot.decide.placement import NoPlace, places_for
from omnipilot.decide.priors import LaunchCounts, pooled_prior
from omnipilot.decide.queue_plan import PlannedQueue
from omnipilot.decide.waits import AT_ONCE_S, WaitEstimate, WaitEvidence, estimate_wait
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from omnipilot.advisor.cluster_now import ClusterNow
    from omnipilot.decide.placement import Place
    from omnipilot.domain import Arm, FitVerdict, ServingRequest
    from omnipilot.domain.cluster import StartEstimate

__all__ = ["ArmOutlook", "ClusterReport", "Outlook"]

# Asked of sbatch in one advice: each question takes a job number and some milliseconds.
MOST_QUESTIONS: Final = 4
_BUSY_H: Final = 4.0  # assumed wait for GPUs that are held by nobody knows whom
_MARGIN_S: Final = 900.0  # of the time limit: cold start and clean-up
# Refusals that waiting does not mend, in Slurm's words (slurm_errno.c).
_FOR_GOOD: Final = ("invalid", "not permitted", "not allowed", "denied", "not available to")


@dataclass(frozen=True, slots=True)
class ArmOutlook:
    """What is to be expected of a launch of one arm.

    ``place`` is None where the cluster's state is not known. Its ``free_now`` says that the launch
    is planned to start at once: what jobs in line are planned on is free only for who ends before.
    """

    place: Place | None
    wait: WaitEstimate
    chance: LaunchChance


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What the advice knew of the cluster.

    Args:
        origin: "slurm", "cache", "file", or "none" where its state is not known.
        age_s: seconds since it was read.
        gpus: (free, total) by kind of the catalogue; a name that could be several counts for each.
        closed: nodes with GPUs that take no job, with why.
        faulty: nodes that the safety shield holds something against, with what.
        pending_gpus: GPUs that jobs in the queue wait for.
        notes: what a reader must know, in sentences.
        arms: the outlook of every arm that has a place.
    """

    origin: str
    age_s: float
    version: str
    gpus: dict[str, tuple[int, int]]
    closed: dict[str, str]
    faulty: dict[str, str]
    pending_gpus: int
    notes: tuple[str, ...]
    arms: dict[Arm, ArmOutlook]


class Outlook:
    """Outlooks of the arms of one request.

    Args:
        now: the cluster.
        request: what is to be served.
        default_success: chance of a launch without any on record.
        limit_s: how long the job may run; None takes the request's hours and a margin.
    """

    def __init__(
        self,
        now: ClusterNow,
        request: ServingRequest,
        default_success: float,
        *,
        limit_s: float | None = None,
    ) -> None:
        self._now = now
        self._default_success = default_success
        self.limit_s = request.duration_h * 3600.0 + _MARGIN_S if limit_s is None else limit_s
        self._plans: dict[tuple[str, str, int, int], PlannedQueue] = {}
        self._homes: dict[tuple[str, int], tuple[Place, WaitEstimate] | NoPlace] = {}

    def kinds(self) -> tuple[str, ...]:
        """GPU kinds that the cluster has."""
        view = self._now.view
        return tuple(dict.fromkeys(k for g in view.gpus for k in g.kinds)) if view else ()

    def of(self, arm: Arm, fit: FitVerdict, memory_gib: float) -> ArmOutlook | NoPlace:
        """The outlook of one arm that fits."""
        kind, n = arm.gpu_kind, arm.tensor_parallel
        if self._now.view is None:
            wait = self._from_history((kind,), n)
            return ArmOutlook(None, wait, self._chance(arm, fit, memory_gib, 1.0))
        home = self._homes.get((kind, n))
        if home is None:
            home = self._homes[kind, n] = self.home(kind, n)
        if isinstance(home, NoPlace):
            return home
        place, wait = home
        return ArmOutlook(place, wait, self._chance(arm, fit, memory_gib, place.success_factor))

    def home(
        self, kind: str, n_gpus: int, partition: str = ""
    ) -> tuple[Place, WaitEstimate] | NoPlace:
        """The partition for a number of GPUs, and the wait there; the named one where one is.

        Raises:
            ValueError: the cluster's state is not known.
        """
        if self._now.view is None:
            raise ValueError("no place without the cluster's state")
        places = places_for(self._now.view, kind, n_gpus, self.limit_s, partition)
        if isinstance(places, NoPlace):
            return places
        allowed = [p for p in places if not self._refusal(p)]
        if not allowed:
            why = self._refusal(places[0])
            return NoPlace("refused", f"Slurm refuses {places[0].partition}: {why}")
        sure = [p for p in allowed if not p.preemptible] or allowed
        return min(map(self._awaited, sure), key=lambda pair: pair[1].expected_h)

    def ask(self, outlooks: Iterable[ArmOutlook]) -> bool:
        """Ask Slurm when the given arms would start, those that are not free now.

        Args:
            outlooks: most interesting first.

        Returns:
            Whether anything was learned.
        """
        view = self._now.view
        if view is None or view.state.origin != "slurm":
            return False
        places = [o.place for o in outlooks if o.place is not None and not o.place.free_now]
        new = [p for p in places if self._start(p) is None]
        shapes = list(dict.fromkeys((p.partition, p.gpu, p.n_gpus) for p in new))[:MOST_QUESTIONS]
        if not shapes:
            return False
        from omnipilot.collect.live import ask_starts  # noqa: PLC0415 - only if live

        answers = ask_starts(shapes, limit_s=self.limit_s, timeout_s=self._now.timeout_s)
        for a in answers:
            self._now.starts[a.partition, a.gpu, a.n_gpus, self.limit_s] = a
        self._homes.clear()
        return bool(answers)

    def report(self, arms: dict[Arm, ArmOutlook]) -> ClusterReport:
        """What was known, for the reader."""
        now, view = self._now, self._now.view
        if view is None:
            return ClusterReport("none", 0.0, "", {}, {}, {}, 0, now.notes, arms)
        gpus: dict[str, tuple[int, int]] = {}
        for entry in view.gpus:
            for kind in entry.kinds:
                free, total = gpus.get(kind, (0, 0))
                gpus[kind] = (free + entry.free, total + entry.total)
        return ClusterReport(
            origin=view.state.origin,
            age_s=now.age_s,
            version=view.state.version,
            gpus=gpus,
            closed={
                g.node: f"{g.closed} ({g.reason})" if g.reason else g.closed
                for g in view.gpus
                if g.closed
            },
            faulty={
                g.node: f"{health.level}: {health.reason}"
                for g in view.gpus
                if (health := view.shield.of(g.node)).level in {"penalised", "excluded"}
            },
            pending_gpus=view.state.pending_gpus,
            notes=now.notes,
            arms=arms,
        )

    @property
    def now(self) -> ClusterNow:
        """What is known of the cluster."""
        return self._now

    @property
    def grounds(self) -> Hashable:
        """What outlooks rest on beside the arms and what is known of the cluster."""
        limit_s = self.limit_s if self._now.view is not None else 0.0
        return limit_s, self._default_success, len(self._now.starts)

    def _start(self, place: Place) -> StartEstimate | None:
        key = (place.partition, place.gpu, place.n_gpus, self.limit_s)
        return self._now.starts.get(key)

    def _refusal(self, place: Place) -> str:
        """Slurm's words where it refuses the place for good, however long the job is."""
        shape = (place.partition, place.gpu, place.n_gpus)
        said = (s.refusal for key, s in self._now.starts.items() if key[:3] == shape)
        return next((r for r in said if any(words in r.lower() for words in _FOR_GOOD)), "")

    def _awaited(self, place: Place) -> tuple[Place, WaitEstimate]:
        """A place with whether it is free for a job of this length, and the wait there."""
        planned_s, first_s = self._planned(place)
        start = self._start(place)
        free = place.free_now
        if start is not None and start.start_s is not None:
            free, planned_s = True, max(start.start_s - self._now.now_s, 0.0)
        wait = self._wait(place, planned_s, first_s)
        return replace(place, free_now=free and planned_s <= AT_ONCE_S), wait

    def _planned(self, place: Place) -> tuple[float, float]:
        """The own plan: seconds behind all who wait, and as if first in line."""
        if place.free_now and not place.pool.waiting:
            return 0.0, 0.0
        plan = self._plan(place).start(place.n_gpus, self.limit_s)
        if place.free_now:
            return plan.behind_all_s, plan.first_in_line_s
        # Free GPUs that are scattered over nodes serve no job: one has to end first.
        next_s = min((end_s for end_s, _ in place.pool.running), default=0.0)
        return plan.behind_all_s or next_s, plan.first_in_line_s or next_s

    def _wait(self, place: Place, planned_s: float, first_s: float) -> WaitEstimate:
        digest = self._now.digest
        if not math.isfinite(planned_s):
            # Somebody holds the GPUs and the queue does not tell until when.
            return self._from_history(self._kinds(place.gpu), place.n_gpus, _BUSY_H)
        evidence = WaitEvidence(
            planned_s=planned_s,
            first_in_line_s=min(first_s, planned_s),
            past_s=self._past_s(place.partition, place.n_gpus),
            pending_ratio=place.pool.pending_gpu_h / max(place.pool.total, 1),
        )
        return estimate_wait(evidence, digest.wait_model)

    def _plan(self, place: Place) -> PlannedQueue:
        key = (place.partition, place.gpu, place.pool.total, place.pool.free)
        if key not in self._plans:
            self._plans[key] = PlannedQueue(place.pool)
        return self._plans[key]

    def _past_s(self, partition: str, n_gpus: int) -> float | None:
        found = [
            w for w in self._now.digest.waits if (w.partition, w.n_gpus) == (partition, n_gpus)
        ]
        return max(found, key=lambda w: w.jobs).quantiles_s[1] if found else None

    def _from_history(
        self, kinds: tuple[str, ...], n_gpus: int, default_h: float = 0.0
    ) -> WaitEstimate:
        digest = self._now.digest
        wanted = set(kinds)
        found = [
            w
            for w in digest.waits
            if w.n_gpus == n_gpus and not wanted.isdisjoint(self._kinds(w.gpu))
        ]
        quantiles = max(found, key=lambda w: w.jobs).quantiles_s if found else None
        return estimate_wait(WaitEvidence(None), digest.wait_model, quantiles, default_h)

    def _chance(
        self, arm: Arm, fit: FitVerdict, memory_gib: float, node_factor: float
    ) -> LaunchChance:
        return self._odds.chance(arm, fit, memory_gib, node_factor=node_factor)

    @cached_property
    def _odds(self) -> LaunchOdds:
        cluster: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
        own: defaultdict[tuple[str, int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for launches in self._now.digest.cluster:
            for kind in self._kinds(launches.gpu):
                tally = cluster[kind, launches.n_gpus]
                tally[0] += launches.successes
                tally[1] += launches.attempts
        for launches in self._now.digest.own:
            for kind in self._kinds(launches.gpu):
                tally = own[kind, launches.n_gpus, launches.precision]
                tally[0] += launches.successes
                tally[1] += launches.attempts
        return LaunchOdds(
            # Of the scheduler's names: under its kinds a launch would count once for each.
            pooled_prior((c.counts for c in self._now.digest.cluster), self._default_success),
            {key: LaunchCounts(*tally) for key, tally in cluster.items()},
            {key: LaunchCounts(*tally) for key, tally in own.items()},
        )

    def _kinds(self, gpu: str) -> tuple[str, ...]:
        return self._now.naming.kinds(gpu, ()) if gpu else ()
