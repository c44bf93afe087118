"""The site as one moment has it: every request is answered from one snapshot, start to end.

A change of the site's folder (a promoted bundle, other settings, another GPU kind) and the
cluster's state are taken over by making the next snapshot beside the present one. Requests that
run keep the one that they began with, so none is dropped and none mixes two models.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import field
from typing import TYPE_CHECKING, Final

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.site_stamp import stamp_of
from omnipilot.domain import OmniPilotError, ServingRequest, StateError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omnipilot.advisor.cluster_now import ClusterNow
    from omnipilot.advisor.site_stamp import Stamp
    from omnipilot.web.journal import Journal
    from omnipilot.web.metrics import Metrics

__all__ = ["Keeper", "Snapshot"]

_MODEL_OF_NOTHING: Final = "none"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What answers.

    Args:
        advisor: of the site, everything read.
        now_s: the moment that its view of the cluster is of, Unix seconds.
        loaded_s: when its cost model was loaded.
        stamp: of the site's folder when it was read.
        live: whether Slurm is asked.
        serial: counts the snapshots, so that kept answers can tell which they belong to.
    """

    advisor: Advisor
    now_s: float
    loaded_s: float
    stamp: Stamp
    live: bool
    serial: int = 0

    @property
    def version(self) -> str:
        """Of the cost model that answers."""
        return self.advisor.model.version

    @property
    def origin(self) -> str:
        """Whose the cost model is: "site", or "base" for the shipped one."""
        return "site" if (self.advisor.home / "bundles" / "current").exists() else "base"

    def cluster(self) -> ClusterNow:
        """What is known of the cluster; read already."""
        return self.advisor.cluster(cluster_question(self.now_s, live=self.live))


def cluster_question(now_s: float, *, live: bool) -> Question:
    """A question that needs the cluster only."""
    return Question(ServingRequest(_MODEL_OF_NOTHING, 1, 2, 1, 1), live=live, now_s=now_s)


def _unmoved(before: ClusterNow, now: ClusterNow) -> bool:
    if before.view is not None or now.view is not None:
        return False
    old, new = before.digest, now.digest
    return (old.run_bytes, old.job_bytes, before.notes) == (
        new.run_bytes, new.job_bytes, now.notes,
    )  # fmt: skip


@dataclass
class Keeper:
    """Keeps the snapshot that answers fresh.

    Args:
        home: the site's folder.
        live: ask Slurm how the cluster is.
        clock: Unix seconds.
        journal: told what changed.
        metrics: counted in.
        poll_s: seconds between looks at the folder.
        cluster_s: seconds between readings of the cluster.
        open_advisor: makes an advisor of the site.
    """

    home: Path
    live: bool
    clock: Callable[[], float]
    journal: Journal
    metrics: Metrics
    poll_s: float = 1.0
    cluster_s: float = 10.0
    open_advisor: Callable[[Path], Advisor] = Advisor.open
    _current: Snapshot | None = None
    _refused: Stamp | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def current(self) -> Snapshot:
        """The snapshot that answers.

        Raises:
            StateError: the first one could not be made.
        """
        if self._current is None:
            self._current = self._load(stamp_of(self.home))
            self._tell(self._current)
        return self._current

    @property
    def is_ready(self) -> bool:
        """Whether there is a snapshot."""
        return self._current is not None

    def adopt(self, snapshot: Snapshot) -> None:
        """Begin with a snapshot that was made elsewhere."""
        self._current = snapshot
        self._tell(snapshot)

    def start(self) -> None:
        """Make the first snapshot and watch from then on.

        Raises:
            OmniPilotError: the site's folder cannot be used.
        """
        _ = self.current
        self._thread = threading.Thread(target=self._watch, name="omnipilot-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def look(self) -> bool:
        """Take over what has changed; whether anything did.

        A folder that cannot be used (a bundle half written, a misspelt setting, a disk that is not
        there) is told once and leaves the present snapshot in place; it is tried again when it
        changes.
        """
        before = self.current
        stamp = stamp_of(self.home)
        if stamp not in (before.stamp, self._refused):
            try:
                if before.stamp and not self.home.is_dir():
                    raise StateError(f"{self.home} is gone")
                fresh = self._load(stamp)
            except (OmniPilotError, OSError) as error:
                self._refused = stamp
                self.metrics.add("omnipilot_reloads_total", "refused")
                self.journal.write("reload refused", "error", reason=str(error)[:300])
            else:
                self._refused = None
                self._current = fresh
                self._tell(fresh)
                self.metrics.add("omnipilot_reloads_total", "done")
                self.journal.write("reloaded", model_version=fresh.version, before=before.version)
                return True
        if self.clock() - self.current.now_s >= self.cluster_s:
            self._refresh_cluster()
            return True
        return False

    def _watch(self) -> None:
        while not self._stop.wait(self.poll_s):
            self.metrics.publish()
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the watch goes on whatever happens
                self.journal.failure("watch failed", error)

    def _load(self, stamp: Stamp) -> Snapshot:
        advisor = self.open_advisor(self.home)
        now_s = self.clock()
        _ = (advisor.catalog, advisor.settings, advisor.model.version)
        advisor.cluster(cluster_question(now_s, live=self.live))
        serial = 0 if self._current is None else self._current.serial + 1
        return Snapshot(advisor, now_s, now_s, stamp, self.live, serial)

    def _refresh_cluster(self) -> None:
        before = self.current
        # A copy shares all that was read and holds a cluster of its own.
        advisor = copy.copy(before.advisor)
        now_s = self.clock()
        try:
            advisor.cluster(cluster_question(now_s, live=self.live))
        except OmniPilotError as error:
            self.journal.write("cluster not read", "error", reason=str(error)[:300])
            return
        # Answers hold on where nothing that they rest on has moved: without a cluster's state that
        # is what the logs say.
        same = _unmoved(before.cluster(), advisor.cluster(cluster_question(now_s, live=self.live)))
        self._current = Snapshot(
            advisor, now_s, before.loaded_s, before.stamp, self.live, before.serial + (not same)
        )
        self._tell(self._current)

    def _tell(self, snapshot: Snapshot) -> None:
        put = self.metrics.put
        put("omnipilot_model_info", {(snapshot.version, snapshot.origin): 1.0})
        put("omnipilot_model_loaded_seconds", {(): snapshot.loaded_s})
        now = snapshot.cluster()
        if now.view is None:
            for name in ("cluster_age_seconds", "gpus", "gpus_pending", "nodes_withheld"):
                put(f"omnipilot_{name}", {})
            return
        gpus: dict[tuple[str, ...], float] = {}
        for entry in now.view.gpus:
            for kind in entry.kinds:
                for state, count in (("free", entry.free), ("total", entry.total)):
                    gpus[kind, state] = gpus.get((kind, state), 0.0) + count
        put("omnipilot_cluster_age_seconds", {(): now.age_s})
        put("omnipilot_gpus", gpus)
        put("omnipilot_gpus_pending", {(): float(now.view.state.pending_gpus)})
        closed = {entry.node for entry in now.view.gpus if entry.closed}
        faulty = {
            entry.node
            for entry in now.view.gpus
            if now.view.shield.of(entry.node).level in {"penalised", "excluded"}
        }
        put(
            "omnipilot_nodes_withheld",
            {("closed",): float(len(closed)), ("faulty",): float(len(faulty))},
        )
