"""The copy in Parquet: never more than the log, never a half of it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import duckdb
import pytest

from omnipilot.domain import ClusterJob, JobStatistics, StateError
from omnipilot.store import CLUSTER_LOG_NAME, Store, compacted
from omnipilot.store.compacted import compact, folder_of, open_source
from omnipilot.store.query import write_parquet

if TYPE_CHECKING:
    from pathlib import Path

JOB = ClusterJob(
    source="sacct", cluster="lab", job_id="0", state="COMPLETED", gpu="h100", n_gpus=2,
    partition="gpu", start_s=1_790_000_000, end_s=1_790_000_100, gpu_utilization_frac=(0.5, 1.0),
)  # fmt: skip


def jobs(first: int, n: int) -> list[ClusterJob]:
    return [dataclasses.replace(JOB, job_id=str(number)) for number in range(first, first + n)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "home", log_name=CLUSTER_LOG_NAME)
    store.append(jobs(0, 100), now_s=1.0)
    return store


def held(store: Store) -> list[str]:
    """Job numbers in the copy and in what it lacks."""
    with open_source(store) as source:
        found = []
        if source.parquet:
            files = [str(path) for path in source.parquet]
            rows = duckdb.read_parquet(files).project("job_id").fetchall()
            found += [row[0] for row in rows]
        if source.jsonl is not None:
            found += [json.loads(line)["job_id"] for line in source.jsonl.read_text().splitlines()]
    return sorted(found, key=int)


def test_the_copy_holds_every_field_of_every_job(store: Store) -> None:
    report = compact(store, write_parquet)
    assert (report.rows, report.total_rows, report.parts, report.skipped) == (100, 100, 1, {})
    assert report.log_bytes == store.path.stat().st_size
    (part,) = folder_of(store).glob("part-*.parquet")
    table = duckdb.read_parquet(str(part)).filter("job_id = '7'")
    row = dict(zip(table.columns, table.fetchall()[0], strict=True))
    line = json.loads(store.path.read_text().splitlines()[7])
    assert row.keys() == line.keys()
    assert row == line
    assert part.stat().st_mode & 0o077 == 0


def test_only_what_is_new_is_copied_and_the_rest_comes_from_the_log(store: Store) -> None:
    compact(store, write_parquet)
    assert compact(store, write_parquet).rows == 0
    store.append(jobs(100, 30), now_s=2.0)
    assert held(store) == [str(n) for n in range(130)]
    report = compact(store, write_parquet)
    assert (report.rows, report.total_rows, report.parts) == (30, 130, 2)
    store.append(jobs(130, 5), now_s=3.0)
    assert held(store) == [str(n) for n in range(135)]


def test_a_long_log_is_copied_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted, "_PART_BYTES", 10_000)
    monkeypatch.setattr(compacted, "_COPY_BYTES", 3_000)
    told: list[float] = []
    report = compact(store, write_parquet, on_progress=told.append)
    assert report.parts > 3
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert held(store) == [str(n) for n in range(100)]


@pytest.mark.parametrize("dies_at", [1, 2, 3])
def test_killed_at_any_part_the_copy_stays_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    monkeypatch.setattr(compacted, "_PART_BYTES", 20_000)
    monkeypatch.setattr(compacted, "_COPY_BYTES", 5_000)
    calls = 0

    def dies(lines: Path, to: Path) -> int:
        nonlocal calls
        calls += 1
        rows = write_parquet(lines, to)
        if calls == dies_at:
            raise KeyboardInterrupt
        return rows

    with pytest.raises(KeyboardInterrupt):
        compact(store, dies)
    assert held(store) == [str(n) for n in range(100)]
    compact(store, write_parquet)
    assert held(store) == [str(n) for n in range(100)]
    assert not list(folder_of(store).glob("*.new"))


def test_a_part_that_lacks_rows_is_no_part(store: Store) -> None:
    with pytest.raises(StateError, match="has 99 rows of 100"):
        compact(store, lambda lines, to: write_parquet(lines, to) - 1)
    assert held(store) == [str(n) for n in range(100)]


def test_a_log_that_was_replaced_is_copied_anew(store: Store) -> None:
    compact(store, write_parquet)
    store.path.unlink()
    fresh = Store.open(store.home, log_name=CLUSTER_LOG_NAME)
    fresh.append(jobs(500, 200), now_s=1.0)
    assert held(fresh) == [str(n) for n in range(500, 700)]
    assert compact(fresh, write_parquet).total_rows == 200
    assert held(fresh) == [str(n) for n in range(500, 700)]


def test_a_missing_part_and_a_damaged_manifest_mean_the_log(store: Store) -> None:
    compact(store, write_parquet)
    next(folder_of(store).glob("part-*.parquet")).unlink()
    assert held(store) == [str(n) for n in range(100)]
    compact(store, write_parquet)
    (folder_of(store) / "manifest.json").write_text("{")
    assert held(store) == [str(n) for n in range(100)]


def test_a_newer_manifest_is_refused(store: Store) -> None:
    compact(store, write_parquet)
    manifest = folder_of(store) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    with pytest.raises(StateError, match="upgrade omnipilot"):
        held(store)


def test_altered_torn_and_other_lines_are_left_in_the_log_and_counted(store: Store) -> None:
    text = store.path.read_bytes()
    store.path.write_bytes(text.replace(b'"job_id":"3"', b'"job_id":"x"', 1) + b'{"torn": ')
    other = JobStatistics(source="jobstats", job_id="1", elapsed_s=1.0, n_nodes=1)
    store.append([other], now_s=2.0)
    report = compact(store, write_parquet)
    assert (report.rows, report.skipped) == (99, {"altered": 1})
    assert store.torn_files()


def test_a_line_that_two_writers_glued_is_counted_and_the_others_are_copied(store: Store) -> None:
    lines = store.path.read_bytes().splitlines(keepends=True)
    store.path.write_bytes(lines[0][:-20] + b"".join(lines))
    report = compact(store, write_parquet)
    assert (report.rows, report.skipped) == (99, {"not a row": 1})


def test_there_is_nothing_to_copy_of_a_site_without_jobs(tmp_path: Path) -> None:
    empty = Store.open(tmp_path / "none", log_name=CLUSTER_LOG_NAME)
    assert compact(empty, write_parquet).total_rows == 0
    assert not (tmp_path / "none").exists()
