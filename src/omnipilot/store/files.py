"""Files that are their owner's only, written whole, and still there after a crash.

A crash leaves of a file what was synced, and of a folder the names that it had when it was synced:
so a new file is synced before its folder is, and both before success is told.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from omnipilot.settings import check_home

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_private", "replace_file", "sync_folder", "sync_name", "write_all"]

# Exclusive: a link that somebody planted at the name is refused, never followed.
_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, for their owner only.

    Raises:
        StateError: it is there, and anybody can write in it.
        OSError: it cannot be made.
    """
    check_home(folder)
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(mode=0o700, exist_ok=True)
        sync_name(new)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a crash."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_name(folder: Path) -> None:
    """Make the name of a folder survive a crash; one above it that is closed to reading cannot."""
    with suppress(PermissionError):
        sync_folder(folder.parent)


def write_all(fd: int, data: bytes) -> int:
    """Write all of it, however little a call takes; returns how many bytes that were."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    return len(data)


def replace_file(path: Path, data: bytes, *, locked: bool = True) -> None:
    """Replace a file whole, so that a crash leaves the old or the new one.

    Args:
        path: the file; readable for its owner only afterwards.
        data: what it is to hold.
        locked: the caller holds a lock, so that one name will do for the file being written, and
            what a crash left of it is taken away.

    Raises:
        OSError: the folder or the disk refuses; the file is as it was.
    """
    beside = path.with_name(f"{path.name}.new" if locked else f"{path.name}.{os.getpid()}.new")
    beside.unlink(missing_ok=True)
    fd = os.open(beside, _NEW_FLAGS, 0o600)
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
