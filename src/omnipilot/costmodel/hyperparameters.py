"""Hyper-parameters of the residual layer, by marginal likelihood inside the training rows."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from omnipilot.costmodel.kernel import (
    GLOBAL_TERMS,
    KERNEL_TERMS,
    SOURCE_TERMS,
    KernelInputs,
    KernelLevels,
    KernelPlaces,
    KernelTerm,
    covariance,
    squared_distance,
)
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics

NOISE_SD = 0.08
PRIOR_SPREAD = 1.0  # how far a log scale may move from its start, in log units
NOISE_SPREAD = 0.5  # and a log noise: few rows of a group must not pass all of it off as noise
MOST_MOVE = 3.0
TOO_FAR_NATS = 1e12  # sends a line search back from where the covariance is singular
CLUSTER_ROWS = 40
OWN_ROWS = (300, 900)  # fewest and most rows of a source with scales of its own
STUDENT_DOF = 4.0
TUNING_PASSES = (0.6, 0.4)  # shares of the iterations; odd rows are told apart in between


@dataclass(frozen=True, slots=True)
class Scales:
    """Standard deviation of each term (n_terms,) and the two length scales, in log units."""

    sd: NDArray[np.float64]
    lengths: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Scales of the terms and noise by group, in log units.

    ``own`` has the scales of sources that learnt their own: one varies by task what another varies
    by engine release, and runs repeat better here than there.
    """

    shared: Scales
    noise_sd: float
    group_noise_sd: dict[str, float]
    own: dict[str, Scales] = field(default_factory=dict)

    def scales(self, source: str) -> Scales:
        """The scales of a source's block."""
        return self.own.get(source, self.shared)

    def noise(self, groups: NDArray[np.str_]) -> NDArray[np.float64]:
        """Noise standard deviation of each row (n,); an unknown group has the common level."""
        found, inverse = np.unique(groups, return_inverse=True)
        table = np.asarray([self.group_noise_sd.get(str(g), self.noise_sd) for g in found])
        return np.asarray(table[inverse.ravel()])

    def with_noise(self, factors: Mapping[str, float]) -> Hyperparameters:
        """The noise of some groups times a factor; the common level is the mean of all groups'."""
        told = {g: self.group_noise_sd.get(g, self.noise_sd) * k for g, k in factors.items()}
        noise = self.group_noise_sd | told
        return replace(self, noise_sd=_common(noise), group_noise_sd=noise)


def _common(noise: Mapping[str, float]) -> float:
    """The noise of a group that has none of its own: the geometric mean."""
    return float(np.exp(np.mean(np.log(list(noise.values())))))


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


def tune(
    frame: Frame,
    physics: Physics,
    residual: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    table: tuple[KernelTerm, ...] = KERNEL_TERMS,
    rows: int = 600,
    subsets: int = 6,
    iterations: int = 24,
    noise_spread: float = NOISE_SPREAD,
    workers: int = 1,
) -> Hyperparameters:
    """Choose the hyper-parameters by marginal likelihood on whole clusters of the training rows.

    Subsets differ more than their size would make one think: the geometric mean of a few is taken.

    Args:
        frame: n training scenarios.
        physics: their prior.
        residual: log residuals (n,).
        rng: picks the clusters.
        table: the covariance terms.
        rows: number of rows of a subset; the cost grows with its cube.
        subsets: number of subsets; one where it takes all rows.
        iterations: L-BFGS iterations of each.
        noise_spread: how far a log noise may move from its start.
        workers: subsets that are worked on at once, in threads; their number changes no result.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - training only

    places = KernelPlaces.from_frame(frame, physics, table)
    inputs = KernelLevels.from_frame(frame, table).inputs(places)
    start = Scales(np.asarray([t.sd for t in table]), (1.0, 1.0))
    cluster = clusters(frame)
    n_subsets = subsets if frame.n > rows else 1
    noise_group = noise_groups(frame)
    chosen = [_whole_clusters(cluster, rows, rng) for _ in range(n_subsets)]

    def most_likely(index: NDArray[np.int64]) -> tuple[Scales, dict[str, float]]:
        return _most_likely(
            inputs.take(index), residual[index], noise_group[index], start, {},
            table, tuple(range(len(table))), 0.0, iterations, noise_spread,
        )  # fmt: skip

    with ThreadPoolExecutor(workers) as pool:
        scales, noise = _mean_of(list(pool.map(most_likely, chosen)))
    return Hyperparameters(scales, _common(noise), noise)


def tune_sources(
    hyper: Hyperparameters,
    frame: Frame,
    physics: Physics,
    residual: NDArray[np.float64],
    *,
    iterations: int = 24,
) -> Hyperparameters:
    """Give sources with ``OWN_ROWS`` the scales of their own block and noise, from all their rows.

    The terms that sources share keep theirs; the own ones start from the shared ones and are held
    near them as these were near their start. A larger source keeps the shared scales, which are
    its own for the most part: those of a subset of it were worse. Arguments as for :func:`tune`.
    """
    levels = KernelLevels.from_frame(frame)
    own, noise = dict(hyper.own), dict(hyper.group_noise_sd)
    sources = frame.category("source")
    fewest, most = OWN_ROWS
    for source in np.unique(sources):
        mine = np.flatnonzero(sources == source)
        if not fewest <= len(mine) <= most:
            continue
        part = frame.take(mine)
        inputs = levels.inputs(KernelPlaces.from_frame(part, physics.take(mine)))
        given = covariance(inputs, inputs, hyper.shared.sd, hyper.shared.lengths, GLOBAL_TERMS)
        own[str(source)], heard = _most_likely(
            inputs, residual[mine], noise_groups(part), hyper.shared, noise,
            KERNEL_TERMS, SOURCE_TERMS, given.astype(np.float64), iterations, NOISE_SPREAD,
        )  # fmt: skip
        noise |= heard
    return replace(hyper, group_noise_sd=noise, own=own)


def _mean_of(found: list[tuple[Scales, dict[str, float]]]) -> tuple[Scales, dict[str, float]]:
    """Geometric means over subsets; of a noise over those that have the group."""

    def mean(values: list[Any]) -> Any:  # noqa: ANN401 - floats and arrays alike
        return np.exp(np.mean(np.log(values), axis=0))

    scales = [s for s, _ in found]
    lengths = mean([s.lengths for s in scales])
    groups = sorted(set().union(*(noise for _, noise in found)))
    return (
        Scales(mean([s.sd for s in scales]), (float(lengths[0]), float(lengths[1]))),
        {g: float(mean([noise[g] for _, noise in found if g in noise])) for g in groups},
    )


def _most_likely(  # noqa: PLR0915 - one objective with its gradient
    inputs: KernelInputs,
    y: NDArray[np.float64],
    noise_group: NDArray[np.str_],
    start: Scales,
    start_noise: Mapping[str, float],
    table: tuple[KernelTerm, ...],
    free: tuple[int, ...],
    given: NDArray[np.float64] | float,
    iterations: int,
    noise_spread: float,
) -> tuple[Scales, dict[str, float]]:
    """Scales and noise by group with the greatest posterior probability.

    Args:
        inputs: n rows.
        y: their log residuals (n,).
        noise_group: their noise group (n,).
        start: where terms and lengths start, and near what they are held.
        start_noise: where the noise starts; ``NOISE_SD`` where a group is not named.
        table: the covariance terms.
        free: the terms that may move, and whose distances the lengths are for.
        given: covariance of the other terms (n, n).
        iterations: L-BFGS iterations.
        noise_spread: how far a log noise may move from its start.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - training only

    groups, group_of = np.unique(noise_group, return_inverse=True)
    group_of = group_of.ravel()
    n_terms, n_groups = len(free), len(groups)
    masks = [
        (inputs.codes[:, j][:, None] == inputs.codes[:, j][None, :]).astype(np.float64)
        for j in free
    ]
    distance = (
        squared_distance(inputs.workload, inputs.workload).astype(np.float64),
        squared_distance(inputs.physics, inputs.physics).astype(np.float64),
    )
    slot = {"workload": 0, "physics": 1}
    alike = (inputs.regime @ inputs.regime.T).astype(np.float64)
    noises = [start_noise.get(str(g), NOISE_SD) for g in groups]
    first = np.log(np.r_[start.sd[list(free)], noises, start.lengths])
    spread = np.r_[
        np.full(n_terms, PRIOR_SPREAD), np.full(n_groups, noise_spread), PRIOR_SPREAD, PRIOR_SPREAD
    ]
    bounds = [(value - MOST_MOVE, value + MOST_MOVE) for value in first]

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
        k = np.diag(noise[group_of] / trust) + given
        for mask, own, j in zip(masks, variance, free, strict=True):
            part = own * mask
            if table[j].distance == "regime":
                k += part * alike
            elif table[j].distance:
                at = slot[table[j].distance]
                scaled[at] = scaled[at] + part
            else:
                k += part
        k += scaled[0] * shapes[0] + scaled[1] * shapes[1]
        try:
            cholesky = np.linalg.cholesky(k)
        except np.linalg.LinAlgError:
            return TOO_FAR_NATS, x - first
        inverse = np.linalg.inv(k)
        alpha = inverse @ y
        left_out[:] = alpha**2 / np.diag(inverse)  # squared standardized leave-one-out errors
        value = 0.5 * float(y @ alpha) + float(np.sum(np.log(np.diag(cholesky))))
        q = inverse - np.outer(alpha, alpha)
        weighted = {
            "": q, "workload": q * shapes[0], "physics": q * shapes[1], "regime": q * alike
        }  # fmt: skip
        gradient = [
            own * float(np.vdot(weighted[table[j].distance], mask))
            for mask, own, j in zip(masks, variance, free, strict=True)
        ]
        diagonal = np.bincount(group_of, weights=np.diag(q) / trust, minlength=n_groups)
        gradient += list(noise * diagonal)
        gradient += [0.5 * float(np.sum(q * scaled[i] * slopes[i])) for i in (0, 1)]
        pull = (x - first) / spread
        return value + 0.5 * float(pull @ pull), np.asarray(gradient) + pull / spread

    x = first
    for share in TUNING_PASSES:
        x = minimize(
            objective, x, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": round(share * iterations)},
        ).x  # fmt: skip
        objective(x)
        trust = (STUDENT_DOF + 1.0) / (STUDENT_DOF + left_out)
    sd = start.sd.copy()
    sd[list(free)] = np.exp(x[:n_terms])
    noise = np.exp(x[n_terms : n_terms + n_groups])
    return (
        Scales(sd, (float(np.exp(x[-2])), float(np.exp(x[-1])))),
        {str(g): float(v) for g, v in zip(groups, noise, strict=True)},
    )
