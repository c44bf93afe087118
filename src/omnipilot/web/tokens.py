"""Tokens of the service: random, kept as hashes only, in a file that its owner alone can read."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from omnipilot.domain.errors import BadInputError, StateError
from omnipilot.store.files import make_private, replace_file
from omnipilot.store.lock import exclusive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["TOKENS_NAME", "Scope", "TokenFile", "TokenRecord"]

Scope = Literal["read", "write"]
TOKENS_NAME: Final = "tokens.json"
_PREFIX: Final = "omp_"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_MOST_BYTES: Final = 2**20
_MODE: Final = 0o600


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token.

    Args:
        name: who it was made for.
        sha256: of the token, in hexadecimal. A token has 256 random bits, so no salt and no slow
            hash is needed against guessing.
        scopes: what it allows.
        made_s: when, Unix seconds.
    """

    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    made_s: float


class TokenFile:
    """The tokens of a site.

    Args:
        home: the site's folder; the file is ``tokens.json`` in it.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / TOKENS_NAME
        self._read: tuple[tuple[int, int, int], tuple[TokenRecord, ...]] | None = None

    def records(self) -> tuple[TokenRecord, ...]:
        """All tokens; read again when the file has changed.

        Raises:
            StateError: others can read the file, or it holds no tokens.
        """
        try:
            about = self.path.stat()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}") from error
        stamp = (about.st_mtime_ns, about.st_size, about.st_mode)
        if self._read is not None and self._read[0] == stamp:
            return self._read[1]
        if stat.S_IMODE(about.st_mode) & ~_MODE or about.st_uid != os.geteuid():
            raise StateError(
                f"{self.path} must belong to the service and be closed to others: chmod 600"
            )
        try:
            if about.st_size > _MOST_BYTES:
                raise StateError(f"{self.path} is too large for a list of tokens")
            records = msgspec.json.decode(self.path.read_bytes(), type=tuple[TokenRecord, ...])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StateError(
                f"{self.path} holds no tokens: restore it, or delete it and add tokens anew"
            ) from error
        self._read = (stamp, records)
        return records

    def find(self, token: str) -> TokenRecord | None:
        """The record of a token; None where it is not known. Takes as long for any token.

        Raises:
            StateError: as :meth:`records`.
        """
        digest = _digest(token)
        found = None
        for record in self.records():
            if hmac.compare_digest(record.sha256.encode(), digest.encode()):
                found = record
        return found

    def add(self, name: str, scopes: tuple[Scope, ...], now_s: float) -> str:
        """Make a token; it is told this once.

        Raises:
            BadInputError: a name that is taken or odd.
            StateError: the file cannot be read or written.
        """
        if not _NAME.fullmatch(name):
            raise BadInputError(f"'{name[:64]}' is no name for a token: letters, digits, . _ @ -")
        with self._alone():
            records = self.records()
            if any(record.name == name for record in records):
                raise BadInputError(f"there is a token '{name}' already: revoke it first")
            token = _PREFIX + secrets.token_urlsafe(32)
            self._write((*records, TokenRecord(name, _digest(token), scopes, now_s)))
        return token

    def revoke(self, name: str) -> None:
        """Take a token back.

        Raises:
            BadInputError: there is no token of that name.
            StateError: the file cannot be read or written.
        """
        with self._alone():
            records = self.records()
            rest = tuple(record for record in records if record.name != name)
            if len(rest) == len(records):
                known = ", ".join(record.name for record in records) or "none"
                raise BadInputError(f"no token '{name[:64]}': there are {known}")
            self._write(rest)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others from changing the file, so that no revoked token comes back with theirs."""
        try:
            make_private(self.path.parent)
            with exclusive(self.path.with_name(f"{TOKENS_NAME}.lock")):
                yield
        except OSError as error:
            raise StateError(f"{self.path} cannot be written: {error.strerror}") from error

    def _write(self, records: tuple[TokenRecord, ...]) -> None:
        replace_file(self.path, msgspec.json.format(msgspec.json.encode(records)) + b"\n")
        self._read = None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
