"""Files taken into the store, and what the store holds."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import StateError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rejection import Rejection
from omnipilot.store.codec import encode_line, time_stamp
from omnipilot.store.log import ReadTally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import IO

    from omnipilot.domain.rows import Row
    from omnipilot.domain.unknown_name import UnknownName
    from omnipilot.store.log import Store

__all__ = ["ImportReport", "StoreStats", "import_file", "import_items", "stats"]

_SHOWN_REJECTIONS: Final = 20
_PROGRESS_ROWS: Final = 1000
_STAGED_IN_MEMORY_BYTES: Final = 32 * 2**20
_BLOCK_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of the records of one file.

    ``rejections`` holds the first 20; ``by_reason`` counts all of them by class. ``unknown_names``
    are of rows that were taken and that no fit can use.
    """

    accepted: int
    duplicate: int
    rejected: int
    rejections: tuple[Rejection, ...]
    by_reason: dict[str, int]
    unknown_names: tuple[UnknownName, ...] = ()

    @property
    def total(self) -> int:
        """Records read."""
        return self.accepted + self.duplicate + self.rejected


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds.

    ``by_kind`` ... ``by_status`` count rows, most first; ``labels`` counts rows by target.
    ``skipped`` counts lines that are no rows by class, ``unknown_kinds`` lines of kinds that this
    version does not know. Times are Unix seconds, None in an empty store.
    """

    rows: int
    by_kind: dict[str, int]
    by_source: dict[str, int]
    by_engine: dict[str, int]
    by_model: dict[str, int]
    by_gpu: dict[str, int]
    by_status: dict[str, int]
    labels: dict[str, int]
    first_ingested_at_s: float | None
    last_ingested_at_s: float | None
    size_bytes: int
    skipped: dict[str, int] = field(default_factory=dict)
    unknown_kinds: dict[str, int] = field(default_factory=dict)
    torn_files: int = 0


def import_file(
    store: Store,
    path: Path,
    collect: Callable[[Path], Iterable[Row | Rejection]],
    *,
    now_s: float,
    on_progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Take the rows of a file into the store.

    The file is read to its end before the store is touched: where it turns out not to be what
    ``collect`` reads, the store stays as it was, byte for byte. Single bad records are counted and
    the good ones kept.

    Args:
        store: where to.
        path: the file.
        collect: a collector, such as ``omnipilot.collect.collect_csv``.
        now_s: time of taking in, Unix seconds.
        on_progress: called now and then with the number of records read so far.

    Raises:
        BadInputError: the file as a whole cannot be read.
        StateError: the store cannot be written; it is as it was.
    """
    return import_items(store, collect(path), now_s=now_s, on_progress=on_progress)


def import_items(
    store: Store,
    items: Iterable[Row | Rejection],
    *,
    now_s: float,
    on_progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Take what a collector yields into the store; see :func:`import_file`."""
    shown: list[Rejection] = []
    by_reason: Counter[str] = Counter()
    with tempfile.SpooledTemporaryFile(max_size=_STAGED_IN_MEMORY_BYTES) as staged:
        lines: list[bytes] = []
        stamp = time_stamp(now_s)
        for n, item in enumerate(items, start=1):
            if isinstance(item, Rejection):
                by_reason[item.code] += 1
                if len(shown) < _SHOWN_REJECTIONS:
                    shown.append(item)
            else:
                lines.append(encode_line(item, stamp))
            if n % _PROGRESS_ROWS == 0:
                _stage(staged, lines)
                if on_progress is not None:
                    on_progress(n)
        _stage(staged, lines)
        staged.seek(0)
        report = store.append_lines(_blocks(staged))
    return ImportReport(
        accepted=report.accepted,
        duplicate=report.duplicate,
        rejected=by_reason.total(),
        rejections=tuple(shown),
        by_reason=dict(by_reason.most_common()),
    )


def _stage(staged: IO[bytes], lines: list[bytes]) -> None:
    """Put lines where they wait until the whole input is read."""
    try:
        staged.write(b"".join(lines))
    except OSError as error:
        raise StateError(
            f"no room for temporary files in {tempfile.gettempdir()} ({error.strerror}): "
            "free space or set TMPDIR"
        ) from error
    lines.clear()


def _blocks(staged: IO[bytes]) -> Iterator[list[bytes]]:
    while lines := staged.readlines(_BLOCK_BYTES):
        yield lines


def stats(store: Store) -> StoreStats:
    """Count what a store holds, reading it once.

    Raises:
        StateError: the store cannot be read.
    """
    groups = ("kind", "source", "engine", "model", "gpu", "status")
    counts: dict[str, Counter[str]] = {group: Counter() for group in groups}
    labels: Counter[str] = Counter()
    first_s = last_s = None
    tally = ReadTally()
    for stored in store.rows(tally):
        for group, counter in counts.items():
            value = getattr(stored.row, group, None)
            if value is not None:
                counter[value] += 1
        labels.update(list(getattr(stored.row, "labels", ())))
        at_s = stored.ingested_at_s
        first_s = at_s if first_s is None else min(first_s, at_s)
        last_s = at_s if last_s is None else max(last_s, at_s)
    return StoreStats(
        rows=tally.rows,
        **{f"by_{group}": dict(counter.most_common()) for group, counter in counts.items()},
        labels=dict(labels.most_common()),
        first_ingested_at_s=first_s,
        last_ingested_at_s=last_s,
        size_bytes=store.path.stat().st_size if store.path.exists() else 0,
        skipped=dict(tally.skipped),
        unknown_kinds=dict(tally.unknown),
        torn_files=len(store.torn_files()),
    )
