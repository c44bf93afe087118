"""GPU telemetry taken in, rows listed by their hash, and runs joined with what watched them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.collect.dcgm import Telemetry, Window, collect_dcgm, rows_of_series
from omnipilot.collect.dcgm_metrics import FAULT_BY_METRIC, GAUGE_BY_METRIC, METRICS
from omnipilot.domain import (
    BadInputError,
    ClusterJob,
    GpuHealth,
    GpuSnapshot,
    GpuWindow,
    InferenceRun,
    JobStatistics,
    LabelledRun,
    ServingWindow,
    StartupRun,
    UsageError,
)
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rejection import Rejection
from omnipilot.store import CLUSTER_LOG_NAME, ReadTally, Store, import_items
from omnipilot.store.join import RunTime, join_run
from omnipilot.store.log import LOG_NAME, row_of_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.collect.prometheus_json import Series
    from omnipilot.collect.prometheus_server import PrometheusServer
    from omnipilot.domain import Row
    from omnipilot.store import ImportReport, StoredRow
    from omnipilot.store.join import Source

__all__ = [
    "HASH_CHARACTERS", "TelemetryReport", "Time", "collect_telemetry", "gpu_windows", "join",
    "list_rows", "read_windows",
]  # fmt: skip

HASH_CHARACTERS: Final = 12
_LEAST_HASH: Final = 6
_WINDOWS_HEADER: Final = ("job_id", "serve_start_s", "serve_end_s")
_MOST_WINDOWS: Final = 1_000_000
_Found = GpuWindow | GpuHealth | GpuSnapshot


@dataclass(frozen=True, slots=True)
class TelemetryReport:
    """The rows that were read, and what became of them in the store."""

    rows: tuple[_Found, ...]
    stored: ImportReport


class Time(NamedTuple):
    """What to ask a Prometheus server for: Unix seconds."""

    start_s: float
    end_s: float
    step_s: float


def collect_telemetry(
    home: Path,
    files: Sequence[Path],
    telemetry: Telemetry,
    *,
    now_s: float,
    server: PrometheusServer | None = None,
    time: Time | None = None,
    jobs: Sequence[str] = (),
) -> TelemetryReport:
    """Take GPU telemetry of files and of a Prometheus server into the site's log.

    Args:
        home: the site's folder.
        files: recorded answers and pages of the exporter.
        telemetry: serving windows and names.
        now_s: time of taking in, Unix seconds.
        server: asked for ``time`` where given.
        time: begin, end and step.
        jobs: ask for these jobs only; all where empty.

    Raises:
        BadInputError: a file as a whole cannot be read; nothing is stored.
        ToolError: the server does not answer; nothing is stored.
        StateError: the log cannot be written.
    """
    items: list[_Found | Rejection] = []
    for path in files:
        items += collect_dcgm(path, telemetry=telemetry)
    if server is not None and time is not None:
        items += _from_server(server, time, telemetry, jobs)
    rows = tuple(item for item in items if not isinstance(item, Rejection))
    return TelemetryReport(rows, import_items(Store.open(home), items, now_s=now_s))


def _from_server(
    server: PrometheusServer, time: Time, telemetry: Telemetry, jobs: Sequence[str]
) -> Iterator[_Found | Rejection]:
    from omnipilot.collect.prometheus_server import query_range, selector  # noqa: PLC0415 - ssl

    # Jobs that a label names are asked for alone; where another exporter tells them, all GPUs are.
    found: list[Series | Rejection] = []
    if jobs:
        metrics = [*GAUGE_BY_METRIC, *FAULT_BY_METRIC]
        query = selector(metrics, {telemetry.job_label: jobs})
        found = list(query_range(server, query, *time))
    if not found:
        found = list(query_range(server, selector(METRICS), *time))
    for item in rows_of_series(found, telemetry):
        if not jobs or isinstance(item, Rejection) or getattr(item, "job_id", "") in jobs:
            yield item


def read_windows(path: Path) -> dict[str, Window]:
    """Read serving windows of many jobs: CSV of job_id, serve_start_s, serve_end_s.

    Raises:
        BadInputError: the file cannot be read, or a line is none of that form.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"cannot read {path}: {error}") from error
    found: dict[str, Window] = {}
    reader = csv.reader(io.StringIO(text))
    for n, fields in enumerate(reader, start=1):
        if n == 1 and tuple(fields) != _WINDOWS_HEADER:
            raise BadInputError(f"{path} must begin with the line {','.join(_WINDOWS_HEADER)}")
        if n == 1 or not fields:
            continue
        try:
            job_id, start, end = fields
            found[job_id] = Window(float(start), float(end))
        except ValueError:
            raise BadInputError(
                f"{path}, line {n}: not a job and two times in Unix seconds"
            ) from None
        if len(found) > _MOST_WINDOWS:
            raise BadInputError(f"{path} holds more than {_MOST_WINDOWS} jobs: split it")
    return found


def gpu_windows(home: Path, job_id: str = "") -> list[GpuWindow]:
    """Give the stored telemetry of all jobs, or of one, in the order it was taken in.

    Raises:
        StateError: the log cannot be read.
    """
    rows = (stored.row for stored in _stored(Store(home), b'"kind":"gpu_window"'))
    return [r for r in rows if isinstance(r, GpuWindow) and job_id in {"", r.job_id}]


def list_rows(
    home: Path, *, kind: str = "", cluster: bool = False, most: int = 20
) -> list[StoredRow]:
    """Give the newest rows of a log, newest first.

    Args:
        home: the site's folder.
        kind: rows of this kind only.
        cluster: of the cluster-wide log.
        most: how many.

    Raises:
        StateError: the log cannot be read.
    """
    store = Store(home, log_name=CLUSTER_LOG_NAME if cluster else LOG_NAME)
    needle = f'"kind":"{kind}"'.encode() if kind else b""
    newest: list[StoredRow] = []
    for stored in _stored(store, needle):
        newest.append(stored)
        if len(newest) > 2 * most:
            del newest[:most]
    return newest[::-1][:most]


def _stored(store: Store, needle: bytes) -> Iterator[StoredRow]:
    """Read the rows whose line holds some bytes; other lines are passed over undecoded."""
    tally = ReadTally()
    for line in store.lines():
        if line is not None and needle in line:
            stored = row_of_line(line, tally)
            if stored is not None:
                yield stored


def join(
    advisor: Advisor, run_hash: str, others: Sequence[str], when: RunTime, *, now_s: float
) -> LabelledRun:
    """Join a stored run with stored rows of its log, metrics, telemetry and job, and store it.

    The telemetry and accounting of the job are found by its number. Where no start and no serving
    window is named, those that were taken in together with the run are found by that.

    Args:
        advisor: the site.
        run_hash: content hash of the run, or the first six digits of it or more.
        others: the same of further rows.
        when: the run's job and serving window.
        now_s: time of taking in, Unix seconds.

    Raises:
        UsageError: no such row, several, or one of another kind.
        StateError: a log cannot be read or written.
    """
    store = Store(advisor.home)
    found = _find(store, run_hash)
    run = found.row
    if not isinstance(run, InferenceRun):
        raise UsageError(f"{run_hash} is a row of kind {run.kind}, not inference_run")
    sources = [_source(_find_anywhere(advisor.home, other)) for other in others]
    notes: tuple[str, ...] = ()
    if not any(isinstance(source, StartupRun | ServingWindow) for source in sources):
        together, notes = _taken_in_together(store, found)
        sources += together
    if when.job_id:
        sources += _of_job(advisor.home, when)
    joined = join_run(
        run,
        found.content_hash,
        _each_once(sources),
        when,
        advisor.settings.freshness_s,
        same_gpu=lambda one, other: _same_kind(advisor, one, other, run.gpu_memory_gb),
    )
    joined = replace(joined, left_out=(*joined.left_out, *notes))
    Store.open(advisor.home).append([joined], now_s)
    return joined


def _each_once(rows: Iterable[Source]) -> list[Source]:
    kept: list[Source] = []
    for row in rows:
        if row not in kept:
            kept.append(row)
    return kept


def _source(stored: StoredRow) -> Source:
    row = stored.row
    if not isinstance(row, StartupRun | ServingWindow | GpuWindow | ClusterJob | JobStatistics):
        raise UsageError(f"a row of kind {row.kind} cannot be joined with a run")
    return row


def _find_anywhere(home: Path, text: str) -> StoredRow:
    try:
        return _find(Store(home), text)
    except UsageError:
        return _find(Store(home, log_name=CLUSTER_LOG_NAME), text)


def _find(store: Store, text: str) -> StoredRow:
    wanted = text.lower()
    if len(wanted) < _LEAST_HASH or set(wanted) - set("0123456789abcdef"):
        raise UsageError(
            f"'{text}' is no row's hash: give its first {_LEAST_HASH} digits or more, as "
            "'omnipilot data list' shows them"
        )
    needle = f'"content_hash":"{wanted}'.encode()
    found = {s.content_hash: s for s in _stored(store, needle) if s.content_hash.startswith(wanted)}
    if not found:
        raise UsageError(f"no row {text} in {store.path.name}: 'omnipilot data list' shows them")
    if len(found) > 1:
        raise UsageError(f"{len(found)} rows begin with {text}: give more digits")
    return next(iter(found.values()))


def _taken_in_together(store: Store, run: StoredRow) -> tuple[list[Source], tuple[str, ...]]:
    """Find the start and the serving window that were taken in with a run, as a launch does.

    Several of a kind may be of other runs, and a window over several runs is none of one: then
    they are left out, with the reason.
    """
    together: dict[str, list[Row]] = {}
    needle = f'"ingested_at_s":{run.ingested_at_s!r},'.encode()
    for stored in _stored(store, needle):
        if stored.ingested_at_s == run.ingested_at_s:
            together.setdefault(stored.row.kind, []).append(stored.row)
    runs, starts = together.get("inference_run", []), together.get("startup_run", [])
    windows = together.get("serving_window", [])
    sources: list[Source] = []
    notes = []
    if len(starts) == 1:
        sources += [row for row in starts if isinstance(row, StartupRun)]
    elif starts:
        notes.append(f"log: {len(starts)} starts came with the run, name one by --with")
    if len(windows) == 1 and len(runs) == 1:
        sources += [row for row in windows if isinstance(row, ServingWindow)]
    elif windows:
        notes.append(
            f"metrics: {len(windows)} windows came with {len(runs)} runs, name one by --with"
        )
    return sources, tuple(notes)


def _of_job(home: Path, when: RunTime) -> Iterator[Source]:
    needle = f'"job_id":"{when.job_id}"'.encode()
    for log_name in (LOG_NAME, CLUSTER_LOG_NAME):
        for stored in _stored(Store(home, log_name=log_name), needle):
            row = stored.row
            if (
                isinstance(row, GpuWindow | ClusterJob | JobStatistics)
                and row.job_id == when.job_id
            ):
                yield row


def _same_kind(advisor: Advisor, one: str, other: str, memory_gb: float) -> bool:
    """Tell whether two spellings may name one kind; names of no catalogue entry may."""
    try:
        return (
            advisor.catalog.gpu(one, memory_gb or None).kind
            == advisor.catalog.gpu(other, memory_gb or None).kind
        )
    except UsageError:
        return True
