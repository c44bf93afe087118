"""SQL over the cluster's jobs where they lie, by DuckDB: JSON lines, Parquet, or both."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import duckdb

from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.errors import StateError
from omnipilot.domain.rows import ClusterJob
from omnipilot.store.codec import LINE_BYTES
from omnipilot.store.prior_sql import FIELDS, SOURCE_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.store.compacted import Source
    from omnipilot.store.prior_sql import Script

__all__ = ["DuckDbEngine", "duckdb_engine", "write_parquet"]

# Nothing is fetched or loaded from outside, and memory stays within what a login node allows.
_CONFIG: Final[dict[str, str | bool]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": "1GB",
    "preserve_insertion_order": False,
}
_TYPES: Final = {
    "str": "VARCHAR",
    "int": "BIGINT",
    "tuple[float, ...]": "DOUBLE[]",
    "StackFingerprint": "STRUCT({})".format(
        ", ".join(f'"{field.name}" VARCHAR' for field in fields(StackFingerprint))
    ),
}
_HEAD: Final = {"content_hash": "VARCHAR", "ingested_at_s": "DOUBLE"}
_ALL_COLUMNS: Final = _HEAD | {f.name: _TYPES[str(f.type)] for f in fields(ClusterJob)}
_READ_JSON: Final = (
    "read_json({path}, format = 'newline_delimited', ignore_errors = true, "
    f"maximum_object_size = {2 * LINE_BYTES}, columns = {{columns}})"
)


class DuckDbEngine:
    """Counts in this process; made by :func:`duckdb_engine`.

    Args:
        source: files that hold the jobs.
        connection: an open one.
    """

    def __init__(self, source: Source, connection: duckdb.DuckDBPyConnection) -> None:
        self._source = source
        self._connection = connection
        self._made: dict[str, str] = {}

    def answers(self, script: Script) -> dict[str, list[tuple[Any, ...]]]:
        """Make the tables that are not there yet and answer the questions, by name.

        Raises:
            duckdb.Error: the files cannot be read; :func:`duckdb_engine` says so in words.
        """
        connection = self._connection
        if not self._made:
            connection.execute(f"CREATE TEMP VIEW {SOURCE_TABLE} AS {self._jobs()}")
        for name, sql in script.tables.items():
            if self._made.get(name) != sql:
                connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {sql}")
                self._made[name] = sql
        return {name: connection.execute(sql).fetchall() for name, sql in script.questions.items()}

    def _jobs(self) -> str:
        names = ", ".join(f'"{field}" AS {column}' for field, column, _ in FIELDS)
        # A line that is no JSON has no kind, and is counted as damaged.
        chosen = f"SELECT {names} FROM {{}} WHERE COALESCE(kind, 'cluster_job') = 'cluster_job'"  # noqa: S608 - constant names
        parts = []
        if self._source.parquet:
            files = ", ".join(_quoted(path) for path in self._source.parquet)
            parts.append(chosen.format(f"read_parquet([{files}])"))
        if self._source.jsonl is not None or not parts:
            wanted = {field: "BIGINT" if number else "VARCHAR" for field, _, number in FIELDS}
            wanted["kind"] = "VARCHAR"
            parts.append(chosen.format(_json_table(self._source.jsonl, wanted)))
        return " UNION ALL ".join(parts)


@contextmanager
def duckdb_engine(source: Source) -> Iterator[DuckDbEngine]:
    """Open an engine over files.

    Raises:
        StateError: here or while it is used: the files cannot be read.
    """
    with _connected() as connection:
        yield DuckDbEngine(source, connection)


def write_parquet(lines: Path, to: Path) -> int:
    """Write jobs as Parquet.

    Args:
        lines: file of the log's lines, jobs of the present schema only.
        to: file to write, replaced where it is there.

    Returns:
        How many rows the file has, read back from it.

    Raises:
        StateError: the file cannot be written.
    """
    with _connected() as connection:
        source = _json_table(lines if lines.stat().st_size else None, _ALL_COLUMNS)
        connection.execute(
            f"COPY (SELECT * FROM {source} WHERE kind = 'cluster_job') TO {_quoted(to)} "  # noqa: S608 - quoted
            "(FORMAT parquet, COMPRESSION zstd)"
        )
        counted = connection.execute(f"SELECT COUNT(*) FROM read_parquet({_quoted(to)})")  # noqa: S608 - same
        (rows,) = counted.fetchone() or (0,)
    to.chmod(0o600)
    return int(rows)


@contextmanager
def _connected() -> Iterator[duckdb.DuckDBPyConnection]:
    with TemporaryDirectory() as spill:
        try:
            connection = duckdb.connect(":memory:", config={**_CONFIG, "temp_directory": spill})
            with connection:
                yield connection
        except duckdb.Error as error:
            reason = " ".join(str(error).split())[:300]
            raise StateError(f"the cluster's history cannot be counted: {reason}") from error


def _json_table(path: Path | None, columns: dict[str, str]) -> str:
    """Write a table of JSON lines as SQL; an empty one without a file."""
    if path is None:
        typed = ", ".join(f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in columns.items())
        return f"(SELECT {typed} WHERE false)"
    listed = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
    return _READ_JSON.format(path=_quoted(path), columns=f"{{{listed}}}")


def _quoted(path: Path) -> str:
    text = str(path.absolute()).replace("'", "''")
    return f"'{text}'"
