"""A whole simulated site: its runs, what telemetry saw of them, and its cluster's jobs.

Every row carries the source "simulated", and the folder a note that says so. The counts are those
of the paper's site: 561 runs (80 failed), 543 job statistics, 481 telemetry windows, 11 snapshots
and 71 start-ups, 1,667 rows; beside them 500,000 jobs of the cluster.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnipilot.catalog import Catalog
from omnipilot.domain.errors import StateError
from omnipilot.domain.frozen import dataclass
from omnipilot.simulate.jobs import POOL_KINDS, OwnJobs, simulate_history
from omnipilot.simulate.measure import Measurement, measure
from omnipilot.simulate.plan import GPU_KINDS, plan_runs
from omnipilot.simulate.site_rows import SiteRun, rows_of_run, snapshots
from omnipilot.simulate.startup import StorageState, fault
from omnipilot.store import CLUSTER_LOG_NAME, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from omnipilot.domain.rows import ClusterJob, Row
    from omnipilot.simulate.jobs import History
    from omnipilot.simulate.plan import PlannedRun

__all__ = ["DEFAULT_JOBS", "NOTE_NAME", "SiteReport", "build_site"]

DEFAULT_JOBS: Final = 500_000
NOTE_NAME: Final = "SIMULATED.md"
N_JOB_STATISTICS: Final = 543
N_STARTUPS: Final = 71

_FIRST_RUN_AT: Final = 0.75  # of the cluster's history
_TAIL_S: Final = (75.0, 0.8)  # median and spread of idling before the job ends
_FAILED_S: Final = {"config": 25.0, "weights": 40.0, "profiling": 60.0, "kv_cache": 75.0}
_READY_FAILED_S: Final = 150.0
_PROGRESS_ROWS: Final = 5000
_DAY_S: Final = 86400.0

_NOTE: Final = """# A simulated site

Everything in this folder was made by `omnipilot demo` (seed {seed}). No engine ran, no GPU was
measured, no cluster was asked: the rows come from a simulated serving engine and a simulated queue.
Every row carries the source "simulated". Do not cite its figures as measurements.

- `history.jsonl`: {runs} runs of six model families on three GPU kinds, {failed} of them failed,
  with job statistics, telemetry and start-ups; {rows} rows
- `cluster_history.jsonl`: {jobs} jobs of the cluster
- `settings.toml`: the GPU kinds that the site has

Play with it: `omnipilot advise --home {home} --model Qwen/Qwen2.5-7B-Instruct --concurrency 200
--context 4096`, `omnipilot data stats --home {home}`.
"""
_SETTINGS: Final = """# Settings of the simulated site; everything else keeps its default.
gpu_kinds = [{kinds}]
"""


class SiteReport(NamedTuple):
    """What was built.

    ``rows`` counts the rows of ``history.jsonl`` by kind; ``engine_s`` is the serving time that
    was simulated.
    """

    home: Path
    rows: dict[str, int]
    runs: int
    failed: int
    jobs: int
    engine_s: float


@dataclass(frozen=True, slots=True)
class _Ran:
    """A planned run and what came of it, with the seconds that its job held its GPUs."""

    plan: PlannedRun
    result: Measurement
    job_s: float


def build_site(
    home: Path,
    seed: int,
    *,
    now_s: float,
    n_jobs: int = DEFAULT_JOBS,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> SiteReport:
    """Build a simulated site; the same seed and time give the same rows.

    Args:
        home: the site's folder, which must hold no rows yet.
        seed: what everything is drawn from.
        now_s: end of the site's history, Unix seconds.
        n_jobs: jobs of the cluster, at least the site's own.
        on_progress: called with what is going on, how much of it is done, and how much there is.

    Raises:
        StateError: the folder holds rows, or cannot be written.
    """
    store, cluster_log = Store.open(home), Store.open(home, log_name=CLUSTER_LOG_NAME)
    for log in (store, cluster_log):
        if log.path.exists():
            raise StateError(
                f"{log.path} exists: a simulated site is not mixed with other rows; name an empty "
                "folder"
            )
    tell = on_progress or _silent
    catalog = Catalog.load()
    plan = plan_runs(catalog, np.random.default_rng([seed, 0]))
    ran = [_run(p, np.random.default_rng([seed, 1, i])) for i, p in _counted(plan, tell)]
    tell("queueing the cluster's jobs", 0, n_jobs)
    history = simulate_history(
        n_jobs, _own_jobs(ran, seed), now_s=now_s, rng=np.random.default_rng([seed, 2])
    )
    rows = _site_rows(ran, history, seed)
    counts = _append_by_day(store, rows, now_s)
    cluster_log.append(_told(history, tell), now_s)
    failed = sum(1 for r in ran if r.result.status != "ok")
    _write_notes(home, seed=seed, runs=len(ran), failed=failed, rows=len(rows), history=history)
    return SiteReport(
        home=home,
        rows=counts,
        runs=len(ran),
        failed=failed,
        jobs=len(history.state),
        engine_s=sum(r.result.trace.seconds for r in ran if r.result.trace is not None),
    )


def _silent(_what: str, _done: int, _total: int) -> None:
    return


def _counted(
    plan: tuple[PlannedRun, ...], tell: Callable[[str, int, int], None]
) -> Iterator[tuple[int, PlannedRun]]:
    for i, planned in enumerate(plan):
        tell("running the engines", i, len(plan))
        yield i, planned
    tell("running the engines", len(plan), len(plan))


def _told(history: History, tell: Callable[[str, int, int], None]) -> Iterator[ClusterJob]:
    n = len(history.state)
    for i, row in enumerate(history.rows()):
        if i % _PROGRESS_ROWS == 0:
            tell("writing the cluster's jobs", i, n)
        yield row
    tell("writing the cluster's jobs", n, n)


def _run(plan: PlannedRun, rng: np.random.Generator) -> _Ran:
    """Make one run on storage as busy as it happens to be."""
    cached = float(rng.uniform(0.5, 1.0)) if rng.random() < 0.25 else 0.0
    storage = StorageState(
        node_bytes_per_s=float(rng.uniform(2.5e9, 5.5e9)),
        load_frac=float(rng.beta(2.0, 6.0)),
        cached_frac=cached,
    )
    if plan.faulty:
        result = Measurement(fault(rng), {})
    else:
        cell = plan.cell
        result = measure(
            plan.deployment, cell.concurrency, cell.prompt_tokens, cell.output_tokens, rng, storage
        )
    if result.trace is None:
        job_s = _FAILED_S.get(result.started.stage, _READY_FAILED_S) * rng.uniform(0.7, 1.4)
    else:
        tail_s = math.exp(rng.normal(math.log(_TAIL_S[0]), _TAIL_S[1]))
        job_s = result.labels["cold_start_s"] + result.trace.seconds + tail_s
    return _Ran(plan, result, float(job_s))


def _own_jobs(ran: list[_Ran], seed: int) -> OwnJobs:
    rng = np.random.default_rng([seed, 3])
    return OwnJobs(
        pool=np.array([POOL_KINDS.index(r.plan.deployment.gpu.kind) for r in ran], dtype=np.int64),
        n_gpus=np.array([r.plan.deployment.tensor_parallel for r in ran], dtype=np.int64),
        at_frac=np.sort(rng.uniform(_FIRST_RUN_AT, 1.0, len(ran))),
        runtime_s=np.array([r.job_s for r in ran]),
        failed=np.array([r.result.status != "ok" for r in ran]),
    )


def _site_rows(ran: list[_Ran], history: History, seed: int) -> list[tuple[float, Row]]:
    """The rows of the site's own log with the time at which each was written, ascending."""
    rng = np.random.default_rng([seed, 4])
    n = len(ran)
    with_statistics = set(rng.permutation(n)[: min(N_JOB_STATISTICS, n)].tolist())
    with_log = _kept_logs(ran, rng.permutation(n).tolist())
    rows: list[tuple[float, Row]] = []
    for i, r in enumerate(ran):
        place = int(history.own[i])
        start_s, end_s = history.outcome.start_s[place], history.outcome.end_s[place]
        run = SiteRun(
            cell=r.plan.cell,
            deployment=r.plan.deployment,
            result=r.result,
            job_id=str(history.first_job_id + place),
            start_s=float(start_s),
            end_s=float(end_s),
            seed=seed,
        )
        own = rows_of_run(
            run, rng, with_statistics=i in with_statistics, with_startup=i in with_log
        )
        rows.extend((run.end_s, row) for row in own)
    rows.extend(snapshots(history, rng))
    return sorted(rows, key=lambda pair: pair[0])


def _kept_logs(ran: list[_Ran], order: list[int]) -> set[int]:
    """Choose the runs whose log was kept: no two that tell the same, for a row is stored once."""
    kept: dict[object, int] = {}
    for i in order:
        plan, started = ran[i].plan, ran[i].result.started
        told = (plan.cell.context_tokens, plan.deployment, started.failure, plan.faulty)
        kept.setdefault(repr(told), i)
        if len(kept) == N_STARTUPS:
            break
    return set(kept.values())


def _append_by_day(store: Store, rows: list[tuple[float, Row]], now_s: float) -> dict[str, int]:
    """Write rows day by day, so that the log tells roughly when each came in."""
    counts: dict[str, int] = {}
    days: dict[int, list[Row]] = {}
    for at_s, row in rows:
        counts[row.kind] = counts.get(row.kind, 0) + 1
        days.setdefault(math.ceil(at_s / _DAY_S), []).append(row)
    for day, of_day in days.items():
        store.append(of_day, min(day * _DAY_S, now_s))
    return counts


def _write_notes(
    home: Path, *, seed: int, runs: int, failed: int, rows: int, history: History
) -> None:
    kinds = ", ".join(f'"{kind}"' for kind in GPU_KINDS)
    note = _NOTE.format(
        seed=seed, runs=runs, failed=failed, rows=f"{rows:,}", jobs=f"{len(history.state):,}",
        home=home,
    )  # fmt: skip
    for name, text in ((NOTE_NAME, note), ("settings.toml", _SETTINGS.format(kinds=kinds))):
        try:
            (home / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise StateError(f"{home / name} cannot be written: {error.strerror}") from error
