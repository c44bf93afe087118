"""A real Slurm with its accounting database on this machine, for tests of what reads it.

Five made-up nodes with GPUs, four partitions, slurmdbd and MariaDB, started by the recipe of the
shared folder on free ports; up in about 7 s, once a session, and only where a test asks for it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SlurmCluster", "free_ports", "slurm"]

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "sacct", "munged", "mariadbd", "mariadb-install-db")
START_S = 120
STARTS = 3
_LOWEST_PORT = 10_000
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster.

    ``environment`` is what a program needs to talk to it; ``has_memory_cgroup`` tells whether a
    job that takes too much memory ends as OUT_OF_MEMORY (else as FAILED 0:9).
    """

    folder: Path
    environment: dict[str, str]
    has_memory_cgroup: bool

    def run(self, *command: str, user: str = "", timeout_s: float = 30) -> str:
        """Run a program of Slurm, as another user where named; its standard output."""
        if user:
            command = ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *command)
        done = subprocess.run(
            command, cwd=self.folder / "jobs", env=self.environment, capture_output=True,
            text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, script: str, *options: str, user: str = "") -> int:
        """Submit a job that runs a line of shell; its number."""
        out = self.run("sbatch", "--parsable", *options, f"--wrap={script}", user=user)
        return int(out.strip().partition(";")[0])

    def state(self, job_id: int) -> str:
        """The state that the accounting database holds of a job; "" before it knows of it."""
        out = self.run("sacct", "-n", "-P", "-X", "-j", str(job_id), "--format=State")
        return out.strip().splitlines()[-1] if out.strip() else ""

    def wait_for(self, job_id: int, *states: str, timeout_s: float = 60) -> str:
        """Wait until a job is in one of the states (by their beginning) or ends."""
        until_s = time.monotonic() + timeout_s
        state = ""
        while time.monotonic() < until_s:
            state = self.state(job_id)
            if state.startswith(states):
                return state
            if state and not state.startswith(("PENDING", "RUNNING", "REQUEUED")):
                break
            time.sleep(0.3)
        raise AssertionError(f"job {job_id} is {state or 'unknown'}, not {states}")


def free_ports(n: int) -> list[int]:
    """Ports of the loopback that nothing listens on, one after the other: ``n`` in a row.

    They lie below those that the system hands to outgoing connections: one of these would keep a
    daemon from its port between the choice and its start.
    """
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    highest = int(outgoing[0]) - n
    for _ in range(50):
        start = _LOWEST_PORT + secrets.randbelow(highest - _LOWEST_PORT)
        with ExitStack() as held:
            try:
                for port in range(start, start + n):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return list(range(start, start + n))
    raise AssertionError(f"no {n} free ports in a row")


def missing_parts(recipes: Path) -> str:
    """Say what a cluster lacks here; "" where it can be started."""
    absent = [p for p in PROGRAMS if shutil.which(p, path=_SYSTEM_PATH) is None]
    if absent:
        return f"no {', '.join(absent)} on this machine"
    if os.geteuid() != 0:
        return "a cluster of its own is started by root only"
    if not (recipes / "slurm-up.sh").is_file():
        return f"no recipe {recipes / 'slurm-up.sh'}"
    return ""


@pytest.fixture(scope="session")
def slurm(shared_dir: Path) -> Iterator[SlurmCluster]:
    """A real Slurm; skips with the reason where it cannot be started."""
    recipes = shared_dir / "recipes"
    reason = missing_parts(recipes)
    if reason:
        pytest.skip(reason)
    told: list[str] = []
    for _ in range(STARTS):
        # Not under pytest's own folder: that is closed to other users, and munge refuses it.
        folder = Path(tempfile.mkdtemp(prefix="omnipilot-slurm-"))
        try:
            cluster = _start(recipes, folder)
            if cluster is not None:
                yield cluster
                return
            told.append(_last_words(folder))
        finally:
            subprocess.run(
                ["bash", str(recipes / "slurm-down.sh"), str(folder), "--purge"],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S, check=False,
            )  # fmt: skip
    pytest.fail(f"the recipe did not start Slurm in {STARTS} attempts: " + "\n".join(told))


def _start(recipes: Path, folder: Path) -> SlurmCluster | None:
    """Start a cluster in a folder; ``None`` where a daemon of it did not come up in its time."""
    folder.chmod(0o755)
    (folder / "jobs").mkdir()
    (folder / "jobs").chmod(0o1777)
    ports = free_ports(10)
    names = dict(zip(("DBPORT", "DBDPORT", "CTLPORT", "NDPORT"), map(str, ports), strict=False))
    environment = {"PATH": _SYSTEM_PATH, "HOME": str(folder), "LANG": "C.UTF-8", **names}
    with (folder / "start.log").open("wb") as out:
        # Into a file: the daemons keep a pipe open for ever.
        try:
            subprocess.run(
                ["bash", str(recipes / "slurm-up.sh"), str(folder)], env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=START_S, check=True,
            )  # fmt: skip
        except subprocess.SubprocessError:
            return None
    conf = folder / "etc" / "slurm.conf"
    return SlurmCluster(
        folder,
        environment | {"SLURM_CONF": str(conf)},
        has_memory_cgroup="TaskPlugin=task/cgroup" in conf.read_text(encoding="utf-8"),
    )


def _last_words(folder: Path) -> str:
    """The ends of what the recipe and the daemons wrote."""
    logs = [folder / "start.log", *sorted((folder / "log").glob("slurm*.log"))]
    ends = [(p.name, p.read_text(errors="replace")[-400:]) for p in logs if p.is_file()]
    return "\n".join(f"--- {name}\n{text}" for name, text in ends)
