"""The support envelope: what was measured, on seven axes, and the measured cells themselves.

Any axis out of the envelope makes an answer low confidence whatever its interval (paper §3.2).
Novel models and sources inside the envelope are medium; confidence is high only where the source
itself has rows near by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, overload

import numpy as np

from omnipilot.costmodel.novelty import CLASS_NAMES, SEEN, novelty_of, training_levels
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.prediction import Confidence, SupportVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame

# Similarity to the nearest inducing point (share of the global covariance) below which the rows
# near by are too few to call an answer supported by its neighbourhood.
SPARSE_SIMILARITY = 0.35
NEAR_SIMILARITY = 0.6
# Share of a class's variance that the site's own rows must have taken away before the question
# counts as measured at this site.
INFORMED_SHARE = 0.75
_FEW_OF_SITE = "few rows of this site near this question"
_NONE_OF_SITE = "no row of this site yet: the interval is that of an unseen source"


@dataclass(frozen=True, slots=True)
class Axis:
    """One support axis: a set of levels (``category``) or a range of values (``column``)."""

    name: str
    category: str = ""
    column: str = ""
    unit: str = ""


AXES: tuple[Axis, ...] = (
    Axis("family", category="family"),
    Axis("parameters", column="params", unit="parameters"),
    Axis("GPU kind", category="gpu_kind"),
    Axis("tensor parallel", column="n_gpus", unit="GPUs"),
    Axis("precision", category="precision"),
    Axis("concurrency", column="concurrency", unit="requests"),
    Axis("context", column="context", unit="tokens"),
)

_LOAD_AXES = frozenset({"concurrency", "context"})
# Beside the axes a site's own rows are known by their models.
_MODEL = Axis("model", category="model")
_HERE = " at this site"


def _axis_values(frame: Frame, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values of a numeric axis and which of them the source stated."""
    stated = np.ones(frame.n, dtype=bool)
    if column == "context":
        stated = frame["prompt_known"] > 0
        return frame["prompt_tokens"] + frame["output_tokens"], stated
    if column == "concurrency":
        stated = frame["concurrency_known"] > 0
    return frame[column], stated


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measured rows of one arm and model: how many, over which loads, and how far they are.

    ``distance`` is 0 for the same arm, model and load; 1 is about a factor of e in one quantity.
    """

    source: str
    model: str
    gpu: str
    n_gpus: int
    precision: str
    rows: int
    concurrency_range: tuple[float, float]
    context_range: tuple[float, float]
    distance: float


@dataclass(frozen=True, slots=True)
class Verdicts(Sequence[SupportVerdict]):
    """One verdict a question; each is made when it is looked at.

    Args:
        outside: axes that are out, in words.
        beyond: how far the question lies beyond the site's own rows, in words.
        novelty: its class.
        new_model: whether no row is of its model.
        new_era: whether no row is of its engine's version.
        similarity: to the measured rows.
        informed: share of the variance that the site's own rows took away.
        distance: log-space distance to the nearest measured row.
    """

    outside: list[tuple[str, ...]]
    beyond: list[tuple[str, ...]]
    novelty: list[str]
    new_model: list[bool]
    new_era: list[bool]
    similarity: list[float]
    informed: list[float]
    distance: list[float]

    @property
    def supported(self) -> list[bool]:
        """Whether each question lies inside what was measured."""
        return [not out for out in self.outside]

    def __len__(self) -> int:
        """Number of questions."""
        return len(self.outside)

    @overload
    def __getitem__(self, index: int) -> SupportVerdict: ...
    @overload
    def __getitem__(self, index: slice) -> list[SupportVerdict]: ...
    def __getitem__(self, index: int | slice) -> SupportVerdict | list[SupportVerdict]:
        """One verdict, or some."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        out, name, alike = self.outside[index], self.novelty[index], self.similarity[index]
        far, share, is_new_era = self.beyond[index], self.informed[index], self.new_era[index]
        reasons: tuple[str, ...] = far if share >= INFORMED_SHARE else ()
        known_here = share >= INFORMED_SHARE and not far
        if name == "source" and not known_here:
            reasons += (_FEW_OF_SITE if share > 0 else _NONE_OF_SITE,)
        if self.new_model[index] and not known_here:
            reasons += ("no row of this model",)
        if is_new_era:
            reasons += ("no row of this engine version",)
        sparse = alike < SPARSE_SIMILARITY and not known_here
        if sparse:
            reasons += ("few measured rows near this question",)
        near = name == SEEN and alike >= NEAR_SIMILARITY
        confidence: Confidence = "medium"
        if out or sparse:
            confidence = "low"
        elif (near or known_here) and not is_new_era:
            confidence = "high"
        return SupportVerdict(not out, out, name, self.distance[index], confidence, reasons)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the training rows cover.

    ``levels`` and ``ranges`` describe the axes, ``novelty`` the levels of the novelty classes,
    ``engine_eras`` the software seen. ``cells`` holds one tuple a (source, model, GPU kind, GPUs,
    precision): those keys, rows, concurrency range (0 where not stated) and context range, log
    parameters. ``site_levels`` and ``site_ranges`` are the axes, and the models, of the site's own
    rows alone; empty where it has none.
    """

    levels: dict[str, tuple[str, ...]]
    ranges: dict[str, tuple[float, float]]
    novelty: dict[str, tuple[str, ...]]
    engine_eras: tuple[str, ...]
    cells: tuple[tuple[str, str, str, int, str, int, float, float, float, float, float], ...]
    site_levels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    site_ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def from_frame(cls, frame: Frame) -> Envelope:
        """Describe the training rows."""
        levels, ranges = {}, {}
        for axis in AXES:
            if axis.category:
                used = np.unique(frame.codes[axis.category])
                levels[axis.name] = tuple(frame.levels[axis.category][i] for i in used)
            else:
                values, stated = _axis_values(frame, axis.column)
                values = values[stated] if stated.any() else values
                ranges[axis.name] = (float(values.min()), float(values.max()))
        eras = np.unique(frame.codes["engine_era"])
        return cls(
            levels=levels,
            ranges=ranges,
            novelty=training_levels(frame),
            engine_eras=tuple(frame.levels["engine_era"][i] for i in eras),
            cells=_cells(frame),
        )

    def extended(self, frame: Frame) -> Envelope:
        """The envelope with a site's own rows; what the model itself has seen stays as it was."""
        own = Envelope.from_frame(frame)
        return Envelope(
            levels={k: tuple(sorted({*v, *own.levels[k]})) for k, v in self.levels.items()},
            ranges={
                k: (min(low, own.ranges[k][0]), max(high, own.ranges[k][1]))
                for k, (low, high) in self.ranges.items()
            },
            novelty=self.novelty,
            engine_eras=tuple(sorted({*self.engine_eras, *own.engine_eras})),
            cells=self.cells + own.cells,
            site_levels=own.levels | {_MODEL.name: own.novelty[_MODEL.category]},
            site_ranges=own.ranges,
        )

    def beyond_site(self, frame: Frame) -> list[tuple[str, ...]]:
        """How far each question lies beyond the site's own rows, in words; nothing where within.

        What those rows say of the site reaches no further than they do, however much of the
        variance they take away: a run of 64 requests does not tell where 2,000 saturate.
        """
        if not self.site_levels:
            return [()] * frame.n
        return self._violations(frame, (*AXES, _MODEL), self.site_levels, self.site_ranges, _HERE)

    def support(
        self,
        frame: Frame,
        similarity: NDArray[np.float64],
        informed: NDArray[np.float64] | None = None,
    ) -> Verdicts:
        """Judge n questions.

        Args:
            frame: the questions.
            similarity: share of the global covariance with the nearest inducing point (n,).
            informed: share of the variance that the site's own rows took away (n,).
        """
        told = np.zeros(frame.n) if informed is None else informed
        names, new_model, new_era = frame.fixed(self, lambda: self._news(frame))
        return Verdicts(
            outside=self._violations(frame, AXES, self.levels, self.ranges),
            beyond=self.beyond_site(frame),
            novelty=names,
            new_model=new_model,
            new_era=new_era,
            similarity=similarity.tolist(),
            informed=told.tolist(),
            distance=(-np.log(np.maximum(similarity, 1e-6))).tolist(),
        )

    @staticmethod
    def _violations(
        frame: Frame,
        axes: Sequence[Axis],
        within: Mapping[str, tuple[str, ...]],
        ranges: Mapping[str, tuple[float, float]],
        where: str = "",
    ) -> list[tuple[str, ...]]:
        """The axes of each row that are out, in words, in the order of ``axes``."""

        def words(axis: Axis) -> dict[int, str]:
            """What to say of the rows that an axis puts out."""
            if axis.category:
                known = set(within[axis.name])
                levels, codes = frame.levels[axis.category], frame.codes[axis.category]
                new = np.asarray([level not in known for level in levels])
                rows = np.flatnonzero(new[codes]).tolist()
                return {
                    i: f"{axis.name} '{levels[codes[i]]}' has no measured row{where}" for i in rows
                }
            low, high = ranges[axis.name]
            values, stated = _axis_values(frame, axis.column)
            outside = (values < low * 0.999) | (values > high * 1.001)
            bounds = f"is outside the measured {low:,.0f} to {high:,.0f}{where}"
            return {
                i: f"{axis.name} {values[i]:,.0f} {axis.unit} {bounds}"
                for i in np.flatnonzero(stated & outside).tolist()
            }

        found: list[tuple[str, ...]] = [()] * frame.n
        for axis in axes:
            of_arm = axis.column not in _LOAD_AXES
            said_of = partial(words, axis)
            out = frame.fixed(within, said_of, axis.name) if of_arm else said_of()
            for i, said in out.items():
                found[i] += (said,)
        return found

    def _news(self, frame: Frame) -> tuple[list[str], list[bool], list[bool]]:
        """Of each row: its novelty class, and whether its model and its engine's era are new."""
        new = []
        for category, known in (
            ("model", set(self.novelty["model"])),
            ("engine_era", set(self.engine_eras)),
        ):
            levels = [level not in known for level in frame.levels[category]]
            new.append(np.asarray(levels)[frame.codes[category]].tolist())
        novelty = novelty_of(frame, self.novelty)
        return [CLASS_NAMES[i] for i in novelty.tolist()], new[0], new[1]

    def evidence(self, frame: Frame, k: int) -> list[Evidence]:
        """The ``k`` measured arms nearest to the single question of ``frame``, nearest first."""
        params = float(np.log(frame["params"][0]))
        n_gpus = float(np.log(frame["n_gpus"][0]))
        load = float(np.log(frame["concurrency"][0]))
        context = float(np.log(frame["prompt_tokens"][0] + frame["output_tokens"][0]))
        text = {c: frame.levels[c][frame.codes[c][0]] for c in
                ("source", "model", "gpu_kind", "precision")}  # fmt: skip

        def outside(value: float, low: float, high: float) -> float:
            return max(
                float(np.log(max(low, 1.0))) - value, value - float(np.log(max(high, 1.0))), 0.0
            )

        found = []
        for source, model, gpu, gpus, precision, rows, c0, c1, t0, t1, size in self.cells:
            distance = (
                abs(size - params)
                + 0.5 * (model != text["model"])
                + 1.0 * (gpu != text["gpu_kind"])
                + abs(float(np.log(gpus)) - n_gpus)
                + 0.5 * (precision != text["precision"])
                + 0.25 * (source != text["source"])
                + 0.5 * outside(load, c0, c1)
                + 0.5 * outside(context, t0, t1)
            )
            item = Evidence(
                source, model, gpu, gpus, precision, rows, (c0, c1), (t0, t1), round(distance, 3)
            )
            found.append(item)
        return sorted(found, key=lambda e: (e.distance, -e.rows, e.source, e.model, e.gpu))[:k]


def _cells(
    frame: Frame,
) -> tuple[tuple[str, str, str, int, str, int, float, float, float, float, float], ...]:
    """Rows counted by source, model, GPU kind, GPUs and precision."""
    names = ("source", "model", "gpu_kind", "precision")
    n_gpus = frame["n_gpus"].astype(np.int64)
    table = np.column_stack([*(frame.codes[c] for c in names), n_gpus])
    keys, inverse = np.unique(table, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    context = frame["prompt_tokens"] + frame["output_tokens"]
    out = []
    for i, key in enumerate(keys):
        rows = np.flatnonzero(inverse == i)
        source, model, gpu, precision = (frame.levels[c][key[j]] for j, c in enumerate(names))
        stated = rows[frame["concurrency_known"][rows] > 0]
        concurrency = frame["concurrency"][stated] if len(stated) else np.zeros(1)
        cell = (
            source, model, gpu, int(key[4]), precision, len(rows),
            float(concurrency.min()), float(concurrency.max()),
            float(context[rows].min()), float(context[rows].max()),
            float(np.log(frame["params"][rows[0]])),
        )  # fmt: skip
        out.append(cell)
    return tuple(out)
