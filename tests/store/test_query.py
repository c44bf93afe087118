"""DuckDB and Spark count what the plain definition counts, to the last digit, wherever rows lie."""

from __future__ import annotations

import dataclasses
import random
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_history import count_history, each_once, read_jobs

from omnipilot.domain import ClusterJob, JobStatistics, StateError, UsageError
from omnipilot.store import CLUSTER_LOG_NAME, Store
from omnipilot.store.cluster import newest_jobs
from omnipilot.store.compacted import Source, compact, folder_of, open_source
from omnipilot.store.log import ReadTally
from omnipilot.store.priors import (
    DEFAULT_OUTCOMES,
    ClusterHistory,
    LaunchDefinition,
    query_history,
)
from omnipilot.store.query import duckdb_engine, write_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW_S = 1_800_000_000
DAY_S = 86_400
KINDS = {"gpu_old": "v100"}
DEFINITIONS = [
    LaunchDefinition(),
    LaunchDefinition(window_s=30 * DAY_S, wait_window_s=7 * DAY_S),
    LaunchDefinition(min_runtime_s=300.5, user_cancel="runtime", job_class="vllm"),
    LaunchDefinition(
        outcomes={**DEFAULT_OUTCOMES, "TIMEOUT": "failure"}, user_cancel="failure", window_s=DAY_S
    ),
]


def made_up(n: int, seed: int) -> list[ClusterJob]:
    """Jobs of every kind, some of which are told twice with less known the second time."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    jobs = []
    for number in range(n):
        submit_s = NOW_S - rng.randrange(200 * DAY_S)
        eligible_s = rng.choice([0, submit_s, submit_s + 120])
        started = rng.random() < 0.9
        start_s = submit_s + rng.randrange(1, 20_000) if started else 0
        elapsed_s = rng.choice([0, 10, 299, 300, 301, 90_000]) if started else 0
        job = ClusterJob(
            source="sacct",
            cluster=rng.choice(["lab", "big"]),
            job_id=str(number),
            state=rng.choice(list(DEFAULT_OUTCOMES)),
            gpu=rng.choice(["h100", "a100", ""]),
            n_gpus=rng.choice([0, 1, 2, 8]),
            n_tasks=rng.choice([1, 1, 1, 7]),
            partition=rng.choice(["gpu", "gpu_old", ""]),
            job_class=rng.choice(["vllm", "other", ""]),
            ended_by=rng.choice(["user", "system", ""]),
            submit_s=submit_s,
            eligible_s=eligible_s,
            start_s=start_s,
            end_s=(start_s or submit_s) + elapsed_s,
            elapsed_s=elapsed_s,
        )
        jobs.append(job)
        if rng.random() < 0.1:
            jobs.append(dataclasses.replace(job, n_cpus=4))
    return jobs


def filled(home: Path, jobs: list[ClusterJob], *, compacted: int | None = None) -> Store:
    """A log of the jobs, the first ``compacted`` of them also in columns."""
    store = Store.open(home, log_name=CLUSTER_LOG_NAME)
    if compacted is not None:
        store.append(jobs[:compacted], now_s=1.0)
        compact(store, write_parquet)
        jobs = jobs[compacted:]
    other = JobStatistics(source="jobstats", job_id="1", elapsed_s=1.0, n_nodes=1)
    store.append([*jobs, other], now_s=2.0)
    return store


def plainly(store: Store, definition: LaunchDefinition) -> ClusterHistory:
    tally = ReadTally()
    jobs = each_once(read_jobs(store, tally))
    counted = count_history(jobs, definition, now_s=NOW_S, kind_of_partition=KINDS)
    return dataclasses.replace(counted, damaged=tally.skipped.total())


def by_duckdb(store: Store, definition: LaunchDefinition) -> ClusterHistory:
    with open_source(store) as source, duckdb_engine(source) as engine:
        return query_history(engine, definition, now_s=NOW_S, kind_of_partition=KINDS)


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("compacted", [None, 0, 150, 400])
def test_duckdb_counts_as_the_definition_says_over_lines_columns_and_both(
    tmp_path: Path, definition: LaunchDefinition, compacted: int | None
) -> None:
    store = filled(tmp_path, made_up(350, seed=1), compacted=compacted)
    found = by_duckdb(store, definition)
    assert found == plainly(store, definition)
    assert found.jobs > 0
    assert found.waits
    assert (folder_of(store) / "manifest.json").exists() == bool(compacted)


@given(
    seed=st.integers(0, 10_000),
    window_s=st.sampled_from([0.0, 1.0, 3600.0, 1e6, 3e7]),
    min_runtime_s=st.floats(0, 1e5),
    user_cancel=st.sampled_from(["excluded", "failure", "runtime"]),
)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_definition_counts_the_same_either_way(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    window_s: float,
    min_runtime_s: float,
    user_cancel: Any,
) -> None:
    definition = LaunchDefinition(
        min_runtime_s=min_runtime_s,
        user_cancel=user_cancel,
        window_s=window_s,
        wait_window_s=window_s,
    )
    store = filled(tmp_path_factory.mktemp("home"), made_up(60, seed))
    assert by_duckdb(store, definition) == plainly(store, definition)


def test_an_empty_site_counts_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "none", log_name=CLUSTER_LOG_NAME)
    assert by_duckdb(store, LaunchDefinition()).configurations == ()


def test_the_jobs_that_started_last_come_newest_first_and_once(tmp_path: Path) -> None:
    store = filled(tmp_path, made_up(300, seed=8), compacted=100)
    started = [j for j in each_once(read_jobs(store, ReadTally())) if j.start_s and j.n_gpus]
    newest_s = max(job.start_s for job in started)
    with open_source(store) as source, duckdb_engine(source) as engine:
        found = newest_jobs(engine, within_s=50 * DAY_S, most=1000)
        assert found[:5] == newest_jobs(engine, within_s=50 * DAY_S, most=5)
        assert query_history(engine, DEFINITIONS[0], now_s=NOW_S, kind_of_partition=KINDS)
        assert found == newest_jobs(engine, within_s=50 * DAY_S, most=1000)
    assert [j.start_s for j in found] == sorted((j.start_s for j in found), reverse=True)
    wanted = [job for job in started if job.start_s > newest_s - 50 * DAY_S]
    assert {(j.cluster, j.job_id, j.end_s) for j in found} == {
        (j.cluster, j.job_id, j.end_s) for j in wanted
    }
    assert len(found) == len(wanted)


def test_lines_that_are_no_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    store = filled(tmp_path, made_up(50, seed=2))
    wanted = by_duckdb(store, LaunchDefinition())
    with store.path.open("ab") as log:
        log.write(
            b"\n{}\nnot json\n\xff\xfe{\x00\n" + b'{"kind":"cluster_job","n_gpus":"x"}\n[1]\n'
        )
        log.write(b'{"content_hash":"00","kind":"cluster_job","schema_version":1,"job_id":"torn')
    assert wanted.damaged == 0
    assert by_duckdb(store, LaunchDefinition()) == dataclasses.replace(wanted, damaged=6)


def test_damaged_lines_that_a_compaction_left_out_stay_counted(tmp_path: Path) -> None:
    store = filled(tmp_path, made_up(50, seed=2))
    with store.path.open("ab") as log:
        log.write(b'not json\n{"kind":"cluster_job","n_gpus":"x"}\n')
    compact(store, write_parquet)
    store.append(made_up(60, seed=3), now_s=3.0)
    with open_source(store) as source:
        assert (len(source.parquet), source.jsonl is not None, source.skipped) == (1, True, 2)
    assert by_duckdb(store, LaunchDefinition()).damaged == 0


def test_of_one_run_told_twice_what_is_known_counts(tmp_path: Path) -> None:
    job = made_up(1, seed=3)[0]
    known = dataclasses.replace(job, gpu="h100", n_gpus=2, state="COMPLETED", start_s=NOW_S - 9)
    less = dataclasses.replace(known, gpu="", n_cpus=1)
    store = filled(tmp_path, [less, known])
    (one,) = by_duckdb(store, LaunchDefinition()).configurations
    assert (one.configuration, one.jobs) == (("h100", 2), known.n_tasks)


def test_jobs_of_a_newer_schema_are_left_out_and_counted(tmp_path: Path) -> None:
    jobs = made_up(20, seed=1)
    wanted = by_duckdb(filled(tmp_path / "without", jobs), LaunchDefinition())
    newer = dataclasses.replace(jobs[0], job_id="x", schema_version=99)
    found = by_duckdb(filled(tmp_path / "with", [*jobs, newer]), LaunchDefinition())
    assert found == dataclasses.replace(wanted, newer_schema=1)


def test_names_that_would_need_quoting_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, made_up(5, seed=1))
    with (
        pytest.raises(UsageError, match="is no state"),
        open_source(store) as source,
        duckdb_engine(source) as engine,
    ):
        query_history(
            engine, LaunchDefinition(), now_s=NOW_S,
            kind_of_partition={"gpu'; DROP TABLE runs": "h100"},
        )  # fmt: skip


def test_a_file_that_is_no_parquet_is_one_line_for_the_user(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with (
        pytest.raises(StateError, match="cannot be counted") as caught,
        duckdb_engine(Source((tmp_path / "x.parquet",), None)) as engine,
    ):
        query_history(engine, LaunchDefinition(), now_s=NOW_S)
    assert "\n" not in str(caught.value)


@contextmanager
def spark_session() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed (extra: spark)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            session = (
                sql.SparkSession.builder.master("local[2]")
                .config("spark.ui.enabled", "false")
                .config("spark.sql.shuffle.partitions", "2")
                .getOrCreate()
            )
        except Exception as error:  # noqa: BLE001 - whatever keeps Java from starting
            pytest.skip(f"no Spark session can be started: {type(error).__name__}")
        try:
            yield session
        finally:
            session.stop()


def test_a_real_spark_session_counts_the_same_with_the_same_sql(tmp_path: Path) -> None:
    from omnipilot.store.spark import SparkEngine  # noqa: PLC0415 - its library may be missing

    lines = filled(tmp_path / "lines", made_up(400, seed=5))
    both = filled(tmp_path / "both", made_up(900, seed=7), compacted=500)
    none = Store.open(tmp_path / "none", log_name=CLUSTER_LOG_NAME)
    with lines.path.open("ab") as log:
        log.write(b'{"kind":"cluster_job","job_id":"torn')
    asked = [(lines, 0), (both, 1), (both, 3), (none, 2)]
    with spark_session() as session:
        for store, n in asked:
            with open_source(store, folder=tmp_path) as source:
                found = query_history(
                    SparkEngine(source, session), DEFINITIONS[n], now_s=NOW_S,
                    kind_of_partition=KINDS,
                )  # fmt: skip
            assert found == plainly(store, DEFINITIONS[n])
            assert found == by_duckdb(store, DEFINITIONS[n])


def test_without_pyspark_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnipilot.store import spark  # noqa: PLC0415 - its library may be missing

    def missing(_name: str) -> None:
        raise ImportError

    monkeypatch.setattr(spark, "import_module", missing)
    with (
        pytest.raises(StateError, match=r"install omnipilot\[spark\]"),
        spark.spark_engine(Source((), tmp_path), "local[1]"),
    ):
        pass
