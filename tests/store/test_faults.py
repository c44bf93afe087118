"""The store on bad ground: no locks, no room, nothing to write on, eight writers, copied in use."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_crashes import numbers, run

from omnipilot.domain import StateError
from omnipilot.learn.ledger import Ledger
from omnipilot.store import AppendReport, Store, codec
from omnipilot.store.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parents[2] / "docs" / "durability.md"
WRITERS, APPENDS = 8, 500
WRITER = """
import sys
from pathlib import Path
from omnipilot.domain import InferenceRun
from omnipilot.store import Store
home, first, last, batch = Path(sys.argv[1]), *map(int, sys.argv[2:5])
store = Store.open(home)
for n in range(first, last, batch):
    store.append([InferenceRun(source="site", model="m", engine="vllm", gpu="H100", n_gpus=1,
        precision="fp8", mode="online", status="ok", labels={}, concurrency=float(i))
        for i in range(n, min(n + batch, last))], now_s=0.0)
    print(n, flush=True)
"""


def writer(home: Path, first: int, last: int, batch: int) -> subprocess.Popen[str]:
    words = [str(home), str(first), str(last), str(batch)]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *words], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO, errno.EBADF])
def test_a_file_system_without_locks_is_refused_in_words_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = Store.open(tmp_path)
    store.append([run(1)], now_s=0.0)
    before = store.path.read_bytes()

    def refuse(_fd: int, _how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StateError, match="put the folder on a file system with file locks") as told:
        store.append([run(2)], now_s=0.0)
    assert "\n" not in str(told.value)
    assert store.path.read_bytes() == before
    assert numbers(store)[0] == [1]  # reading takes no lock


def test_a_lock_file_that_a_dead_process_left_holds_nobody_up(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "history.jsonl.lock").write_text("4194304 elsewhere\n", encoding="ascii")
    store = Store(home, lock_timeout_s=0.5)
    assert store.append([run(1)], now_s=0.0) == AppendReport(1, 0)


def test_a_frozen_writer_is_waited_for_and_then_told_of(tmp_path: Path) -> None:
    Store.open(tmp_path).append([run(0)], now_s=0.0)
    held = os.open(tmp_path / "history.jsonl.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(StateError, match="another process has held"):
            Store(tmp_path, lock_timeout_s=0.1).append([run(1)], now_s=0.0)
    finally:
        os.close(held)
    assert Store(tmp_path).append([run(1)], now_s=0.0) == AppendReport(1, 0)


CROWD = """
import socket, sys
from pathlib import Path
from omnipilot.domain import InferenceRun
from omnipilot.store import Store
home, mine, appends = Path(sys.argv[1]), *map(int, sys.argv[2:4])
if host := "".join(sys.argv[4:]):
    socket.sethostname(host)
store = Store.open(home)
print("ready", flush=True)
sys.stdin.readline()
for n in range(appends):
    number = n if n % 2 else mine + n
    store.append([InferenceRun(source="site", model="m", engine="vllm", gpu="H100", n_gpus=1,
        precision="fp8", mode="online", status="ok", labels={},
        concurrency=float(number))], now_s=0.0)
"""


@pytest.mark.parametrize("hosts", [1, 2])
def test_eight_writers_at_once_lose_tear_and_double_nothing(tmp_path: Path, hosts: int) -> None:
    # Two hosts that share locks: names and process numbers of their own, the same for several.
    apart = ["unshare", "--uts", "--pid", "--fork"] if hosts > 1 else []
    if apart and subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make hosts of its own (unshare)")
    # Every other row is one that all of them write at about the same time.
    crowd = [
        subprocess.Popen(
            [*apart, sys.executable, "-c", CROWD, str(tmp_path), str(10_000 * i), str(APPENDS),
             *([f"host-{i % hosts}"] if apart else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for i in range(1, WRITERS + 1)
    ]  # fmt: skip
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in crowd:
        process.communicate(timeout=300)
    assert [process.returncode for process in crowd] == [0] * WRITERS
    found, tally = numbers(Store.open(tmp_path))
    own = {10_000 * i + n for i in range(1, WRITERS + 1) for n in range(0, APPENDS, 2)}
    assert sorted(found) == sorted(own | set(range(1, APPENDS, 2)))
    assert not tally.skipped


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, where this user may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() or mount is None:
        pytest.skip("only root makes file systems")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(place)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(store: Store) -> int:
    """Append until the disk is full; how many rows were told."""
    for first in range(0, 10_000, 9):
        try:
            store.append([run(n) for n in range(first, first + 9)], now_s=0.0)
        except StateError as error:
            words = str(error)
            assert "No space left on device" in words
            assert "\n" not in words
            return first
    raise AssertionError("the disk is too large")


def test_a_disk_that_fills_up_refuses_whole_batches_and_goes_on_when_there_is_room(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(24 * 1024))
    store = Store.open(small_disk / "home")
    told = fill(store)
    assert numbers(store)[0] == list(range(told))
    with pytest.raises(OSError, match="No space left"):
        replace_file(small_disk / "marks.json", bytes(64 * 1024))
    assert not list(small_disk.glob("marks.json*"))
    ballast.unlink()
    assert store.append([run(-1)], now_s=0.0) == AppendReport(1, 0)
    assert numbers(Store.open(store.home))[0] == [*range(told), -1]


def test_a_read_only_file_system_is_read_and_never_written(small_disk: Path) -> None:
    store = Store.open(small_disk / "home")
    store.append([run(1)], now_s=0.0)
    with store.path.open("ab") as out:
        out.write(b"torn")
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    again = Store.open(store.home)
    assert numbers(again)[0] == [1]
    with pytest.raises(StateError, match="Read-only file system"):
        again.append([run(2)], now_s=0.0)
    with pytest.raises(StateError, match="Read-only file system"), Ledger(store.home).locked():
        pass


def test_going_back_to_an_older_version_and_forward_again_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = dataclasses.replace(run(2), schema_version=2)
    store = Store.open(tmp_path)
    store.append([run(1), newer], now_s=0.0)
    before = store.path.read_bytes()
    found, tally = numbers(store)  # by the older version
    assert found == [1]
    assert tally.unknown == {"inference_run schema 2": 1}
    assert Store.open(tmp_path).append([newer, run(3)], now_s=0.0) == AppendReport(1, 1)
    assert store.path.read_bytes().startswith(before)
    monkeypatch.setattr(codec, "SCHEMA_VERSION", 2)  # and by the newer one
    found, tally = numbers(store)
    assert found == [1, 2, 3]
    assert not tally.unknown


def commands(heading: str) -> str:
    """The commands below a heading of the documentation."""
    found = re.search(
        rf"^## {heading}\n.*?```console\n(.*?)```",
        DOCS.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert found is not None, heading
    return "\n".join(line.removeprefix("$ ") for line in found[1].splitlines())


def test_the_documented_backup_of_a_site_in_use_restores_all_that_was_told_before(
    tmp_path: Path,
) -> None:
    home, restored = tmp_path / "home", tmp_path / "restored"
    ledger = Ledger(home / "bundles")
    for n in range(3):
        with ledger.locked():
            ledger.append("fit", f"v{n}", {}, at_s=0.0)
    process = writer(home, 0, 1_000_000, 5)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(20)]
    place = {
        **os.environ, "OMNIPILOT_HOME": str(home), "BACKUP": str(tmp_path / "backup.tar"),
        "RESTORED": str(restored),
    }  # fmt: skip
    try:
        for heading in ("Back up", "Restore"):
            done = subprocess.run(
                ["bash", "-euc", commands(heading)], env=place, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
    finally:
        process.kill()
        process.communicate()
    assert restored.stat().st_mode & 0o077 == 0
    found, tally = numbers(Store.open(restored))
    assert found == list(range(len(found)))
    assert found[-1] >= told[-1] + 4
    assert not tally.skipped
    assert [e.version for e in Ledger(restored / "bundles").entries()] == ["v0", "v1", "v2"]
    assert Store.open(restored).append([run(-1)], now_s=0.0) == AppendReport(1, 0)
