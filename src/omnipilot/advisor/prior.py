"""What the cluster's history says before a launch, for every configuration at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, cast

from omnipilot.decide.launch_rates import (
    DEFAULT_LEVEL,
    SENSITIVITY_STRENGTHS,
    launch_rates,
    shrinkage_sensitivity,
)
from omnipilot.decide.priors import LaunchCounts, pooled_prior
from omnipilot.domain.frozen import dataclass
from omnipilot.store import CLUSTER_LOG_NAME, Store
from omnipilot.store.compacted import open_source
from omnipilot.store.priors import (
    DEFAULT_OUTCOMES,
    WAIT_QUANTILES,
    ClusterHistory,
    LaunchDefinition,
    Outcome,
    QueueWaits,
    query_history,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from omnipilot.settings import Settings
    from omnipilot.store.compacted import Source
    from omnipilot.store.priors import Engine

__all__ = ["ConfigurationPrior", "PriorReport", "launch_definition", "prior"]

UserCancel = Literal["excluded", "failure", "runtime"]
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class ConfigurationPrior:
    """What is known of one configuration.

    Args:
        gpu: GPU kind as the scheduler names it, "" where it does not.
        n_gpus: how many.
        jobs: jobs that asked for it; array tasks count each.
        launches: of them, runs with an outcome.
        attempts: the same, weighted by age (equal without a window).
        successes: launches that came up, weighted by age.
        excluded: runs that say nothing about launching.
        demand_frac: share of all GPU jobs.
        raw_rate: successes over attempts; None without.
        shrunk_rate: beta-binomial mean, shrunk toward the pooled rate.
        low, high: central credible interval of it.
        sensitivity: shrunk rates at the report's ``strengths``.
    """

    gpu: str
    n_gpus: int
    jobs: int
    launches: int
    attempts: float
    successes: float
    excluded: int
    demand_frac: float
    raw_rate: float | None
    shrunk_rate: float
    low: float
    high: float
    sensitivity: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PriorReport:
    """Priors of a cluster, most demanded configuration first.

    Args:
        definition: what counted.
        level: probability that the intervals hold.
        pooled_rate: what rates are shrunk toward.
        strength: launches that the pooled rate is worth, estimated from the spread of the rates.
        strengths: of the sensitivity table.
        waits: by partition and number of GPUs.
        wait_quantiles: their levels.
        jobs: GPU jobs.
        untyped: of those, jobs whose GPU kind the scheduler does not tell.
        without_gpus: jobs left out.
        damaged: lines of the history that are no whole rows, left out.
        outcomes: runs that started, by state and what they counted as.
    """

    definition: LaunchDefinition
    level: float
    pooled_rate: float
    strength: float
    strengths: tuple[float, ...]
    configurations: tuple[ConfigurationPrior, ...]
    waits: tuple[QueueWaits, ...]
    wait_quantiles: tuple[float, ...]
    jobs: int
    untyped: int
    without_gpus: int
    damaged: int
    outcomes: Mapping[tuple[str, Outcome], int]


def launch_definition(
    settings: Settings,
    *,
    min_runtime_s: float | None = None,
    user_cancel: str | None = None,
    outcomes: Mapping[str, str] | None = None,
    job_class: str = "",
    window_d: float = 0.0,
    wait_window_d: float = 0.0,
) -> LaunchDefinition:
    """Say what counts: the site's settings, and over them what is given.

    Args:
        settings: of the site.
        min_runtime_s: seconds that a launch must run to have come up.
        user_cancel: what a launch that its user cancelled counts as.
        outcomes: by state, over the site's.
        job_class: count these jobs only; "" all.
        window_d: days after which a launch counts half; 0 counts all alike.
        wait_window_d: the same for queue waits.

    Raises:
        UsageError: an unknown state or word, or a negative time.
    """
    words = {**DEFAULT_OUTCOMES, **settings.launch_outcomes, **(outcomes or {})}
    return LaunchDefinition(
        outcomes=cast("Mapping[str, Outcome]", words),
        min_runtime_s=settings.launch_min_runtime_s if min_runtime_s is None else min_runtime_s,
        user_cancel=cast("UserCancel", user_cancel or settings.launch_user_cancel),
        job_class=job_class,
        window_s=window_d * _DAY_S,
        wait_window_s=wait_window_d * _DAY_S,
    )


def prior(
    home: Path,
    definition: LaunchDefinition,
    *,
    now_s: float,
    kind_of_partition: Mapping[str, str],
    level: float = DEFAULT_LEVEL,
    spark_master: str = "",
) -> PriorReport:
    """Count the cluster's history and shrink its launch rates.

    Args:
        home: the site's folder.
        definition: what counts.
        now_s: time from which ages are counted, Unix seconds.
        kind_of_partition: GPU kind of partitions whose scheduler counts GPUs without a type.
        level: probability that the intervals hold.
        spark_master: count there; "" here.

    Raises:
        UsageError: a name that Slurm does not allow.
        StateError: the history cannot be read, or Spark be reached.
    """
    store = Store(home, log_name=CLUSTER_LOG_NAME)
    folder = home if spark_master else None  # a cluster sees the site's folder, not this disk
    with (
        open_source(store, folder=folder) as source,
        _engine(source, spark_master) as engine,
    ):
        history = query_history(
            engine, definition, now_s=now_s, kind_of_partition=kind_of_partition
        )
        damaged = history.damaged + source.skipped
    return _report(replace(history, damaged=damaged), definition, level)


def _engine(source: Source, spark_master: str) -> AbstractContextManager[Engine]:
    if spark_master:
        from omnipilot.store.spark import spark_engine  # noqa: PLC0415 - seldom there

        return spark_engine(source, spark_master)
    from omnipilot.store.query import duckdb_engine  # noqa: PLC0415 - 0.1 s

    return duckdb_engine(source)


def _report(history: ClusterHistory, definition: LaunchDefinition, level: float) -> PriorReport:
    counts = {
        c.configuration: LaunchCounts(c.successes, c.attempts) for c in history.configurations
    }
    pooled = pooled_prior(counts.values())
    rates = launch_rates(counts, level=level, prior=pooled)
    tables = shrinkage_sensitivity(counts)
    return PriorReport(
        definition=definition,
        level=level,
        pooled_rate=pooled.mean,
        strength=pooled.strength,
        strengths=SENSITIVITY_STRENGTHS,
        configurations=tuple(
            ConfigurationPrior(
                gpu=c.configuration.gpu,
                n_gpus=c.configuration.n_gpus,
                jobs=c.jobs,
                launches=c.launches,
                attempts=c.attempts,
                successes=c.successes,
                excluded=c.excluded,
                demand_frac=c.demand_frac,
                raw_rate=rates[c.configuration].raw,
                shrunk_rate=rates[c.configuration].shrunk,
                low=rates[c.configuration].low,
                high=rates[c.configuration].high,
                sensitivity=tables[c.configuration],
            )
            for c in history.configurations
        ),
        waits=history.waits,
        wait_quantiles=WAIT_QUANTILES,
        jobs=history.jobs,
        untyped=history.untyped,
        without_gpus=history.without_gpus,
        damaged=history.damaged,
        outcomes=history.outcomes,
    )
