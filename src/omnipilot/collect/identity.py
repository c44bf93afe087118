"""People and accounts as keyed hashes, so that rows can be grouped and nobody be named.

A name is replaced by HMAC-SHA256 under a secret of the site (RFC 2104), kept in
``HOME/secret.key``. Without the secret a hash cannot be turned back by trying names, and two
sites' hashes of one name differ. Whoever loses the file loses only the link to older rows.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["KEY_NAME", "SiteKey", "open_site_key"]

KEY_NAME: Final = "secret.key"
_SECRET_BYTES: Final = 32
_HASH_CHARACTERS: Final = 32  # 128 bits: no collision among the people of any site
_REMEMBERED: Final = 100_000


class SiteKey:
    """Hashes names under one site's secret.

    Args:
        secret: 32 bytes.

    Example:
        >>> key = SiteKey(bytes(32))
        >>> key.hashed("user", "alice") == key.hashed("user", "alice")
        True
        >>> key.hashed("user", "alice") == key.hashed("account", "alice")
        False
        >>> len(key.hashed("user", "alice")), key.hashed("user", "")
        (32, '')
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _SECRET_BYTES:
            raise ValueError(f"a site's secret has {_SECRET_BYTES} bytes, got {len(secret)}")
        self._secret = secret
        self._known: dict[tuple[str, str], str] = {}

    def __repr__(self) -> str:
        return "SiteKey(...)"  # never the secret

    def hashed(self, what: str, name: str) -> str:
        """Hash a name: 32 hexadecimal digits, "" for no name.

        Args:
            what: kind of name ("user", "account"); equal names of two kinds differ.
            name: as the source spells it.
        """
        if not name:
            return ""
        found = self._known.get((what, name))
        if found is None:
            text = f"{what}\0{name}".encode("utf-8", "surrogateescape")
            found = hmac.digest(self._secret, text, "sha256").hex()[:_HASH_CHARACTERS]
            if len(self._known) < _REMEMBERED:
                self._known[what, name] = found
        return found


def open_site_key(
    home: Path, *, new_secret: Callable[[int], bytes] = secrets.token_bytes
) -> SiteKey:
    """Read the secret of a site, made on first use for its owner only (0600).

    Args:
        home: the site's folder; made (0700) where absent.
        new_secret: gives n random bytes.

    Raises:
        StateError: the file cannot be read or made, is open to others, or holds no secret.
    """
    path = home / KEY_NAME
    try:
        secret = _read(path)
        if secret is None:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create(path, new_secret(_SECRET_BYTES))
            secret = _read(path)
    except OSError as error:
        raise StateError(
            f"the site's key {path} cannot be used: {error.strerror or error}; "
            "correct its permissions or give another --home"
        ) from error
    if secret is None:
        raise StateError(f"the site's key {path} vanished while it was read: try again")
    return SiteKey(secret)


def _read(path: Path) -> bytes | None:
    """Read the secret; None where there is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as stream:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise StateError(f"the site's key {path} is not a regular file: move it away")
        if mode & 0o077:
            raise StateError(f"the site's key {path} is open to others: chmod 600 {path}")
        text = stream.read(4 * _SECRET_BYTES)
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise StateError(
            f"the site's key {path} holds no secret of {2 * _SECRET_BYTES} hexadecimal digits: "
            "restore it from a copy, or delete it (new rows then no longer match older people)"
        )
    return secret


def _create(path: Path, secret: bytes) -> None:
    """Write a new secret whole or not at all; another process that was first wins."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(secret.hex().encode() + b"\n")
            stream.flush()
            os.fsync(fd)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        # Rows hashed under a secret that a crash took away would match nobody again.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        temporary.unlink()
