"""What is counted of the cluster's history, as SQL that DuckDB and Spark both run, unchanged.

Only integers are summed, so that any engine, in any order and on any number of machines, gives the
same numbers to the last digit: weights by age are looked up in a table of whole numbers, made here.
Names that are a word of either dialect (``cluster``, ``partition``) go by other ones.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.store.priors import LaunchDefinition

__all__ = ["FIELDS", "LEFT_OUT", "SOURCE_TABLE", "Script", "newest_script", "prior_script"]

SOURCE_TABLE: Final = "cluster_jobs"
# Columns of the source table: field of a stored row, column, and whether it is a number.
FIELDS: Final = (
    ("cluster", "cluster_name", False),
    ("job_id", "job_id", False),
    ("state", "state", False),
    ("gpu", "gpu", False),
    ("n_gpus", "n_gpus", True),
    ("n_tasks", "n_tasks", True),
    ("partition", "queue", False),
    ("job_class", "job_class", False),
    ("ended_by", "ended_by", False),
    ("submit_s", "submit_s", True),
    ("eligible_s", "eligible_s", True),
    ("start_s", "start_s", True),
    ("end_s", "end_s", True),
    ("elapsed_s", "elapsed_s", True),
    ("time_limit_s", "time_limit_s", True),
    ("schema_version", "schema_version", True),
)
# Text that may stand between quotes in both dialects.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,+:-]{0,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Script:
    """Tables to make, one after another, and then questions to ask of them.

    Args:
        tables: SQL by name; each may read those before it and the source table.
        questions: SQL by name.
    """

    tables: Mapping[str, str]
    questions: Mapping[str, str]


# Several records of one run, such as those harvested with and without a column, are one: of each
# field the largest value, so that known wins over unknown. The runs of a requeued job differ in
# their time of submission and stay apart. Every row that was written states every field: one that
# lacks any is a damaged line.
_RUNS: Final = f"""
SELECT cluster_name, job_id, submit_s, start_s, MAX(state) AS state, MAX(gpu) AS gpu,
  MAX(n_gpus) AS n_gpus, MAX(n_tasks) AS n_tasks, MAX(queue) AS queue,
  MAX(job_class) AS job_class, MAX(ended_by) AS ended_by, MAX(eligible_s) AS eligible_s,
  MAX(end_s) AS end_s, MAX(elapsed_s) AS elapsed_s, MAX(time_limit_s) AS time_limit_s
FROM {SOURCE_TABLE}
WHERE COALESCE(schema_version, 0) <= {SCHEMA_VERSION}
  AND {" AND ".join(f"{column} IS NOT NULL" for _, column, _ in FIELDS[:-1])}
GROUP BY cluster_name, job_id, submit_s, start_s
"""  # noqa: S608 - constant names

_NEWEST: Final = """
SELECT cluster_name, job_id, state, gpu, n_gpus, n_tasks, queue, job_class, ended_by, submit_s,
  eligible_s, start_s, end_s, elapsed_s, time_limit_s
FROM runs
WHERE n_gpus > 0 AND start_s > (SELECT MAX(start_s) FROM runs WHERE n_gpus > 0) - {within_s}
ORDER BY start_s DESC, cluster_name, job_id, submit_s
LIMIT {most}
"""

_LAUNCHES: Final = """
SELECT {gpu} AS gpu, n_gpus, n_tasks, queue, state,
  CASE WHEN start_s = 0 THEN 'never started' ELSE {outcome} END AS outcome,
  CASE WHEN eligible_s > 0 AND eligible_s <= start_s THEN start_s - eligible_s END AS wait_s,
  {end_age} AS end_age, {start_age} AS start_age
FROM runs
WHERE {wanted}
"""

_CONFIGURATIONS: Final = """
SELECT gpu, n_gpus,
  CAST(SUM(CASE WHEN state = 'REQUEUED' THEN 0 ELSE n_tasks END) AS BIGINT) AS jobs,
  CAST(SUM(CASE WHEN outcome IN ('success', 'failure') THEN 1 ELSE 0 END) AS BIGINT) AS launches,
  CAST(SUM(CASE WHEN outcome IN ('success', 'failure') THEN {weight} ELSE 0 END) AS BIGINT)
    AS attempts,
  CAST(SUM(CASE WHEN outcome = 'success' THEN {weight} ELSE 0 END) AS BIGINT) AS successes,
  CAST(SUM(CASE WHEN outcome = 'excluded' THEN 1 ELSE 0 END) AS BIGINT) AS excluded
FROM launches {join}
WHERE n_gpus > 0
GROUP BY gpu, n_gpus
ORDER BY gpu, n_gpus
"""

_WITHOUT_GPUS: Final = """
SELECT CAST(COALESCE(SUM(n_tasks), 0) AS BIGINT) AS jobs FROM launches WHERE n_gpus = 0
"""

# Lines that a newer version wrote, and lines that lack a field or are no JSON.
LEFT_OUT: Final = "left_out"
_LEFT_OUT: Final = f"""
SELECT
  CAST(COALESCE(SUM(CASE WHEN schema_version > {SCHEMA_VERSION} THEN 1 ELSE 0 END), 0) AS BIGINT)
    AS newer,
  CAST(COALESCE(SUM(CASE WHEN COALESCE(schema_version, 0) <= {SCHEMA_VERSION}
    AND ({" OR ".join(f"{column} IS NULL" for _, column, _ in FIELDS[:-1])}) THEN 1 ELSE 0 END), 0)
    AS BIGINT) AS damaged
FROM {SOURCE_TABLE}
"""  # noqa: S608 - constant names

_OUTCOMES: Final = """
SELECT state, outcome, CAST(COUNT(*) AS BIGINT) AS n
FROM launches
WHERE n_gpus > 0 AND outcome <> 'never started'
GROUP BY state, outcome
ORDER BY state, outcome
"""

# A quantile is the smallest wait that at least its share of the weight does not exceed.
_WAITS: Final = """
WITH weighted AS (
  SELECT queue, n_gpus, wait_s, {weight} AS weight
  FROM launches {join}
  WHERE n_gpus > 0 AND wait_s IS NOT NULL
),
by_wait AS (
  SELECT queue, n_gpus, wait_s, CAST(COUNT(*) AS BIGINT) AS n,
    CAST(SUM(weight) AS BIGINT) AS weight
  FROM weighted
  GROUP BY queue, n_gpus, wait_s
),
running AS (
  SELECT queue, n_gpus, wait_s, n, weight,
    CAST(SUM(weight) OVER (PARTITION BY queue, n_gpus ORDER BY wait_s
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS reached,
    CAST(SUM(weight) OVER (PARTITION BY queue, n_gpus) AS BIGINT) AS total
  FROM by_wait
)
SELECT queue, n_gpus, CAST(SUM(n) AS BIGINT) AS jobs, MAX(total) AS total,
  CAST(SUM(weight * wait_s) AS BIGINT) AS weighted_s, {quantiles}
FROM running
WHERE total > 0
GROUP BY queue, n_gpus
ORDER BY queue, n_gpus
"""


def newest_script(within_s: int, most: int) -> Script:
    """Write the script for the GPU jobs that started last, newest first.

    Args:
        within_s: seconds before the newest start.
        most: how many at most.
    """
    return Script({"runs": _RUNS}, {"newest": _NEWEST.format(within_s=within_s, most=most)})


def prior_script(
    definition: LaunchDefinition,
    *,
    now_s: int,
    kind_of_partition: Mapping[str, str],
    quantile_percents: tuple[int, ...],
    weights: tuple[int, ...],
    steps_per_window: int,
) -> Script:
    """Write the script that counts launches, demand and waits.

    Args:
        definition: what counts.
        now_s: time from which ages are counted, Unix seconds.
        kind_of_partition: GPU kind of partitions whose scheduler counts GPUs without a type.
        quantile_percents: quantiles of the waits.
        weights: weight by age in steps of a window; nothing beyond.
        steps_per_window: steps of age in one window.

    Raises:
        UsageError: a state, class, partition or kind that Slurm does not allow.
    """
    kinds = " ".join(
        f"WHEN {_text(queue)} THEN {_text(kind)}" for queue, kind in kind_of_partition.items()
    )
    gpu = f"CASE WHEN gpu = '' THEN CASE queue {kinds} ELSE '' END ELSE gpu END" if kinds else "gpu"
    launches = _LAUNCHES.format(
        gpu=gpu,
        outcome=_outcome(definition),
        end_age=_age("end_s", now_s, definition.window_s, steps_per_window),
        start_age=_age("start_s", now_s, definition.wait_window_s, steps_per_window),
        wanted=f"job_class = {_text(definition.job_class)}" if definition.job_class else "1 = 1",
    )
    quantiles = ",\n  ".join(
        f"MIN(CASE WHEN reached * 100 >= total * {percent} THEN wait_s END) AS q{percent}"
        for percent in quantile_percents
    )
    return Script(
        tables={
            "runs": _RUNS,
            "launches": launches,
            "weights": _weights(weights),
        },
        questions={
            "configurations": _CONFIGURATIONS.format(**_weighting("end_age", definition.window_s)),
            "without_gpus": _WITHOUT_GPUS,
            LEFT_OUT: _LEFT_OUT,
            "outcomes": _OUTCOMES,
            "waits": _WAITS.format(
                quantiles=quantiles, **_weighting("start_age", definition.wait_window_s)
            ),
        },
    )


def _outcome(definition: LaunchDefinition) -> str:
    """Write as SQL what :class:`omnipilot.store.priors.LaunchDefinition` says of a run."""
    enough = f"elapsed_s >= {math.ceil(definition.min_runtime_s)}"
    lived = f"CASE WHEN {enough} THEN 'success' ELSE 'failure' END"
    cancelled = lived if definition.user_cancel == "runtime" else _text(definition.user_cancel)
    cases = " ".join(
        f"WHEN {_text(state)} THEN {lived if outcome == 'success' else _text(outcome)}"
        for state, outcome in definition.outcomes.items()
    )
    by_state = f"CASE state {cases} ELSE 'excluded' END" if cases else "'excluded'"
    return (
        f"CASE WHEN state = 'CANCELLED' AND ended_by = 'user' THEN {cancelled} ELSE {by_state} END"
    )


def _age(column: str, now_s: int, window_s: float, steps: int) -> str:
    """Write the age in steps of the window; 0 where ages do not count."""
    if not window_s:
        return "0"
    age = f"CAST(({now_s} - {column}) * {steps} AS DOUBLE) / CAST({round(window_s)} AS DOUBLE)"
    return f"CASE WHEN {column} >= {now_s} THEN 0 ELSE CAST(FLOOR({age}) AS BIGINT) END"


def _weights(weights: tuple[int, ...]) -> str:
    rows = ", ".join(f"({step}, {weight})" for step, weight in enumerate(weights))
    return f"SELECT step, weight FROM (VALUES {rows}) AS w(step, weight)"  # noqa: S608 - numbers


def _weighting(column: str, window_s: float) -> dict[str, str]:
    if not window_s:
        return {"weight": "1", "join": ""}
    return {
        "weight": "COALESCE(weights.weight, 0)",
        "join": f"LEFT JOIN weights ON weights.step = launches.{column}",
    }


def _text(value: str) -> str:
    """Write a text literal; what would need an escape is no name of Slurm's."""
    if _PLAIN.fullmatch(value) is None:
        raise UsageError(f"'{value}' is no state, class, partition or GPU kind of Slurm")
    return f"'{value}'"
