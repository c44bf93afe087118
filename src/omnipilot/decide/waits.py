"""How long a job will wait: a blend of the plan, the depth of the queue and the cluster's history.

The blend is a ridge regression of log waits; its interval comes from its own errors on later jobs
of the history, by classes of the predicted wait (split conformal prediction, Mondrian classes: Vovk
et al. 2005, section 4.5). Without a history the plan is taken with errors that are assumed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

__all__ = [
    "AT_ONCE_S", "FEWEST_SAMPLES", "WaitClass", "WaitEstimate", "WaitEvidence", "WaitModel",
    "estimate_wait", "fit_wait_model",
]  # fmt: skip

FEWEST_SAMPLES: Final = 60
LEVELS: Final = (0.1, 0.5, 0.9)
# Waits below this are alike to a person, and logs need a bottom.
_FLOOR_S: Final = 60.0
AT_ONCE_S: Final = 60.0  # a plan this short is "at once"
_CLASSES: Final = 3
_FEWEST_IN_CLASS: Final = 30
_RIDGE: Final = 3.0  # jobs that the assumed weights are worth
_LONGEST_H: Final = 24.0 * 60
_TOP: Final = 1e300  # above any log wait; JSON holds no infinity
# Assumed without a history, as shares of the planned wait: jobs end before their limits, so half of
# the plan, between nothing and half as much again. A plan of "at once" may slip by 10 minutes.
_ASSUMED_SHARES: Final = (0.05, 0.5, 1.5)
_ASSUMED_AT_ONCE_S: Final = (0.0, 0.0, 600.0)
# Weights that the regression is drawn to: the plan and the past count half each.
_PRIOR_WEIGHTS: Final = (0.0, 0.5, 0.0, 0.5, 0.0)


@dataclass(frozen=True, slots=True)
class WaitEvidence:
    """What is known when a job is submitted; seconds.

    Args:
        planned_s: start behind all that wait, by ``sbatch --test-only`` or by the own plan; None
            where the cluster does not answer.
        first_in_line_s: start as if it were first; None likewise.
        past_s: median wait of such jobs in the history; None without any.
        pending_ratio: GPU-hours that wait over the pool's GPUs.
    """

    planned_s: float | None
    first_in_line_s: float | None = None
    past_s: float | None = None
    pending_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """Expected, median and 80 % interval of a wait, in hours; ``note`` says what it rests on."""

    expected_h: float
    lower_h: float
    median_h: float
    upper_h: float
    note: str


@dataclass(frozen=True, slots=True)
class WaitClass:
    """Errors of one class of predictions, in log seconds, at :data:`LEVELS`.

    ``up_to`` is the largest predicted log wait of the class.
    """

    up_to: float
    errors: tuple[float, ...]
    samples: int


@dataclass(frozen=True, slots=True)
class WaitModel:
    """The blend, fitted to one cluster's history.

    Args:
        weights: of 1, log plan, log first in line, log past, log pending.
        at_once_s: waits at :data:`LEVELS` of jobs whose plan was to start at once.
        classes: by predicted log wait, ascending; the last holds all above.
        past_s: median wait of all jobs.
        samples: jobs that it was fitted to.
    """

    weights: tuple[float, ...]
    at_once_s: tuple[float, ...]
    classes: tuple[WaitClass, ...]
    past_s: float
    samples: int


def _log(value: FloatArray | float) -> FloatArray:
    return np.log(np.asarray(value, dtype=np.float64) + _FLOOR_S)


def _design(evidence: Sequence[WaitEvidence], past_s: float) -> FloatArray:
    """Columns of the regression, (n, 5)."""
    planned = np.array([e.planned_s if e.planned_s is not None else past_s for e in evidence])
    first = np.array(
        [e.first_in_line_s if e.first_in_line_s is not None else p
         for e, p in zip(evidence, planned, strict=True)]
    )  # fmt: skip
    past = np.array([e.past_s if e.past_s is not None else past_s for e in evidence])
    pending = np.array([e.pending_ratio for e in evidence])
    return np.column_stack(
        [np.ones(len(planned)), _log(planned), _log(np.minimum(first, planned)), _log(past),
         np.log1p(pending)]
    )  # fmt: skip


def fit_wait_model(evidence: Sequence[WaitEvidence], waits_s: Sequence[float]) -> WaitModel | None:
    """Fit the blend to jobs of the history, in the order of their submission.

    The first 60 % give the weights, the rest the errors, so that the interval is of jobs later than
    those that the weights were fitted to.

    Args:
        evidence: what was known of each job then, all with a plan.
        waits_s: how long each waited.

    Returns:
        The model; None with fewer than :data:`FEWEST_SAMPLES` jobs.
    """
    waits = np.asarray(waits_s, dtype=np.float64)
    n = len(waits)
    if n < FEWEST_SAMPLES:
        return None
    planned = np.array([e.planned_s if e.planned_s is not None else 0.0 for e in evidence])
    at_once = planned <= AT_ONCE_S
    past_s = float(np.median(waits))
    design, target = _design(evidence, past_s), _log(waits)
    fitted = (np.arange(n) < int(0.6 * n)) & ~at_once
    held = (np.arange(n) >= int(0.6 * n)) & ~at_once
    if held.sum() < _FEWEST_IN_CLASS:
        held = ~at_once
    weights = _ridge(design[fitted], target[fitted])
    predicted = design[held] @ weights
    return WaitModel(
        weights=tuple(float(w) for w in weights),
        at_once_s=_at_once(waits[at_once]),
        classes=_classes(predicted, target[held] - predicted),
        past_s=past_s,
        samples=n,
    )


def _ridge(design: FloatArray, target: FloatArray) -> FloatArray:
    prior = np.array(_PRIOR_WEIGHTS)
    if not len(target):
        return prior
    centre = design.mean(axis=0)
    centre[0] = 0.0
    gram = design.T @ design + _RIDGE * np.eye(design.shape[1])
    weights = prior + np.linalg.solve(gram, design.T @ (target - design @ prior))
    return np.asarray(weights, dtype=np.float64)


def _at_once(waits: FloatArray) -> tuple[float, ...]:
    """Quantiles of the waits of jobs planned to start at once, the assumed ones where few."""
    if len(waits) < _FEWEST_IN_CLASS:
        return _ASSUMED_AT_ONCE_S
    return tuple(_conformal(np.sort(waits)))


def _classes(predicted: FloatArray, errors: FloatArray) -> tuple[WaitClass, ...]:
    if len(errors) < _FEWEST_IN_CLASS:
        spread = tuple(math.log(share) for share in _ASSUMED_SHARES)
        return (WaitClass(_TOP, spread, len(errors)),)
    n_classes = max(1, min(_CLASSES, len(errors) // _FEWEST_IN_CLASS))
    edges = np.quantile(predicted, np.arange(1, n_classes) / n_classes)
    edges = edges[edges < predicted.max()]  # where many are alike, none would be above
    place = np.searchsorted(edges, predicted)
    found = []
    for i, up_to in enumerate([*edges.tolist(), _TOP]):
        mine = np.sort(errors[place == i])
        if len(mine):
            found.append(WaitClass(float(up_to), tuple(_conformal(mine)), len(mine)))
    return tuple(found)


def _conformal(ordered: FloatArray) -> list[float]:
    """Quantiles that a further value falls below with at least that chance (n + 1 rule)."""
    n = len(ordered)
    low, mid, high = LEVELS
    return [
        float(ordered[max(math.floor(low * (n + 1)) - 1, 0)]),
        float(np.quantile(ordered, mid)),
        float(ordered[min(math.ceil(high * (n + 1)) - 1, n - 1)]),
    ]


def estimate_wait(
    evidence: WaitEvidence,
    model: WaitModel | None = None,
    past_quantiles_s: Sequence[float] | None = None,
    default_h: float = 0.0,
) -> WaitEstimate:
    """Estimate one wait from whatever is known.

    Args:
        evidence: of the job.
        model: fitted to the cluster's history; None without one.
        past_quantiles_s: waits of such jobs in the history at :data:`LEVELS`; used alone where the
            cluster does not answer.
        default_h: wait without any evidence.

    Returns:
        The estimate.

    Example:
        >>> estimate_wait(WaitEvidence(planned_s=7200.0)).median_h
        1.0
    """
    planned_s = evidence.planned_s
    if planned_s is None:
        return _from_the_past(model, past_quantiles_s, default_h)
    if not math.isfinite(planned_s):
        return WaitEstimate(_LONGEST_H, _LONGEST_H, _LONGEST_H, _LONGEST_H, "not planned to start")
    if planned_s <= AT_ONCE_S:
        if model is None:
            return _of(_ASSUMED_AT_ONCE_S, "free now; how plans slip is assumed")
        return _of(model.at_once_s, f"free now, as {model.samples} jobs of the history fared")
    if model is None:
        quantiles = [share * planned_s for share in _ASSUMED_SHARES]
        return _of(quantiles, "planned start; how far jobs keep to plans is assumed")
    predicted = float((_design([evidence], model.past_s) @ np.array(model.weights))[0])
    mine = next((c for c in model.classes if predicted <= c.up_to), model.classes[-1])
    quantiles = [math.exp(predicted + error) - _FLOOR_S for error in mine.errors]
    return _of(quantiles, f"plan, depth and past, weighed as {model.samples} jobs waited")


def _from_the_past(
    model: WaitModel | None, quantiles_s: Sequence[float] | None, default_h: float
) -> WaitEstimate:
    if quantiles_s is not None:
        return _of(quantiles_s, "waits of such jobs in the history")
    if model is not None:
        return _of((0.0, model.past_s, 4.0 * model.past_s), "waits of all jobs in the history")
    return WaitEstimate(default_h, default_h, default_h, default_h, "nothing known: assumed")


def _of(quantiles_s: Sequence[float], note: str) -> WaitEstimate:
    low, mid, high = (min(max(q, 0.0) / 3600.0, _LONGEST_H) for q in quantiles_s)
    # Swanson's rule for the mean of a skewed distribution from its 10, 50 and 90 % points.
    return WaitEstimate(0.3 * low + 0.4 * mid + 0.3 * high, low, mid, high, note)
