"""Evidence into the site's logs: files of any collector, and a running Slurm's accounting."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.advisor.unknown_names import UnknownNames
from omnipilot.catalog import Catalog
from omnipilot.collect import COLLECTOR_BY_NAME
from omnipilot.domain.errors import UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import ClusterJob
from omnipilot.store import CLUSTER_LOG_NAME, ImportReport, Store, import_items
from omnipilot.store.log import LOG_NAME
from omnipilot.store.marks import Marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import tzinfo
    from pathlib import Path

    from omnipilot.collect.base import Collector, CollectorEntry
    from omnipilot.collect.context import RunContext
    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.rows import Row
    from omnipilot.domain.unknown_name import UnknownName

__all__ = ["HarvestReport", "Sacct", "collect_files", "harvest_slurm", "store_of"]

DAY_S: Final = 86_400
# One query of a week keeps slurmdbd's answer within its MaxQueryTimeRange and a killed harvest's
# loss small.
SLICE_S: Final = 7 * DAY_S
# Records reach slurmdbd late: slurmctld keeps them while slurmdbd is away.
OVERLAP_S: Final = DAY_S
_SACCT: Final = "sacct"


class Progress(NamedTuple):
    """How far a harvest is: share of the work done, where it is known, and records read."""

    done_frac: float
    records: int
    doing: str


@dataclass(frozen=True, slots=True)
class HarvestReport:
    """What became of the records of a harvest.

    Args:
        collector: its name.
        log: file in the site's folder that holds the rows.
        accepted: rows that are new.
        duplicate: rows that were there already.
        rejected: records that are no rows.
        outside: rows of other times or clusters than those asked for, left out.
        by_reason: all rejections by class.
        rejections: the first 20, with the file (or time) that they are of.
        cluster: cluster asked, "" where files were read.
        covered_from_s: begin of the time that is harvested without gaps, Unix seconds, 0 for files.
        covered_until_s: its end, the high-water mark.
        unknown_names: of rows that were taken and that no fit can use.
    """

    collector: str
    log: str
    accepted: int
    duplicate: int
    rejected: int
    outside: int
    by_reason: dict[str, int]
    rejections: tuple[tuple[str, Rejection], ...]
    cluster: str = ""
    covered_from_s: int = 0
    covered_until_s: int = 0
    unknown_names: tuple[UnknownName, ...] = ()


@dataclass(frozen=True, slots=True)
class Sacct:
    """Which jobs of the accounting are wanted.

    Args:
        since_s: earliest end, Unix seconds; 0 for where the last harvest left off (a running
            Slurm) or all (files).
        until_s: latest end; 0 for now.
        cluster: its name; of files also the name for records that tell none.
        again: ask again for times that are harvested already.
        overlap_s: time before the high-water mark that is asked for again, for records that
            reached the accounting late.
        zone: where times of files without an offset were printed.
        silence_s: longest wait for sacct's next output.
    """

    since_s: int = 0
    until_s: int = 0
    cluster: str = ""
    again: bool = False
    overlap_s: int = OVERLAP_S
    zone: tzinfo | None = None
    silence_s: float = 600.0

    def __post_init__(self) -> None:
        if self.until_s and self.since_s > self.until_s:
            raise UsageError("--since lies after --until: exchange them")


class _Tally:
    """Reports of several imports, added up."""

    def __init__(self, entry: CollectorEntry, store: Store) -> None:
        self._entry = entry
        self._store = store
        self.accepted = self.duplicate = self.outside = 0
        self._by_reason: Counter[str] = Counter()
        self._shown: list[tuple[str, Rejection]] = []

    def add(self, report: ImportReport, origin: str) -> None:
        self.accepted += report.accepted
        self.duplicate += report.duplicate
        self._by_reason.update(report.by_reason)
        room = 20 - len(self._shown)
        self._shown += [(origin, rejection) for rejection in report.rejections[:room]]

    def report(self, cluster: str = "", covered: tuple[int, int] = (0, 0)) -> HarvestReport:
        return HarvestReport(
            collector=self._entry.name,
            log=self._store.path.name,
            accepted=self.accepted,
            duplicate=self.duplicate,
            rejected=self._by_reason.total(),
            outside=self.outside,
            by_reason=dict(self._by_reason.most_common()),
            rejections=tuple(self._shown),
            cluster=cluster,
            covered_from_s=covered[0],
            covered_until_s=covered[1],
        )


def store_of(home: Path, entry: CollectorEntry) -> Store:
    """Open the log that a collector's rows belong to."""
    return Store.open(home, log_name=CLUSTER_LOG_NAME if entry.of_cluster else LOG_NAME)


def collect_files(
    home: Path,
    name: str,
    files: Sequence[Path],
    *,
    now_s: float,
    context: RunContext | None = None,
    wanted: Sacct | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> HarvestReport:
    """Take the rows of files into the log that they belong to.

    Args:
        home: the site's folder.
        name: of a collector.
        files: read one after another; each is taken whole before the next.
        now_s: time of taking in, Unix seconds.
        context: what is known of the runs and the files do not tell.
        wanted: for accounting, the times and the cluster wanted.
        on_progress: called now and then.

    Raises:
        BadInputError: a file as a whole cannot be read; the files before it are taken.
        StateError: the log cannot be written.
    """
    entry = COLLECTOR_BY_NAME[name]
    collect = entry.for_site(home, context)
    if wanted is not None and wanted.zone is not None:
        collect = _in_zone(collect, wanted.zone)
    store = store_of(home, entry)
    tally = _Tally(entry, store)
    names = UnknownNames(lambda: Catalog.load(home))
    for n, path in enumerate(files):
        items: Iterable[Row | Rejection] = names.watch(collect(path))
        if wanted is not None and (wanted.since_s or wanted.until_s or wanted.cluster):
            items = _only(items, wanted, tally)
        tell = _teller(on_progress, n / len(files), path.name)
        tally.add(import_items(store, items, now_s=now_s, on_progress=tell), str(path))
    return dataclasses.replace(tally.report(), unknown_names=names.found())


def _in_zone(collect: Collector, zone: tzinfo) -> Collector:
    zoned: Callable[..., Iterator[Row | Rejection]] = collect
    return partial(zoned, zone=zone)


def _only(
    items: Iterable[Row | Rejection], wanted: Sacct, tally: _Tally
) -> Iterator[Row | Rejection]:
    since_s, until_s, cluster = wanted.since_s, wanted.until_s, wanted.cluster
    for item in items:
        if not isinstance(item, ClusterJob):
            yield item
        elif (
            item.end_s < since_s
            or (until_s and item.end_s > until_s)
            or (cluster and item.cluster not in {"", cluster})
        ):
            tally.outside += 1
        elif cluster and not item.cluster:
            yield dataclasses.replace(item, cluster=cluster)
        else:
            yield item


def harvest_slurm(
    home: Path,
    wanted: Sacct,
    *,
    now_s: float,
    on_progress: Callable[[Progress], None] | None = None,
) -> HarvestReport:
    """Take the ended jobs of a running Slurm into the cluster-wide log.

    The time is asked for in slices; after each its rows are on disk, then the mark moves. A
    harvest that is killed anywhere therefore loses nothing, and what it reads again is stored
    once. The harvested time has no gaps: a ``since_s`` after its end is moved to it.

    Args:
        home: the site's folder.
        wanted: the jobs.
        now_s: present time, Unix seconds.
        on_progress: called now and then.

    Raises:
        UsageError: no ``since_s`` where nothing was harvested before; an unknown cluster.
        ToolError: Slurm does not answer; what was harvested is kept.
        StateError: the log cannot be written.
    """
    from omnipilot.collect import sacct_live  # noqa: PLC0415 - starts programs: only here
    from omnipilot.collect.identity import open_site_key  # noqa: PLC0415 - same

    if wanted.cluster:
        sacct_live.check_cluster(wanted.cluster)
    cluster = wanted.cluster or sacct_live.local_cluster()
    columns = sacct_live.printed_columns()
    entry = COLLECTOR_BY_NAME[_SACCT]
    store = store_of(home, entry)
    marks = Marks(home, store.path)
    tally = _Tally(entry, store)
    key = open_site_key(home)
    covered, slices = _slices(marks, cluster, wanted, int(now_s))
    for n, (start_s, end_s) in enumerate(slices):
        shown = time.strftime("%Y-%m-%d", time.gmtime(start_s))
        tell = _teller(on_progress, n / len(slices), f"{cluster} from {shown}")
        items = sacct_live.collect_live(
            start_s,
            end_s,
            columns=columns,
            cluster=wanted.cluster,
            key=key,
            silence_s=wanted.silence_s,
        )
        report = import_items(store, items, now_s=now_s, on_progress=tell)
        tally.add(report, f"sacct from {shown}")
        covered = (min(covered[0], start_s), max(covered[1], end_s))
        marks.set(_SACCT, cluster, *covered)
    return tally.report(cluster, covered)


def _slices(
    marks: Marks, cluster: str, wanted: Sacct, now_s: int
) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Give what is harvested and the times to ask for, each of which touches what came before."""
    until_s = min(wanted.until_s or now_s, now_s)
    known = marks.covered(_SACCT, cluster)
    if known is None:
        if not wanted.since_s:
            raise UsageError(
                f"nothing of {cluster} was harvested yet: say from when, as in --since 2026-01-01"
            )
        since_s = min(wanted.since_s, until_s)
        return (since_s, since_s), _cut(since_s, until_s)
    since_s = wanted.since_s or known.from_s
    # Times before those harvested come newest first, so that what is harvested has no gap.
    earlier = _cut(since_s, known.from_s)[::-1] if since_s < known.from_s else []
    begin_s = since_s if wanted.again else known.until_s - wanted.overlap_s
    begin_s = max(known.from_s, min(begin_s, known.until_s))
    later = _cut(begin_s, until_s) if until_s > begin_s else []
    return (known.from_s, known.until_s), [*earlier, *later]


def _cut(start_s: int, end_s: int) -> list[tuple[int, int]]:
    """Cut a time into slices; both ends of each are part of it."""
    starts = list(range(start_s, max(end_s, start_s + 1), SLICE_S))
    return [*((a, b - 1) for a, b in pairwise(starts)), (starts[-1], end_s)]


def _teller(
    on_progress: Callable[[Progress], None] | None, done_frac: float, doing: str
) -> Callable[[int], None] | None:
    if on_progress is None:
        return None
    on_progress(Progress(done_frac, 0, doing))
    return lambda records: on_progress(Progress(done_frac, records, doing))
