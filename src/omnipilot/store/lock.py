"""One writer at a time, across processes."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LOCK_TIMEOUT_S", "exclusive"]

LOCK_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.01
_BUSY: Final = (errno.EAGAIN, errno.EACCES)


@contextmanager
def exclusive(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock on a side file, which is created where it is missing and never removed.

    Args:
        path: the side file; its folder exists.
        timeout_s: longest wait for another process.

    Raises:
        StateError: the wait took too long, or the file system offers no locks.
        OSError: the side file cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _acquire(fd, path, timeout_s)
        yield
    finally:
        os.close(fd)  # closing releases the lock


def _acquire(fd: int, path: Path, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                raise StateError(
                    f"{path} cannot be locked ({error.strerror}): put the folder on a file system "
                    "with file locks"
                ) from error
            if time.monotonic() > deadline_s:
                raise StateError(
                    f"another process has held {path} for {timeout_s:.0f} s: wait for it or stop it"
                ) from error
            time.sleep(_POLL_S)
        else:
            return
