"""Marks of harvests: they hold for the log that they speak of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from omnipilot.domain import StateError
from omnipilot.store.marks import MARKS_NAME, Marks

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("x" * 100)
    return path


def test_a_mark_is_kept_for_each_collector_and_cluster(tmp_path: Path, log: Path) -> None:
    marks = Marks(tmp_path, log)
    assert marks.covered("sacct", "lab") is None
    marks.set("sacct", "lab", 1, 5)
    marks.set("sacct", "big", 2, 6)
    marks.set("other", "lab", 3, 7)
    again = Marks(tmp_path, log)
    told = [again.covered(*key) for key in (("sacct", "lab"), ("sacct", "big"), ("other", "lab"))]
    assert [(mark.from_s, mark.until_s) for mark in told if mark] == [(1, 5), (2, 6), (3, 7)]
    assert (tmp_path / MARKS_NAME).stat().st_mode & 0o077 == 0


def test_a_log_that_shrank_or_vanished_has_no_mark(tmp_path: Path, log: Path) -> None:
    marks = Marks(tmp_path, log)
    marks.set("sacct", "lab", 1, 5)
    log.write_text("x" * 101)
    assert marks.covered("sacct", "lab")
    log.write_text("x" * 99)
    assert marks.covered("sacct", "lab") is None
    log.unlink()
    assert marks.covered("sacct", "lab") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"schema_version":1}'])
def test_a_damaged_file_is_told(tmp_path: Path, log: Path, content: bytes) -> None:
    (tmp_path / MARKS_NAME).write_bytes(content)
    with pytest.raises(StateError, match="damaged: delete it"):
        Marks(tmp_path, log).covered("sacct", "lab")


def test_a_newer_file_is_refused(tmp_path: Path, log: Path) -> None:
    (tmp_path / MARKS_NAME).write_text('{"schema_version":2,"covered":{}}')
    with pytest.raises(StateError, match="upgrade omnipilot"):
        Marks(tmp_path, log).covered("sacct", "lab")


def test_a_mark_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = Marks(tmp_path, log)
    marks.set("sacct", "lab", 1, 5)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StateError, match="No space left"):
            marks.set("sacct", "lab", 1, 9)
    kept = marks.covered("sacct", "lab")
    assert kept is not None
    assert kept.until_s == 5
