"""What the site's logs say before a launch, worked out once and kept: rates, waits, faults.

``HOME/digest.json`` is made anew when a log has grown: by every harvest, and by advice itself where
the logs are short enough to be read within the answer's time.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from json import dumps
from typing import TYPE_CHECKING, Final

from omnipilot.decide.priors import LaunchCounts
from omnipilot.decide.waits import WaitModel  # noqa: TC001 - read by the decoder
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.labels import FAILURE_LABELS
from omnipilot.domain.telemetry_rows import GpuHealth, GpuSnapshot, GpuWindow
from omnipilot.settings import CLUSTER_LOG_NAME, LOG_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from omnipilot.domain.rows import StartupRun
    from omnipilot.settings import Settings
    from omnipilot.store.cluster import JobFacts

__all__ = ["DIGEST_NAME", "Digest", "PastWaits", "SiteLaunches", "read_digest", "refresh_digest"]

DIGEST_NAME: Final = "digest.json"
# Logs up to this size are read within an advice (about 0.1 s for 10 MiB).
QUICK_BYTES: Final = 8 * 2**20
_VERSION: Final = 4
_DAY_S: Final = 86_400.0
_FAULTS_KEPT_S: Final = 30 * _DAY_S
_REPLAYED_S: Final = 60 * 86_400
_MOST_REPLAYED: Final = 100_000
_UNFINISHED: Final = "unfinished"


@dataclass(frozen=True, slots=True)
class SiteLaunches:
    """Launches of one configuration; ``gpu`` and ``precision`` as their source spells them."""

    gpu: str
    n_gpus: int
    successes: float
    attempts: float
    precision: str = ""

    @property
    def counts(self) -> LaunchCounts:
        """The same as counts."""
        return LaunchCounts(self.successes, self.attempts)


@dataclass(frozen=True, slots=True)
class PastWaits:
    """Waits of the jobs of one partition, GPU kind and size, at 10, 50 and 90 %."""

    partition: str
    gpu: str
    n_gpus: int
    jobs: int
    quantiles_s: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Digest:
    """What the logs say.

    Args:
        version: of this form.
        run_bytes: size of the site's own log before it was read.
        job_bytes: size of the cluster's.
        made_s: when, Unix seconds.
        own: the site's own launches by GPU, number and precision.
        cluster: the cluster's by GPU and number.
        waits: past queue waits.
        wait_model: blend fitted to them.
        faults: of GPUs, those of the last 30 days.
        seen_s: newest telemetry, 0 for none.
        damaged: lines of the site's own log that are no rows, or none that this version knows.
        damaged_jobs: the same of the cluster's.
        basis: the settings by which jobs were counted.
    """

    version: int = _VERSION
    run_bytes: int = 0
    job_bytes: int = 0
    made_s: float = 0.0
    own: tuple[SiteLaunches, ...] = ()
    cluster: tuple[SiteLaunches, ...] = ()
    waits: tuple[PastWaits, ...] = ()
    wait_model: WaitModel | None = None
    faults: tuple[GpuHealth, ...] = ()
    seen_s: float = 0.0
    damaged: int = 0
    damaged_jobs: int = 0
    basis: str = ""


def read_digest(home: Path, *, now_s: float, site: Settings) -> tuple[Digest, str]:
    """The digest, made anew where a short log has grown or the settings that it rests on changed.

    Returns:
        The digest and a note where it lags behind a log too long to read now, else "".
    """
    run_bytes, job_bytes = _size(home / LOG_NAME), _size(home / CLUSTER_LOG_NAME)
    kept = _load(home)
    rests = kept is not None and kept.basis == _basis(site)
    if kept is not None and rests and (kept.run_bytes, kept.job_bytes) == (run_bytes, job_bytes):
        return kept, ""
    jobs_changed = kept is None or kept.job_bytes != job_bytes or (job_bytes > 0 and not rests)
    if run_bytes + (job_bytes if jobs_changed else 0) <= QUICK_BYTES:
        kept = None if jobs_changed else kept
        return refresh_digest(home, now_s=now_s, site=site, kept=kept), ""
    note = "the logs have grown since they were digested: run omnipilot collect"
    if kept is not None and not rests:
        note = "the settings have changed since the logs were digested: run omnipilot collect"
    return kept or Digest(), note


def refresh_digest(
    home: Path, *, now_s: float, site: Settings, kept: Digest | None = None
) -> Digest:
    """Read the logs and keep what they say; a folder that cannot be written is no error.

    Args:
        home: the site's folder.
        now_s: Unix seconds.
        site: what counts as a launch that came up, and after which time it counts half.
        kept: a digest whose part on the cluster's jobs still holds.

    Raises:
        StateError: a log cannot be read.
    """
    run_bytes = _size(home / LOG_NAME)  # before it is read: what is written since is read anew
    own, faults, seen_s, damaged = _runs(home, now_s) if run_bytes else ((), (), 0.0, 0)
    if kept is None:
        kept = _jobs(home, now_s, site)
    digest = Digest(
        run_bytes=run_bytes,
        job_bytes=kept.job_bytes,
        made_s=now_s,
        own=own,
        cluster=kept.cluster,
        waits=kept.waits,
        wait_model=kept.wait_model,
        faults=faults,
        seen_s=seen_s,
        damaged=damaged,
        damaged_jobs=kept.damaged_jobs,
        basis=_basis(site),
    )
    if digest.run_bytes or digest.job_bytes:
        _save(home, digest)
    return digest


def _runs(
    home: Path, now_s: float
) -> tuple[tuple[SiteLaunches, ...], tuple[GpuHealth, ...], float, int]:
    """The site's own launches, the faults, when telemetry was last read, and damaged lines."""
    from omnipilot.domain.rows import StartupRun  # noqa: PLC0415 - most sites ask without rows
    from omnipilot.store.log import ReadTally, Store  # noqa: PLC0415 - same

    tally = ReadTally()
    launches: defaultdict[tuple[str, int, str], list[int]] = defaultdict(lambda: [0, 0])
    starts: dict[str, StartupRun] = {}
    faults: list[GpuHealth] = []
    seen_s = 0.0
    for stored in Store(home).rows(tally):
        row = stored.row
        if isinstance(row, StartupRun):
            if row.status != _UNFINISHED and row.n_gpus > 0:
                # The newest reading of a start counts: its server may have died meanwhile.
                starts[_start_of(row) or stored.content_hash] = row
        elif isinstance(row, GpuHealth):
            seen_s = max(seen_s, row.last_s)
            if now_s - row.last_s <= _FAULTS_KEPT_S:
                faults.append(row)
        elif isinstance(row, GpuSnapshot):
            seen_s = max(seen_s, row.at_s)
        elif isinstance(row, GpuWindow):
            seen_s = max(seen_s, row.end_s)
    for start in starts.values():
        counts = launches[start.gpu, start.n_gpus, start.precision]
        counts[0] += start.status == "ok"
        counts[1] += 1
    own = tuple(
        SiteLaunches(gpu, n, float(good), float(tried), precision)
        for (gpu, n, precision), (good, tried) in sorted(launches.items())
    )
    return own, tuple(faults), seen_s, tally.skipped.total() + tally.unknown.total()


def _start_of(row: StartupRun) -> str:
    """Name a start that got ready by what does not change later; "" for one that did not.

    A log that is read while its server runs and again after its end gives two rows of one start.
    """
    if row.stage != "ready":
        return ""
    from omnipilot.store.codec import encode_row  # noqa: PLC0415 - most sites ask without rows

    labels = {name: value for name, value in row.labels.items() if name not in FAILURE_LABELS}
    plain = replace(row, status="ok", failure="", error_type="", stopped=False, labels=labels)
    return encode_row(plain).digest.hex()


def _basis(site: Settings) -> str:
    """The settings by which jobs are counted, as text."""
    parts = (
        {name: site.freshness_s[name] for name in ("launch_success", "queue_wait")},
        site.launch_min_runtime_s,
        site.launch_user_cancel,
        dict(sorted(site.launch_outcomes.items())),
        dict(sorted(site.gpu_kind_of_partition.items())),
    )
    return dumps(parts, ensure_ascii=False, separators=(",", ":"))


def _jobs(home: Path, now_s: float, site: Settings) -> Digest:
    """What the cluster's jobs say, counted as ``omnipilot prior`` counts them."""
    job_bytes = _size(home / CLUSTER_LOG_NAME)
    if not job_bytes:
        return Digest()
    from msgspec import structs  # noqa: PLC0415 - only a harvest needs it

    from omnipilot.advisor.prior import launch_definition  # noqa: PLC0415 - only a harvest needs it
    from omnipilot.decide.wait_replay import learn_waits  # noqa: PLC0415 - only a harvest needs it
    from omnipilot.store.cluster import newest_jobs  # noqa: PLC0415 - same
    from omnipilot.store.compacted import open_source  # noqa: PLC0415 - same
    from omnipilot.store.log import Store  # noqa: PLC0415 - same
    from omnipilot.store.priors import query_history  # noqa: PLC0415 - same
    from omnipilot.store.query import duckdb_engine  # noqa: PLC0415 - same

    kinds, windows_s = site.gpu_kind_of_partition, site.freshness_s
    definition = replace(launch_definition(site), window_s=windows_s["launch_success"])
    store = Store(home, log_name=CLUSTER_LOG_NAME)
    with open_source(store) as source, duckdb_engine(source) as engine:
        recent = newest_jobs(engine, within_s=_REPLAYED_S, most=_MOST_REPLAYED)
        newest_s = recent[0].start_s if recent else 0
        # Aged from the newest job, so that a harvest of some time ago still tells its last days.
        history = query_history(
            engine, definition, now_s=min(now_s, float(newest_s)), kind_of_partition=kinds
        )
        damaged = history.damaged + history.newer_schema + source.skipped
    named = [structs.replace(j, gpu=j.gpu or kinds.get(j.partition, "")) for j in recent]
    return Digest(
        job_bytes=job_bytes,
        cluster=tuple(
            SiteLaunches(c.configuration.gpu, c.configuration.n_gpus, c.successes, c.attempts)
            for c in history.configurations
            if c.attempts > 0
        ),
        waits=tuple(_past_waits(named, float(newest_s), windows_s["queue_wait"])),
        wait_model=learn_waits(recent),
        damaged_jobs=damaged,
    )


def _past_waits(jobs: Iterable[JobFacts], newest_s: float, window_s: float) -> list[PastWaits]:
    import numpy as np  # noqa: PLC0415 - only a harvest needs it

    from omnipilot.decide.waits import LEVELS  # noqa: PLC0415 - same
    from omnipilot.store.dataset import freshness_weights  # noqa: PLC0415 - same

    groups: defaultdict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for job in jobs:
        if job.n_gpus > 0 and 0 < job.eligible_s <= job.start_s:
            key = (job.partition, job.gpu, job.n_gpus)
            groups[key].append((float(job.start_s - job.eligible_s), float(job.start_s)))
    found = []
    for (partition, gpu, n_gpus), pairs in sorted(groups.items()):
        waits, starts = np.array(sorted(pairs)).T
        weights = freshness_weights(newest_s - starts, window_s)
        reached = np.cumsum(weights)
        if reached[-1] <= 0:
            weights, reached = np.ones_like(waits), np.arange(1.0, len(waits) + 1.0)
        at = np.searchsorted(reached, np.array(LEVELS) * reached[-1] - 1e-12)
        low, mid, high = (float(waits[min(i, len(waits) - 1)]) for i in at)
        found.append(PastWaits(partition, gpu, n_gpus, len(waits), (low, mid, high)))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _load(home: Path) -> Digest | None:
    try:
        data = (home / DIGEST_NAME).read_bytes()
    except OSError:
        return None
    import msgspec  # noqa: PLC0415 - most sites ask without rows

    try:
        digest = msgspec.json.decode(data, type=Digest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return digest if digest.version == _VERSION else None


def _save(home: Path, digest: Digest) -> None:
    import msgspec  # noqa: PLC0415 - most sites ask without rows

    from omnipilot.store.files import replace_file  # noqa: PLC0415 - same

    with suppress(OSError):
        replace_file(home / DIGEST_NAME, msgspec.json.encode(digest), locked=False)
