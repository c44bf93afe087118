"""The cost models of a site: one folder a version, and a pointer to the one that answers.

``HOME/bundles/<version>`` never changes once it is there; ``HOME/bundles/current`` is a symbolic
link that is replaced in one step. A change of the pointer is written to the ledger first, so that
whatever kills the program in between, the next command can finish what was decided.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from omnipilot.costmodel.bundle import load_bundle, save_bundle
from omnipilot.domain.errors import BundleError, StateError, UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.learn.ledger import Ledger
from omnipilot.store.files import make_private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.learn.ledger import Entry

__all__ = ["BUNDLES_FOLDER", "CURRENT", "Registry"]

BUNDLES_FOLDER: Final = "bundles"
CURRENT: Final = "current"
ROWS_FILE: Final = "rows.json"
_PARTIAL: Final = ".partial-"
_MOVES: Final = ("promote", "rollback")


@dataclass(frozen=True, slots=True)
class Registry:
    """The bundles of one site.

    Args:
        home: the site's folder.
    """

    home: Path

    @property
    def folder(self) -> Path:
        """Where the bundles lie."""
        return self.home / BUNDLES_FOLDER

    @property
    def ledger(self) -> Ledger:
        """Where they came from."""
        return Ledger(self.folder)

    @property
    def current(self) -> str:
        """Version that answers, "" where the shipped base model does.

        Raises:
            StateError: the pointer is a folder of its own.
        """
        pointer = self.folder / CURRENT
        try:
            return str(pointer.readlink())
        except FileNotFoundError:
            return ""
        except OSError as error:
            if not pointer.is_dir():
                raise StateError(f"{pointer} cannot be read: {error.strerror}") from error
            raise StateError(
                f"{pointer} is a folder, not a pointer: rename it to one named after its version, "
                "then run omnipilot models promote VERSION"
            ) from error

    def path(self, version: str) -> Path:
        """Folder of one version.

        Raises:
            UsageError: there is none, or several begin like that.
        """
        found = [v for v in self.versions() if v.startswith(version)] if version else []
        if len(found) != 1:
            known = ", ".join(self.versions())
            raise UsageError(
                f"{'several models begin' if found else 'no model of the site begins'} with "
                f"'{version}': "
                + (f"say one of {known}" if known else "it has none yet, omnipilot fit makes one")
            )
        return self.folder / found[0]

    def versions(self) -> list[str]:
        """All versions, by name."""
        if not self.folder.is_dir():
            return []
        return sorted(
            p.name
            for p in self.folder.iterdir()
            if p.is_dir()
            and not p.is_symlink()
            and not p.name.startswith(".")
            and p.name != CURRENT
        )

    def add(self, model: FittedModel, card: dict[str, Any], rows: dict[str, float]) -> str:
        """Write a bundle as a new version; one that is there already is left alone.

        Args:
            model: what to save.
            card: facts that belong to the version.
            rows: hashes of the local rows that it was conditioned on, with their weights.

        Returns:
            The version.

        Raises:
            StateError: the folder or the disk refuses; nothing was added.
        """
        partial = self.folder / f"{_PARTIAL}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            make_private(self.folder)
            self._sweep()
            partial.mkdir(mode=0o700)
            version = save_bundle(model, partial, card)
            text = json.dumps(rows, sort_keys=True, separators=(",", ":"))
            (partial / ROWS_FILE).write_text(text + "\n", encoding="utf-8")
            for path in (*partial.iterdir(), partial):
                _sync(path)
            target = self.folder / version
            try:
                partial.rename(target)
            except OSError:
                if not target.is_dir():  # there already, or another process was quicker
                    raise
            _sync(self.folder)
        except OSError as error:
            raise StateError(
                f"{error.filename or self.folder} cannot be written: {error.strerror or error}; "
                "free space or correct its permissions. The model that answers is not affected"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return version

    def load(self, version: str) -> tuple[FittedModel, dict[str, Any], str]:
        """Read one version.

        Raises:
            UsageError: there is none.
            BundleError: it is damaged, or is not what its name says.
        """
        path = self.path(version)
        model, card, found = load_bundle(path)
        if found != path.name:
            raise BundleError(
                f"the bundle in {path} is version {found}: it was exchanged; restore it or fit "
                "again"
            )
        return model, card, found

    def rows(self, version: str) -> dict[str, float]:
        """Weights of the local rows of one version by hash; {} for the base model.

        Raises:
            BundleError: its list of rows is damaged.
        """
        if not version:
            return {}
        path = self.path(version) / ROWS_FILE
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))
            return {str(k): float(v) for k, v in rows.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
            raise BundleError(f"{path} is damaged: restore it or fit again") from error

    def move(self, event: str, version: str, facts: dict[str, Any], *, at_s: float) -> Entry:
        """Make a version the one that answers; call it with the ledger locked.

        Args:
            event: "promote" or "rollback".
            version: a version of the folder, or "" for the shipped base model.
            facts: why.
            at_s: now, Unix seconds.

        Raises:
            StateError: the pointer is a folder, or the ledger is damaged.
        """
        self.settle()
        entry = self.ledger.append(event, version, {**facts, "before": self.current}, at_s=at_s)
        self._point_to(version)
        return entry

    def settle(self, entries: Sequence[Entry] | None = None) -> str:
        """Finish a move that was written to the ledger and then cut short; with the lock held.

        Returns:
            The version that answers.
        """
        moves = [e for e in entries or self.ledger.entries() if e.event in _MOVES]
        if moves and moves[-1].version != self.current:
            self._point_to(moves[-1].version)
        return self.current

    def _point_to(self, version: str) -> None:
        pointer = self.folder / CURRENT
        if not version:
            pointer.unlink(missing_ok=True)
        elif self.current != version:
            partial = self.folder / f"{_PARTIAL}{os.getpid()}-pointer"
            partial.unlink(missing_ok=True)
            partial.symlink_to(version)
            partial.replace(pointer)
        _sync(self.folder)

    def _sweep(self) -> None:
        """Remove what processes left behind that are no more."""
        for path in self.folder.glob(f"{_PARTIAL}*"):
            pid = path.name.removeprefix(_PARTIAL).split("-", maxsplit=1)[0]
            if pid.isdecimal() and not _lives(int(pid)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
