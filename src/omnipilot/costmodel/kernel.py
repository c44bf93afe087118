"""The covariance of the log residual: what two scenarios share.

A sum of terms, each "same source", "same model and format", "same arm and near in workload" and so
on, as one table. The distance terms are Matérn 3/2 kernels over workload or physics coordinates;
the terms of the regime are linear in what the time goes into (Rasmussen and Williams 2006, §4.2).
COSTMODEL §3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel.columns import columns
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.physics import Physics


@dataclass(frozen=True, slots=True)
class KernelTerm:
    """One term: rows covary by ``sd``² when all ``same`` categories agree, fading with distance.

    ``distance`` is "" (no fading), "workload", "physics" or "regime": by the cosine between what
    the time of two rows goes into. ``sd`` is the prior standard deviation in log units, the
    starting point of the fit.
    """

    name: str
    same: tuple[str, ...]
    distance: str
    sd: float


_ARM = ("source", "model", "gpu_kind", "kernel", "engine_era", "parallelism", "settings")
KERNEL_TERMS: tuple[KernelTerm, ...] = (
    KernelTerm("source", ("source",), "", 0.20),
    KernelTerm("engine era in source", ("source", "engine_era"), "", 0.15),
    KernelTerm("release in source", ("source", "engine_release"), "", 0.15),
    KernelTerm("GPU in source", ("source", "gpu_kind"), "", 0.15),
    KernelTerm("implementation in source", ("source", "implementation"), "", 0.15),
    KernelTerm("implementation on GPU", ("source", "implementation", "gpu_kind"), "", 0.10),
    KernelTerm("model", ("model",), "", 0.10),
    KernelTerm("format of model", ("model", "kernel"), "", 0.10),
    KernelTerm("family", ("family",), "", 0.10),
    KernelTerm("task in source", ("source", "workload"), "", 0.10),
    KernelTerm("arm", (*_ARM, "n_gpus"), "", 0.10),
    KernelTerm("arm and load", _ARM, "workload", 0.20),
    KernelTerm("model and load", ("source", "model"), "workload", 0.10),
    KernelTerm("GPU and load", ("source", "gpu_kind"), "workload", 0.10),
    KernelTerm("era and load", ("source", "engine_era"), "workload", 0.10),
    KernelTerm("implementation and load", ("source", "implementation"), "workload", 0.10),
    KernelTerm("release and load", ("source", "engine_release", "gpu_kind"), "workload", 0.10),
    KernelTerm("physics in source", ("source",), "physics", 0.15),
    KernelTerm("physics", (), "physics", 0.15),
    KernelTerm("physics on GPU", ("gpu_kind",), "physics", 0.10),
    KernelTerm("physics of model", ("model",), "physics", 0.10),
)  # fmt: skip
SOURCE_TERMS = tuple(j for j, t in enumerate(KERNEL_TERMS) if "source" in t.same)
GLOBAL_TERMS = tuple(j for j, t in enumerate(KERNEL_TERMS) if "source" not in t.same)


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(x, 1e-12))


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One coordinate of a row; ``of_arm`` tells that the load does not change it."""

    compute: Callable[[Frame, Physics], NDArray[np.float64]]
    of_arm: bool = False


def _share(term: str) -> Coordinate:
    return Coordinate(lambda _, p: p.terms[term] / p.terms["step_s"] * 2.0)


# Where a row lies among loads; one unit is about a factor of e² or one doubling.
WORKLOAD: tuple[Coordinate, ...] = (
    Coordinate(lambda f, _: _log(f["concurrency"] / 32.0) / 2.0),
    Coordinate(lambda f, _: _log(f["prompt_tokens"] / 512.0) / 2.0),
    Coordinate(lambda f, _: _log(f["output_tokens"] / 512.0) / 2.0),
    Coordinate(lambda f, _: np.log2(f["n_gpus"]) / 1.5, of_arm=True),
    Coordinate(lambda _, p: _log(p.terms["pressure"]) / 4.0),
)
# What bounds a row's step, in comparable units. Quantities are taken relative to mid-range values,
# so that float32 distances stay exact enough.
PHYSICS: tuple[Coordinate, ...] = (
    Coordinate(lambda _, p: _log(p.terms["batch"] / 32.0) / 2.0),
    Coordinate(lambda _, p: _log(p.terms["pressure"]) / 3.0),
    Coordinate(lambda f, _: _log(f["prompt_tokens"] / 512.0) / 2.0),
    Coordinate(lambda f, _: _log(f["output_tokens"] / 512.0) / 2.0),
    Coordinate(lambda f, _: _log(f["params"] / 2e10) / 1.5, of_arm=True),
    Coordinate(lambda f, _: _log(f["active"] / 2e10) / 1.5, of_arm=True),
    Coordinate(lambda f, _: np.log2(f["n_gpus"]) / 2.0, of_arm=True),
    _share("weights_s"),
    _share("compute_s"),
    _share("kv_s"),
    _share("link_s"),
    Coordinate(lambda _, p: p.terms["prefill_share"] * 2.0),
    Coordinate(lambda f, _: _log(f["bandwidth"] / 3e12), of_arm=True),
    Coordinate(lambda f, _: _log(f["flops"] / 1e15), of_arm=True),
    Coordinate(lambda f, _: f["effective_bits"] / 8.0, of_arm=True),
    Coordinate(lambda f, _: _log(f["kv_heads"] / 8.0) / 2.0, of_arm=True),
    Coordinate(lambda f, _: f["moe"], of_arm=True),
    Coordinate(lambda f, _: f["mla"], of_arm=True),
    Coordinate(lambda f, _: f["static"], of_arm=True),
)


def _decode_share(p: Physics, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of a cycle, given the seconds of a decoding step."""
    return seconds / p.terms["step_s"] * (1.0 - p.terms["prefill_share"])


def _overlapped(of: str, other: str) -> Coordinate:
    """Share of one of two parts of a step that overlap: together they take the root of squares."""
    return Coordinate(
        lambda _, p: _decode_share(
            p, p.terms[of] ** 2 / np.maximum(np.hypot(p.terms[of], p.terms[other]), 1e-12)
        )
    )


def _in_turn(term: str) -> Coordinate:
    return Coordinate(lambda _, p: _decode_share(p, p.terms[term]))


# What the time of a request goes into. A share is how far a row moves with the speed of its part,
# so what is wrong about one speed moves rows alike that it bounds, however far apart their loads.
REGIME: tuple[Coordinate, ...] = (
    _overlapped("weights_s", "compute_s"),
    _overlapped("compute_s", "weights_s"),
    _in_turn("kv_s"),
    _in_turn("link_s"),
    _in_turn("layer_s"),
    _in_turn("host_s"),
    Coordinate(lambda _, p: p.terms["prefill_share"]),
)
N_WORKLOAD_COORDINATES = len(WORKLOAD)
N_PHYSICS_COORDINATES = len(PHYSICS)
N_REGIME_COORDINATES = len(REGIME)


@dataclass(frozen=True, slots=True)
class KernelInputs:
    """n rows as the kernel sees them.

    ``codes`` int32 (n, n_terms): rows covary under a term when their codes are equal; −1 marks a
    level that the training rows never had, which equals nothing. ``workload`` and ``physics`` are
    float32 coordinates, ``regime`` float32 vectors of length 1, without columns where no term asks
    for them.
    """

    codes: NDArray[np.int32]
    workload: NDArray[np.float32]
    physics: NDArray[np.float32]
    regime: NDArray[np.float32]

    def take(self, index: NDArray[np.int64]) -> KernelInputs:
        """Rows selected by ``index``."""
        return KernelInputs(
            self.codes[index], self.workload[index], self.physics[index], self.regime[index]
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.codes)


@dataclass(frozen=True, slots=True)
class KernelPlaces:
    """n rows before a head codes them, worked out once for all heads.

    ``levels`` is filled as terms are asked for: by term, the distinct combinations of its
    categories and which one each row has (n,).
    """

    frame: Frame
    workload: NDArray[np.float32]
    physics: NDArray[np.float32]
    regime: NDArray[np.float32]
    table: tuple[KernelTerm, ...]
    levels: dict[int, tuple[tuple[str, ...], NDArray[np.int64]]]

    @classmethod
    def from_frame(
        cls, frame: Frame, physics: Physics, table: tuple[KernelTerm, ...] = KERNEL_TERMS
    ) -> KernelPlaces:
        """Places of the rows of a frame under a table of terms."""
        return cls(
            frame,
            columns(WORKLOAD, frame, physics, "C"),
            columns(PHYSICS, frame, physics, "C"),
            _regime(frame, physics, table),
            table,
            {},
        )

    def level(self, j: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """Distinct combinations of term ``j``, sorted by code, and each row's (n,)."""
        if j not in self.levels:
            self.levels[j] = _combinations(self.frame, self.table[j])
        return self.levels[j]


def _regime(frame: Frame, physics: Physics, table: tuple[KernelTerm, ...]) -> NDArray[np.float32]:
    if not any(term.distance == "regime" for term in table):
        return np.empty((frame.n, 0), dtype=np.float32)
    shares = columns(REGIME, frame, physics, "C")
    length = np.sqrt(np.einsum("ij,ij->i", shares, shares))
    return np.asarray(shares / np.maximum(length, np.float32(1e-6))[:, None])


def _combinations(frame: Frame, term: KernelTerm) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Distinct combinations of a term's categories, sorted, and each row's (n,)."""
    columns = [
        frame["n_gpus"].astype(np.int64) if category == "n_gpus" else frame.codes[category]
        for category in term.same
    ]
    key = np.zeros(frame.n, dtype=np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1) + column
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    parts = [
        [str(code) if category == "n_gpus" else frame.levels[category][code] for code in codes]
        for category, codes in zip(
            term.same, (column[first].tolist() for column in columns), strict=True
        )
    ]
    return tuple("|".join(names) for names in zip(*parts, strict=True)), inverse


@dataclass(frozen=True, slots=True)
class KernelLevels:
    """The category combinations of the training rows: one mapping of names to codes a term."""

    codes: tuple[dict[str, int], ...]
    table: tuple[KernelTerm, ...] = KERNEL_TERMS

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """Names in the order of their codes, by term."""
        return tuple(tuple(codes) for codes in self.codes)

    @classmethod
    def from_keys(
        cls, keys: Iterable[Iterable[str]], table: tuple[KernelTerm, ...] = KERNEL_TERMS
    ) -> KernelLevels:
        """Levels from names in the order of their codes."""
        return cls(tuple({str(key): i for i, key in enumerate(names)} for names in keys), table)

    @classmethod
    def from_frame(cls, frame: Frame, table: tuple[KernelTerm, ...] = KERNEL_TERMS) -> KernelLevels:
        """Every combination present in the rows, sorted."""
        return cls.from_keys(
            (sorted(_combinations(frame, t)[0]) if t.same else () for t in table), table
        )

    def inputs(self, places: KernelPlaces, terms: Iterable[int] | None = None) -> KernelInputs:
        """Code rows, under all terms or those that will be used; the others' codes are zero."""
        codes = np.zeros((len(places.workload), len(self.table)), dtype=np.int32)
        for j in range(len(self.table)) if terms is None else terms:
            if self.table[j].same:
                names, inverse = places.level(j)
                known = self.codes[j]
                table = np.asarray([known.get(name, -1) for name in names], np.int32)
                codes[:, j] = table[inverse]
        return KernelInputs(codes, places.workload, places.physics, places.regime)


def squared_distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pairwise squared distances (len(a), len(b))."""
    cross = a @ b.T
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :]
    return np.asarray(np.maximum(squares - 2.0 * cross, 0.0))


def matern32(d2: NDArray[np.float32], length: float) -> NDArray[np.float32]:
    """Matérn 3/2 correlation of squared distances at one length scale."""
    return matern32_of_squares(d2 * np.float32(3.0 / length**2))


def matern32_of_squares(r2: NDArray[np.float32]) -> NDArray[np.float32]:
    """Matérn 3/2 correlation where ``r2`` is 3 d² / length²; overwrites it."""
    # An array: NumPy is slow with one float32 there.
    np.maximum(r2, np.zeros((1, r2.shape[-1]), dtype=np.float32), out=r2)
    np.sqrt(r2, out=r2)
    faded = np.negative(r2)
    np.exp(faded, out=faded)
    r2 += 1.0
    r2 *= faded
    return r2


def covariance(
    a: KernelInputs,
    b: KernelInputs,
    sd: NDArray[np.float64],
    lengths: tuple[float, float],
    terms: tuple[int, ...],
    table: tuple[KernelTerm, ...] = KERNEL_TERMS,
) -> NDArray[np.float32]:
    """Covariance (len(a), len(b)) of the residuals, log² units.

    Args:
        a: rows.
        b: columns.
        sd: standard deviation of each term (n_terms,).
        lengths: length scales of the workload and physics distances.
        terms: indices of the terms to add up.
        table: the terms that codes and ``sd`` belong to.
    """
    slots = {"workload": 0, "physics": 1, "regime": 2, "": 3}
    sums: list[NDArray[np.float32] | None] = [None, None, None, None]
    for j in terms:
        term = table[j]
        variance = np.float32(sd[j] ** 2)
        if term.same:
            mine = np.where(a.codes[:, j] < 0, -2, a.codes[:, j])
            part = (mine[:, None] == b.codes[:, j][None, :]) * variance
        else:
            part = np.full((len(a), len(b)), variance, dtype=np.float32)
        at = slots[term.distance]
        total = sums[at]
        sums[at] = part if total is None else total + part
    out = np.zeros((len(a), len(b)), dtype=np.float32)
    for weight, length, x, y in (
        (sums[0], lengths[0], a.workload, b.workload),
        (sums[1], lengths[1], a.physics, b.physics),
    ):
        if weight is not None:
            out += weight * matern32(squared_distance(x, y), length)
    if sums[2] is not None:
        out += sums[2] * (a.regime @ b.regime.T)
    return out if sums[3] is None else out + sums[3]
