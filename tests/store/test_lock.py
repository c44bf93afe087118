"""One writer at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from omnipilot.domain import StateError
from omnipilot.store.lock import exclusive

if TYPE_CHECKING:
    from pathlib import Path


def test_a_held_lock_is_waited_for_only_so_long(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "lock"),
        pytest.raises(StateError, match="another process has held"),
        exclusive(tmp_path / "lock", timeout_s=0.05),
    ):
        pass
    with exclusive(tmp_path / "lock", timeout_s=0.05):
        pass


def test_a_waiting_thread_goes_on_when_the_lock_is_given_back(tmp_path: Path) -> None:
    got = threading.Event()

    def wait() -> None:
        with exclusive(tmp_path / "lock", timeout_s=10):
            got.set()

    waiting = threading.Thread(target=wait)
    with exclusive(tmp_path / "lock"):
        waiting.start()
        assert not got.wait(0.1)
    assert got.wait(5)
    waiting.join()


def test_the_lock_file_is_private(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock"):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
