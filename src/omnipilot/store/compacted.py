"""The cluster's jobs as Parquet beside the log, for counting at once what would take minutes.

The log stays what is true. ``HOME/cluster_history.parquet/`` holds a copy of its jobs in columns,
in parts that are written once, and ``manifest.json``, replaced whole, which says how much of the
log they cover. What the log got since is read from the log. Wherever a compaction is killed, the
manifest still describes whole parts; where the log was replaced, the copy no longer counts.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from omnipilot.domain.errors import StateError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import SCHEMA_VERSION, ClusterJob
from omnipilot.store.codec import digest_of_line, encode_line, known_digest, time_stamp
from omnipilot.store.files import replace_file
from omnipilot.store.lock import exclusive
from omnipilot.store.log import ReadTally, row_of_line

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from omnipilot.store.log import Store

__all__ = ["CompactReport", "Source", "compact", "open_source"]

_VERSION: Final = 1
_MANIFEST: Final = "manifest.json"
_PART_BYTES: Final = 2**30  # of the log: about 80 MB of Parquet
_COPY_BYTES: Final = 4 * 2**20
_KIND: Final = b'"kind":"cluster_job"'
_SCHEMA: Final = b'"schema_version":%d,' % SCHEMA_VERSION


class _Part(msgspec.Struct, frozen=True):
    file: str
    rows: int
    skipped: int = 0


class _Manifest(msgspec.Struct, frozen=True):
    """What the parts cover.

    ``until_byte`` is where the rest of the log begins, ``last_hash`` the content hash of the line
    before it, by which a log that was replaced is told.
    """

    schema_version: int
    until_byte: int
    last_hash: str
    parts: tuple[_Part, ...]


_EMPTY: Final = _Manifest(_VERSION, 0, "", ())
_decoder = msgspec.json.Decoder(_Manifest)


class Source(NamedTuple):
    """Where the cluster's jobs lie: Parquet files, and JSON lines for what they lack.

    ``skipped`` counts the lines that a compaction left out of the Parquet files, as damaged or of a
    later version.
    """

    parquet: tuple[Path, ...]
    jsonl: Path | None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did.

    Args:
        rows: jobs copied now.
        total_rows: jobs in all parts.
        parts: files.
        parquet_bytes: their size.
        log_bytes: size of the log that they cover.
        skipped: lines left out by class; they stay in the log.
    """

    rows: int
    total_rows: int
    parts: int
    parquet_bytes: int
    log_bytes: int
    skipped: dict[str, int]


def folder_of(store: Store) -> Path:
    """Give the folder of the copy."""
    return store.path.with_suffix(".parquet")


def compact(
    store: Store,
    write_part: Callable[[Path, Path], int],
    *,
    on_progress: Callable[[float], None] | None = None,
) -> CompactReport:
    """Copy to Parquet what the log got since the last time.

    Args:
        store: opened on the cluster-wide log.
        write_part: makes a Parquet file of a file of lines and gives its number of rows.
        on_progress: called with the share done.

    Raises:
        StateError: the log cannot be read or the folder be written; the copy is as it was.
    """
    folder = folder_of(store)
    until_byte = store.settled_bytes()
    if not until_byte:
        return CompactReport(0, 0, 0, 0, 0, {})
    tally = ReadTally()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with exclusive(folder / "lock"):
            manifest = _read(store)
            first = manifest
            while manifest.until_byte < until_byte:
                manifest = _add_part(store, manifest, until_byte, write_part, tally)
                if on_progress is not None:
                    on_progress(manifest.until_byte / until_byte)
            kept = {part.file for part in manifest.parts}
            for stale in folder.glob("part-*"):
                if stale.name not in kept:
                    stale.unlink()
    except OSError as error:
        raise StateError(
            f"{folder} cannot be written: {error.strerror or error}; free space or correct its "
            "permissions; the log is untouched"
        ) from error
    total_rows = sum(part.rows for part in manifest.parts)
    return CompactReport(
        rows=total_rows - sum(part.rows for part in first.parts),
        total_rows=total_rows,
        parts=len(manifest.parts),
        parquet_bytes=sum((folder / part.file).stat().st_size for part in manifest.parts),
        log_bytes=manifest.until_byte,
        skipped=dict(tally.skipped + _prefixed(tally.unknown)),
    )


@contextmanager
def open_source(store: Store, *, folder: Path | None = None) -> Iterator[Source]:
    """Give the files to count: the copy, and the part of the log that it lacks.

    Args:
        store: opened on the cluster-wide log.
        folder: where the part of the log may lie for a while; the system's if None.

    Raises:
        StateError: the log or its copy cannot be read.
    """
    manifest = _read(store)
    parquet = tuple(folder_of(store) / part.file for part in manifest.parts)
    skipped = sum(part.skipped for part in manifest.parts)
    try:
        size_bytes = store.path.stat().st_size if store.path.exists() else 0
        if not manifest.until_byte:
            yield Source((), store.path if size_bytes else None)
        elif manifest.until_byte >= size_bytes:
            yield Source(parquet, None, skipped)
        else:
            with tempfile.TemporaryDirectory(dir=folder, prefix="rest-") as place:
                rest = Path(place) / "rest.jsonl"
                _copy(store.path, manifest.until_byte, rest)
                yield Source(parquet, rest, skipped)
    except OSError as error:
        where = error.filename or store.path
        raise StateError(f"{where} cannot be read: {error.strerror or error}") from error


def _read(store: Store) -> _Manifest:
    """Read the manifest; an empty one where there is none that fits the log."""
    folder = folder_of(store)
    try:
        manifest = _decoder.decode((folder / _MANIFEST).read_bytes())
    except FileNotFoundError:
        return _EMPTY
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _EMPTY  # a copy can be made again
    if manifest.schema_version > _VERSION:
        raise StateError(f"{folder} is of a newer omnipilot: upgrade omnipilot, or delete it")
    whole = all((folder / part.file).exists() for part in manifest.parts)
    if not whole or _hash_before(store.path, manifest.until_byte) != manifest.last_hash:
        return _EMPTY
    return manifest


def _hash_before(path: Path, end_byte: int) -> str:
    """Give the content hash of the line that ends at a byte; "" where none does."""
    if not path.exists():
        return ""
    with path.open("rb") as stream:
        start_byte = max(0, end_byte - _COPY_BYTES)
        stream.seek(start_byte)
        text = stream.read(end_byte - start_byte)
    if len(text) < end_byte - start_byte or not text.endswith(b"\n"):
        return ""
    digest = digest_of_line(text[text.rfind(b"\n", 0, -1) + 1 :])
    return digest.hex() if digest else ""


def _add_part(
    store: Store,
    manifest: _Manifest,
    until_byte: int,
    write_part: Callable[[Path, Path], int],
    tally: ReadTally,
) -> _Manifest:
    """Write the next part and the manifest that has it."""
    folder = folder_of(store)
    number = len(manifest.parts) + 1
    new = folder / f"part-{number:06d}.parquet.new"
    skipped_before = _left_out(tally)
    with tempfile.TemporaryDirectory() as place:
        lines = Path(place) / "part.jsonl"
        with store.path.open("rb") as log, lines.open("wb") as out:
            log.seek(manifest.until_byte)
            n_lines, end_byte = _copy_jobs(log, out, until_byte, tally)
        rows = write_part(lines, new)
    if rows != n_lines:
        raise StateError(f"{new} has {rows:,} rows of {n_lines:,}: free space and try again")
    with new.open("rb") as stream:
        os.fsync(stream.fileno())
    part = new.with_suffix("")
    new.replace(part)
    manifest = _Manifest(
        schema_version=_VERSION,
        until_byte=end_byte,
        last_hash=_hash_before(store.path, end_byte),
        parts=(*manifest.parts, _Part(part.name, rows, _left_out(tally) - skipped_before)),
    )
    replace_file(folder / _MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return manifest


def _left_out(tally: ReadTally) -> int:
    return tally.skipped.total() + tally.unknown.total()


def _copy_jobs(log: BinaryIO, out: BinaryIO, until_byte: int, tally: ReadTally) -> tuple[int, int]:
    """Copy the sound lines of jobs; returns how many, and where in the log that ended."""
    at = start_byte = log.tell()
    n = 0
    while at < until_byte and at - start_byte < _PART_BYTES:
        for line in log.readlines(min(_COPY_BYTES, until_byte - at)):
            at += len(line)
            copied = _job_line(line, tally)
            if copied is not None:
                out.write(copied)
                n += 1
            if at >= until_byte:
                break
    return n, at


def _job_line(line: bytes, tally: ReadTally) -> bytes | None:
    """Give the line of a job in the present schema; None, and counted, for anything else."""
    if _KIND in line and _SCHEMA in line and known_digest(line):
        return line
    stored = row_of_line(line, tally)
    if stored is None or not isinstance(stored.row, ClusterJob):
        return None
    return encode_line(stored.row, time_stamp(stored.ingested_at_s))


def _copy(path: Path, from_byte: int, to: Path) -> None:
    with path.open("rb") as source, to.open("wb") as out:
        source.seek(from_byte)
        while block := source.read(_COPY_BYTES):
            out.write(block)


def _prefixed(unknown: Counter[str]) -> Counter[str]:
    return type(unknown)({f"unknown kind {kind}": n for kind, n in unknown.items()})
