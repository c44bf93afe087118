"""What a collector is, and the table of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from omnipilot.collect.csv_rows import collect_csv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.rows import InferenceRun

__all__ = ["COLLECTORS", "COLLECTOR_BY_NAME", "Collector", "CollectorEntry"]


class Collector(Protocol):
    """Reads one source text into typed rows, streaming."""

    def __call__(self, path: Path, /) -> Iterator[InferenceRun | Rejection]:
        """Yield a row, or the reason why there is none, for each record of ``path``.

        Raises:
            BadInputError: the file as a whole is not what this collector reads.
        """
        ...


@dataclass(frozen=True, slots=True)
class CollectorEntry:
    """One line of the table: the name said on the command line and what it reads."""

    name: str
    reads: str
    collect: Collector


COLLECTORS: Final[tuple[CollectorEntry, ...]] = (
    CollectorEntry("csv", "CSV of the normalised columns, plain or gzip", collect_csv),
)
COLLECTOR_BY_NAME: Final[dict[str, CollectorEntry]] = {c.name: c for c in COLLECTORS}
