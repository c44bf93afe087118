"""The mean of one block of the Gaussian layer at new places, without forming their covariance.

A term that does not fade adds the same to every row of a level, so its sum over the inducing points
is a table; a fading term needs the correlation with the points once, whatever the number of terms
that share the distance. Same answer as ``covariance(rows, points) @ alpha`` in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.kernel import KERNEL_TERMS, KernelInputs, matern32_of_squares
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.hyperparameters import Scales

CHUNK_ROWS = 512
# A chunk of rows: by kind of row the covariance with the points that does not fade (n_kinds, m) and
# for each distance the factor of the correlation (n_kinds, m); the kind of each row.
Nearness = list[tuple["NDArray[np.float32]", "list[NDArray[np.float32]]", "NDArray[np.int64]"]]


@dataclass(frozen=True, slots=True)
class _Fading:
    """The terms of one distance.

    ``points`` float32 (d + 2, m): the inducing points such that [x, |x|², 1] @ points is three
    times the squared distance in units of the length scale. ``shared`` is the variance of terms
    that every row shares; ``terms`` index those of a level, ``codes`` (n_terms, m) the points'.
    """

    distance: str
    points: NDArray[np.float32]
    shared: np.float32
    terms: tuple[int, ...]
    codes: NDArray[np.int32]

    def correlation(
        self, workload: NDArray[np.float32], physics: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Correlation of n rows with the points (n, m)."""
        x = workload if self.distance == "workload" else physics
        squares = (x * x).sum(axis=1, keepdims=True)
        rows = np.concatenate([x, squares, np.ones_like(squares)], axis=1)
        return matern32_of_squares(rows @ self.points)


@dataclass(frozen=True, slots=True)
class LevelSums:
    """What the levels of n rows settle of their mean, wherever the rows lie.

    ``flat`` is the sum of the terms that do not fade (n,). ``faded`` has an entry a chunk of rows,
    in it one a distance: the points' weights (m, n_columns), and for each term the rows' columns.
    """

    flat: NDArray[np.float64]
    faded: list[list[tuple[NDArray[np.float32], list[NDArray[np.int64]]]]]


@dataclass(frozen=True, slots=True)
class BlockMean:
    """One block ready to answer. ``tables`` maps a term that does not fade to its sum by level."""

    alpha: NDArray[np.float32]
    variance: NDArray[np.float32]
    tables: dict[int, NDArray[np.float64]]
    flat_codes: NDArray[np.int32]
    fading: tuple[_Fading, ...]

    @classmethod
    def prepare(
        cls,
        points: KernelInputs,
        alpha: NDArray[np.float64],
        scales: Scales,
        terms: tuple[int, ...],
    ) -> BlockMean:
        """Sum what can be summed before the questions are known.

        Args:
            points: m inducing points.
            alpha: their weights (m,).
            scales: standard deviations of ``KERNEL_TERMS`` and lengths of the distances.
            terms: indices of the terms of this block.
        """
        variance = (scales.sd**2).astype(np.float32)
        flat = [j for j in terms if not KERNEL_TERMS[j].distance]
        tables = {}
        for j in flat:
            codes = points.codes[:, j]
            # A last entry of zero answers the level −1, which equals nothing.
            tables[j] = np.append(
                np.bincount(codes, alpha, minlength=int(codes.max(initial=0)) + 1), 0.0
            ) * float(variance[j])
        fading = []
        for distance, length, x in (
            ("workload", scales.lengths[0], points.workload),
            ("physics", scales.lengths[1], points.physics),
        ):
            mine = [j for j in terms if KERNEL_TERMS[j].distance == distance]
            if not mine:
                continue
            scale = np.float32(3.0 / length**2)
            squares = (x * x).sum(axis=1)[None, :] * scale
            stacked = np.concatenate(
                [-2.0 * scale * x.T, np.full_like(squares, scale), squares]
            ).astype(np.float32)
            levelled = tuple(j for j in mine if KERNEL_TERMS[j].same)
            shared = np.float32(sum(float(variance[j]) for j in mine if not KERNEL_TERMS[j].same))
            codes = np.ascontiguousarray(points.codes[:, list(levelled)].T)
            fading.append(_Fading(distance, stacked, shared, levelled, codes))
        return cls(
            alpha=alpha.astype(np.float32),
            variance=variance,
            tables=tables,
            flat_codes=np.ascontiguousarray(points.codes[:, flat].T),
            fading=tuple(fading),
        )

    def mean(
        self,
        inputs: KernelInputs,
        *,
        levels: LevelSums | None = None,
        nearness: Nearness | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The block's mean at n rows (n,), and their greatest covariance with a point (n,).

        Args:
            inputs: the rows.
            levels: :meth:`level_sums` of their codes, where they are at hand.
            nearness: :meth:`nearness` of their codes; without it the second array is zero.
        """
        n = len(inputs)
        levels = levels or self.level_sums(inputs.codes)
        out, most = levels.flat.copy(), np.zeros(n)
        for k, rows in enumerate(_chunks(n)):
            correlations = [
                f.correlation(inputs.workload[rows], inputs.physics[rows]) for f in self.fading
            ]
            for correlation, (weights, places) in zip(correlations, levels.faded[k], strict=True):
                sums = correlation @ weights
                added = sums[:, 0].copy()
                at = np.arange(len(sums))
                for place in places:
                    added += sums[at, place]
                out[rows] += added
            if nearness is not None:
                covariance, factors, kind = nearness[k]
                total = covariance.take(kind, axis=0)
                for factor, correlation in zip(factors, correlations, strict=True):
                    part = factor.take(kind, axis=0)
                    part *= correlation
                    total += part
                most[rows] = total.max(axis=1)
        return out, most

    def level_sums(self, codes: NDArray[np.int32]) -> LevelSums:
        """What the levels of n rows (n, n_terms) settle of their mean."""
        flat = np.zeros(len(codes))
        for j, table in self.tables.items():
            mine = codes[:, j]
            flat += table[np.where(mine < len(table) - 1, mine, -1)]
        return LevelSums(
            flat,
            [
                [self._weights(fading, codes[rows]) for fading in self.fading]
                for rows in _chunks(len(codes))
            ],
        )

    def _weights(
        self, fading: _Fading, codes: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], list[NDArray[np.int64]]]:
        """Weights of the points, a column a level that the rows have, and each row's columns."""
        weights = [(self.alpha * fading.shared)[:, None]]
        places = []
        width = 1
        for j, points in zip(fading.terms, fading.codes, strict=True):
            present, inverse = np.unique(codes[:, j], return_inverse=True)
            # Points never have the level −1, so its column is zero.
            same = points[:, None] == present[None, :]
            weights.append(same * (self.alpha * self.variance[j])[:, None])
            places.append(inverse + width)
            width += len(present)
        return np.concatenate(weights, axis=1), places

    def nearness(self, codes: NDArray[np.int32]) -> Nearness:
        """What the levels of n rows (n, n_terms) settle of their covariance with the points."""
        return [self._factors(codes[rows]) for rows in _chunks(len(codes))]

    def _factors(
        self, codes: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], list[NDArray[np.float32]], NDArray[np.int64]]:
        """By kind of row: covariance that does not fade, factors of those that do; kinds."""
        used = [*self.tables, *(j for f in self.fading for j in f.terms)]
        key = np.zeros(len(codes), dtype=np.int64)
        for j in used:
            key = key * (int(codes[:, j].max()) + 2) + codes[:, j] + 1
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        kinds = codes[first]

        def sums(terms: tuple[int, ...], points: NDArray[np.int32]) -> NDArray[np.float32]:
            out = np.zeros((len(kinds), len(self.alpha)), dtype=np.float32)
            for j, mine in zip(terms, points, strict=True):
                out += (kinds[:, j][:, None] == mine[None, :]) * self.variance[j]
            return out

        factors = [sums(f.terms, f.codes) + f.shared for f in self.fading]
        return sums(tuple(self.tables), self.flat_codes), factors, inverse


def _chunks(n: int) -> list[slice]:
    return [slice(start, start + CHUNK_ROWS) for start in range(0, n, CHUNK_ROWS)]
