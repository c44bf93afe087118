"""What the cluster's history says before a launch: how often jobs of a size came up and waited.

Counting only; shrinking the rates is :mod:`omnipilot.decide.launch_rates`.
"""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from omnipilot.domain.errors import UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.job_states import ENDED_STATES
from omnipilot.settings import did_you_mean
from omnipilot.store.dataset import FRESHNESS_CUTOFF_WINDOWS
from omnipilot.store.prior_sql import LEFT_OUT, prior_script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.store.prior_sql import Script

__all__ = [
    "DEFAULT_OUTCOMES", "WAIT_QUANTILES", "ClusterHistory", "Configuration", "ConfigurationCount",
    "Engine", "LaunchDefinition", "QueueWaits", "query_history",
]  # fmt: skip

Outcome = Literal["success", "failure", "excluded"]

# What each end state says about whether a launch came up. Excluded: it was ended from outside, or
# (REQUEUED) its next run is another row.
DEFAULT_OUTCOMES: Final[Mapping[str, Outcome]] = MappingProxyType(
    {
        "COMPLETED": "success",
        "TIMEOUT": "success",  # it ran to its limit, as a server does
        "FAILED": "failure",
        "OUT_OF_MEMORY": "failure",
        "NODE_FAIL": "failure",
        "BOOT_FAIL": "failure",
        "LAUNCH_FAILED": "failure",
        "RECONFIG_FAIL": "failure",
        "CANCELLED": "excluded",
        "DEADLINE": "excluded",
        "PREEMPTED": "excluded",
        "REQUEUED": "excluded",
        "REVOKED": "excluded",
    }
)
WAIT_QUANTILES: Final = (0.1, 0.5, 0.9)
# Weights by age are whole numbers at steps of age, so that sums are exact whatever their order.
STEPS_PER_WINDOW: Final = 60
_WHOLE_WEIGHT: Final = 2**16
AGE_WEIGHTS: Final = tuple(
    round(_WHOLE_WEIGHT * 0.5 ** (step / STEPS_PER_WINDOW))
    for step in range(round(FRESHNESS_CUTOFF_WINDOWS * STEPS_PER_WINDOW))
)


@dataclass(frozen=True, slots=True)
class LaunchDefinition:
    """What counts as a launch, and which launches came up.

    A launch is a run that got its nodes and has an outcome. Of it:

    - ``outcomes`` gives "success", "failure" or "excluded" for its state;
    - ``user_cancel`` replaces that for a job that its user cancelled: "excluded", "failure", or
      "runtime" (a success where it ran for ``min_runtime_s``, else a failure);
    - a success that ran for less than ``min_runtime_s`` is a failure.

    Args:
        outcomes: by state; a state that is missing is excluded.
        min_runtime_s: seconds that a launch must run to have come up.
        user_cancel: see above. Cancellations by the system follow ``outcomes``.
        job_class: count jobs of this class only ("vllm"); "" counts all.
        window_s: a launch that ended this long ago counts half, after four windows nothing
            (PAPER, Telemetry: 30 days); 0 counts all alike. Ages count in sixtieths of it.
        wait_window_s: the same for queue waits, by their start (PAPER: 7 days).

    Raises:
        UsageError: a negative time, a state that no job of Slurm ends in, or an unknown word.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=lambda: DEFAULT_OUTCOMES)
    min_runtime_s: float = 0.0
    user_cancel: Literal["excluded", "failure", "runtime"] = "excluded"
    job_class: str = ""
    window_s: float = 0.0
    wait_window_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("min_runtime_s", "window_s", "wait_window_s"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"{name} must be a number of seconds from 0")
        if self.user_cancel not in {"excluded", "failure", "runtime"}:
            raise UsageError("user_cancel must be excluded, failure or runtime")
        for state in sorted(set(self.outcomes) - ENDED_STATES):
            raise UsageError(
                f"Slurm ends no job as '{state}'{did_you_mean(state, ENDED_STATES)}; its states "
                f"are {', '.join(sorted(ENDED_STATES))}"
            )
        if unknown := set(self.outcomes.values()) - {"success", "failure", "excluded"}:
            raise UsageError(f"an outcome must be success, failure or excluded, not {unknown}")


class Configuration(NamedTuple):
    """GPU kind, as the scheduler names it, and how many of them."""

    gpu: str
    n_gpus: int


@dataclass(frozen=True, slots=True)
class ConfigurationCount:
    """One configuration's history.

    Args:
        jobs: jobs that asked for it, whatever became of them; array tasks count each.
        launches: runs with an outcome, unweighted.
        attempts: the same, weighted by age (equal without a window).
        successes: those that came up, weighted by age.
        excluded: runs that started and say nothing about launching.
        demand_frac: share of all GPU jobs that asked for it.
    """

    configuration: Configuration
    jobs: int
    launches: int
    attempts: float
    successes: float
    excluded: int
    demand_frac: float

    @property
    def raw_rate(self) -> float | None:
        """Share of launches that came up; None without launches."""
        return self.successes / self.attempts if self.attempts > 0 else None


@dataclass(frozen=True, slots=True)
class QueueWaits:
    """Waits of the jobs of one partition and size, from eligible to start.

    Args:
        jobs: waits known.
        quantiles_s: at :data:`WAIT_QUANTILES`.
        mean_s: weighted by age, as the quantiles are.
    """

    partition: str
    n_gpus: int
    jobs: int
    quantiles_s: tuple[float, ...]
    mean_s: float


@dataclass(frozen=True, slots=True)
class ClusterHistory:
    """What was counted, most demanded configuration first; GPU jobs only.

    Args:
        jobs: GPU jobs, array tasks each.
        untyped: of those, jobs whose GPU kind the scheduler does not tell.
        without_gpus: jobs left out.
        outcomes: runs that started, by (state, outcome).
        newer_schema: records that only a newer omnipilot can read, left out.
        damaged: lines that are no JSON or lack a field, left out.
    """

    configurations: tuple[ConfigurationCount, ...]
    waits: tuple[QueueWaits, ...]
    jobs: int
    untyped: int
    without_gpus: int
    outcomes: Mapping[tuple[str, Outcome], int]
    newer_schema: int = 0
    damaged: int = 0


class Engine(Protocol):
    """Runs SQL over the cluster's jobs; see :mod:`omnipilot.store.query`."""

    def answers(self, script: Script) -> dict[str, list[tuple[Any, ...]]]:
        """Make the tables and answer the questions, by name."""
        ...


def query_history(
    engine: Engine,
    definition: LaunchDefinition,
    *,
    now_s: float,
    kind_of_partition: Mapping[str, str] = MappingProxyType({}),
) -> ClusterHistory:
    """Count launches, demand and waits where the data lies.

    Of several records of one run the largest value of each field counts, so that known wins over
    unknown.

    Args:
        engine: has the jobs.
        definition: what counts.
        now_s: time from which ages are counted, Unix seconds.
        kind_of_partition: GPU kind of partitions whose scheduler counts GPUs without a type.

    Raises:
        UsageError: a state, class, partition or kind that Slurm does not allow.
        StateError: the jobs cannot be read.
    """
    script = prior_script(
        definition,
        now_s=int(now_s),
        kind_of_partition=kind_of_partition,
        quantile_percents=tuple(round(100 * q) for q in WAIT_QUANTILES),
        weights=AGE_WEIGHTS,
        steps_per_window=STEPS_PER_WINDOW,
    )
    found = engine.answers(script)
    newer_schema, damaged = found[LEFT_OUT][0]
    configurations = found["configurations"]
    total = sum(row[2] for row in configurations)
    unit = _WHOLE_WEIGHT if definition.window_s else 1  # the weight of an event of now
    counts = [
        ConfigurationCount(
            configuration=Configuration(gpu, n_gpus),
            jobs=jobs,
            launches=launches,
            attempts=attempts / unit,
            successes=successes / unit,
            excluded=excluded,
            demand_frac=jobs / total if total else 0.0,
        )
        for gpu, n_gpus, jobs, launches, attempts, successes, excluded in configurations
    ]
    return ClusterHistory(
        configurations=tuple(sorted(counts, key=lambda c: (-c.jobs, c.configuration))),
        waits=tuple(
            QueueWaits(queue, n_gpus, jobs, tuple(map(float, quantiles)), weighted_s / weight)
            for queue, n_gpus, jobs, weight, weighted_s, *quantiles in found["waits"]
        ),
        jobs=total,
        untyped=sum(row[2] for row in configurations if not row[0]),
        without_gpus=found["without_gpus"][0][0],
        outcomes={(state, outcome): n for state, outcome, n in found["outcomes"]},
        newer_schema=newer_schema,
        damaged=damaged,
    )
