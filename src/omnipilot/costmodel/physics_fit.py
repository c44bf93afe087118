"""Fitting the physics parameters: joint, robust, ridge-shrunk Gauss-Newton.

log theta of a scenario = base + one offset for each of its groups (engine era, source, GPU vendor,
architecture and kind, kernel). Offsets are shrunk to zero, so an unseen level takes the mean of
what is known. All labelled targets are fitted together under a Student-t loss (COSTMODEL §1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.physics import PARAMETERS, START_LOG, Physics, evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame

# (category, standard deviation of its offsets in log units). A vendor's offset is looser than an
# architecture's within it, so that kinds of one vendor share what they have in common.
OFFSET_GROUPS: tuple[tuple[str, float], ...] = (
    ("engine_era", 0.35),
    ("source", 0.35),
    ("gpu_vendor", 0.35),
    ("gpu_architecture", 0.25),
    ("gpu_kind", 0.15),
    ("kernel", 0.35),
)
BASE_SD = 0.7
# Scale of the Student-t loss by fitted target (log units) and its degrees of freedom.
TARGET_SCALE = {
    "output_tokens_per_s": 0.12,
    "itl_p50_s": 0.15,
    "tpot_p50_s": 0.15,
    "ttft_p50_s": 0.35,
    "power_mean_w": 0.10,
}
STUDENT_DOF = 4.0
MAX_ITERATIONS = 40
CONVERGED_NATS = 0.5  # a step that gains less than this likelihood changes nothing of note
STEP = 1e-4


@dataclass(frozen=True, slots=True)
class PhysicsParameters:
    """Fitted parameters.

    ``base`` is (n_parameters,) in logs; ``offsets`` maps a category to its levels, each with an
    offset vector (n_parameters,).
    """

    base: NDArray[np.float64]
    offsets: dict[str, dict[str, NDArray[np.float64]]]

    def log_theta(self, frame: Frame) -> NDArray[np.float64]:
        """Log parameters of each scenario, (n, n_parameters); unseen levels have offset zero."""
        out = np.tile(self.base, (frame.n, 1))
        for category, levels in self.offsets.items():
            table = np.stack(
                [levels.get(level, np.zeros_like(self.base)) for level in frame.levels[category]]
            )
            out += table[frame.codes[category]]
        return out

    def evaluate(self, frame: Frame) -> Physics:
        """The prior for n scenarios."""
        return evaluate(frame, self.log_theta(frame))


def fit_physics(
    frame: Frame,
    labels: Mapping[str, NDArray[np.float64]],
    weight: NDArray[np.float64] | None = None,
    start: PhysicsParameters | None = None,
) -> PhysicsParameters:
    """Fit base and offsets to all labelled targets at once.

    Args:
        frame: n scenarios.
        labels: target name → natural log of the label, (n,), NaN where missing. Targets without a
            scale in ``TARGET_SCALE`` are ignored.
        weight: (n,) row weights, 1 where None.
        start: where to begin; the ridge and the data, not the start, decide where it ends.

    Returns:
        The parameters at the last accepted step.
    """
    targets = [t for t in TARGET_SCALE if t in labels and np.isfinite(labels[t]).any()]
    w_row = np.ones(frame.n) if weight is None else weight
    p = len(PARAMETERS)
    groups = [(name, sd) for name, sd in OFFSET_GROUPS]
    starts, total = {}, p
    for name, _ in groups:
        starts[name] = total
        total += p * len(frame.levels[name])
    precision = np.full(total, 1.0 / BASE_SD**2)
    for name, sd in groups:
        precision[starts[name] : starts[name] + p * len(frame.levels[name])] = 1.0 / sd**2
    combos, combo_of = np.unique(
        np.stack([frame.codes[name] for name, _ in groups], axis=1), axis=0, return_inverse=True
    )
    combo_of = combo_of.ravel()
    slots = np.stack(
        [np.arange(p) + np.zeros((len(combos), 1), dtype=np.int64)]
        + [starts[g] + combos[:, [j]] * p + np.arange(p) for j, (g, _) in enumerate(groups)],
        axis=1,
    )  # (n_combos, 1 + n_groups, p)

    def theta_rows(x: NDArray[np.float64]) -> NDArray[np.float64]:
        per_combo = START_LOG + x[slots].sum(axis=1)
        return np.asarray(per_combo[combo_of])

    def loss(log: Mapping[str, NDArray[np.float64]], x: NDArray[np.float64]) -> float:
        value = float(np.sum(precision * x**2)) / 2.0
        for t in targets:
            r = (labels[t] - log[t]) / TARGET_SCALE[t]
            ok = np.isfinite(r)
            value += float(
                np.sum(w_row[ok] * np.log1p(r[ok] ** 2 / STUDENT_DOF)) * (STUDENT_DOF + 1) / 2.0
            )
        return value

    x = np.zeros(total)
    if start is not None:
        x[:p] = start.base - START_LOG
        for name, _ in groups:
            for i, level in enumerate(frame.levels[name]):
                at = starts[name] + i * p
                x[at : at + p] = start.offsets[name].get(level, np.zeros(p))
    theta = theta_rows(x)
    current = evaluate(frame, theta).log
    value = loss(current, x)
    damping = 1.0
    for _ in range(MAX_ITERATIONS):
        jacobian = {t: np.empty((frame.n, p)) for t in targets}
        for j in range(p):
            bumped = theta.copy()
            bumped[:, j] += STEP
            moved = evaluate(frame, bumped).log
            for t in targets:
                jacobian[t][:, j] = (moved[t] - current[t]) / STEP
        hessian = np.zeros((len(combos), p, p))
        gradient = np.zeros((len(combos), p))
        for t in targets:
            r = labels[t] - current[t]
            ok = np.isfinite(r)
            u = r[ok] / TARGET_SCALE[t]
            w = w_row[ok] * (STUDENT_DOF + 1) / (STUDENT_DOF + u**2) / TARGET_SCALE[t] ** 2
            jt = jacobian[t][ok]
            order = np.argsort(combo_of[ok], kind="stable")
            c = combo_of[ok][order]
            jw = jt[order] * w[order, None]
            edges = np.flatnonzero(np.r_[True, c[1:] != c[:-1]])
            for a, b in zip(edges, np.r_[edges[1:], len(c)], strict=True):
                hessian[c[a]] += jw[a:b].T @ jt[order][a:b]
                gradient[c[a]] += jw[a:b].T @ r[ok][order][a:b]
        full = np.diag(precision)
        grad = -precision * x
        k = slots.shape[1]
        for c in range(len(combos)):
            flat = slots[c].ravel()
            full[np.ix_(flat, flat)] += np.tile(hessian[c], (k, k))
            grad[flat] += np.tile(gradient[c], k)
        improved = False
        for _ in range(6):
            step = np.linalg.solve(full + damping * np.diag(np.diag(full)) * 1e-2, grad)
            step *= min(1.0, 1.0 / max(float(np.max(np.abs(step))), 1e-12))
            trial = x + step
            trial_theta = theta_rows(trial)
            trial_log = evaluate(frame, trial_theta).log
            trial_value = loss(trial_log, trial)
            if trial_value < value:
                improved = True
                gain = value - trial_value
                x, theta, current, value = trial, trial_theta, trial_log, trial_value
                damping = max(damping / 4.0, 1e-3)
                break
            damping *= 8.0
        if not improved or gain < CONVERGED_NATS:
            break
    base = START_LOG + x[:p]
    offsets = {
        name: {
            level: x[starts[name] + i * p : starts[name] + (i + 1) * p]
            for i, level in enumerate(frame.levels[name])
        }
        for name, _ in groups
    }
    return PhysicsParameters(base=base, offsets=offsets)
