"""The cluster's jobs out of the log: only the fields that counting needs, each job once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from omnipilot.domain.rows import SCHEMA_VERSION, ClusterJob
from omnipilot.store.codec import is_unaltered
from omnipilot.store.log import row_of_line
from omnipilot.store.prior_sql import newest_script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from omnipilot.store.log import ReadTally, Store
    from omnipilot.store.priors import Engine

__all__ = ["JobFacts", "each_once", "newest_jobs", "read_jobs"]


class JobFacts(msgspec.Struct, frozen=True, gc=False):
    """The part of a :class:`omnipilot.domain.ClusterJob` that is counted; same units."""

    cluster: str
    job_id: str
    state: str
    gpu: str
    n_gpus: int
    n_tasks: int
    partition: str
    job_class: str
    ended_by: str
    submit_s: int
    eligible_s: int
    start_s: int
    end_s: int
    elapsed_s: int
    time_limit_s: int = 0


class _Line(JobFacts, frozen=True, gc=False):
    content_hash: str = ""
    kind: str = ""
    schema_version: int = 0


_decoder = msgspec.json.Decoder(_Line)
_FIELDS = JobFacts.__struct_fields__


def facts_of(job: ClusterJob) -> JobFacts:
    """Reduce a row to what is counted."""
    return JobFacts(**{name: getattr(job, name) for name in _FIELDS})


def read_jobs(store: Store, tally: ReadTally) -> Iterator[JobFacts]:
    """Read the cluster's jobs in the order they were written, streaming; other kinds left out.

    Args:
        store: opened on the cluster-wide log.
        tally: filled in with what was passed over.

    Raises:
        StateError: the log cannot be read.
    """
    for line in store.lines():
        try:
            facts = _decoder.decode(line or b"")
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            facts = None
        if (
            facts is not None
            and facts.kind == "cluster_job"
            and facts.schema_version == SCHEMA_VERSION
            and line is not None
            and line.endswith(b"\n")
            and is_unaltered(line, facts.content_hash)
        ):
            tally.rows += 1
            yield facts
            continue
        # Anything else takes the long way, which counts it by class or brings it up to date.
        stored = row_of_line(line, tally)
        if stored is not None and isinstance(stored.row, ClusterJob):
            yield facts_of(stored.row)


def newest_jobs(engine: Engine, *, within_s: int, most: int) -> list[JobFacts]:
    """Give the GPU jobs that started last, newest first, each once, where the data lies.

    Args:
        engine: has the jobs.
        within_s: seconds before the newest start.
        most: how many at most.
    """
    script = newest_script(within_s, most)
    return [JobFacts(*row) for row in engine.answers(script)["newest"]]


def each_once(jobs: Iterable[JobFacts]) -> Iterator[JobFacts]:
    """Leave out jobs seen before, such as those harvested with and without a column.

    The runs of a requeued job differ in their time of submission, so each of them stays.
    """
    seen: set[int] = set()
    for job in jobs:
        run = hash((job.cluster, job.job_id, job.submit_s, job.start_s))
        if run not in seen:
            seen.add(run)
            yield job
