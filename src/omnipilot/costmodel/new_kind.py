"""The parameters of a GPU kind that no row of the fit had, from a few rows of its own.

A new kind starts with the parameters of its vendor and architecture. Where it is limited by
something else than these say (kernels that are not written for it yet), its errors are no straight
line in the parameters: a speed that is wrong by a factor of four first has to become the limit. So
the parameters themselves are fitted again, by Gauss-Newton steps on the local rows; what is left
of the errors goes to the :class:`~omnipilot.costmodel.deviation.Deviation` as ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.novelty import CLASS_NAMES, novelty_of
from omnipilot.costmodel.physics import PARAMETER_NAMES, evaluate
from omnipilot.costmodel.physics_fit import BASE_SD, HARDWARE_PARAMETERS, STEP
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics_fit import PhysicsParameters

CATEGORY = "gpu_kind"
_PLACES = np.flatnonzero(np.isin(PARAMETER_NAMES, HARDWARE_PARAMETERS))
# Of a kind's parameters is known as much as of the base's before any row was seen.
SD = np.full(len(_PLACES), BASE_SD)
MOST_ROWS = 200
MOST_STEPS = 12
MOST_HALVINGS = 6
CONVERGED_NATS = 1e-3
SHARES = (4.0, 1.0, 0.25)


@dataclass(frozen=True, slots=True)
class KindErrors:
    """What one head's answers to n rows of one GPU kind are off by.

    ``error`` is log label − centre (n,), where the kind has no offset of its own yet;
    ``covariance`` (n, n) what errors are expected to share, ``noise_sd`` that of each row (n,).
    ``target`` is the head's lead.
    """

    frame: Frame
    target: str
    error: NDArray[np.float64]
    covariance: NDArray[np.float64]
    noise_sd: NDArray[np.float64]


def known_kinds(physics: PhysicsParameters, known: Iterable[str]) -> PhysicsParameters:
    """The parameters without offsets of GPU kinds that are not among the known ones."""
    kept, all_of_them = frozenset(known), physics.offsets.get(CATEGORY, {})
    if kept.issuperset(all_of_them):
        return physics
    offsets = {k: v for k, v in all_of_them.items() if k in kept}
    return replace(physics, offsets=physics.offsets | {CATEGORY: offsets})


def with_kind(
    physics: PhysicsParameters, kind: str, offset: NDArray[np.float64]
) -> PhysicsParameters:
    """The parameters with an offset (n_parameters,) of one GPU kind."""
    offsets = physics.offsets.get(CATEGORY, {}) | {kind: offset}
    return replace(physics, offsets=physics.offsets | {CATEGORY: offsets})


def adapted(
    model: FittedModel,
    frame: Frame,
    leads: Mapping[str, NDArray[np.float64]],
    weight: NDArray[np.float64],
) -> FittedModel:
    """The model with the parameters of every GPU kind that it had not seen, from local rows.

    Of more than ``MOST_ROWS`` rows of a head some are taken.

    Args:
        model: not conditioned on rows.
        frame: n local rows.
        leads: lead target → natural log of its label (n,), NaN where missing.
        weight: (n,) in (0, 1]; 0.5 means twice the noise variance.
    """
    known = model.envelope.novelty[CATEGORY]
    physics = known_kinds(model.physics, known)
    model = model if physics is model.physics else replace(model, physics=physics)
    kinds = frame.category(CATEGORY)
    for kind in sorted(set(kinds.tolist()) - set(known)):
        part = frame.take(kinds == kind)
        prior = model.physics.evaluate(part)
        novelty = int(novelty_of(part, model.envelope.novelty)[0])
        heads = []
        for name, head in model.heads.items():
            lead = head.head.lead
            label = leads[lead][kinds == kind]
            rows = np.flatnonzero(np.isfinite(label))
            if len(rows) > MOST_ROWS:  # before their covariance, which grows with the square
                rows = np.sort(np.random.default_rng(0).choice(rows, MOST_ROWS, replace=False))
            if len(rows):
                few, at = part.take(rows), prior.take(rows)
                deviation = head.deviations[head.calibrated(CLASS_NAMES[novelty])]
                noise_sd = deviation.noise_sd / np.sqrt(weight[kinds == kind][rows])
                error = label[rows] - model.centre(few, at, name)
                heads.append(KindErrors(few, lead, error, deviation.joint(few, at), noise_sd))
        model = replace(
            model, physics=with_kind(model.physics, kind, fit_kind(model.physics, heads))
        )
    return model


def fit_kind(physics: PhysicsParameters, heads: Sequence[KindErrors]) -> NDArray[np.float64]:
    """Offset of a GPU kind with the greatest posterior probability, (n_parameters,).

    Errors of other kinds were partly those of parameters too. How much of their covariance stands
    beside this kind's own parameters, its rows say: the one of ``SHARES`` with the greatest
    evidence in Laplace's approximation (Rasmussen and Williams 2006, §3.4.4). Heads are taken as
    independent given the parameters.

    Args:
        physics: has no offset of the kind.
        heads: the errors of each head that has rows.
    """
    fits = [_fit([_Problem.of(physics, head, share) for head in heads]) for share in SHARES]
    _, x = max(fits, key=lambda found: found[0])
    offset = np.zeros(len(PARAMETER_NAMES))
    offset[_PLACES] = x
    return offset


def _fit(problems: Sequence[_Problem]) -> tuple[float, NDArray[np.float64]]:
    """Log evidence, but for a constant, and offsets of the hardware parameters."""
    x = np.zeros(len(_PLACES))
    value = sum(p.loss(x) for p in problems)
    for step_number in range(MOST_STEPS + 1):
        hessian, downhill = np.diag(SD**-2.0), -x / SD**2
        for p in problems:
            jacobian, left = p.slopes(x)
            weighted = jacobian.T @ p.precision
            hessian += weighted @ jacobian
            downhill += weighted @ left
        if step_number == MOST_STEPS:
            break
        step = np.linalg.solve(hessian, downhill)
        for _ in range(MOST_HALVINGS):
            trial = x + step
            reached = sum(p.loss(trial) for p in problems) + 0.5 * float(np.sum((trial / SD) ** 2))
            if reached < value:
                break
            step /= 2.0
        else:
            break
        gain, x, value = value - reached, trial, reached
        if gain < CONVERGED_NATS:
            break
    informed = float(np.linalg.slogdet(hessian * np.outer(SD, SD))[1])
    precise = sum(float(np.linalg.slogdet(p.precision)[1]) for p in problems)
    return 0.5 * (precise - informed) - value, x


@dataclass(frozen=True, slots=True)
class _Problem:
    """Rows of one head: ``log_theta`` (n, n_parameters), ``goal`` (n,) what the prior should be."""

    frame: Frame
    target: str
    log_theta: NDArray[np.float64]
    goal: NDArray[np.float64]
    precision: NDArray[np.float64]

    @classmethod
    def of(cls, physics: PhysicsParameters, head: KindErrors, share: float) -> _Problem:
        frame = head.frame
        log_theta = physics.log_theta(frame)
        covariance = share * head.covariance + np.diag(head.noise_sd**2)
        return cls(
            frame, head.target, log_theta,
            evaluate(frame, log_theta).log[head.target] + head.error,
            np.asarray(np.linalg.inv(covariance), dtype=np.float64),
        )  # fmt: skip

    def _log(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = self.log_theta.copy()
        moved[:, _PLACES] += x
        return evaluate(self.frame, moved).log[self.target]

    def loss(self, x: NDArray[np.float64]) -> float:
        left = self.goal - self._log(x)
        return 0.5 * float(left @ self.precision @ left)

    def slopes(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Derivatives (n, n_hardware_parameters) and what is left of the errors (n,)."""
        here = self._log(x)
        jacobian = np.empty((self.frame.n, len(x)))
        for j in range(len(x)):
            moved = x.copy()
            moved[j] += STEP
            jacobian[:, j] = (self._log(moved) - here) / STEP
        return jacobian, self.goal - here
