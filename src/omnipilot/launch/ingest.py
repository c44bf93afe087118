"""Rows of run folders taken into the site's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import BadInputError
from omnipilot.launch.emit import is_done, run_rows
from omnipilot.launch.spec import SPEC_NAME, write_atomically
from omnipilot.store import Store, import_items

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from omnipilot.store import ImportReport

__all__ = ["TAKEN_NAME", "find_runs", "ingest_run", "launches_folder"]

TAKEN_NAME: Final = "taken"


def launches_folder(home: Path) -> Path:
    """Where a site's launches have their folders."""
    return home / "launches"


def find_runs(places: Iterable[Path]) -> Iterator[Path]:
    """Find the run folders that places are or hold, in order of their names.

    The runs that a script left when it was run again have folders in that of the last one.

    Raises:
        BadInputError: a place that does not exist, or holds no run.
    """
    for place in places:
        found = [path.parent for path in sorted(place.rglob(SPEC_NAME))]
        if not found:
            raise BadInputError(f"{place} holds no run of a launch or of a benchmark grid")
        yield from found


def ingest_run(home: Path, folder: Path, *, now_s: float) -> ImportReport:
    """Take the rows of one run into the store, as often as is wanted: each row is stored once.

    Raises:
        BadInputError: the folder holds no launch.
        StateError: the store cannot be written.
    """
    report = import_items(Store.open(home), run_rows(folder), now_s=now_s)
    if is_done(folder):
        write_atomically(folder / TAKEN_NAME, b"")
    return report
