"""Where every cost model of a site came from: an append-only file whose lines vouch for each other.

Each line carries the digest of the one before it, so that a line that was edited, cut out or put
in is found; the side file ``ledger.head`` says how long the ledger is, so that cut last lines are
found too. Lines are written under a lock and synced before success is told; a line that a crash
left incomplete was never vouched for and is dropped by the next writer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.errors import StateError
from omnipilot.domain.frozen import dataclass
from omnipilot.store.files import make_private, replace_file, sync_folder, write_all
from omnipilot.store.lock import exclusive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["EVENTS", "LEDGER_NAME", "Entry", "Ledger"]

LEDGER_NAME: Final = "ledger.jsonl"
_HEAD_NAME: Final = "ledger.head"
_LOCK_NAME: Final = "ledger.lock"
_FIRST: Final = "0" * 64
# Names that stay in the folder of bundles; "" is the shipped model.
_VERSION: Final = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,127})?", re.ASCII)
# What happened, with its meaning.
EVENTS: Final[dict[str, str]] = {
    "fit": "a candidate was fitted and judged",
    "promote": "a version was made the one that answers",
    "rollback": "an earlier version was made the one that answers again",
    "withhold": "rows were taken out of further fits",
    "admit": "rows that were withheld or held back were let in again",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """The ``n``-th line: what happened when (Unix seconds), to which version, and the facts."""

    n: int
    event: str
    at_s: float
    version: str
    facts: dict[str, Any]
    digest: str


class Ledger:
    """The ledger of one folder of bundles.

    Args:
        folder: ``HOME/bundles``; made when the first line is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / LEDGER_NAME
        self._head = folder / _HEAD_NAME

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to write, against other processes.

        Raises:
            StateError: another process keeps it, or the folder cannot be written.
        """
        try:
            make_private(self.folder)
            with exclusive(self.folder / _LOCK_NAME):
                yield
        except OSError as error:
            raise StateError(
                f"{error.filename or self.folder} cannot be written: {error.strerror or error}; "
                "free space or correct its permissions"
            ) from error

    def entries(self) -> list[Entry]:
        """Read and verify the whole ledger.

        Raises:
            StateError: a line was edited, cut out or put in, or last lines are missing.
        """
        return self._read()[0]

    def append(self, event: str, version: str, facts: dict[str, Any], *, at_s: float) -> Entry:
        """Write one line; call it with the ledger :meth:`locked`.

        Raises:
            StateError: the ledger is damaged.
            OSError: the file cannot be written.
        """
        entries, whole_bytes = self._read()
        previous = entries[-1].digest if entries else _FIRST
        n = len(entries) + 1
        body = {
            "n": n, "event": event, "at_s": at_s, "version": version,
            "facts": facts, "previous": previous,
        }  # fmt: skip
        digest = _digest(body)
        line = _json({**body, "digest": digest}).encode() + b"\n"
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, whole_bytes)
            os.lseek(fd, 0, os.SEEK_END)
            write_all(fd, line)
            os.fsync(fd)
            sync_folder(self.folder)
        finally:
            os.close(fd)
        replace_file(self._head, f"{n} {digest}\n".encode())
        return Entry(n, event, at_s, version, facts, digest)

    def _read(self) -> tuple[list[Entry], int]:
        """The entries, and the bytes of their lines."""
        head = self._read_head()  # first: a line written since is no line that was cut off
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}") from error
        entries: list[Entry] = []
        whole_bytes = 0
        previous = _FIRST
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # cut short while it was written: nobody was told of it
            entries.append(self._entry(line, len(entries) + 1, previous))
            previous = entries[-1].digest
            whole_bytes += len(line)
        self._check_length(entries, *head)
        return entries, whole_bytes

    def _entry(self, line: bytes, n: int, previous: str) -> Entry:
        try:
            body = json.loads(line)
            digest = body.pop("digest")
            entry = Entry(
                body["n"], body["event"], body["at_s"], body["version"], body["facts"], digest
            )
            sound = (
                digest == _digest(body)
                and (body["n"], body["previous"]) == (n, previous)
                and _is_typed(entry)
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise StateError(
                f"{self.path}, line {n}: it was changed, cut out or put in after it was written; "
                "restore the file from a copy. The model that answers is not affected"
            )
        return entry

    def _read_head(self) -> tuple[int, str]:
        """How many lines were written, and the digest of the last."""
        try:
            n, digest = self._head.read_text(encoding="ascii").split()
            told = int(n)
            if told < 0:
                raise ValueError(n)  # noqa: TRY301 - one message for all that is no head
        except FileNotFoundError:
            return 0, _FIRST
        except (OSError, ValueError) as error:
            raise StateError(f"{self._head} cannot be read: restore it from a copy") from error
        return told, digest

    def _check_length(self, entries: list[Entry], told: int, digest: str) -> None:
        # The head may lag: a crash between the line and the head, or a line written since.
        if len(entries) < told or (told and entries[told - 1].digest != digest):
            raise StateError(
                f"{self.path} holds {len(entries)} lines where {told} were written: its end was "
                "cut or replaced; restore the file from a copy. The model that answers is not "
                "affected"
            )


def _is_typed(entry: Entry) -> bool:
    """Whether the parts are what everything that reads entries takes them for."""
    return (
        isinstance(entry.event, str)
        and isinstance(entry.at_s, int | float)
        and isinstance(entry.facts, dict)
        and isinstance(entry.version, str)
        and _VERSION.fullmatch(entry.version) is not None
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(_json(body).encode()).hexdigest()
