"""How far harvests have come: the time whose jobs are in the log, for each collector and cluster.

``HOME/harvest.json`` is replaced whole, after the rows are safe on disk: a harvest that is killed
reads again what it cannot be sure of, and the log's content hashes keep that from counting twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from omnipilot.domain.errors import StateError
from omnipilot.store.files import replace_file
from omnipilot.store.lock import exclusive

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MARKS_NAME", "Covered", "Marks"]

MARKS_NAME: Final = "harvest.json"
_VERSION: Final = 1


class Covered(msgspec.Struct, frozen=True):
    """A time without gaps whose rows are in the log.

    Args:
        from_s: Unix seconds.
        until_s: Unix seconds; the high-water mark.
        log_bytes: size of the log when this was written. A log that is smaller was replaced.
    """

    from_s: int
    until_s: int
    log_bytes: int


class _File(msgspec.Struct):
    schema_version: int
    covered: dict[str, dict[str, Covered]]


_decoder = msgspec.json.Decoder(_File)


class Marks:
    """The marks of one site.

    Args:
        home: the site's folder, which exists by the time that a mark is set.
        log: the file that the marks speak of.
    """

    def __init__(self, home: Path, log: Path) -> None:
        self._home = home
        self._path = home / MARKS_NAME
        self._log = log

    def covered(self, collector: str, cluster: str) -> Covered | None:
        """Give what was harvested; None where nothing was, or the log has been replaced since.

        Raises:
            StateError: the file cannot be read.
        """
        found = self._read().covered.get(collector, {}).get(cluster)
        return found if found is not None and self._log_bytes() >= found.log_bytes else None

    def set(self, collector: str, cluster: str, from_s: int, until_s: int) -> None:
        """Note a time as harvested, once its rows are on disk.

        Raises:
            StateError: the file cannot be written; it is as it was.
        """
        try:
            with exclusive(self._home / f"{MARKS_NAME}.lock"):
                marks = self._read()
                mark = Covered(from_s, until_s, self._log_bytes())
                marks.covered.setdefault(collector, {})[cluster] = mark
                text = msgspec.json.format(msgspec.json.encode(marks)) + b"\n"
                replace_file(self._path, text)
        except OSError as error:
            raise self._refusal(error) from error

    def _log_bytes(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _read(self) -> _File:
        try:
            file = _decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return _File(_VERSION, {})
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StateError(
                f"{self._path} is damaged: delete it, and the next harvest reads everything again "
                "without storing anything twice"
            ) from error
        except OSError as error:
            raise self._refusal(error) from error
        if file.schema_version > _VERSION:
            raise StateError(f"{self._path} is of a newer omnipilot: upgrade omnipilot")
        return file

    def _refusal(self, error: OSError) -> StateError:
        return StateError(
            f"{self._path} cannot be used: {error.strerror or error}; "
            "free space, correct its permissions or give another --home"
        )
