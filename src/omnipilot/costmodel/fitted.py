"""A fitted cost model: from a frame to quantiles and intervals of every target."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

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
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.targets import TARGETS

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
# Board power may pass its limit for moments; no mean above this share of TDP is believed.
POWER_MARGIN = 1.15
# Share of the variance that a site's rows must have taken away before their own band is used.
NEAR_SHARE = 0.5
# Answers that keep more of their variance than this were not touched by the site's rows.
UNTOUCHED_SHARE = 0.99
# A missing class is answered by the next broader one that was calibrated.
FALLBACK_ORDER = ("source", "gpu", "family", "model", SEEN)


@dataclass(frozen=True, slots=True)
class FittedHead:
    """One head: its residual layer and, for each calibrated novelty class, what errors look like.

    ``shares`` tells how much of the layer to believe, ``spreads`` gives the band of a single
    answer, ``deviations`` how answers err together.
    """

    head: Head
    layer: GaussianLayer
    shares: dict[str, float]
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


@dataclass(frozen=True, slots=True)
class LogQuantiles:
    """One head's answer to n questions against the prior, in logs.

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

    ``values`` maps a target to (n, 5): q10, q50, q90, lower, upper in the target's unit;
    ``crossed`` to (n,), whether the raw quantiles were out of order; ``source`` to "model" or
    "prior". ``support`` has one verdict a question.
    """

    values: dict[str, NDArray[np.float64]]
    crossed: dict[str, NDArray[np.bool_]]
    source: dict[str, Source]
    support: Verdicts
    physics: Physics


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

    def log_quantiles(
        self, questions: Questions, name: str, *, similarity: bool = True
    ) -> LogQuantiles:
        """Log residual of one head against the prior.

        Args:
            questions: n of them.
            name: of the head.
            similarity: whether to work out the similarity; zero if not.
        """
        head = self.heads[name]
        frame, prior, n = questions.frame, questions.prior, questions.frame.n
        kinds = [(rows, head.calibrated(CLASS_NAMES[i])) for i, rows in questions.members]
        layer, near_points = np.zeros(n), np.zeros(n)
        if similarity or any(head.shares[label] for _, label in kinds):
            layer, near_points = head.layer.predict(frame, questions.places, similarity=similarity)
        out = np.empty((n, 5))
        crossed = np.zeros(n, dtype=bool)
        informed = np.zeros(n)
        for rows, label in kinds:
            spread = head.spreads[label]
            whole = len(rows) == n
            part, at, numeric, centre = frame, prior, questions.numeric, layer
            if not whole:
                part, at, numeric = frame.take(rows), prior.take(rows), numeric[rows]
                centre = layer[rows]
            centre = head.shares[label] * centre
            bands = out if whole else np.empty((len(rows), 5))
            q, crossed[rows] = spread.quantiles(part, at, numeric)
            local = self.local.get((name, label))
            left = np.ones(len(rows))
            offsets = spread.offsets(part)
            if local is not None:
                mean, left = local.shift(part, at)
                centre = centre + mean
                q *= local.deviation.narrowing(left)[:, None]
                informed[rows] = 1.0 - left
                touched = left < UNTOUCHED_SHARE
                offsets = offsets.copy()
                offsets[touched] = local.deviation.offset_after(left[touched])
            bands[:, :3] = q
            bands[:, 3], bands[:, 4] = interval(q, offsets)
            if local is not None and local.band is not None:
                known = (left <= 1.0 - NEAR_SHARE) & questions.within_site[rows]
                near, sd = np.flatnonzero(known), local.deviation.sd_after(left[known])
                bands[near, 0] = bands[near, 3] = local.band[0] * sd
                bands[near, 2] = bands[near, 4] = local.band[1] * sd
            bands += centre[:, None]
            if not whole:
                out[rows] = bands
        return LogQuantiles(out, crossed, near_points, informed)

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

    def condition(
        self,
        frame: Frame,
        labels: Mapping[str, NDArray[np.float64]],
        weight: NDArray[np.float64] | None = None,
        cells: NDArray[np.str_] | None = None,
    ) -> FittedModel:
        """The model after a site's own rows, in closed form: nothing is fitted again.

        Every head and class is conditioned by its own labels, so a question is answered by the
        rows that share its group: those of its site, or those of its model or GPU kind there.
        Rows observed earlier are replaced: pass all of them. COSTMODEL §3.

        Args:
            frame: n ≥ 1 observed rows.
            labels: target → natural log of the label (n,), NaN where missing.
            weight: (n,) in (0, 1]; 0.5 means twice the noise variance.
            cells: workload cell of each row (n,); see :meth:`Deviation.condition`.
        """
        prior = self.physics.evaluate(frame)
        present = {CLASS_NAMES[i] for i in classes_in(novelty_of(frame, self.envelope.novelty))}
        leads = lead_labels(frame, labels)
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
                noise = np.full(len(rows), deviation.noise_sd)
                if weight is not None:
                    noise /= np.sqrt(np.maximum(weight[rows], 1e-6))
                error = beyond - head.shares[label] * layer
                local[name, label] = deviation.condition(
                    part, at, error, noise, cells[rows] if cells is not None else None
                )
        return replace(self, local=local, envelope=self.envelope.extended(frame))

    def predict(self, frame: Frame) -> Answers:
        """Answer n questions on every target."""
        questions = self.questions(frame)
        prior = questions.prior
        values: dict[str, NDArray[np.float64]] = {}
        crossed: dict[str, NDArray[np.bool_]] = {}
        source: dict[str, Literal["model", "prior"]] = {}
        similarity = np.zeros(frame.n)
        informed = np.zeros(frame.n)
        # The head with the most rows knows best how near the measured ones are.
        widest = max(self.heads, key=lambda name: self.heads[name].n_rows, default="")
        residuals = {}
        for name in self.heads:
            found = self.log_quantiles(questions, name, similarity=name == widest)
            residuals[name] = found
            similarity = np.maximum(similarity, found.similarity)
            informed = np.maximum(informed, found.informed)
        table = np.empty((len(TARGETS), frame.n, 5))
        for target, log in zip(TARGETS, table, strict=True):
            head = HEAD_OF_TARGET.get(target.name)
            if head is not None and head.name in residuals:
                beyond = residuals[head.name].log
                crossed[target.name] = residuals[head.name].crossed
                source[target.name] = "model"
            else:
                half = PRIOR_ONLY_HALF_WIDTH_LOG.get(target.name, DEFAULT_HALF_WIDTH_LOG)
                beyond = np.array([[-half, 0.0, half, -half, half]])
                crossed[target.name] = np.zeros(frame.n, dtype=bool)
                source[target.name] = "prior"
            np.add(prior.log[target.name][:, None], beyond, out=log)
        np.minimum(table, 700.0, out=table)
        np.exp(table, out=table)
        for target, value in zip(TARGETS, table, strict=True):
            if target.fraction:
                np.minimum(value, 1.0, out=value)
            if target.name == "power_mean_w":
                limit = frame["tdp_w"] * frame["n_gpus"] * POWER_MARGIN
                np.minimum(value, limit[:, None], out=value)
            values[target.name] = value
        support = self.envelope.support(frame, similarity, informed)
        return Answers(
            values=values, crossed=crossed, source=source, support=support, physics=prior
        )
