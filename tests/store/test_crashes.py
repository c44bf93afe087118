"""The stores, killed and unplugged at every call that changes a file."""

from __future__ import annotations

import errno
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from crashing import crashes, refusals

from omnipilot.collect.identity import open_site_key
from omnipilot.domain import ClusterJob, InferenceRun, StateError
from omnipilot.store import CLUSTER_LOG_NAME, ReadTally, Store
from omnipilot.store.compacted import compact, open_source
from omnipilot.store.log import LOG_NAME
from omnipilot.store.marks import Marks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BATCHES = ((1, 2, 3), (3, 4), (5,))


def run(n: int) -> InferenceRun:
    return InferenceRun(
        source="site", model="m", engine="vllm", gpu="H100", n_gpus=1, precision="fp8",
        mode="online", status="ok", labels={}, concurrency=float(n),
    )  # fmt: skip


def numbers(store: Store) -> tuple[list[int], ReadTally]:
    tally = ReadTally()
    rows = [stored.row for stored in store.rows(tally)]
    return [int(row.concurrency) for row in rows if isinstance(row, InferenceRun)], tally


def append_batches(name: str) -> Callable[[Path, Callable[[str], None]], None]:
    def program(folder: Path, tell: Callable[[str], None]) -> None:
        for batch in BATCHES:
            Store.open(folder / "home", log_name=name).append([run(n) for n in batch], now_s=0.0)
            tell(",".join(map(str, batch)))

    return program


def check(home: Path, name: str, told: tuple[str, ...], where: str) -> None:
    """Every row that was told is there, once; nothing is torn; the store takes rows again."""
    store = Store.open(home, log_name=name)
    found, tally = numbers(store)
    acknowledged = {int(n) for batch in told for n in batch.split(",")}
    assert acknowledged <= set(found), where
    assert max(Counter(found).values(), default=1) == 1, where
    assert not tally.skipped, where
    store.append([run(n) for batch in BATCHES for n in batch], now_s=1.0)
    found, tally = numbers(store)
    assert sorted(found) == [1, 2, 3, 4, 5], where
    assert not tally.skipped, where


@pytest.mark.parametrize("name", [LOG_NAME, CLUSTER_LOG_NAME])
def test_a_store_killed_or_unplugged_at_any_call_keeps_what_it_told(
    tmp_path: Path, name: str
) -> None:
    calls: Counter[str] = Counter()
    for crash in crashes(tmp_path, append_batches(name)):
        calls[crash.call] += 1
        for state, disk in (("killed", crash.killed), ("unplugged", crash.unplugged)):
            check(disk / "home", name, crash.told, f"{state} at call {crash.n}, {crash.call}")
    assert crash.told == ("1,2,3", "3,4", "5")
    assert {"mkdir", "open", "flock", "write", "fsync"} <= set(calls)


def torn_log(folder: Path) -> None:
    store = Store.open(folder / "home")
    store.append([run(1)], now_s=0.0)
    with store.path.open("ab") as out:
        out.write(b'{"content_hash":"half a row')


def test_a_repair_killed_or_unplugged_at_any_call_keeps_the_bytes_aside(tmp_path: Path) -> None:
    for crash in crashes(tmp_path, append_batches(LOG_NAME), before=torn_log):
        for disk in (crash.killed, crash.unplugged):
            check(disk / "home", LOG_NAME, ("1", *crash.told), f"call {crash.n}, {crash.call}")
            kept = {path.read_bytes() for path in Store(disk / "home").torn_files()}
            assert b'{"content_hash":"half a row' in kept, f"call {crash.n}, {crash.call}"


def test_a_row_whose_writer_died_unsynced_is_safe_once_it_is_told_as_there(tmp_path: Path) -> None:
    def unsynced(folder: Path, tell: Callable[[str], None]) -> None:
        store = Store.open(folder / "home")
        store.append([run(1)], now_s=0.0)
        tell("1")
        with store.path.open("ab") as out:  # as another process, killed before its fsync
            other = Store(folder / "other")
            other.append([run(2)], now_s=0.0)
            out.write(other.path.read_bytes())
        assert Store.open(folder / "home").append([run(2)], now_s=0.0) == (0, 1)
        tell("2")

    for crash in crashes(tmp_path, unsynced):
        check(crash.unplugged / "home", LOG_NAME, crash.told, f"call {crash.n}, {crash.call}")


def test_a_home_that_another_program_just_made_is_safe_with_its_first_row(tmp_path: Path) -> None:
    def program(folder: Path, tell: Callable[[str], None]) -> None:
        (folder / "home").mkdir()
        Store.open(folder / "home").append([run(1)], now_s=0.0)
        tell("1")

    for crash in crashes(tmp_path, program):
        check(crash.unplugged / "home", LOG_NAME, crash.told, f"call {crash.n}, {crash.call}")


def test_a_secret_under_which_people_were_hashed_is_not_lost(tmp_path: Path) -> None:
    def program(folder: Path, tell: Callable[[str], None]) -> None:
        tell(open_site_key(folder).hashed("user", "someone"))

    for crash in crashes(tmp_path, program):
        for disk in (crash.killed, crash.unplugged):
            for hashed in crash.told:
                assert open_site_key(disk).hashed("user", "someone") == hashed, (
                    f"call {crash.n}, {crash.call}"
                )
            open_site_key(disk)


def test_a_compaction_killed_or_unplugged_at_any_call_counts_each_row_once(tmp_path: Path) -> None:
    def before(folder: Path) -> None:
        jobs = [
            ClusterJob(
                source="sacct", cluster="lab", job_id=str(n), state="COMPLETED", gpu="", n_gpus=0
            )
            for n in range(6)
        ]
        Store.open(folder, log_name=CLUSTER_LOG_NAME).append(jobs, now_s=0.0)

    def write_part(lines: Path, part: Path) -> int:
        part.write_bytes(lines.read_bytes())  # JSON lines in place of Parquet
        return part.read_bytes().count(b"\n")

    def program(folder: Path, tell: Callable[[str], None]) -> None:
        compact(Store.open(folder, log_name=CLUSTER_LOG_NAME), write_part)
        tell("done")

    for crash in crashes(tmp_path, program, before=before):
        for disk in (crash.killed, crash.unplugged):
            store = Store.open(disk, log_name=CLUSTER_LOG_NAME)
            for again in (False, True):
                if again:
                    compact(store, write_part)
                with open_source(store) as source:
                    files = [*source.parquet, *([source.jsonl] if source.jsonl else [])]
                    n = sum(file.read_bytes().count(b"\n") for file in files)
                assert n == 6, f"call {crash.n}, {crash.call}"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_call_that_is_refused_leaves_the_log_as_it_was(tmp_path: Path, code: int) -> None:
    def program(folder: Path, tell: Callable[[str], None]) -> None:
        for batch in BATCHES:
            try:
                Store.open(folder / "home").append([run(n) for n in batch], now_s=0.0)
            except StateError as error:
                words = str(error)
                assert "\n" not in words
                continue
            tell(",".join(map(str, batch)))

    for crash in refusals(tmp_path, program, error=code):
        found, _ = numbers(Store.open(crash.killed / "home"))
        whole = {int(n) for batch in crash.told for n in batch.split(",")}
        assert set(found) == whole, f"part of a batch at call {crash.n}, {crash.call}"
        check(crash.killed / "home", LOG_NAME, crash.told, f"call {crash.n}, {crash.call}")
        assert len(crash.told) >= len(BATCHES) - 1


def test_marks_killed_or_unplugged_at_any_call_are_the_old_or_the_new_ones(tmp_path: Path) -> None:
    def before(folder: Path) -> None:
        log = folder / LOG_NAME
        log.write_bytes(b"\n")
        Marks(folder, log).set("sacct", "lab", 0, 10)

    def program(folder: Path, tell: Callable[[str], None]) -> None:
        Marks(folder, folder / LOG_NAME).set("sacct", "lab", 0, 20)
        tell("20")

    for crash in crashes(tmp_path, program, before=before):
        for disk in (crash.killed, crash.unplugged):
            mark = Marks(disk, disk / LOG_NAME).covered("sacct", "lab")
            assert mark is not None, f"call {crash.n}, {crash.call}"
            assert mark.until_s in ({20} if crash.told else {10, 20})
            Marks(disk, disk / LOG_NAME).set("sacct", "lab", 0, 30)
