"""People as keyed hashes."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnipilot.collect.identity import SiteKey, open_site_key
from omnipilot.domain import StateError

if TYPE_CHECKING:
    from pathlib import Path

KEY = SiteKey(b"k" * 32)
OTHER = SiteKey(b"o" * 32)


@given(name=st.text(min_size=1, max_size=40))
def test_a_name_hashes_alike_at_one_site_and_otherwise_at_another(name: str) -> None:
    told = KEY.hashed("user", name)
    assert told == SiteKey(b"k" * 32).hashed("user", name)
    assert told != OTHER.hashed("user", name)
    assert told != KEY.hashed("account", name)
    assert len(told) == 32
    int(told, 16)


def test_the_hash_is_hmac_sha256_and_not_a_plain_digest() -> None:
    wanted = hmac.new(b"k" * 32, b"user\0alice", hashlib.sha256).hexdigest()[:32]
    assert KEY.hashed("user", "alice") == wanted


def test_no_name_has_no_hash_and_a_key_never_prints_its_secret() -> None:
    assert KEY.hashed("user", "") == ""
    assert "kkk" not in repr(KEY)


def test_the_secret_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    home = tmp_path / "site" / "home"
    first = open_site_key(home)
    path = home / "secret.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [p.name for p in home.iterdir()] == ["secret.key"]
    again = open_site_key(home)
    assert again.hashed("user", "alice") == first.hashed("user", "alice")
    other = open_site_key(tmp_path / "other")
    assert other.hashed("user", "alice") != first.hashed("user", "alice")


def test_processes_that_start_together_share_one_secret(tmp_path: Path) -> None:
    told: list[str] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        told.append(open_site_key(tmp_path).hashed("user", "alice"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 8
    assert len(set(told)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["secret.key"]


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    open_site_key(tmp_path)
    (tmp_path / "secret.key").chmod(0o640)
    with pytest.raises(StateError, match="chmod 600"):
        open_site_key(tmp_path)


@pytest.mark.parametrize("text", [b"", b"abc\n", b"\xff" * 70, b"zz" * 32, b"00" * 64])
def test_a_damaged_secret_is_refused_and_never_replaced(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "secret.key"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(StateError, match="holds no secret"):
        open_site_key(tmp_path)
    assert path.read_bytes() == text


def test_a_link_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    open_site_key(tmp_path / "real")
    for name, make in (
        ("link", lambda p: p.symlink_to(tmp_path / "real" / "secret.key")),
        ("folder", lambda p: p.mkdir()),
        ("pipe", lambda p: os.mkfifo(p, 0o600)),
    ):
        home = tmp_path / name
        home.mkdir()
        make(home / "secret.key")
        with pytest.raises(StateError):
            open_site_key(home)
