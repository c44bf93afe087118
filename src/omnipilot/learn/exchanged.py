"""Whether new rows speak for two GPU kinds having been taken for one another.

Intervals alone do not tell: each kind may be as far off as a site may be. How rows of many loads
and GPU counts fall together does. The evidence is a likelihood ratio under the joint errors of the
model in force: rows with two kinds exchanged over rows as they are labelled. Its expectation is at
most 1 where the labels are right, so it passes 1/alpha with probability alpha at most (Markov), if
errors lie together as the model says. How large they are altogether need not be known: the labels
get the scale that suits them best, the exchange a prior of it (universal inference, Wasserman,
Ramdas and Balakrishnan 2020; e-values: Vovk and Wang 2021). And no single arm decides, because odd
ones occur: of all rows and the rows without one arm the smallest ratio counts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from omnipilot.costmodel.deviation import STUDENT_DOF
from omnipilot.costmodel.feasibility import FitQuestion, check_fit
from omnipilot.costmodel.frame import build_frame
from omnipilot.costmodel.heads import lead_labels
from omnipilot.costmodel.inducing import cholesky
from omnipilot.domain.errors import UsageError
from omnipilot.learn.drift import EXCHANGED, Claim, arms_of
from omnipilot.learn.local_fit import DECISION_HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.costmodel.fit import TrainingSet
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.frame import Frame
    from omnipilot.domain.scenario import Scenario

    Vector: TypeAlias = NDArray[np.float64]
    # Rows with GPU kinds called otherwise: indices (n,), kind by kind; None where that cannot be.
    Relabel: TypeAlias = Callable[[NDArray[np.int64], Mapping[str, str]], Frame | None]

__all__ = ["Expected", "exchanged", "least_log_ratio", "relabeller"]

# Without one arm a kind still has another.
FEWEST_ARMS: Final = 2
# A pair of 150 rows a kind takes a tenth of a second, five kinds ten pairs.
MOST_ROWS: Final = 150
MOST_KINDS: Final = 5
MOST_LOG_WEALTH: Final = 300.0
_JITTER: Final = 1e-9
_TINY: Final = 1e-12
_IMPOSSIBLE: Final = frozenset({
    "weights_exceed_memory", "compute_capability", "dtype_unsupported",
})  # fmt: skip


def relabeller(scenario: Callable[[int], Scenario]) -> Relabel:
    """What rows would be on GPU kinds that others of them have.

    Args:
        scenario: of the row at an index; asked for rows whose kinds are called otherwise alone.
    """

    def relabel(rows: NDArray[np.int64], names: Mapping[str, str]) -> Frame | None:
        told = [scenario(i) for i in rows.tolist()]
        parts = {s.gpu.kind: s.gpu for s in told}
        made = [replace(s, gpu=parts[names.get(s.gpu.kind, s.gpu.kind)]) for s in told]
        arms = {
            (
                s.model.model_id,
                s.gpu.kind,
                s.precision.name,
                s.n_gpus,
                s.pipeline_parallel,
                s.engine,
                s.engine_version,
            ): s
            for s in made
        }
        return None if any(_impossible(s) for s in arms.values()) else build_frame(made)

    return relabel


def _impossible(s: Scenario) -> bool:
    """Whether no launch of a row's arm can have run, whatever its flags."""
    question = FitQuestion(
        s.model, s.gpu, s.precision, max(s.n_gpus // s.pipeline_parallel, 1), s.pipeline_parallel,
        gpu_memory_utilization=1.0, engine=s.engine, engine_version=s.engine_version,
    )  # fmt: skip
    try:
        return check_fit(question).reason_code in _IMPOSSIBLE
    except UsageError:
        return False


def exchanged(
    model: FittedModel, data: TrainingSet, rows: NDArray[np.int64], relabel: Relabel
) -> Claim | None:
    """Weigh new rows as labelled against every two of their GPU kinds exchanged.

    The throughput of rows is judged, of at most ``MOST_ROWS`` a kind, evenly spread.

    Args:
        model: in force before the rows.
        data: all rows.
        rows: the new ones (n,), oldest first.
        relabel: what rows of ``data`` would be on other kinds.

    Returns:
        The mean of the evidence over the pairs, on the rows of the pair with the most; None where
        no two kinds have a few arms each or none could be exchanged.
    """
    if DECISION_HEAD not in model.heads:
        return None
    frame = data.frame.take(rows)
    y = lead_labels(data.frame, data.labels)[model.heads[DECISION_HEAD].head.lead][rows]
    kinds, arms = frame.category("gpu_kind"), arms_of(frame)
    of = {
        kind: np.flatnonzero(np.isfinite(y) & (kinds == kind)) for kind in np.unique(kinds).tolist()
    }
    judged = sorted(
        (k for k, at in of.items() if len(set(arms[at].tolist())) >= FEWEST_ARMS),
        key=lambda k: (-len(of[k]), k),
    )[:MOST_KINDS]
    found: dict[tuple[str, str], float] = {}
    for a, b in combinations(sorted(judged), 2):
        at = np.sort(np.concatenate([_spread(of[a]), _spread(of[b])]))
        other = relabel(rows[at], {a: b, b: a})
        if other is not None:  # what cannot be has no likelihood, and takes no part in the mean
            groups = [np.flatnonzero(arms[at] == arm) for arm in dict.fromkeys(arms[at].tolist())]
            found[a, b] = least_log_ratio(
                y[at], _expected(model, frame.take(at)), _expected(model, other), groups
            )
    if not found:
        return None
    best = max(found, key=lambda pair: found[pair])
    size = np.log(np.mean(np.exp(np.fromiter(found.values(), float) - found[best]))) + found[best]
    return Claim(
        DECISION_HEAD, EXCHANGED, " and ".join(best), np.sort(np.r_[of[best[0]], of[best[1]]]),
        math.exp(min(float(size), MOST_LOG_WEALTH)),
    )  # fmt: skip


def _spread(at: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(at) <= MOST_ROWS:
        return at
    return at[np.linspace(0, len(at) - 1, MOST_ROWS).astype(np.int64)]


class Expected(NamedTuple):
    """What a model expects of n rows: ``centre`` (n,) and ``covariance`` (n, n), in logs."""

    centre: Vector
    covariance: Vector


def _expected(model: FittedModel, frame: Frame) -> Expected:
    asked = model.questions(frame)
    lead = model.heads[DECISION_HEAD].head.lead
    joint = model.joint(frame, asked.prior, DECISION_HEAD)
    return Expected(
        asked.prior.log[lead] + model.log_quantiles(asked, DECISION_HEAD).log[:, 1],
        joint.covariance + np.diag(joint.noise_sd**2),
    )


def least_log_ratio(
    y: Vector, labelled: Expected, other: Expected, groups: Sequence[NDArray[np.int64]]
) -> float:
    """Log of the smallest likelihood ratio of all rows and of those without one of the groups.

    Its exponential is 1 at most in expectation where ``labelled`` holds up to a common factor on
    all errors, whatever the factor.

    Args:
        y: log labels (n,).
        labelled: the rows as they are labelled.
        other: as they would be.
        groups: of rows, none of which holds all.
    """
    q_other, root_other, n = _parts(y - other.centre, other.covariance, groups)
    q, root, _ = _parts(y - labelled.centre, labelled.covariance, groups)
    gamma = np.asarray([math.lgamma((STUDENT_DOF + count) / 2.0) for count in n.tolist()])
    exchange = (
        gamma - math.lgamma(STUDENT_DOF / 2.0) - n / 2.0 * math.log(math.pi * STUDENT_DOF)
        - (STUDENT_DOF + n) / 2.0 * np.log1p(q_other / STUDENT_DOF) - root_other
    )  # fmt: skip
    labels = -n / 2.0 * (np.log(2.0 * math.pi * q / n) + 1.0) - root
    return float(np.min(exchange - labels))


def _parts(
    error: Vector, covariance: Vector, groups: Sequence[NDArray[np.int64]]
) -> tuple[Vector, Vector, Vector]:
    """How far rows fall from what was expected, jointly: of all, then without each of g groups.

    Returns:
        Squared distance in standard deviations, half the log determinant of the covariance, and the
        number of rows, each (g + 1,). Leaving out by blocks: Rasmussen and Williams 2006, §5.4.2.
    """
    factor = cholesky(covariance, _JITTER)
    inverse = np.linalg.inv(factor)
    precision = inverse.T @ inverse
    pull = precision @ error
    q, root, n = [float(error @ pull)], [float(np.log(np.diag(factor)).sum())], [len(error)]
    for group in groups:
        block = precision[np.ix_(group, group)]
        q.append(q[0] - float(pull[group] @ np.linalg.solve(block, pull[group])))
        root.append(root[0] + float(np.linalg.slogdet(block)[1]) / 2.0)
        n.append(n[0] - len(group))
    return np.maximum(q, _TINY), np.asarray(root), np.asarray(n, dtype=np.float64)
