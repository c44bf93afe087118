"""The mean of one block of the Gaussian layer at new places, without forming their covariance.

A term that does not fade adds the same to every row of a level, so its sum over the inducing points
is a table; a fading term needs the correlation with the points once, whatever the number of terms
that share the distance. Same answer as ``covariance(rows, points) @ alpha`` in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.kernel import KERNEL_TERMS, KernelInputs, matern32_of_squares

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_ROWS = 512


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

    def correlation(self, inputs: KernelInputs) -> NDArray[np.float32]:
        """Correlation of n rows with the points (n, m)."""
        x = inputs.workload if self.distance == "workload" else inputs.physics
        squares = (x * x).sum(axis=1, keepdims=True)
        rows = np.concatenate([x, squares, np.ones_like(squares)], axis=1)
        return matern32_of_squares(rows @ self.points)


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
        sd: NDArray[np.float64],
        lengths: tuple[float, float],
        terms: tuple[int, ...],
    ) -> BlockMean:
        """Sum what can be summed before the questions are known.

        Args:
            points: m inducing points.
            alpha: their weights (m,).
            sd: standard deviation of each term of ``KERNEL_TERMS``.
            lengths: length scales of the workload and physics distances.
            terms: indices of the terms of this block.
        """
        variance = (sd**2).astype(np.float32)
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
            ("workload", lengths[0], points.workload),
            ("physics", lengths[1], points.physics),
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
        self, inputs: KernelInputs, *, similarity: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The block's mean at n rows (n,); if asked, their greatest covariance with a point (n,).

        Without ``similarity`` the second array is zero.
        """
        n = len(inputs)
        out, most = np.zeros(n), np.zeros(n)
        for j, table in self.tables.items():
            codes = inputs.codes[:, j]
            out += table[np.where(codes < len(table) - 1, codes, -1)]
        for start in range(0, n, CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            part = KernelInputs(inputs.codes[rows], inputs.workload[rows], inputs.physics[rows])
            correlations = [f.correlation(part) for f in self.fading]
            for fading, correlation in zip(self.fading, correlations, strict=True):
                out[rows] += self._faded(fading, correlation, part)
            if similarity:
                most[rows] = self._greatest(correlations, part)
        return out, most

    def _faded(
        self, fading: _Fading, correlation: NDArray[np.float32], part: KernelInputs
    ) -> NDArray[np.float32]:
        """What the terms of one distance add (n,): a product a level that the rows have."""
        weights = [(self.alpha * fading.shared)[:, None]]
        places = []
        width = 1
        for j, codes in zip(fading.terms, fading.codes, strict=True):
            present, inverse = np.unique(part.codes[:, j], return_inverse=True)
            # Points never have the level −1, so its column is zero.
            same = codes[:, None] == present[None, :]
            weights.append(same * (self.alpha * self.variance[j])[:, None])
            places.append(inverse + width)
            width += len(present)
        sums = correlation @ np.concatenate(weights, axis=1)
        out = sums[:, 0].copy()
        at = np.arange(len(part))
        for place in places:
            out += sums[at, place]
        return out

    def _greatest(
        self, correlations: list[NDArray[np.float32]], part: KernelInputs
    ) -> NDArray[np.float32]:
        """The greatest covariance of each row with a point (n,)."""
        used = [*self.tables, *(j for f in self.fading for j in f.terms)]
        key = np.zeros(len(part), dtype=np.int64)
        for j in used:
            key = key * (int(part.codes[:, j].max()) + 2) + part.codes[:, j] + 1
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        kinds = part.codes[first]

        def sums(terms: tuple[int, ...], points: NDArray[np.int32]) -> NDArray[np.float32]:
            out = np.zeros((len(kinds), len(self.alpha)), dtype=np.float32)
            for j, codes in zip(terms, points, strict=True):
                out += (kinds[:, j][:, None] == codes[None, :]) * self.variance[j]
            return out

        covariance = sums(tuple(self.tables), self.flat_codes)[inverse]
        for fading, correlation in zip(self.fading, correlations, strict=True):
            level = sums(fading.terms, fading.codes)[inverse]
            covariance += (level + fading.shared) * correlation
        return np.asarray(covariance.max(axis=1))
