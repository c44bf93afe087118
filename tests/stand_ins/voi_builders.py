"""Small decisions in round numbers, and their value of information by plain simulation."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.decide.stakes import Quantity, Stakes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]


def stakes(
    worth: Sequence[float],
    cost: Sequence[float],
    covariance: Array,
    *,
    noise_sd: float = 0.0,
    probe_cost: float = 0.1,
    node_h: float = 0.05,
    chosen: int | None = None,
    **fields: object,
) -> Stakes:
    """Arms with lognormal worth and a fixed cost; one probe measures each arm itself."""
    worth_usd = np.asarray(worth, dtype=float)
    total = worth_usd - np.asarray(cost, dtype=float)
    n = len(total)
    quantity = Quantity(
        "throughput", np.diag(covariance).copy(), covariance, covariance,
        np.full(n, noise_sd**2), worth_usd,
    )  # fmt: skip
    return Stakes(
        (quantity,), total, np.zeros(n, dtype=np.int64),
        np.array([np.argmax(total) if chosen is None else chosen]),
        np.ones(n, dtype=bool), np.arange(n), np.arange(n), np.full(n, probe_cost),
        np.full(n, node_h),
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def brute_force_usd(asked: Stakes, probes: Sequence[int], draws: int = 200_000) -> float:
    """Simulate errors, measurements and posteriors, one quantity after another; no code shared."""
    rng = np.random.default_rng(11)
    n = len(asked.total_usd)
    earned = np.repeat(asked.total_usd[:, None], draws, axis=1)
    kept = np.ones((n, draws))
    limits = False
    for q in asked.quantities:
        told = [p for p in probes if np.isfinite(q.noise_var[p])]
        if not told:
            if q.missed is not None and q.loss_usd is None:
                kept *= 1.0 - q.missed[:, None]
            continue
        at = asked.place[told]
        noisy = q.places[np.ix_(at, at)] + np.diag(q.noise_var[told])
        seen = rng.multivariate_normal(np.zeros(len(told)), noisy, draws).T
        gain = np.linalg.solve(noisy, q.cross[:, at].T).T
        mean = gain @ seen
        gone = np.sum(gain * q.cross[:, at], axis=1)
        worth = np.exp(mean + 0.5 * (q.variance - gone)[:, None] - 0.5 * q.variance[:, None])
        earned += q.worth_usd[:, None] * (worth - 1.0)
        if q.missed is not None:
            limits = limits or q.loss_usd is None
            z = np.array([_inverse(p) for p in q.missed]) * np.sqrt(q.variance)
            left = np.sqrt(np.maximum(q.variance - gone, 1e-12))
            missed = _cumulative((z[:, None] + mean) / left[:, None])
            if q.loss_usd is None:
                kept *= 1.0 - missed
            else:
                earned -= q.loss_usd[:, None] * (missed - missed.mean(axis=1, keepdims=True))
    if limits:
        earned += asked.penalty_usd * (kept - kept.mean(axis=1, keepdims=True))
    may = asked.takes(probes[:-1], np.array(probes[-1:]))[:, 0]
    best = np.where(may[:, None], earned, -np.inf).max(axis=0)
    return float((best - earned[asked.taken[0]]).mean())


def _inverse(p: float) -> float:
    return NormalDist().inv_cdf(float(np.clip(p, 1e-9, 1 - 1e-9)))


def _cumulative(z: Array) -> Array:
    # By the table of the distribution, interpolated: another road than the code under test.
    grid = np.linspace(-8, 8, 3201)
    table = [NormalDist().cdf(x) for x in grid]
    return np.interp(z, grid, table)


def shared(n: int, sd: float = 0.3, correlation: float = 0.5) -> Array:
    """Covariance of n arms whose errors are equally alike."""
    return np.asarray(sd**2 * (correlation + (1.0 - correlation) * np.eye(n)))
