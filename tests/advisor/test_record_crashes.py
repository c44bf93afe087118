"""Recommendations on record and tokens, killed and unplugged at every call."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from crashing import crashes

from omnipilot.advisor.decisions import DECISIONS_NAME, _append
from omnipilot.web.tokens import TokenFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOST = 3


def line(n: int) -> bytes:
    return b'{"id":"%04d"}\n' % n


def test_every_record_that_was_told_is_found_whatever_was_cut_short_before(tmp_path: Path) -> None:
    def program(folder: Path, tell: Callable[[str], None]) -> None:
        for n in range(3):
            _append(folder / DECISIONS_NAME, line(n), MOST)
            tell(str(n))

    for crash in crashes(tmp_path, program):
        path = crash.killed / DECISIONS_NAME
        _append(path, line(9), MOST)
        found = path.read_bytes().splitlines(keepends=True)
        for n in (*map(int, crash.told), 9):
            assert found.count(line(n)) == 1, f"call {crash.n}, {crash.call}"


def test_the_shortened_record_is_its_owner_s_only(tmp_path: Path) -> None:
    path = tmp_path / DECISIONS_NAME
    for n in range(2 * MOST):
        _append(path, line(n), MOST)
    assert path.read_bytes().splitlines(keepends=True) == [line(n) for n in range(MOST, 2 * MOST)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_token_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    def before(folder: Path) -> None:
        TokenFile(folder).add("old", ("read",), 0.0)

    def program(folder: Path, tell: Callable[[str], None]) -> None:
        TokenFile(folder).revoke("old")
        tell("revoked")

    for crash in crashes(tmp_path, program, before=before):
        for disk in (crash.killed, crash.unplugged):
            names = [record.name for record in TokenFile(disk).records()]
            assert names in ([[]] if crash.told else [["old"], []]), f"call {crash.n}, {crash.call}"
