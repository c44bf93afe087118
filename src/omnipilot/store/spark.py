"""SQL over the cluster's jobs by Spark: the same script as :mod:`omnipilot.store.query`, unchanged.

PySpark is an extra of its own (``spark``) and is loaded when it is asked for.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.errors import StateError
from omnipilot.store.prior_sql import FIELDS, SOURCE_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omnipilot.store.compacted import Source
    from omnipilot.store.prior_sql import Script

__all__ = ["SparkEngine", "spark_engine"]

_SCHEMA: Final = ", ".join(
    [*(f"`{field}` {'BIGINT' if number else 'STRING'}" for field, _, number in FIELDS),
     "`kind` STRING"]
)  # fmt: skip


class SparkEngine:
    """Counts where a Spark session runs.

    Args:
        source: files that hold the jobs, where Spark's workers see them.
        session: a ``pyspark.sql.SparkSession``.
    """

    def __init__(self, source: Source, session: Any) -> None:  # noqa: ANN401 - PySpark's own type
        self._source = source
        self._session = session

    def answers(self, script: Script) -> dict[str, list[tuple[Any, ...]]]:
        """Make the tables and answer the questions, by name.

        Raises:
            StateError: the files cannot be read.
        """
        failure = import_module("pyspark.errors").PySparkException
        made: list[Any] = []
        try:
            self._jobs().createOrReplaceTempView(SOURCE_TABLE)
            for name, sql in script.tables.items():
                table = self._session.sql(sql).cache()
                made.append(table)
                table.createOrReplaceTempView(name)
            return {
                name: [tuple(row) for row in self._session.sql(sql).collect()]
                for name, sql in script.questions.items()
            }
        except failure as error:
            reason = " ".join(str(error).split())[:300]
            raise StateError(f"Spark cannot count the cluster's history: {reason}") from error
        finally:
            for table in made:
                table.unpersist()

    def _jobs(self) -> Any:  # noqa: ANN401 - PySpark's own type
        reader = self._session.read
        parts = []
        if self._source.parquet:
            parts.append(reader.parquet(*map(str, self._source.parquet)))
        if self._source.jsonl is not None:
            parts.append(reader.schema(_SCHEMA).json(str(self._source.jsonl)))
        if not parts:
            parts.append(self._session.createDataFrame([], _SCHEMA))
        columns = [f"`{field}` AS {column}" for field, column, _ in FIELDS]
        # A line that is no JSON has no kind, and is counted as damaged.
        wanted = "COALESCE(kind, 'cluster_job') = 'cluster_job'"
        chosen = [part.where(wanted).selectExpr(*columns) for part in parts]
        jobs = chosen[0]
        for more in chosen[1:]:
            jobs = jobs.unionAll(more)
        return jobs


@contextmanager
def spark_engine(source: Source, master: str) -> Iterator[SparkEngine]:
    """Start a session at a master, and stop it afterwards.

    Args:
        source: files that hold the jobs, where Spark's workers see them.
        master: such as ``spark://host:7077``, ``yarn`` or ``local[2]``.

    Raises:
        StateError: PySpark is not installed, or the master cannot be reached.
    """
    try:
        builder = import_module("pyspark.sql").SparkSession.builder
    except ImportError as error:
        raise StateError(
            "counting with Spark needs PySpark and Java: install omnipilot[spark], or leave "
            "spark_master empty to count here"
        ) from error
    try:
        session = (
            builder.appName("omnipilot prior")
            .master(master)
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "8" if master.startswith("local") else "200")
            .getOrCreate()
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise StateError(f"no Spark session at {master}: {reason}") from error
    try:
        yield SparkEngine(source, session)
    finally:
        session.stop()
