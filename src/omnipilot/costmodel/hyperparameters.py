"""Hyper-parameters of the residual layer, by marginal likelihood inside the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.kernel import (
    KERNEL_TERMS,
    KernelLevels,
    KernelPlaces,
    KernelTerm,
    squared_distance,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics

NOISE_SD = 0.08
PRIOR_SPREAD = 1.0  # how far a log hyper-parameter may move from its start, in log units
MOST_MOVE = 3.0
TOO_FAR_NATS = 1e12  # sends a line search back from where the covariance is singular
CLUSTER_ROWS = 40
STUDENT_DOF = 4.0
TUNING_PASSES = (0.6, 0.4)  # shares of the iterations; odd rows are told apart in between


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Standard deviations (n_terms,), two length scales and noise by group, in log units."""

    sd: NDArray[np.float64]
    lengths: tuple[float, float]
    noise_sd: float
    group_noise_sd: dict[str, float]

    def noise(self, groups: NDArray[np.str_]) -> NDArray[np.float64]:
        """Noise standard deviation of each row (n,); an unknown group has the common level."""
        found, inverse = np.unique(groups, return_inverse=True)
        table = np.asarray([self.group_noise_sd.get(str(g), self.noise_sd) for g in found])
        return np.asarray(table[inverse.ravel()])


def noise_groups(frame: Frame) -> NDArray[np.str_]:
    """Group of each row for the noise level: its source and GPU vendor, (n,)."""
    return np.char.add(
        np.char.add(frame.category("source"), "|"), frame.category("gpu_vendor")
    ).astype(np.str_)


def clusters(frame: Frame) -> NDArray[np.int64]:
    """Cluster of each row: its (source, GPU kind, model), (n,)."""
    table = np.stack([frame.codes[c] for c in ("source", "gpu_kind", "model")], axis=1)
    return np.unique(table, axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _whole_clusters(
    cluster: NDArray[np.int64], rows: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of clusters in random order, at most ``CLUSTER_ROWS`` of each, ``rows`` or more."""
    chosen: list[NDArray[np.int64]] = []
    total = 0
    for c in rng.permutation(np.unique(cluster)):
        members = np.flatnonzero(cluster == c)
        if len(members) > CLUSTER_ROWS:
            members = np.sort(rng.choice(members, CLUSTER_ROWS, replace=False))
        chosen.append(members)
        total += len(members)
        if total >= rows:
            break
    return np.concatenate(chosen)


def tune(  # noqa: PLR0915 - one objective with its gradient
    frame: Frame,
    physics: Physics,
    residual: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    table: tuple[KernelTerm, ...] = KERNEL_TERMS,
    rows: int = 900,
    iterations: int = 24,
) -> Hyperparameters:
    """Choose the hyper-parameters by marginal likelihood on whole clusters of the training rows.

    Args:
        frame: n training scenarios.
        physics: their prior.
        residual: log residuals (n,).
        rng: picks the clusters.
        table: the covariance terms.
        rows: number of rows to use; the cost grows with its cube.
        iterations: L-BFGS iterations.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - training only

    index = _whole_clusters(clusters(frame), rows, rng)
    places = KernelPlaces.from_frame(frame, physics, table)
    inputs = KernelLevels.from_frame(frame, table).inputs(places).take(index)
    y = residual[index]
    groups, group_of = np.unique(noise_groups(frame)[index], return_inverse=True)
    group_of = group_of.ravel()
    n_terms, n_groups = len(table), len(groups)
    masks = [
        (inputs.codes[:, j][:, None] == inputs.codes[:, j][None, :]).astype(np.float64)
        for j in range(n_terms)
    ]
    distance = (
        squared_distance(inputs.workload, inputs.workload).astype(np.float64),
        squared_distance(inputs.physics, inputs.physics).astype(np.float64),
    )
    slot = {"workload": 0, "physics": 1}
    start = np.log(np.r_[[t.sd for t in table], np.full(n_groups, NOISE_SD), 1.0, 1.0])

    bounds = [(value - MOST_MOVE, value + MOST_MOVE) for value in start]

    # How much less a row is believed: odd rows must not pass for noise of their whole source.
    trust, left_out = np.ones(len(y)), np.zeros(len(y))

    def objective(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        variance = np.exp(2.0 * x[:n_terms])
        noise = np.exp(2.0 * x[n_terms : n_terms + n_groups])
        shapes, slopes = [], []
        for d2, log_length in zip(distance, x[-2:], strict=True):
            r = np.sqrt(3.0 * d2) * np.exp(-log_length)
            decay = np.exp(-r)
            shapes.append((1.0 + r) * decay)
            slopes.append(r * r * decay)
        scaled: list[NDArray[np.float64] | float] = [0.0, 0.0]
        k = np.diag(noise[group_of] / trust)
        for j, term in enumerate(table):
            part = variance[j] * masks[j]
            if term.distance:
                at = slot[term.distance]
                scaled[at] = scaled[at] + part
            else:
                k += part
        k += scaled[0] * shapes[0] + scaled[1] * shapes[1]
        try:
            cholesky = np.linalg.cholesky(k)
        except np.linalg.LinAlgError:
            return TOO_FAR_NATS, x - start
        inverse = np.linalg.inv(k)
        alpha = inverse @ y
        left_out[:] = alpha**2 / np.diag(inverse)  # squared standardized leave-one-out errors
        value = 0.5 * float(y @ alpha) + float(np.sum(np.log(np.diag(cholesky))))
        q = inverse - np.outer(alpha, alpha)
        weighted = {"": q, "workload": q * shapes[0], "physics": q * shapes[1]}
        gradient = [
            variance[j] * float(np.vdot(weighted[t.distance], masks[j]))
            for j, t in enumerate(table)
        ]
        diagonal = np.bincount(group_of, weights=np.diag(q) / trust, minlength=n_groups)
        gradient += list(noise * diagonal)
        gradient += [0.5 * float(np.sum(q * scaled[i] * slopes[i])) for i in (0, 1)]
        pull = (x - start) / PRIOR_SPREAD
        return value + 0.5 * float(pull @ pull), np.asarray(gradient) + pull

    x = start
    for share in TUNING_PASSES:
        x = minimize(
            objective, x, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": round(share * iterations)},
        ).x  # fmt: skip
        objective(x)
        trust = (STUDENT_DOF + 1.0) / (STUDENT_DOF + left_out)
    noise = np.exp(x[n_terms : n_terms + n_groups])
    return Hyperparameters(
        sd=np.exp(x[:n_terms]),
        lengths=(float(np.exp(x[-2])), float(np.exp(x[-1]))),
        noise_sd=float(np.exp(np.mean(np.log(noise)))),
        group_noise_sd={str(g): float(v) for g, v in zip(groups, noise, strict=True)},
    )
