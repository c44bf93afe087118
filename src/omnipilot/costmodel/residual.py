"""The learned residual: a structured Gaussian process on log(label) − log(prior).

Source, GPU kind, model and engine are random effects and load dependence is smooth around them;
see :mod:`omnipilot.costmodel.kernel`. Terms that need the same source form one block a source, the
others one global block; every block keeps inducing points (blocked randomly pivoted Cholesky, Chen
et al. 2023) and the blocks are solved jointly. The fitted layer holds inducing points and weights,
never labels. Noise is one level a source and vendor, and odd rows are down-weighted as a Student-t
would.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.block_mean import BlockMean
from omnipilot.costmodel.conformal import NOMINAL_COVERAGE
from omnipilot.costmodel.folds import group_folds
from omnipilot.costmodel.hyperparameters import noise_groups
from omnipilot.costmodel.inducing import pivoted_cholesky
from omnipilot.costmodel.kernel import (
    GLOBAL_TERMS,
    SOURCE_TERMS,
    KernelInputs,
    KernelLevels,
    KernelPlaces,
    covariance,
)
from omnipilot.costmodel.left_out import left_out_means
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.hyperparameters import Hyperparameters, Scales
    from omnipilot.costmodel.physics import Physics

STUDENT_DOF = 4.0
REWEIGHTINGS = 2
UNDERSTATEMENT_FOLDS = 25
UNDERSTATEMENT_REFITS = 5
NOISE_FACTORS = (1.0, 0.5, 0.25, 0.12)
GLOBAL = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Inducing points and weights of one block: the global one or one source's.

    ``points`` m inducing inputs, ``alpha`` float64 (m,).
    """

    points: KernelInputs
    alpha: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GaussianLayer:
    """A fitted layer: predicts the mean log residual.

    ``blocks`` maps a source to its block, "" to the global one; rows without a source name have
    the global part alone. ``ready`` is what :meth:`predict` prepared.
    """

    levels: KernelLevels
    blocks: dict[str, Block]
    hyper: Hyperparameters
    ready: dict[str, BlockMean] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def fit(
        cls,
        frame: Frame,
        physics: Physics,
        residual: NDArray[np.float64],
        weight: NDArray[np.float64],
        hyper: Hyperparameters,
        *,
        n_global: int,
        n_source: int,
        rng: np.random.Generator,
    ) -> GaussianLayer:
        """Fit the weights of the inducing points.

        Args:
            frame: n training scenarios.
            physics: their prior.
            residual: log residuals (n,).
            weight: row weights (n,); 0.5 means twice the noise variance.
            hyper: standard deviations, length scales and noise.
            n_global: inducing points of the global block.
            n_source: most inducing points of one source's block.
            rng: picks the inducing points.
        """
        design = _Design.of(frame, physics, residual, weight, hyper, n_global, n_source, rng)
        return design.layer(design.solution())

    @classmethod
    def fit_left_out(
        cls,
        frame: Frame,
        physics: Physics,
        residual: NDArray[np.float64],
        weight: NDArray[np.float64],
        hyper: Hyperparameters,
        groups: NDArray[np.str_],
        *,
        n_global: int,
        n_source: int,
        rng: np.random.Generator,
    ) -> tuple[GaussianLayer, NDArray[np.float64]]:
        """As :meth:`fit`, with the noise and the errors that leaving groups out shows.

        Each noise level is the multiple of the given one (``NOISE_FACTORS``) at which its rows are
        told best without their group: the marginal likelihood of a few hundred rows passes what
        the kernels miss off as noise (Rasmussen and Williams 2006, §5.4.2), and a layer that
        believes in noise smooths over what was measured.

        Args:
            frame: n training scenarios.
            physics: their prior.
            residual: log residuals (n,).
            weight: row weights (n,).
            hyper: standard deviations, length scales and noise.
            groups: group of each row (n,), left out as a whole.
            n_global: inducing points of the global block.
            n_source: most inducing points of one source's block.
            rng: picks the inducing points.

        Returns:
            The layer, and the mean log residuals of the rows left out (n,), moved away from the
            residuals by what :meth:`_Design.understatement` finds.
        """
        # Half the inducing points tell the levels apart as well, at a quarter of the cost.
        coarse = _Design.of(
            frame, physics, residual, weight, hyper, n_global // 2, n_source // 2, rng.spawn(1)[0]
        )
        hyper = hyper.with_noise(coarse.best_noise(groups))
        design = _Design.of(frame, physics, residual, weight, hyper, n_global, n_source, rng)
        solution, means = design.left_out(groups)
        beyond = design.understatement(groups, means, rng)
        return design.layer(solution), residual - beyond * (residual - means)

    def predict(
        self, frame: Frame, places: KernelPlaces, *, similarity: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean log residual; a source without a block gets the global part alone.

        Args:
            frame: n questions.
            places: where they lie under ``KERNEL_TERMS``.
            similarity: whether to work out the second array; zero if not.

        Returns:
            The mean (n,) and the similarity (n,): the largest global covariance with an inducing
            point as a share of its greatest possible value, 1 at a measured position.
        """
        ready = self._prepared()
        present = [s for s in frame.levels["source"] if s != GLOBAL and s in self.blocks]
        terms = None if present else GLOBAL_TERMS
        codes = frame.fixed(self, lambda: self.levels.inputs(places, terms).codes)
        inputs = KernelInputs(codes, places.workload, places.physics, places.regime)
        shared = ready[GLOBAL]
        out, most = shared.mean(
            inputs,
            levels=frame.fixed(shared, lambda: shared.level_sums(codes)),
            nearness=frame.fixed(shared, lambda: shared.nearness(codes), "nearness")
            if similarity
            else None,
        )
        for source in present:
            rows = np.flatnonzero(frame.codes["source"] == frame.levels["source"].index(source))
            if len(rows):
                out[rows] += ready[source].mean(inputs.take(rows))[0]
        return out, most / float(np.sum(self.hyper.shared.sd[list(GLOBAL_TERMS)] ** 2))

    def _prepared(self) -> dict[str, BlockMean]:
        """The blocks ready to answer, prepared when first asked."""
        if not self.ready:
            self.ready.update({
                name: BlockMean.prepare(
                    block.points, block.alpha, self.hyper.scales(name),
                    GLOBAL_TERMS if name == GLOBAL else SOURCE_TERMS,
                )
                for name, block in self.blocks.items()
            })  # fmt: skip
        return self.ready


@dataclass(frozen=True, slots=True)
class _Solution:
    """Coefficients of each block (m,), and the precision of the rows (n,) they were solved at."""

    beta: dict[str, NDArray[np.float64]]
    precision: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Design:
    """Training rows as the blocks see them.

    ``residual`` and ``weight`` of the rows (n,), their ``source`` and their ``noise_group`` (n,);
    ``members`` are the rows of each block, ``chosen`` its inducing points among them, ``factors``
    float32 (m, n_block) with the covariance of the block's rows ≈ FᵀF.
    """

    residual: NDArray[np.float64]
    weight: NDArray[np.float64]
    source: NDArray[np.str_]
    noise_group: NDArray[np.str_]
    levels: KernelLevels
    hyper: Hyperparameters
    inputs: KernelInputs
    members: dict[str, NDArray[np.int64]]
    chosen: dict[str, NDArray[np.int64]]
    factors: dict[str, NDArray[np.float32]]

    @classmethod
    def of(
        cls,
        frame: Frame,
        physics: Physics,
        residual: NDArray[np.float64],
        weight: NDArray[np.float64],
        hyper: Hyperparameters,
        n_global: int,
        n_source: int,
        rng: np.random.Generator,
    ) -> _Design:
        levels = KernelLevels.from_frame(frame)
        inputs = levels.inputs(KernelPlaces.from_frame(frame, physics))
        sources = frame.category("source")
        members = {GLOBAL: np.arange(frame.n)}
        members |= {str(s): np.flatnonzero(sources == s) for s in np.unique(sources) if s != GLOBAL}
        chosen: dict[str, NDArray[np.int64]] = {}
        factors: dict[str, NDArray[np.float32]] = {}
        for name, rows in members.items():
            terms = GLOBAL_TERMS if name == GLOBAL else SOURCE_TERMS
            most = n_global if name == GLOBAL else n_source
            mine = inputs.take(rows)
            scales = hyper.scales(name)

            def columns(
                index: NDArray[np.int64],
                mine: KernelInputs = mine,
                terms: tuple[int, ...] = terms,
                scales: Scales = scales,
            ) -> NDArray[np.float32]:
                return covariance(mine.take(index), mine, scales.sd, scales.lengths, terms)

            variance = float(np.sum(scales.sd[list(terms)] ** 2))
            chosen[name], factors[name] = pivoted_cholesky(
                columns, len(rows), variance, min(most, len(rows)), rng
            )
        return cls(
            residual, weight, sources, noise_groups(frame), levels, hyper, inputs, members, chosen,
            factors,
        )  # fmt: skip

    def solution(self) -> _Solution:
        """Coefficients under noise by group, odd rows down-weighted as a Student-t would."""
        noise = self.hyper.noise(self.noise_group) ** 2 / np.maximum(self.weight, 1e-6)
        solution = self._solution(1.0 / noise)
        for _ in range(REWEIGHTINGS):
            error = self.residual - self.fitted(solution.beta)
            scale = (STUDENT_DOF + 1.0) / (STUDENT_DOF + error**2 / noise)
            solution = self._solution(scale / noise)
        return solution

    def _solution(self, precision: NDArray[np.float64]) -> _Solution:
        return _Solution(_solve(self.factors, self.members, self.residual, precision), precision)

    def left_out(self, groups: NDArray[np.str_]) -> tuple[_Solution, NDArray[np.float64]]:
        """:meth:`solution`, and the mean log residuals of the rows without their group (n,).

        How odd a row is was told with all rows, and inducing points were picked among all.
        """
        solution = self.solution()
        error = self.residual - self.fitted(solution.beta)
        own = {name: rows for name, rows in self.members.items() if name != GLOBAL}
        return solution, left_out_means(
            self.factors[GLOBAL], self.factors, own, solution.precision, self.residual, error,
            groups,
        )  # fmt: skip

    def best_noise(self, groups: NDArray[np.str_]) -> dict[str, float]:
        """Of each noise group the factor at which :meth:`left_out` misses its rows least."""
        names, group_of = np.unique(self.noise_group, return_inverse=True)
        misses = []
        for factor in NOISE_FACTORS:
            hyper = self.hyper.with_noise(dict.fromkeys(names.tolist(), factor))
            _, means = replace(self, hyper=hyper).left_out(groups)
            misses.append(np.abs(self.residual - means))
        table = np.stack(misses)
        return {
            name: NOISE_FACTORS[table[:, group_of == i].mean(axis=1).argmin()]
            for i, name in enumerate(names.tolist())
        }

    def understatement(
        self, groups: NDArray[np.str_], means: NDArray[np.float64], rng: np.random.Generator
    ) -> float:
        """How many times as large errors of groups are that the weights never saw, 1 or more.

        :meth:`left_out` knows from a group which of its neighbours contradict it. Some groups, few
        at a time, are really left out and their errors compared with those in closed form
        (``means``), each as a multiple of its source's: the ratio of the quantiles that hold the
        nominal share.
        """
        fold = group_folds(groups, UNDERSTATEMENT_FOLDS, rng)
        closed = np.abs(self.residual - means)
        level = np.ones(len(closed))
        for source in np.unique(self.source):
            mine = self.source == source
            level[mine] = max(float(np.quantile(closed[mine], NOMINAL_COVERAGE)), 1e-9)
        pairs = []
        for k in range(min(UNDERSTATEMENT_REFITS, int(fold.max()))):
            test = fold == k
            solution = replace(self, weight=np.where(test, 0.0, self.weight)).solution()
            real = np.abs(self.residual - self.fitted(solution.beta))
            pairs.append(np.stack([real, closed])[:, test] / level[test])
        if not pairs:
            return 1.0
        real, told = np.quantile(np.concatenate(pairs, axis=1), NOMINAL_COVERAGE, axis=1)
        return max(1.0, float(real / told))

    def fitted(self, beta: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Mean log residual of the rows themselves (n,)."""
        out = beta[GLOBAL] @ self.factors[GLOBAL]
        for name, rows in self.members.items():
            if name != GLOBAL:
                out[rows] += beta[name] @ self.factors[name]
        return np.asarray(out)

    def layer(self, solution: _Solution) -> GaussianLayer:
        """The layer that holds inducing points and weights."""
        blocks = {}
        for name, rows in self.members.items():
            chosen = self.chosen[name]
            upper = self.factors[name][:, chosen].astype(np.float64)
            alpha = np.asarray(np.linalg.solve(upper, solution.beta[name]), dtype=np.float64)
            blocks[name] = Block(points=self.inputs.take(rows[chosen]), alpha=alpha)
        return GaussianLayer(levels=self.levels, blocks=blocks, hyper=self.hyper)


def _solve(
    factors: dict[str, NDArray[np.float32]],
    members: dict[str, NDArray[np.int64]],
    residual: NDArray[np.float64],
    precision: NDArray[np.float64],
) -> dict[str, NDArray[np.float64]]:
    """Joint posterior mean of all blocks' coefficients under unit priors.

    The normal matrix is an arrow: source blocks meet only through the global one, so the source
    blocks are eliminated first.
    """
    shared = factors[GLOBAL]
    w = precision.astype(np.float32)
    gram = ((shared * w) @ shared.T).astype(np.float64)
    gram[np.diag_indices_from(gram)] += 1.0
    right = ((shared * w) @ residual.astype(np.float32)).astype(np.float64)
    eliminated = {}
    for name, rows in members.items():
        if name == GLOBAL:
            continue
        f = factors[name]
        fw = f * w[rows]
        own = (fw @ f.T).astype(np.float64)
        own[np.diag_indices_from(own)] += 1.0
        cross = (fw @ shared[:, rows].T).astype(np.float64)
        target = (fw @ residual[rows].astype(np.float32)).astype(np.float64)
        solved = np.linalg.solve(own, np.column_stack([cross, target]))
        gram -= cross.T @ solved[:, :-1]
        right -= cross.T @ solved[:, -1]
        eliminated[name] = solved
    beta = {GLOBAL: np.asarray(np.linalg.solve(gram, right), dtype=np.float64)}
    for name, solved in eliminated.items():
        beta[name] = np.asarray(solved[:, -1] - solved[:, :-1] @ beta[GLOBAL], dtype=np.float64)
    return beta
