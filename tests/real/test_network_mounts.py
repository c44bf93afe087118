"""The store on a network file system whose locks hold on one host only: a folder, mounted twice.

sshfs stands for all such (NFS with ``local_lock=flock``, Lustre with ``localflock``): each mount
has its own caches and its own locks, as two hosts have.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnipilot.domain import InferenceRun, StateError
from omnipilot.store import ReadTally, Store
from omnipilot.store.files import replace_file
from omnipilot.store.lock import exclusive

if TYPE_CHECKING:
    from collections.abc import Iterator

SFTP_SERVERS = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", *os.get_exec_path())
BATCH = 250
WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[5])
from test_network_mounts import runs
from omnipilot.store import Store
store, first, last, batch = Store.open(Path(sys.argv[1])), *map(int, sys.argv[2:5])
sys.stdin.readline()
for n in range(first, last, batch):
    store.append(runs(n, min(n + batch, last)), now_s=0.0)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """One served folder as two hosts see it."""
    sshfs, server = shutil.which("sshfs"), shutil.which("sftp-server", path=":".join(SFTP_SERVERS))
    if sshfs is None or server is None:
        pytest.skip("sshfs and sftp-server are not both installed")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no FUSE for this user")
    served, connect = tmp_path / "served", tmp_path / "connect"
    connect.write_text(f"#!/bin/sh\nexec {server}\n", encoding="utf-8")
    connect.chmod(0o700)
    served.mkdir()
    mounts = tmp_path / "host-a", tmp_path / "host-b"
    try:
        for mount in mounts:
            mount.mkdir()
            done = subprocess.run(
                [sshfs, "-o", f"ssh_command={connect}", f"server:{served}", str(mount)],
                capture_output=True, text=True, check=False, timeout=30,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"sshfs cannot mount here: {done.stderr.strip()}")
        yield mounts
    finally:
        for mount in filter(os.path.ismount, mounts):
            subprocess.run(["umount", "-l", str(mount)], check=True)


def runs(first: int, last: int) -> list[InferenceRun]:
    return [
        InferenceRun(
            source="site", model="m", engine="vllm", gpu="H100", n_gpus=1, precision="fp8",
            mode="online", status="ok", labels={}, concurrency=float(n),
        )
        for n in range(first, last)
    ]  # fmt: skip


def numbers(home: Path) -> tuple[Counter[int], ReadTally]:
    tally = ReadTally()
    rows = [stored.row for stored in Store.open(home).rows(tally)]
    return Counter(int(r.concurrency) for r in rows if isinstance(r, InferenceRun)), tally


def write_at_once(homes: tuple[Path, ...], each: int, batch: int) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(home), str(i * each), str((i + 1) * each),
             str(batch), str(Path(__file__).parent)],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i, home in enumerate(homes)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, error = writer.communicate(timeout=300)
        assert writer.returncode == 0, error


def test_a_lock_holds_on_its_host_only(hosts: tuple[Path, Path]) -> None:
    """Why the documentation lets one host write there."""
    one, other = (host / "x.lock" for host in hosts)
    with exclusive(one):
        with pytest.raises(StateError, match="held"), exclusive(one, timeout_s=0.05):
            pass
        with exclusive(other, timeout_s=0.05):
            pass


def test_writers_on_one_host_lose_tear_and_double_nothing(hosts: tuple[Path, Path]) -> None:
    home = hosts[0] / "home"
    write_at_once((home, home, home), 50, 5)
    found, tally = numbers(home)
    assert found == Counter(range(150))
    assert not tally.skipped


def test_another_host_reads_what_one_writes_and_mends_its_torn_end(
    hosts: tuple[Path, Path],
) -> None:
    here, there = (host / "home" for host in hosts)
    Store.open(here).append(runs(0, 3), now_s=0.0)
    with Store.open(here).path.open("ab") as stream:
        stream.write(b'{"cut')
    assert numbers(there)[0] == Counter(range(3))
    Store.open(there).append(runs(2, 5), now_s=0.0)
    assert numbers(there) == (Counter(range(5)), ReadTally(rows=5))
    (aside,) = Store.open(there).torn_files()
    assert aside.read_bytes() == b'{"cut'


def test_a_file_that_is_replaced_is_the_old_or_the_new_one_on_every_host(
    hosts: tuple[Path, Path],
) -> None:
    here, there = (host / "marks.json" for host in hosts)
    texts = [json.dumps({"n": n, "text": str(n) * 20_000}).encode() for n in range(10)]
    replace_file(here, texts[0])
    stop, seen = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            seen.append(there.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for text in texts:
        replace_file(here, text)
    stop.set()
    reader.join()
    assert seen
    assert set(seen) <= set(texts)


def test_hosts_that_write_without_a_common_lock_lose_nothing_that_is_given_again(
    hosts: tuple[Path, Path],
) -> None:
    here, there = (host / "home" for host in hosts)
    write_at_once((here, there, here, there), 4 * BATCH, BATCH)
    Store.open(here).append(runs(0, 16 * BATCH), now_s=0.0)
    found, tally = numbers(here)
    assert set(found) == set(range(16 * BATCH))
    assert tally.rows == found.total()
