"""The people of a simulated cluster: which jobs they submit when, and how those end.

The demand and the rates at which launches come up are set to the figures that the paper states of
its cluster: 43 % of jobs ask for one H100 and 38 % for one A100, 72 % of launches come up on one
H100 and 38 % on four.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import ClusterJob
from omnipilot.simulate.cluster import Drain, Pool, Requests, schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from omnipilot.simulate.cluster import Schedule

__all__ = [
    "CLUSTER", "DEMAND", "POOL_KINDS", "SOURCE", "Demand", "History", "OwnJobs",
    "simulate_history",
]  # fmt: skip

SOURCE: Final = "simulated"
CLUSTER: Final = "simulated"


class Demand(NamedTuple):
    """Jobs that ask for one configuration.

    ``share_frac`` of all jobs; ``success_frac`` of its launches come up.
    """

    gpu: str
    n_gpus: int
    share_frac: float
    success_frac: float


DEMAND: Final = (
    Demand("h100", 1, 0.430, 0.72),
    Demand("h100", 2, 0.050, 0.58),
    Demand("h100", 4, 0.035, 0.38),
    Demand("h100", 8, 0.010, 0.33),
    Demand("a100_40gb", 1, 0.380, 0.75),
    Demand("a100_40gb", 2, 0.035, 0.64),
    Demand("a100_40gb", 4, 0.020, 0.47),
    Demand("h200", 1, 0.028, 0.74),
    Demand("h200", 2, 0.006, 0.63),
    Demand("h200", 4, 0.004, 0.45),
    Demand("h200", 8, 0.002, 0.37),
)
# Kind, partition, GPUs of a node, share of the pool that the jobs would keep busy.
_POOLS: Final = (
    ("h100", "gpu_h100", 8, 0.74), ("a100_40gb", "gpu", 8, 0.76), ("h200", "gpu_h200", 8, 0.50),
)  # fmt: skip
# GPU kinds of the catalogue by pool, in the order of the pools.
POOL_KINDS: Final = ("h100-80", "a100-40", "h200-141")
JOBS_PER_DAY: Final = 1250.0

# How jobs end that do not wait in vain: (state, share) of those that came up and of those not.
_CAME_UP: Final = (("COMPLETED", 0.87), ("TIMEOUT", 0.13))
_FAILED: Final = (("FAILED", 0.82), ("OUT_OF_MEMORY", 0.17), ("BOOT_FAIL", 0.01))
_CANCELLED_FRAC: Final = 0.11
_IMPATIENT_FRAC: Final = 0.03
_IMPATIENT_S: Final = 3 * 3600.0
_BURST_FRAC: Final = 0.2
_LIMITS_H: Final = ((1, 0.1), (4, 0.25), (8, 0.2), (24, 0.3), (48, 0.15))
_VLLM_OF_JOBS: Final = 903 / 500_000  # the paper's: jobs whose name looks like a vLLM server
_USERS: Final = 220
_ACCOUNTS: Final = 34
_CPUS_PER_GPU: Final = 12
_DRAINS_PER_NODE_YEAR: Final = 5.0
_KILLING_FRAC: Final = 0.35
_DAY_S: Final = 86400.0
_HOURS: Final = 168


@dataclass(frozen=True, slots=True)
class OwnJobs:
    """Jobs that are put among those of the others, all arrays (n,).

    ``pool`` indexes the kinds in the order of the site's pools; ``at_frac`` is their time of
    submission as a share of the history's length, ascending; ``failed`` those that did not come up.
    """

    pool: NDArray[np.int64]
    n_gpus: NDArray[np.int64]
    at_frac: NDArray[np.float64]
    runtime_s: NDArray[np.float64]
    failed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class History:
    """A cluster's jobs, in the order of their submission.

    ``state`` (n_jobs,) of Slurm's words; ``own`` (n_own,) gives the places of the own jobs.
    """

    pools: tuple[Pool, ...]
    requests: Requests
    outcome: Schedule
    state: tuple[str, ...]
    job_class: tuple[str, ...]
    limit_s: NDArray[np.int64]
    user: NDArray[np.int64]
    own: NDArray[np.int64]
    first_job_id: int

    def rows(self) -> Iterator[ClusterJob]:
        """The jobs as rows; all have ended when the history does."""
        users = _hashes(_USERS, 1)
        accounts = _hashes(_ACCOUNTS, 2)
        submit_s = np.floor(self.requests.submit_s).astype(np.int64).tolist()
        started = ~np.isnan(self.outcome.start_s)
        start_s = np.ceil(np.nan_to_num(self.outcome.start_s)).astype(np.int64).tolist()
        end_s = np.ceil(self.outcome.end_s).astype(np.int64).tolist()
        for i, (pool, n_gpus, state, word, limit_s, user, ran) in enumerate(
            zip(
                self.requests.pool.tolist(), self.requests.n_gpus.tolist(), self.state,
                self.job_class, self.limit_s.tolist(), self.user.tolist(), started.tolist(),
                strict=True,
            )
        ):  # fmt: skip
            job_id = self.first_job_id + i
            yield ClusterJob(
                source=SOURCE,
                cluster=CLUSTER,
                job_id=str(job_id),
                state=state,
                gpu=self.pools[pool].gpu,
                n_gpus=n_gpus,
                raw_job_id=job_id,
                partition=self.pools[pool].partition,
                user_hash=users[user],
                account_hash=accounts[user % _ACCOUNTS],
                job_class=word,
                ended_by="user" if state == "CANCELLED" else "",
                exit_code=_EXIT_CODES.get(state, 0),
                submit_s=submit_s[i],
                eligible_s=submit_s[i],
                start_s=start_s[i] if ran else 0,
                end_s=end_s[i],
                elapsed_s=end_s[i] - start_s[i] if ran else 0,
                time_limit_s=limit_s,
                n_nodes=1,
                n_cpus=_CPUS_PER_GPU * n_gpus,
            )


_EXIT_CODES: Final = {"FAILED": 1, "OUT_OF_MEMORY": 0}


def simulate_history(
    n_jobs: int, own: OwnJobs, *, now_s: float, rng: np.random.Generator
) -> History:
    """Simulate the jobs of a cluster up to now.

    Args:
        n_jobs: all jobs, the own ones among them.
        own: jobs to put among the others.
        now_s: end of the history, Unix seconds.
        rng: what everything is drawn with.

    Returns:
        The jobs. Nodes are as many as keep the pools about as busy as :data:`_POOLS` says.
    """
    n_own = len(own.at_frac)
    n = max(n_jobs, n_own + 1) - n_own
    span_s = max(n_jobs, n_own + 1) / JOBS_PER_DAY * _DAY_S
    kinds = [kind for kind, *_ in _POOLS]
    shares = np.array([d.share_frac for d in DEMAND])
    which = rng.choice(len(DEMAND), size=n, p=shares / shares.sum())
    pool = np.array([kinds.index(d.gpu) for d in DEMAND], dtype=np.int64)[which]
    n_gpus = np.array([d.n_gpus for d in DEMAND], dtype=np.int64)[which]
    cancelled = rng.random(n) < _CANCELLED_FRAC
    came_up = rng.random(n) < np.array([d.success_frac for d in DEMAND])[which]
    up, down = _draw_words(_CAME_UP, n, rng), _draw_words(_FAILED, n, rng)
    state = np.where(cancelled, "CANCELLED", np.where(came_up, up, down))
    limit_s = 3600 * rng.choice(
        [h for h, _ in _LIMITS_H], size=n, p=[p for _, p in _LIMITS_H]
    ).astype(np.int64)
    runtime_s = _runtimes(state, limit_s, rng)
    arrivals_s = now_s - span_s + _arrivals(n, span_s, now_s - span_s, rng)
    cancel_s = arrivals_s + np.where(
        rng.random(n) < _IMPATIENT_FRAC, rng.exponential(_IMPATIENT_S, n), np.inf
    )
    # Own jobs are put in where their time says.
    own_s = now_s - span_s + own.at_frac * span_s
    order = np.argsort(np.concatenate([arrivals_s, own_s]), kind="stable")
    own_limit_s = np.full(n_own, 12 * 3600, dtype=np.int64)
    own_state = np.where(own.failed, "FAILED", "COMPLETED")
    requests = Requests(
        pool=np.concatenate([pool, own.pool])[order],
        n_gpus=np.concatenate([n_gpus, own.n_gpus])[order],
        submit_s=np.concatenate([arrivals_s, own_s])[order],
        runtime_s=np.concatenate([runtime_s, own.runtime_s])[order],
        cancel_s=np.concatenate([cancel_s, np.full(n_own, np.inf)])[order],
    )
    pools = _pools(requests, span_s)
    drains = [] if not n else _drains(pools, now_s - span_s, span_s, rng)
    is_own = order >= n
    outcome = _sparing(schedule(pools, requests, drains), requests, is_own)
    requests, outcome = _all_ended(requests, outcome, now_s)
    words = np.concatenate([state, own_state])[order]
    words = np.where(outcome.killed, "NODE_FAIL", words)
    words = np.where(np.isnan(outcome.start_s), "CANCELLED", words)
    user = np.minimum(rng.zipf(1.4, n + n_own) - 1, _USERS - 1).astype(np.int64)
    user[is_own] = _USERS - 1
    return History(
        pools=pools,
        requests=requests,
        outcome=outcome,
        state=tuple(words.tolist()),
        job_class=_classes(is_own, rng),
        limit_s=np.concatenate([limit_s, own_limit_s])[order],
        user=user,
        own=np.flatnonzero(is_own)[np.argsort(order[is_own], kind="stable")],
        first_job_id=1_000_001,
    )


def _sparing(outcome: Schedule, requests: Requests, is_own: NDArray[np.bool_]) -> Schedule:
    """Let the own jobs outlive their node: what became of them is known already."""
    spared = outcome.killed & is_own
    end_s = np.where(spared, outcome.start_s + requests.runtime_s, outcome.end_s)
    return replace(outcome, end_s=end_s, killed=outcome.killed & ~spared)


def _all_ended(requests: Requests, outcome: Schedule, now_s: float) -> tuple[Requests, Schedule]:
    """Move the history back by whole days until its last job has ended."""
    late_s = float(outcome.end_s.max(initial=now_s)) - now_s
    shift_s = math.ceil(late_s / _DAY_S) * _DAY_S
    return (
        replace(requests, submit_s=requests.submit_s - shift_s),
        replace(outcome, start_s=outcome.start_s - shift_s, end_s=outcome.end_s - shift_s),
    )


def _draw_words(
    table: Sequence[tuple[str, float]], n: int, rng: np.random.Generator
) -> NDArray[np.str_]:
    words = np.array([word for word, _ in table])
    return np.asarray(words[rng.choice(len(words), size=n, p=[share for _, share in table])])


def _runtimes(
    state: NDArray[np.str_], limit_s: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Seconds that each job runs: failures are short, time-outs take their whole limit."""
    n = len(state)
    long_s = np.exp(rng.normal(math.log(2400.0), 1.3, n))
    short_s = np.exp(rng.normal(math.log(110.0), 1.1, n))
    failed = np.isin(state, [word for word, _ in _FAILED])
    runs_s = np.where(failed, short_s, np.where(state == "TIMEOUT", limit_s, long_s))
    return np.clip(runs_s, 3.0, limit_s.astype(np.float64))


def _arrivals(
    n: int, span_s: float, start_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Seconds after the start, ascending: more by day than by night, fewer at weekends, bursts."""
    hours = math.ceil(span_s / 3600.0)
    hour_of_week = (np.arange(hours) + int(start_s // 3600)) % _HOURS
    # The Unix epoch was a Thursday at midnight: hours 48 to 95 of its week are a weekend.
    weekend = (hour_of_week >= 48) & (hour_of_week < 96)
    daily = 1.0 + 0.65 * np.sin(2.0 * np.pi * ((hour_of_week % 24) - 9.0) / 24.0)
    reached = np.concatenate([[0.0], np.cumsum(daily * np.where(weekend, 0.5, 1.0))])
    drawn = np.sort(rng.random(n)) * reached[-1]
    at_s = np.interp(drawn, reached, 3600.0 * np.arange(hours + 1))
    burst = rng.random(n) < _BURST_FRAC
    if n:
        burst[0] = False
    leader = np.maximum.accumulate(np.where(burst, 0, np.arange(n)))
    return np.asarray(np.sort(np.minimum(at_s[leader] + 0.5 * (np.arange(n) - leader), span_s)))


def _pools(requests: Requests, span_s: float) -> tuple[Pool, ...]:
    load_gpus = requests.n_gpus * requests.runtime_s / span_s
    pools = []
    for index, (kind, partition, width, busy_frac) in enumerate(_POOLS):
        gpus = float(load_gpus[requests.pool == index].sum()) / busy_frac
        pools.append(Pool(kind, partition, max(math.ceil(gpus / width), 2), width))
    return tuple(pools)


def _drains(
    pools: Sequence[Pool], start_s: float, span_s: float, rng: np.random.Generator
) -> list[Drain]:
    drains = []
    for index, pool in enumerate(pools):
        mean = _DRAINS_PER_NODE_YEAR * pool.n_nodes * span_s / (365.0 * _DAY_S)
        for _ in range(int(rng.poisson(mean))):
            at_s = start_s + rng.random() * span_s
            length_s = float(rng.exponential(0.7 * _DAY_S))
            node = int(rng.integers(pool.n_nodes))
            drains.append(
                Drain(index, node, at_s, at_s + length_s, bool(rng.random() < _KILLING_FRAC))
            )
    return drains


def _classes(is_own: NDArray[np.bool_], rng: np.random.Generator) -> tuple[str, ...]:
    """Name the jobs that look like vLLM servers: the own ones and as many others as it takes."""
    n, n_own = len(is_own), int(is_own.sum())
    looks = is_own.copy()
    more = max(round(_VLLM_OF_JOBS * n) - n_own, 0)
    looks[rng.choice(np.flatnonzero(~is_own), size=min(more, n - n_own), replace=False)] = True
    return tuple(np.where(looks, "vllm", "other").tolist())


def _hashes(n: int, salt: int) -> list[str]:
    """Give stand-ins for keyed hashes of people: nobody stands behind them."""
    return [f"{salt:02x}{(i + 1) * 0x9E3779B97F4A7C15 % 2**56:014x}" for i in range(n)]
