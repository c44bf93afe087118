"""A fitted cost model: from a frame to quantiles and intervals of every target."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from omnipilot.costmodel import new_kind
from omnipilot.costmodel.conformal import interval
from omnipilot.costmodel.features import numeric_features
from omnipilot.costmodel.heads import HEAD_OF_TARGET, lead_labels
from omnipilot.costmodel.kernel import KernelPlaces
from omnipilot.costmodel.novelty import (
    CLASS_NAMES,
    SEEN,
    classes_in,
    members_of,
    novelty_of,
)
from omnipilot.costmodel.spread import Spreads
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.targets import TARGET_NAMES, TARGETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.deviation import Deviation, LocalRows
    from omnipilot.costmodel.envelope import Envelope, Verdicts
    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.heads import Head
    from omnipilot.costmodel.novelty import Members
    from omnipilot.costmodel.physics import Physics
    from omnipilot.costmodel.physics_fit import PhysicsParameters
    from omnipilot.costmodel.residual import GaussianLayer
    from omnipilot.costmodel.spread import Spread
    from omnipilot.domain.prediction import Source

# Half-width in log units of the 80 % interval of a target answered by the prior alone. No rows
# stand behind these: they say "within a factor of two" (occupancy: half) and mark low confidence.
PRIOR_ONLY_HALF_WIDTH_LOG = {"kv_cache_peak_frac": 0.5}
DEFAULT_HALF_WIDTH_LOG = float(np.log(2.0))
_HALF_WIDTHS = {
    name: PRIOR_ONLY_HALF_WIDTH_LOG.get(name, DEFAULT_HALF_WIDTH_LOG) for name in TARGET_NAMES
}
_PRIOR_ONLY_LOG = {
    name: np.array([[-half, 0.0, half, -half, half]]) for name, half in _HALF_WIDTHS.items()
}
# Board power may pass its limit for moments; no mean above this share of TDP is believed.
POWER_MARGIN = 1.15
# Share of the variance that a site's rows must have taken away before their own band is used.
NEAR_SHARE = 0.5
# Answers that keep more of their variance than this were not touched by the site's rows.
UNTOUCHED_SHARE = 0.99
ANY_SOURCE = ""
_TTFT, _REQUEST_RATE = (TARGET_NAMES.index(name) for name in ("ttft_p50_s", "request_per_s"))
_OPPOSITE = [2, 1, 0, 4, 3]  # q10 of a time goes with q90 of a rate, its lower bound with the upper
# A missing class is answered by the next broader one that was calibrated.
FALLBACK_ORDER = ("source", "gpu", "family", "model", SEEN)


@dataclass(frozen=True, slots=True)
class FittedHead:
    """One head: its residual layer and, for each calibrated novelty class, what errors look like.

    ``shares`` tells how much of the layer to believe by class and source (``ANY_SOURCE``: one that
    is not named), ``spreads`` gives the band of a single answer, ``deviations`` how answers err
    together.
    """

    head: Head
    layer: GaussianLayer
    shares: dict[str, dict[str, float]]
    spreads: dict[str, Spread]
    deviations: dict[str, Deviation]
    n_rows: int

    def calibrated(self, name: str) -> str:
        """The class itself; where it was not calibrated, the nearest broader one that was."""
        if name in self.spreads:
            return name
        at = FALLBACK_ORDER.index(name)
        broader = [*reversed(FALLBACK_ORDER[:at]), *FALLBACK_ORDER[at + 1 :]]
        return next(c for c in broader if c in self.spreads)

    def share(self, name: str, frame: Frame) -> NDArray[np.float64]:
        """How much of the layer to believe of each question of a class (n,)."""
        of = self.shares[name]
        levels = [of.get(source, of[ANY_SOURCE]) for source in frame.levels["source"]]
        return np.asarray(levels)[frame.codes["source"]]


@dataclass(frozen=True, slots=True)
class LogQuantiles:
    """One head's answer to n questions against the prior, in logs; or several heads', one a row.

    ``log`` q10, q50, q90, lower, upper of the residual (n, 5); ``crossed`` whether the raw
    quantiles were out of order (n,); ``similarity`` to the measured rows (n,); ``informed`` the
    share of the variance that local rows took away (n,).
    """

    log: NDArray[np.float64]
    crossed: NDArray[np.bool_]
    similarity: NDArray[np.float64]
    informed: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Questions:
    """n questions as every head sees them.

    ``numeric`` float32 (n, n_numeric_features); ``members`` the novelty classes with their rows;
    ``within_site`` whether the site's own rows reach as far (n,).
    """

    frame: Frame
    prior: Physics
    places: KernelPlaces
    numeric: NDArray[np.float32]
    members: list[Members]
    within_site: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class JointErrors:
    """Joint distribution of one head's log errors over n questions.

    ``mean`` (n,) is what local rows moved the answers by (already part of the medians);
    ``covariance`` (n, n) is of the questions' own errors; one measured row adds ``noise_sd`` (n,).
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    noise_sd: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Answers:
    """Predictions for n questions.

    ``table`` (n_targets, n, 5) has q10, q50, q90, lower, upper of ``TARGETS`` in their units,
    ``out_of_order`` (n_targets, n) whether the raw quantiles were. ``source`` maps a target to
    "model" or "prior". ``support`` has one verdict a question.
    """

    table: NDArray[np.float64]
    out_of_order: NDArray[np.bool_]
    source: dict[str, Source]
    support: Verdicts
    physics: Physics

    @property
    def values(self) -> dict[str, NDArray[np.float64]]:
        """Quantiles and bounds by target (n, 5)."""
        return dict(zip(TARGET_NAMES, self.table, strict=True))

    @property
    def crossed(self) -> dict[str, NDArray[np.bool_]]:
        """Whether the raw quantiles were out of order, by target (n,)."""
        return dict(zip(TARGET_NAMES, self.out_of_order, strict=True))


@dataclass(frozen=True, slots=True)
class FittedModel:
    """Prior, heads by name, the envelope of the rows behind them, and a site's own rows.

    ``local`` maps (head, novelty class) to what rows observed since the fit tell; see
    :meth:`condition`.
    """

    physics: PhysicsParameters
    heads: dict[str, FittedHead]
    envelope: Envelope
    local: Mapping[tuple[str, str], LocalRows] = field(default_factory=dict)
    _together: dict[tuple[tuple[str, str], ...], Spreads] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def log_quantiles(self, questions: Questions, name: str) -> LogQuantiles:
        """Log residual of one head against the prior."""
        every = self._log_quantiles(questions, (name,), name)
        return LogQuantiles(every.log[0], every.crossed[0], every.similarity[0], every.informed[0])

    def _log_quantiles(
        self, questions: Questions, names: tuple[str, ...], similar: str
    ) -> LogQuantiles:
        """Log residuals of some heads.

        Args:
            questions: n of them.
            names: of the heads.
            similar: the head whose similarity is worked out; that of the others is zero.
        """
        frame, n = questions.frame, questions.frame.n
        heads = [self.heads[name] for name in names]
        labels = {i: [h.calibrated(CLASS_NAMES[i]) for h in heads] for i, _ in questions.members}
        centres = np.zeros((len(heads), n))
        out = np.empty((len(heads), n, 5))
        crossed = np.zeros((len(heads), n), dtype=bool)
        near_points, informed = np.zeros((len(heads), n)), np.zeros((len(heads), n))
        for k, (name, head) in enumerate(zip(names, heads, strict=True)):
            if name == similar or any(any(head.shares[c[k]].values()) for c in labels.values()):
                centres[k], near_points[k] = head.layer.predict(
                    frame, questions.places, similarity=name == similar
                )
        for i, rows in questions.members if heads else ():
            own = labels[i]
            part, at, numeric = frame, questions.prior, questions.numeric
            where: slice | NDArray[np.int64] = slice(None)
            if len(rows) < n:
                part, at, numeric, where = frame.take(rows), at.take(rows), numeric[rows], rows
            spreads = self._spreads(tuple(zip(names, own, strict=True)))
            q, crossed[:, where] = spreads.quantiles(part, at, numeric)
            shares = [h.share(label, part) for h, label in zip(heads, own, strict=True)]
            centre = np.stack(shares) * centres[:, where]
            offsets = spreads.offsets(part)
            left: dict[int, NDArray[np.float64]] = {}
            for k, (name, label) in enumerate(zip(names, own, strict=True)):
                local = self.local.get((name, label))
                if local is not None:
                    if not left:
                        offsets = offsets.copy()
                    mean, left[k] = local.shift(part, at)
                    centre[k] += mean
                    q[k] *= local.deviation.narrowing(left[k])[:, None]
                    informed[k, where] = 1.0 - left[k]
                    touched = left[k] < UNTOUCHED_SHARE
                    offsets[k, touched] = local.deviation.offset_after(left[k][touched])
            bands = np.empty((*q.shape[:2], 5))
            bands[..., :3] = q
            bands[..., 3], bands[..., 4] = interval(q, offsets)
            for k, share in left.items():
                local = self.local[names[k], own[k]]
                if local.band is not None:
                    known = (share <= 1.0 - NEAR_SHARE) & questions.within_site[where]
                    near, sd = np.flatnonzero(known), local.deviation.sd_after(share[known])
                    bands[k, near, 0] = bands[k, near, 3] = local.band[0] * sd
                    bands[k, near, 2] = bands[k, near, 4] = local.band[1] * sd
            bands += centre[..., None]
            out[:, where] = bands
        return LogQuantiles(out, crossed, near_points, informed)

    def _spreads(self, of: tuple[tuple[str, str], ...]) -> Spreads:
        """The spreads of some (head, class), joined when first asked together."""
        found = self._together.get(of)
        if found is None:
            spreads = tuple(self.heads[name].spreads[label] for name, label in of)
            found = self._together[of] = Spreads.of(spreads)
        return found

    def questions(self, frame: Frame, prior: Physics | None = None) -> Questions:
        """What every head needs to know of n questions, worked out once."""
        at = self.physics.evaluate(frame) if prior is None else prior
        return Questions(
            frame=frame,
            prior=at,
            places=KernelPlaces.from_frame(frame, at),
            numeric=numeric_features(frame, at),
            members=members_of(frame, self.envelope.novelty),
            within_site=np.asarray([not far for far in self.envelope.beyond_site(frame)]),
        )

    def joint(self, frame: Frame, prior: Physics, name: str) -> JointErrors:
        """How one head's answers to n questions may be off together; see :class:`JointErrors`.

        Questions of different novelty classes are taken as independent.
        """
        head = self.heads[name]
        out = JointErrors(np.zeros(frame.n), np.zeros((frame.n, frame.n)), np.zeros(frame.n))
        for i, rows in members_of(frame, self.envelope.novelty):
            label = head.calibrated(CLASS_NAMES[i])
            deviation = head.deviations[label]
            part, at = frame.take(rows), prior.take(rows)
            local = self.local.get((name, label))
            if local is None:
                covariance = deviation.joint(part, at)
            else:
                out.mean[rows], covariance = local.joint(part, at)
            out.covariance[np.ix_(rows, rows)] = covariance
            out.noise_sd[rows] = deviation.noise_sd
        return out

    def centre(self, frame: Frame, prior: Physics, name: str) -> NDArray[np.float64]:
        """Log of one head's lead target before any local row: prior and layer, (n,)."""
        head = self.heads[name]
        layer = head.layer.predict(frame, KernelPlaces.from_frame(frame, prior))[0]
        share = np.zeros(frame.n)
        for i, rows in members_of(frame, self.envelope.novelty):
            share[rows] = head.share(head.calibrated(CLASS_NAMES[i]), frame.take(rows))
        return np.asarray(prior.log[head.head.lead] + share * layer)

    def condition(
        self,
        frame: Frame,
        labels: Mapping[str, NDArray[np.float64]],
        weight: NDArray[np.float64] | None = None,
        cells: NDArray[np.str_] | None = None,
    ) -> FittedModel:
        """The model after a site's own rows, in closed form.

        Every head and class is conditioned by its own labels, so a question is answered by the
        rows that share its group: those of its site, or those of its model or GPU kind there.
        Nothing is fitted again but the parameters of GPU kinds that the model had not seen
        (:mod:`~omnipilot.costmodel.new_kind`).
        Rows observed earlier are replaced: pass all of them. COSTMODEL §3.

        Args:
            frame: n ≥ 1 observed rows.
            labels: target → natural log of the label (n,), NaN where missing.
            weight: (n,) in (0, 1]; 0.5 means twice the noise variance.
            cells: workload cell of each row (n,); see :meth:`Deviation.condition`.
        """
        leads = lead_labels(frame, labels)
        trust = np.ones(frame.n) if weight is None else np.maximum(weight, 1e-6)
        base = new_kind.adapted(replace(self, local={}), frame, leads, trust)
        prior = base.physics.evaluate(frame)
        present = {CLASS_NAMES[i] for i in classes_in(novelty_of(frame, self.envelope.novelty))}
        local: dict[tuple[str, str], LocalRows] = {}
        for name, head in self.heads.items():
            rows = np.flatnonzero(np.isfinite(leads[head.head.lead]))
            if len(rows) == 0:
                continue
            part, at = frame.take(rows), prior.take(rows)
            layer = head.layer.predict(part, KernelPlaces.from_frame(part, at))[0]
            beyond = leads[head.head.lead][rows] - at.log[head.head.lead]
            for label in sorted({head.calibrated(name) for name in present}):
                deviation = head.deviations[label]
                noise = deviation.noise_sd / np.sqrt(trust[rows])
                error = beyond - head.share(label, part) * layer
                local[name, label] = deviation.condition(
                    part, at, error, noise, cells[rows] if cells is not None else None
                )
        return replace(base, local=local, envelope=self.envelope.extended(frame))

    def predict(self, frame: Frame) -> Answers:
        """Answer n questions on every target."""
        questions = self.questions(frame)
        prior = questions.prior
        source: dict[str, Literal["model", "prior"]] = {}
        # The head with the most rows knows best how near the measured ones are.
        widest = max(self.heads, key=lambda name: self.heads[name].n_rows, default="")
        residuals = self._log_quantiles(questions, tuple(self.heads), widest)
        place = {name: k for k, name in enumerate(self.heads)}
        table = np.empty((len(TARGETS), frame.n, 5))
        crossed = np.zeros((len(TARGETS), frame.n), dtype=bool)
        for i, target in enumerate(TARGETS):
            head = HEAD_OF_TARGET.get(target.name)
            if head is not None and head.name in place:
                beyond = residuals.log[place[head.name]]
                crossed[i] = residuals.crossed[place[head.name]]
                source[target.name] = "model"
            else:
                beyond = _PRIOR_ONLY_LOG[target.name]
                source[target.name] = "prior"
            np.add(prior.log[target.name][:, None], beyond, out=table[i])
        np.minimum(table, 700.0, out=table)
        np.exp(table, out=table)
        for target, value in zip(TARGETS, table, strict=True):
            if target.fraction:
                np.minimum(value, 1.0, out=value)
            if target.name == "power_mean_w":
                limit = frame["tdp_w"] * frame["n_gpus"] * POWER_MARGIN
                np.minimum(value, limit[:, None], out=value)
        # Little's law: a client of a closed loop waits no longer than its whole turn.
        online = frame.fixed(self, lambda: frame.category("mode") == "online", "online")
        turn_s = frame["concurrency"][:, None] / table[_REQUEST_RATE][:, _OPPOSITE]
        np.minimum(table[_TTFT], turn_s, out=table[_TTFT], where=online[:, None])
        support = self.envelope.support(
            frame,
            residuals.similarity.max(axis=0, initial=0.0),
            residuals.informed.max(axis=0, initial=0.0),
        )
        return Answers(table, crossed, source, support, prior)
