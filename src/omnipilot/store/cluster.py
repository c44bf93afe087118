"""The cluster's jobs, of each the fields that counting needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from omnipilot.store.prior_sql import newest_script

if TYPE_CHECKING:
    from omnipilot.store.priors import Engine

__all__ = ["JobFacts", "newest_jobs"]


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


def newest_jobs(engine: Engine, *, within_s: int, most: int) -> list[JobFacts]:
    """Give the GPU jobs that started last, newest first, each once, where the data lies.

    Args:
        engine: has the jobs.
        within_s: seconds before the newest start.
        most: how many at most.
    """
    script = newest_script(within_s, most)
    return [JobFacts(*row) for row in engine.answers(script)["newest"]]
