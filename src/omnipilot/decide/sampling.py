"""Joint draws of the predicted targets: two-piece lognormals tied by a Gaussian copula.

Every arm sees the same base normals (common random numbers), so that two arms differ by their
predictions and never by luck. The base is a fixed low-discrepancy grid: no random generator.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.decide.normals import ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from omnipilot.domain import TargetPrediction

    FloatArray = npt.NDArray[np.float64]

SAMPLED_TARGETS: Final[tuple[str, ...]] = (
    "aggregate_tokens_per_s",
    "ttft_p50_s",
    "tpot_p50_s",
    "cold_start_s",
    "kv_cache_peak_frac",
    "power_mean_w",
)
FRACTIONS: Final[frozenset[str]] = frozenset({"kv_cache_peak_frac"})

# Rank correlations of what remains of the log targets after a regression on the logs of prompt,
# output and concurrency inside each (source, model, GPU, count, precision, engine), rounded:
# throughput-TTFT -0.41 and -0.40, throughput-TPOT -0.79, TTFT-TPOT 0.24 and 0.16 (inferencex
# 2,854 rows, llm_pilot 360 rows), throughput-power 0.49 and 0.43, TPOT-power -0.38 (mlenergy v3
# 736 rows, v2 149 rows). Cold start and KV peak have no rows with a partner: independent.
CORRELATIONS: Final[tuple[tuple[str, str, float], ...]] = (
    ("aggregate_tokens_per_s", "ttft_p50_s", -0.4),
    ("aggregate_tokens_per_s", "tpot_p50_s", -0.8),
    ("aggregate_tokens_per_s", "power_mean_w", 0.45),
    ("ttft_p50_s", "tpot_p50_s", 0.2),
    ("tpot_p50_s", "power_mean_w", -0.4),
)

DEFAULT_SAMPLES: Final = 256
Z90: Final = 1.2815515655446004  # 90 % point of the standard normal
_TINY: Final = 1e-12  # stands for 0 under the logarithm
_PRIMES: Final = (2.0, 3.0, 5.0, 7.0, 11.0, 13.0)


def correlation_matrix() -> FloatArray:
    """Correlation of the latent normals, shape (n_targets, n_targets), positive definite."""
    matrix = np.eye(len(SAMPLED_TARGETS))
    for first, second, value in CORRELATIONS:
        i, j = SAMPLED_TARGETS.index(first), SAMPLED_TARGETS.index(second)
        matrix[i, j] = matrix[j, i] = value
    return matrix


@lru_cache(maxsize=8)
def copula_normals(n_samples: int = DEFAULT_SAMPLES) -> FloatArray:
    """Correlated standard normals whose every margin is exactly the stratified normal.

    A Kronecker sequence is turned into stratified normals, mixed by the Cholesky factor and put
    back on the strata by rank (Iman and Conover, 1982), so that the 10 and 90 % points of each
    margin are kept.

    Args:
        n_samples: number of draws, at least 2.

    Returns:
        Read-only array (n_targets, n_samples).
    """
    normal = NormalDist()
    strata = np.array([normal.inv_cdf((i + 0.5) / n_samples) for i in range(n_samples)])
    steps = np.sqrt(np.array(_PRIMES[: len(SAMPLED_TARGETS)]))[:, None]
    points = np.mod(steps * (np.arange(n_samples) + 0.5), 1.0)
    independent = strata[ranks(points)]
    # Divide out the grid's own chance correlation before imposing the wanted one.
    own = np.linalg.cholesky(np.corrcoef(independent))
    mixed = np.linalg.cholesky(correlation_matrix()) @ np.linalg.solve(own, independent)
    normals: FloatArray = strata[ranks(mixed)]
    normals.setflags(write=False)
    return normals


@lru_cache(maxsize=8)
def _pieces(n_samples: int) -> FloatArray:
    """What a draw is a product with: the lower and the upper part of each normal, and 1.

    Read-only, (n_targets, 3, n_samples).
    """
    z = copula_normals(n_samples)
    pieces: FloatArray = np.stack((np.minimum(z, 0.0), np.maximum(z, 0.0), np.ones_like(z)), axis=1)
    pieces.setflags(write=False)
    return pieces


def sample_log_targets(
    predictions: Mapping[str, FloatArray],
    n_samples: int = DEFAULT_SAMPLES,
    only: Collection[str] = SAMPLED_TARGETS,
) -> dict[str, FloatArray]:
    """Draw the logarithms of decision targets jointly.

    Limits are compared in log space, so that only what enters a formula is exponentiated. The
    median of a draw is q50 and its 10 and 90 % points are the conformal lower and upper.

    Args:
        predictions: for each name of ``SAMPLED_TARGETS`` an array (n_arms, 5) of q10, q50, q90,
            lower, upper in the target's unit.
        n_samples: number of draws.
        only: targets to draw; the draws of each are the same whichever others are drawn.

    Returns:
        For each target of ``only`` an array (n_arms, n_samples) of natural logarithms; those of
        fractions are at most 0.

    Raises:
        ValueError: a target is missing, or an array has a wrong shape or a value that is not
            finite or negative.
    """
    draws: dict[str, FloatArray] = {}
    factors = _factors(_checked(predictions))
    for name, mine, pieces in zip(SAMPLED_TARGETS, factors, _pieces(n_samples), strict=True):
        if name in only:
            drawn: FloatArray = mine @ pieces
            draws[name] = np.minimum(drawn, 0.0, out=drawn) if name in FRACTIONS else drawn
    return draws


def sample_log_target(name: str, predictions: FloatArray, n_samples: int) -> FloatArray:
    """Draw the logarithms of one target that is no fraction, as :func:`sample_log_targets` does.

    Args:
        name: of the target.
        predictions: its q10, q50, q90, lower, upper, sound, n_arms times.
        n_samples: number of draws.

    Returns:
        Array (n_arms, n_samples).
    """
    pieces = _pieces(n_samples)[SAMPLED_TARGETS.index(name)]
    drawn: FloatArray = _factors(predictions.reshape(-1, 5)) @ pieces
    return drawn


def _factors(predictions: FloatArray) -> FloatArray:
    """What :func:`_pieces` are multiplied by, (..., n_arms, 3); predictions (..., n_arms, 5)."""
    logs = np.log(np.maximum(predictions[..., [1, 3, 4]], _TINY))
    middle = logs[..., 0]
    return np.stack(
        (
            np.maximum(middle - logs[..., 1], 0.0) / Z90,
            np.maximum(logs[..., 2] - middle, 0.0) / Z90,
            middle,
        ),
        axis=-1,
    )


def _checked(predictions: Mapping[str, FloatArray]) -> FloatArray:
    """The predictions of all sampled targets, (n_targets, n_arms, 5)."""
    for name in SAMPLED_TARGETS:
        if name not in predictions:
            raise ValueError(f"no predictions of {name}")
        if predictions[name].ndim != 2 or predictions[name].shape[1] != 5:
            raise ValueError(f"predictions of {name} must have shape (n_arms, 5)")
    tables = np.stack([predictions[name] for name in SAMPLED_TARGETS])
    sound = np.isfinite(tables) & (tables >= 0)
    if not sound.all():
        name = SAMPLED_TARGETS[int(np.argmin(sound.all(axis=(1, 2))))]
        raise ValueError(f"predictions of {name} must be finite and at least 0")
    return tables


def stack_predictions(
    targets: Sequence[Mapping[str, TargetPrediction]],
) -> dict[str, FloatArray]:
    """Arrays (n_arms, 5) of the sampled targets from one mapping of predictions an arm."""
    return {
        name: np.array(
            [
                (p.q10, p.q50, p.q90, p.lower, p.upper)
                for p in (arm_targets[name] for arm_targets in targets)
            ],
            dtype=np.float64,
        ).reshape(-1, 5)
        for name in SAMPLED_TARGETS
    }
