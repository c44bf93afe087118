"""What a collector is, and the table of them."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.collect.context import RunContext
    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.rows import Row

__all__ = ["COLLECTORS", "COLLECTOR_BY_NAME", "Collector", "CollectorEntry"]


class Collector(Protocol):
    """Reads one source text into typed rows, streaming."""

    def __call__(self, path: Path, /) -> Iterator[Row | Rejection]:
        """Yield a row, or the reason why there is none, for each record of ``path``.

        Raises:
            BadInputError: the file as a whole is not what this collector reads.
        """
        ...


@dataclass(frozen=True, slots=True)
class CollectorEntry:
    """One line of the table: the name said on the command line and what it reads.

    ``place`` is "module:function" within this package. The module is imported when the collector
    is asked for: compiling the patterns of all of them would slow every command down.
    ``names_people`` says that the text does; without the site's key, ``key=``, the collector
    leaves them out. ``takes_context`` says that the text leaves facts of the run to the caller,
    ``context=``. ``of_cluster`` says that its rows tell of all jobs of the cluster rather than of
    the site's own runs.
    """

    name: str
    reads: str
    place: str
    names_people: bool = False
    takes_context: bool = False
    of_cluster: bool = False

    @property
    def collect(self) -> Collector:
        """The collector itself."""
        module, function = self.place.split(":")
        return cast("Collector", getattr(import_module(f"omnipilot.collect.{module}"), function))

    def for_site(self, home: Path, context: RunContext | None = None) -> Collector:
        """Give the collector for one site: people are hashed under its key, made on first use.

        Args:
            home: the site's folder.
            context: facts of the runs, for a collector that takes them.

        Raises:
            StateError: the site's key cannot be read or made.
        """
        given: dict[str, object] = {}
        if self.names_people:
            from omnipilot.collect.identity import open_site_key  # noqa: PLC0415 - as ``place``

            given["key"] = open_site_key(home)
        if self.takes_context and context is not None:
            given["context"] = context
        return partial(self.collect, **given) if given else self.collect


COLLECTORS: Final[tuple[CollectorEntry, ...]] = (
    CollectorEntry("csv", "CSV of the normalised columns, plain or gzip", "csv_rows:collect_csv"),
    CollectorEntry("vllm", "any of the next three: told apart by their first lines",
                   "vllm:collect_vllm", takes_context=True),
    CollectorEntry("vllm_bench", "JSON of 'vllm bench serve --save-result', one or several results",
                   "vllm_bench:collect_vllm_bench", takes_context=True),
    CollectorEntry("vllm_log", "log of a vLLM server: its starts", "vllm_log:collect_vllm_log",
                   takes_context=True),
    CollectorEntry("vllm_metrics", "/metrics page of a vLLM server",
                   "vllm_metrics:collect_vllm_metrics", takes_context=True),
    CollectorEntry("guidellm", "JSON report of GuideLLM", "guidellm:collect_guidellm",
                   takes_context=True),
    CollectorEntry("sacct", "Slurm's accounting: sacct -P or --json", "sacct:collect_sacct",
                   names_people=True, of_cluster=True),
    CollectorEntry("jobstats", "JS1 fields, each with its job's number or alone",
                   "jobstats:collect_jobstats", of_cluster=True),
    CollectorEntry("dcgm", "GPU telemetry: recorded answers of Prometheus, or dcgm-exporter's page",
                   "dcgm:collect_dcgm"),
    CollectorEntry("rows", "JSON of training, recovery and hardware-probe rows",
                   "typed_rows:collect_rows"),
)  # fmt: skip
COLLECTOR_BY_NAME: Final[dict[str, CollectorEntry]] = {c.name: c for c in COLLECTORS}
