"""Launch scripts run on this machine, and whether one still runs.

A script holds a lock on its run's folder for as long as it lives. The lock is inherited from who
started it, so there is no moment at which a running script is taken for an ended one, also where
the starter is killed.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["hold_folder", "is_running", "run_script", "start_script"]

_LOCK_NAME: Final = ".running"
_SHELL: Final = "/bin/bash"


@contextmanager
def hold_folder(folder: Path) -> Iterator[int | None]:
    """The folder's lock as a descriptor; None where a running script holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(f"{folder} cannot be used: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield fd
    finally:
        os.close(fd)


def is_running(folder: Path) -> bool:
    """Whether a script of this run's folder is alive on this machine."""
    if not (folder / _LOCK_NAME).exists():
        return False
    with hold_folder(folder) as fd:
        return fd is None


def start_script(
    script: Path, folder: Path, *, output: int | None = None
) -> subprocess.Popen[bytes] | None:
    """Start a script in the background, in a session of its own.

    Args:
        script: the file.
        folder: its run's folder.
        output: descriptor that its output goes to; ``job.out`` of the folder where None.

    Returns:
        The process; None where a script of this folder runs already.

    Raises:
        StateError: the folder cannot be written.
    """
    with hold_folder(folder) as fd:
        if fd is None:
            return None
        env = {**os.environ, "OMNIPILOT_LOCK_FD": str(fd)}
        if output is not None:
            return _start(script, env, fd, output)
        with (folder / "job.out").open("ab") as out:
            return _start(script, env, fd, out.fileno())


def _start(script: Path, env: dict[str, str], lock_fd: int, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - a list, and no shell parses a value
        [_SHELL, str(script)], env=env, pass_fds=(lock_fd,), stdin=subprocess.DEVNULL,
        stdout=output, stderr=output, start_new_session=True,
    )  # fmt: skip


def run_script(script: Path, folder: Path, *, output: int | None = None) -> int:
    """Run a script to its end; an interrupt is passed on to it, and its clean-up waited for.

    Returns:
        Its exit code.

    Raises:
        StateError: the folder cannot be written, or a script of it runs already.
    """
    process = start_script(script, folder, output=output)
    if process is None:
        raise StateError(f"a script of {folder} is running already")
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
