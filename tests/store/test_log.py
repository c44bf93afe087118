"""The append-only log."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnipilot.domain import BadInputError, InferenceRun, StateError
from omnipilot.store import AppendReport, ReadTally, Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omnipilot.store import StoredRow


def run(n: int, **changes: object) -> InferenceRun:
    row = InferenceRun(
        source="site", model="m", engine="vllm", gpu="H100", n_gpus=1, precision="fp8",
        mode="online", status="ok", labels={"ttft_p50_s": 0.1}, concurrency=float(n),
    )  # fmt: skip
    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


def loads(store: Store) -> list[float]:
    return [number_of(stored) for stored in store.rows()]


def number_of(stored: StoredRow) -> float:
    """The number that a test gave a row."""
    assert isinstance(stored.row, InferenceRun)
    return stored.row.concurrency


def fill(home: Path, n: int) -> Store:
    store = Store.open(home)
    store.append([run(i) for i in range(n)], now_s=1.0)
    return store


def test_rows_come_back_in_order_and_the_same_content_is_written_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    assert store.append([run(1), run(2), run(1)], now_s=1.0) == AppendReport(2, 1)
    assert store.append([run(2), run(3)], now_s=2.0) == AppendReport(1, 1)
    assert Store.open(tmp_path).append([run(3)], now_s=3.0) == AppendReport(0, 1)
    assert [(number_of(s), s.ingested_at_s) for s in store.rows()] == [(1, 1), (2, 1), (3, 2)]


@given(batches=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6), fresh=st.booleans())
def test_any_sequence_of_appends_leaves_each_content_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], fresh: bool
) -> None:
    home = tmp_path_factory.mktemp("home")
    store = Store.open(home)
    for batch in batches:
        report = store.append([run(n) for n in batch], now_s=0.0)
        assert sum(report) == len(batch)
        store = Store.open(home) if fresh else store
    told = [n for batch in batches for n in batch]
    assert loads(store) == list(dict.fromkeys(told))


def test_a_store_that_nothing_was_written_to_leaves_no_trace(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "home")
    assert list(store.rows()) == []
    assert store.append([], now_s=0.0) == AppendReport(0, 0)
    assert not (tmp_path / "home").exists()


def test_folders_and_files_are_their_owners_only(tmp_path: Path) -> None:
    store = fill(tmp_path / "a" / "b", 1)
    for path, mode in [(store.home.parent, 0o700), (store.home, 0o700), (store.path, 0o600)]:
        assert path.stat().st_mode & 0o777 == mode


def test_a_refused_row_undoes_its_whole_batch(tmp_path: Path) -> None:
    store = fill(tmp_path, 2)
    before = store.path.read_bytes()
    with pytest.raises(BadInputError):
        store.append([run(7), run(8, labels={"x": float("nan")})], now_s=1.0)
    assert store.path.read_bytes() == before
    assert store.append([run(7)], now_s=1.0) == AppendReport(1, 0)


@given(cut=st.integers(1, 10_000), glue=st.binary(max_size=30))
@settings(deadline=None)  # each example waits for the disk
def test_a_torn_tail_is_kept_aside_and_no_whole_row_is_lost(
    tmp_path_factory: pytest.TempPathFactory, cut: int, glue: bytes
) -> None:
    store = fill(tmp_path_factory.mktemp("home"), 3)
    whole = store.path.read_bytes()
    torn = whole[: len(whole) - 1 - cut % (len(whole) - 1)] + glue.replace(b"\n", b"")
    store.path.write_bytes(torn)
    kept = torn[: torn.rfind(b"\n") + 1]
    tail = torn[len(kept) :]
    store = Store.open(store.home)
    assert store.path.read_bytes() in {kept, torn + b"\n"}
    if store.path.read_bytes() == kept and tail:
        assert [path.read_bytes() for path in store.torn_files()] == [tail]
    store.append([run(i) for i in range(5)], now_s=2.0)
    assert sorted(loads(store)) == [0, 1, 2, 3, 4]


def test_a_whole_last_line_without_newline_is_only_closed(tmp_path: Path) -> None:
    store = fill(tmp_path, 2)
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[:-1])
    assert Store.open(tmp_path).path.read_bytes() == whole
    assert store.torn_files() == []


def test_each_torn_tail_gets_a_file_of_its_own(tmp_path: Path) -> None:
    store = fill(tmp_path, 1)
    for tail in (b"\0" * 200_000, b'{"content_hash":'):
        with store.path.open("ab") as out:
            out.write(tail)
        store = Store.open(tmp_path)
    names = {path.name: path.stat().st_size for path in store.torn_files()}
    assert names == {"history.jsonl.torn-1": 200_000, "history.jsonl.torn-2": 16}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in store.torn_files())
    assert loads(store) == [0]


def test_an_append_repairs_a_tail_that_was_torn_after_opening(tmp_path: Path) -> None:
    store = fill(tmp_path, 1)
    with store.path.open("ab") as out:
        out.write(b'{"half')
    tally = ReadTally()
    assert len(list(store.rows(tally))) == 1
    assert tally.skipped == {"torn": 1}
    store.append([run(5)], now_s=1.0)
    assert loads(store) == [0, 5]


def test_damaged_altered_overlong_and_foreign_lines_are_counted_and_kept(tmp_path: Path) -> None:
    store = fill(tmp_path, 2)
    first, second = store.path.read_bytes().splitlines(keepends=True)
    foreign = json.dumps({**json.loads(first), "kind": "gpu_probe"}).encode() + b"\n"
    altered = second.replace(b'"H100"', b'"H200"')
    data = first + b"garbage \xff\n" + altered + b"x" * 3_000_000 + b"\n" + foreign
    store.path.write_bytes(data)
    tally = ReadTally()
    assert [number_of(s) for s in store.rows(tally)] == [0]
    assert tally.rows == 1
    assert tally.skipped == {"not a row": 1, "altered": 1, "too long": 1}
    assert tally.unknown == {"gpu_probe": 1}
    assert store.append([run(9)], now_s=0.0) == AppendReport(1, 0)
    assert store.path.read_bytes().startswith(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b'"H100"', b'"H200"'),
        lambda line: line[:100] + line,  # two writers without a lock
        lambda line: line[:-9] + b"\n",
        lambda line: line.replace(b'"ingested_at_s":0.0', b'"ingested_at_s":0.0.0'),
        lambda line: line.replace(b'"ingested_at_s":0.0', b'"ingested_at_s":"0"'),
    ],
)
def test_a_row_whose_line_was_damaged_is_taken_in_anew(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    store = fill(tmp_path / "made", 0)
    store.append([run(1), run(2)], now_s=0.0)
    first, second = store.path.read_bytes().splitlines(keepends=True)
    assert damage(first) != first
    store.path.write_bytes(damage(first) + second)
    again = Store.open(store.home)
    assert again.append([run(1), run(2)], now_s=1.0) == AppendReport(1, 1)
    assert loads(again) == [2, 1]


@given(data=st.binary(max_size=400))
def test_a_log_of_random_bytes_still_takes_rows_and_keeps_every_byte(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "history.jsonl").write_bytes(data)
    store = Store.open(home)
    assert store.append([run(1)], now_s=0.0) == AppendReport(1, 0)
    assert loads(store) == [1]
    aside = b"".join(path.read_bytes() for path in store.torn_files())
    assert store.path.read_bytes().startswith(data[: len(data) - len(aside)])
    assert data.endswith(aside)


def test_the_index_follows_other_writers_and_a_replaced_log(tmp_path: Path) -> None:
    mine, other = Store.open(tmp_path), Store.open(tmp_path)
    mine.append([run(1)], now_s=0.0)
    other.append([run(2)], now_s=0.0)
    assert mine.append([run(2)], now_s=0.0) == AppendReport(0, 1)
    mine.path.unlink()
    assert mine.append([run(1), run(2)], now_s=0.0) == AppendReport(2, 0)


WRITER = """
import sys
from pathlib import Path
from omnipilot.domain import InferenceRun
from omnipilot.store import Store
home, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = Store.open(Path(home))
for n in range(first, last, 5):
    store.append([InferenceRun(source="site", model="m", engine="vllm", gpu="H100", n_gpus=1,
        precision="fp8", mode="online", status="ok", labels={}, concurrency=float(i))
        for i in range(n, n + 5)], now_s=0.0)
"""


def test_three_processes_write_overlapping_rows_once_each(tmp_path: Path) -> None:
    spans = [(0, 300), (150, 450), (300, 600)]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(a), str(b)])
        for a, b in spans
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    tally = ReadTally()
    written = sorted(number_of(s) for s in Store.open(tmp_path).rows(tally))
    assert written == list(range(600))
    assert not tally.skipped


def test_a_writer_that_is_killed_leaves_a_usable_log(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), "0", "1000000"])
    path = tmp_path / "history.jsonl"
    while not path.exists() or path.stat().st_size < 20_000:
        assert writer.poll() is None
    writer.kill()
    writer.wait()
    store = Store.open(tmp_path)
    store.append([run(n, labels={}) for n in (0, 10**6)], now_s=0.0)
    written = loads(store)
    assert written[:-1] == list(range(len(written) - 1))


def test_a_full_disk_is_one_clear_error_and_the_log_is_as_before(tmp_path: Path) -> None:
    store = fill(tmp_path, 3)
    before = store.path.read_bytes()
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 700},) * 2)\n"
        "from omnipilot.domain import StateError\n"
        "sys.argv = ['', sys.argv[1], '100', '900']\n"
        f"try:\n    exec({WRITER!r})\n"
        "except StateError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("the store ")
    assert "File too large" in said.stdout
    assert said.stdout.count("\n") == 1
    assert store.path.read_bytes() == before


def test_a_failing_write_or_sync_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(tmp_path, 3)
    before = store.path.read_bytes()

    def fail(fd: int) -> None:
        del fd
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StateError, match="No space left on device"):
        store.append([run(50)], now_s=0.0)
    monkeypatch.undo()
    assert store.path.read_bytes() == before
    assert store.append([run(50)], now_s=0.0) == AppendReport(1, 0)


def test_a_home_that_cannot_be_one_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "home" / "history.jsonl").mkdir(parents=True)
    for home in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "home"):
        with pytest.raises(StateError, match=r"^the store .* cannot be used: "):
            Store.open(home).append([run(1)], now_s=0.0)


def test_a_folder_without_write_permission_is_read_but_not_written(tmp_path: Path) -> None:
    store = fill(tmp_path / "home", 1)
    with store.path.open("ab") as out:
        out.write(b"torn")
    store.path.chmod(0o400)
    store.home.chmod(0o500)
    try:
        if os.access(store.home, os.W_OK):
            pytest.skip("this user may write everywhere")
        assert loads(Store.open(store.home)) == [0]
        with pytest.raises(StateError, match="Permission denied"):
            Store.open(store.home).append([run(1)], now_s=0.0)
        with pytest.raises(StateError, match="Permission denied"):
            Store.open(store.home / "new").append([run(1)], now_s=0.0)
    finally:
        store.home.chmod(0o700)
