"""How a question's group departs from the model, and what its own rows say about it.

The errors of rows whose model, GPU kind or source was held out are themselves a Gaussian process:
the whole group is off by one amount, its models, GPU kinds and arms by further ones, loads
smoothly. Its variances are learned for each novelty class from the simulated held-out errors, so
the covariance across arms is as wide as the errors really were. Conditioning on a site's rows is
then exact and in closed form (Rasmussen and Williams 2006, §2.2); COSTMODEL §3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE
from omnipilot.costmodel.folds import FEW_GROUPS
from omnipilot.costmodel.hyperparameters import PRIOR_SPREAD, Hyperparameters, tune
from omnipilot.costmodel.inducing import cholesky, pivoted_cholesky
from omnipilot.costmodel.kernel import KernelLevels, KernelPlaces, KernelTerm, covariance
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.kernel import KernelInputs
    from omnipilot.costmodel.physics import Physics

Matrix: TypeAlias = "NDArray[np.float64]"

_ARM = ("source", "model", "gpu_kind", "kernel", "n_gpus", "parallelism", "settings")
DEVIATION_TERMS: tuple[KernelTerm, ...] = (
    KernelTerm("source", ("source",), "", 0.30),
    KernelTerm("engine era", ("source", "engine_era"), "", 0.15),
    KernelTerm("GPU kind", ("source", "gpu_kind"), "", 0.20),
    KernelTerm("format", ("source", "kernel"), "", 0.15),
    KernelTerm("model", ("source", "model"), "", 0.20),
    KernelTerm("format of model", ("source", "model", "kernel"), "", 0.15),
    KernelTerm("model on GPU kind", ("source", "model", "gpu_kind"), "", 0.15),
    KernelTerm("GPUs of model", ("source", "model", "n_gpus"), "", 0.15),
    KernelTerm("arm", _ARM, "", 0.10),
    KernelTerm("load of arm", _ARM, "workload", 0.15),
    KernelTerm("load", ("source",), "workload", 0.15),
    KernelTerm("load of model", ("source", "model"), "workload", 0.15),
    KernelTerm("physics", ("source",), "physics", 0.20),
    KernelTerm("physics of GPU kind", ("source", "gpu_kind"), "physics", 0.15),
    KernelTerm("regime", ("source",), "regime", 0.15),
    KernelTerm("regime of GPU kind", ("source", "gpu_kind"), "regime", 0.15),
    KernelTerm("regime of model", ("source", "model"), "regime", 0.15),
)  # fmt: skip
ALL_TERMS = tuple(range(len(DEVIATION_TERMS)))
NOISE_FLOOR_SD = 0.02
# Which probe pays hangs on how errors go together, and one subset of the rows says another thing
# of that than the next.
TUNING = {"subsets": 9}
# Beliefs about a new source that are the mean of three subsets of the nine are too sure of what its
# first rows tell of later ones.
FEW_GROUPS_TUNING = {"rows": 500, "subsets": 1, "iterations": 20}
# From here on odd rows are down-weighted as a Student-t would; fewer cannot tell which is odd.
ROBUST_FROM_ROWS = 30
MOST_POINTS = 400
POINT_JITTER = 1e-6
# Bins of the share of variance left: answers that local rows settle, inform, hardly touch.
LEFT_EDGES = (0.25, 0.75)
BAND_CELLS = 30  # from here on a site's own errors say more of its band than other sites' do
REWEIGHTINGS = 2
STUDENT_DOF = 4.0


def class_terms(category: str) -> tuple[KernelTerm, ...]:
    """The terms of a novelty class: rows of different groups of its ``category`` share nothing."""
    if not category:
        return DEVIATION_TERMS
    return tuple(
        KernelTerm(t.name, tuple(dict.fromkeys((*t.same, category))), t.distance, t.sd)
        for t in DEVIATION_TERMS
    )


@dataclass(frozen=True, slots=True)
class Deviation:
    """Prior of the error of one head in one novelty class, log units.

    ``category`` is the class's own category ("" for seen rows); ``sd`` (n_terms,), ``lengths`` of
    workload and physics distances, ``noise_sd`` of a single row. ``offsets`` are the conformal
    offsets of bands narrowed by local rows, one a bin of ``LEFT_EDGES``; () before calibration.
    """

    category: str
    sd: NDArray[np.float64]
    lengths: tuple[float, float]
    noise_sd: float
    offsets: tuple[float, ...] = ()

    @classmethod
    def fit(
        cls,
        frame: Frame,
        physics: Physics,
        error: NDArray[np.float64],
        category: str,
        rng: np.random.Generator,
        workers: int = 1,
    ) -> Deviation:
        """Learn the variances by marginal likelihood of held-out errors.

        Args:
            frame: n rows whose group was held out when their centre was predicted.
            physics: their prior.
            error: log label − centre (n,).
            category: category that was held out.
            rng: picks the rows to learn from.
            workers: subsets of the rows that are worked on at once, in threads.
        """
        few = bool(category) and len(np.unique(frame.codes[category])) < FEW_GROUPS
        tuning = FEW_GROUPS_TUNING if few else TUNING
        hyper: Hyperparameters = tune(
            frame,
            physics,
            error,
            rng,
            table=class_terms(category),
            noise_spread=PRIOR_SPREAD,
            workers=workers,
            **tuning,
        )
        noise_sd = max(hyper.noise_sd, NOISE_FLOOR_SD)
        return cls(category, hyper.shared.sd, hyper.shared.lengths, noise_sd)

    @property
    def variance(self) -> float:
        """Prior variance of the error of any question, without the noise of one row."""
        return float(np.sum(self.sd**2))

    def sd_after(self, left: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standard deviation of one row's error when ``left`` of the variance is left, (n,)."""
        return np.sqrt(left * self.variance + self.noise_sd**2)

    def narrowing(self, left: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much narrower a band becomes when ``left`` of the variance is left, (n,)."""
        return self.sd_after(left) / float(self.sd_after(np.ones(1))[0])

    def offset_after(self, left: NDArray[np.float64]) -> NDArray[np.float64]:
        """Conformal offset of narrowed bands by the share of the variance left, (n,)."""
        return np.asarray(self.offsets)[np.searchsorted(LEFT_EDGES, left)]

    def covariance(self, a: KernelInputs, b: KernelInputs, levels: KernelLevels) -> Matrix:
        """Covariance of the errors of two sets of rows coded by ``levels``, (len(a), len(b))."""
        return covariance(a, b, self.sd, self.lengths, ALL_TERMS, levels.table).astype(np.float64)

    def joint(self, frame: Frame, physics: Physics) -> Matrix:
        """Prior covariance of the errors of n questions, (n, n)."""
        levels = KernelLevels.from_frame(frame, class_terms(self.category))
        inputs = levels.inputs(KernelPlaces.from_frame(frame, physics, levels.table))
        return self.covariance(inputs, inputs, levels)

    def condition(
        self,
        frame: Frame,
        physics: Physics,
        error: NDArray[np.float64],
        noise_sd: NDArray[np.float64] | None = None,
        cells: NDArray[np.str_] | None = None,
    ) -> LocalRows:
        """Learn from observed rows: exact up to ``MOST_POINTS`` rows, by inducing points beyond.

        Args:
            frame: n ≥ 1 observed rows.
            physics: their prior.
            error: log label − centre of the model before (n,).
            noise_sd: noise of each row (n,); the class's own where None.
            cells: workload cell of each row (n,); with enough of them the rows size their own
                band, by leaving out one cell after the other.
        """
        levels = KernelLevels.from_frame(frame, class_terms(self.category))
        inputs = levels.inputs(KernelPlaces.from_frame(frame, physics, levels.table))
        noise = np.full(frame.n, self.noise_sd) if noise_sd is None else noise_sd
        if frame.n <= MOST_POINTS:
            points = inputs
            k = self.covariance(inputs, inputs, levels)
            whiten = np.linalg.inv(cholesky(k, POINT_JITTER * self.variance))
            features = whiten @ k
        else:
            chosen, _ = pivoted_cholesky(
                lambda rows: self.covariance(inputs.take(rows), inputs, levels).astype(np.float32),
                frame.n, self.variance, MOST_POINTS, np.random.default_rng(0),
            )  # fmt: skip
            points = inputs.take(chosen)
            k = self.covariance(points, points, levels)
            whiten = np.linalg.inv(cholesky(k, POINT_JITTER * self.variance))
            features = whiten @ self.covariance(points, inputs, levels)
        gram, gain = _posterior(features, error, noise)
        for _ in range(REWEIGHTINGS if frame.n >= ROBUST_FROM_ROWS else 0):
            outside = (error - features.T @ gain) ** 2 / noise**2
            scale = (STUDENT_DOF + 1.0) / (STUDENT_DOF + outside)
            gram, gain = _posterior(features, error, noise / np.sqrt(scale))
        root = np.asarray(np.linalg.inv(np.linalg.cholesky(gram)), dtype=np.float64)
        local = LocalRows(self, levels, points, np.asarray(whiten, dtype=np.float64), root, gain)
        if cells is None or len(np.unique(cells)) < BAND_CELLS:
            return local
        left, sd = local.left_out(frame, physics, error, cells)
        z = np.sort(left / sd)
        tail = (1.0 - NOMINAL_COVERAGE) / 2.0
        rank = max(int(np.floor((len(z) + 1) * tail)), 1)
        return replace(local, band=(float(min(z[rank - 1], 0.0)), float(max(z[-rank], 0.0))))


@dataclass(frozen=True, slots=True)
class LocalRows:
    """What observed rows tell one head and class: m points and the posterior of their features.

    A question's features are ``whiten`` times its covariance with the ``points``; they have unit
    prior and, after the rows, mean ``gain`` (m,) and covariance ``root``ᵀ ``root`` (m, m).
    ``band`` holds the rows' own conformal bounds, in standard deviations of an answer.
    """

    deviation: Deviation
    levels: KernelLevels
    points: KernelInputs
    whiten: Matrix
    root: Matrix
    gain: NDArray[np.float64]
    band: tuple[float, float] | None = None

    def features(self, frame: Frame, physics: Physics) -> Matrix:
        """Features of n questions, (m, n)."""
        inputs = self.levels.inputs(KernelPlaces.from_frame(frame, physics, self.levels.table))
        k = self.deviation.covariance(self.points, inputs, self.levels)
        return np.asarray(self.whiten @ k)

    def shift(
        self, frame: Frame, physics: Physics
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What the observed rows change about n questions.

        Returns:
            The mean of the error (n,) and its variance as a share of the variance before (n,),
            both of the question itself, without the noise of one row.
        """
        f = self.features(frame, physics)
        gone = np.sum(f**2, axis=0) - np.sum((self.root @ f) ** 2, axis=0)
        return self.gain @ f, np.clip(1.0 - gone / self.deviation.variance, 0.0, 1.0)

    def joint(self, frame: Frame, physics: Physics) -> tuple[NDArray[np.float64], Matrix]:
        """Mean (n,) and covariance (n, n) of the errors of n questions after the rows."""
        f = self.features(frame, physics)
        half = self.root @ f
        return self.gain @ f, self.deviation.joint(frame, physics) - f.T @ f + half.T @ half

    def left_out(
        self,
        frame: Frame,
        physics: Physics,
        error: NDArray[np.float64],
        cells: NDArray[np.str_],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Errors of the observed rows with their own cell left out, in closed form.

        Args:
            frame: the observed rows.
            physics: their prior.
            error: log label − centre before (n,).
            cells: cell of each row (n,).

        Returns:
            What is left of the error (n,) and its standard deviation, noise included (n,).
            Rasmussen and Williams 2006, §5.4.2, by blocks.
        """
        f = self.features(frame, physics)
        half = self.root @ f
        rest = np.maximum(self.deviation.variance - np.sum(f**2, axis=0), 0.0)
        noise = self.deviation.noise_sd**2
        left, sd = np.empty(frame.n), np.empty(frame.n)
        for cell in np.unique(cells):
            rows = np.flatnonzero(cells == cell)
            hat = half[:, rows].T @ half[:, rows]
            out = np.linalg.inv(np.eye(len(rows)) - hat / noise)
            left[rows] = out @ (error[rows] - self.gain @ f[:, rows])
            sd[rows] = np.sqrt(np.maximum(np.diag(out @ hat), 0.0) + rest[rows] + noise)
        return left, sd


def _posterior(
    features: Matrix, error: NDArray[np.float64], noise_sd: NDArray[np.float64]
) -> tuple[Matrix, NDArray[np.float64]]:
    """Precision (m, m) and mean (m,) of features with unit prior seen through noisy rows."""
    weighted = features / noise_sd**2
    gram = np.eye(len(features)) + weighted @ features.T
    return gram, np.asarray(np.linalg.solve(gram, weighted @ error))
