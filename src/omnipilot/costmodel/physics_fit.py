"""Fitting the physics parameters: joint, robust, ridge-shrunk Gauss-Newton.

log theta of a scenario = base + one offset for each of its groups (engine era, source, GPU vendor,
architecture and kind, kernel, MoE model, task). Offsets are shrunk to zero, so an unseen level
takes the mean of what is known. All labelled targets are fitted together under a Student-t loss
(COSTMODEL §1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.physics import PARAMETER_NAMES, PARAMETERS, START_LOG, Physics, evaluate
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame

# Says nothing beyond the levels of its group: it has no base that moves.
_GROUP_ONLY = ("guessed_prompt_ratio",)
_SOFTWARE = tuple(
    p.name for p in PARAMETERS if not p.name.endswith("_power_frac") and p.name not in _GROUP_ONLY
)
HARDWARE_PARAMETERS = (
    "weight_bandwidth_eff", "kv_bandwidth_eff", "decode_compute_eff", "prefill_compute_eff",
    "layer_overhead_s", "sequence_overhead_s", "allreduce_latency_s", "link_bandwidth_eff",
    "idle_power_frac", "memory_power_frac", "compute_power_frac", "expert_compute_eff",
    "gqa_reread_frac",
)  # fmt: skip
SPREAD = np.array([p.spread for p in PARAMETERS])
_KERNEL = (
    "weight_bandwidth_eff", "decode_compute_eff", "prefill_compute_eff", "expert_compute_eff",
    "layer_overhead_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OffsetGroup:
    """A category whose levels move some parameters.

    ``sd`` of the offsets in log units, of a parameter whose own ``spread`` is 1.
    """

    category: str
    sd: float
    parameters: tuple[str, ...]


# A vendor's offset is looser than an architecture's and a kind's within it, so that kinds of one
# vendor share what they have in common; so with an engine era and its releases.
OFFSET_GROUPS: tuple[OffsetGroup, ...] = (
    OffsetGroup("engine_era", 0.35, _SOFTWARE),
    OffsetGroup("engine_release", 0.20, _SOFTWARE),
    OffsetGroup("source", 0.35, _SOFTWARE),
    OffsetGroup("gpu_vendor", 0.35, HARDWARE_PARAMETERS),
    OffsetGroup("gpu_architecture", 0.25, HARDWARE_PARAMETERS),
    OffsetGroup("gpu_kind", 0.15, HARDWARE_PARAMETERS),
    OffsetGroup("kernel", 0.35, _KERNEL),
    OffsetGroup("implementation", 0.5, _SOFTWARE),
    # Kernels of experts are tuned by their shapes, model by model; what one of them has of its own
    # must not pass for what the next one will have.
    OffsetGroup("moe_model", 0.10, _KERNEL),
    # Where a source does not give its prompts, a task's rows tell how long they are.
    OffsetGroup("workload", 0.50, _GROUP_ONLY),
    OffsetGroup("source_vendor", 0.25, HARDWARE_PARAMETERS),
    OffsetGroup("source_era", 0.25, _SOFTWARE),
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
MAX_ITERATIONS = 60
MAX_DAMPINGS = 12  # six ended some fits hundreds of nats above where twelve do
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
        return evaluate(frame, frame.fixed(self, lambda: self.log_theta(frame)))


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where base and offsets lie in the vector x that is fitted (in logs, 0 = start).

    ``first`` maps a category to the place of its first level's offsets, ``present`` to the levels
    with rows. ``combo_of`` (n,) is each row's combination of levels; ``slots`` (n_combos,
    1 + n_groups, n_parameters) are the places that add up to a combination's parameters;
    ``precision`` (len(x),) is the ridge; ``active`` are the places that may move: those of
    parameters that their group moves, at levels with rows.
    """

    first: dict[str, int]
    present: dict[str, tuple[tuple[int, str], ...]]
    combo_of: NDArray[np.int64]
    slots: NDArray[np.int64]
    precision: NDArray[np.float64]
    active: NDArray[np.int64]

    @classmethod
    def from_frame(cls, frame: Frame) -> _Layout:
        p = len(PARAMETERS)
        first, total = {}, p
        for group in OFFSET_GROUPS:
            first[group.category] = total
            total += p * len(frame.levels[group.category])
        precision = np.full(total, 1.0 / BASE_SD**2)
        free = np.zeros(total, dtype=bool)
        free[:p] = ~np.isin(PARAMETER_NAMES, _GROUP_ONLY)
        for group in OFFSET_GROUPS:
            levels = frame.levels[group.category]
            here = slice(first[group.category], first[group.category] + p * len(levels))
            precision[here] = np.tile((group.sd * SPREAD) ** -2.0, len(levels))
            has_rows = np.isin(np.arange(len(levels)), frame.codes[group.category])
            free[here] = np.outer(has_rows, np.isin(PARAMETER_NAMES, group.parameters)).ravel()
        combos, combo_of = np.unique(
            np.stack([frame.codes[g.category] for g in OFFSET_GROUPS], axis=1),
            axis=0,
            return_inverse=True,
        )
        slots = np.stack(
            [np.arange(p) + np.zeros((len(combos), 1), dtype=np.int64)]
            + [
                first[g.category] + combos[:, [j]] * p + np.arange(p)
                for j, g in enumerate(OFFSET_GROUPS)
            ],
            axis=1,
        )
        present = {
            g.category: tuple(
                (int(i), frame.levels[g.category][i]) for i in np.unique(frame.codes[g.category])
            )
            for g in OFFSET_GROUPS
        }
        return cls(first, present, combo_of.ravel(), slots, precision, np.flatnonzero(free))

    def start(self, parameters: PhysicsParameters | None) -> NDArray[np.float64]:
        """Vector of earlier parameters; places that may not move start, and so end, at zero."""
        x = np.zeros(len(self.precision))
        if parameters is None:
            return x
        p = len(PARAMETERS)
        x[:p] = parameters.base - START_LOG
        for name, levels in self.present.items():
            for i, level in levels:
                at = self.first[name] + i * p
                x[at : at + p] = parameters.offsets[name].get(level, np.zeros(p))
        moves = np.isin(np.arange(len(x)), self.active)
        return np.where(moves, x, 0.0)

    def theta(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log parameters of each row, (n, n_parameters)."""
        per_combo = START_LOG + x[self.slots].sum(axis=1)
        return np.asarray(per_combo[self.combo_of])

    def parameters(self, frame: Frame, x: NDArray[np.float64]) -> PhysicsParameters:
        """The vector by names."""
        p = len(PARAMETERS)
        offsets = {
            name: {
                level: x[self.first[name] + i * p : self.first[name] + (i + 1) * p]
                for i, level in enumerate(frame.levels[name])
            }
            for name in (g.category for g in OFFSET_GROUPS)
        }
        return PhysicsParameters(base=START_LOG + x[:p], offsets=offsets)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Labels to fit: ``targets`` names, ``labels`` logs (n,) and ``weight`` (n,)."""

    frame: Frame
    layout: _Layout
    targets: tuple[str, ...]
    labels: Mapping[str, NDArray[np.float64]]
    weight: NDArray[np.float64]

    def loss(self, log: Mapping[str, NDArray[np.float64]], x: NDArray[np.float64]) -> float:
        """Negative log likelihood and ridge of a prior ``log`` at ``x``, in nats."""
        value = float(np.sum(self.layout.precision * x**2)) / 2.0
        for t in self.targets:
            r = (self.labels[t] - log[t]) / TARGET_SCALE[t]
            ok = np.isfinite(r)
            value += float(
                np.sum(self.weight[ok] * np.log1p(r[ok] ** 2 / STUDENT_DOF))
                * (STUDENT_DOF + 1)
                / 2.0
            )
        return value

    def normal_equations(
        self,
        log: Mapping[str, NDArray[np.float64]],
        theta: NDArray[np.float64],
        x: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Gauss-Newton matrix (n_active, n_active) and downhill gradient (n_active,) at ``x``.

        Rows of one combination share their parameters, so sums are taken by combination first.
        """
        layout, p = self.layout, len(PARAMETERS)
        jacobian = {t: np.empty((self.frame.n, p)) for t in self.targets}
        for j in range(p):
            bumped = theta.copy()
            bumped[:, j] += STEP
            moved = evaluate(self.frame, bumped).log
            for t in self.targets:
                jacobian[t][:, j] = (moved[t] - log[t]) / STEP
        n_combos = len(layout.slots)
        hessian = np.zeros((n_combos, p, p))
        gradient = np.zeros((n_combos, p))
        for t in self.targets:
            r = self.labels[t] - log[t]
            ok = np.isfinite(r)
            u = r[ok] / TARGET_SCALE[t]
            w = self.weight[ok] * (STUDENT_DOF + 1) / (STUDENT_DOF + u**2) / TARGET_SCALE[t] ** 2
            order = np.argsort(layout.combo_of[ok], kind="stable")
            combo = layout.combo_of[ok][order]
            jt, rt = jacobian[t][ok][order], r[ok][order]
            jw = jt * w[order, None]
            edges = np.flatnonzero(np.r_[True, combo[1:] != combo[:-1]])
            for a, b in zip(edges, np.r_[edges[1:], len(combo)], strict=True):
                hessian[combo[a]] += jw[a:b].T @ jt[a:b]
                gradient[combo[a]] += jw[a:b].T @ rt[a:b]
        active = layout.active
        full = np.diag(layout.precision[active])
        downhill = -(layout.precision * x)[active]
        place = np.full(len(x), -1)
        place[active] = np.arange(len(active))
        parameter = np.tile(np.arange(p), layout.slots.shape[1])
        for i in range(n_combos):
            at = place[layout.slots[i].ravel()]
            kept = at >= 0
            at, of = at[kept], parameter[kept]
            full[np.ix_(at, at)] += hessian[i][np.ix_(of, of)]
            downhill[at] += gradient[i][of]
        return full, downhill


def fit_physics(
    frame: Frame,
    labels: Mapping[str, NDArray[np.float64]],
    weight: NDArray[np.float64] | None = None,
    start: PhysicsParameters | None = None,
    iterations: int = MAX_ITERATIONS,
) -> PhysicsParameters:
    """Fit base and offsets to all labelled targets at once.

    Args:
        frame: n scenarios.
        labels: target name → natural log of the label, (n,), NaN where missing. Targets without a
            scale in ``TARGET_SCALE`` are ignored.
        weight: (n,) row weights, 1 where None.
        start: where to begin; the ridge and the data, not the start, decide where it ends.
        iterations: most steps.

    Returns:
        The parameters at the last accepted step.
    """
    layout = _Layout.from_frame(frame)
    problem = _Problem(
        frame=frame,
        layout=layout,
        targets=tuple(t for t in TARGET_SCALE if t in labels and np.isfinite(labels[t]).any()),
        labels=labels,
        weight=np.ones(frame.n) if weight is None else weight,
    )
    # Training only. A step need not be exact, the loss decides: single precision halves the time.
    from scipy.linalg import cho_factor, cho_solve  # noqa: PLC0415

    x = layout.start(start)
    theta = layout.theta(x)
    current = evaluate(frame, theta).log
    value = problem.loss(current, x)
    damping = 1.0
    for _ in range(iterations):
        full, downhill = problem.normal_equations(current, theta, x)
        full, downhill = full.astype(np.float32), downhill.astype(np.float32)
        diagonal = np.diag_indices_from(full)
        gain = 0.0
        for _ in range(MAX_DAMPINGS):
            damped = full.copy()
            damped[diagonal] *= 1.0 + damping * 1e-2
            factor = cho_factor(damped, lower=True, overwrite_a=True, check_finite=False)
            step = cho_solve(factor, downhill, check_finite=False).astype(np.float64)
            step *= min(1.0, 1.0 / max(float(np.max(np.abs(step))), 1e-12))
            trial = x.copy()
            trial[layout.active] += step
            trial_theta = layout.theta(trial)
            trial_log = evaluate(frame, trial_theta).log
            trial_value = problem.loss(trial_log, trial)
            if trial_value < value:
                gain = value - trial_value
                x, theta, current, value = trial, trial_theta, trial_log, trial_value
                damping = max(damping / 4.0, 1e-3)
                break
            damping *= 8.0
        if gain < CONVERGED_NATS:
            break
    return layout.parameters(frame, x)
