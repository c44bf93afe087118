"""A fitted cost model: from a frame to quantiles and intervals of every target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from omnipilot.costmodel.conformal import interval
from omnipilot.costmodel.heads import HEAD_OF_TARGET
from omnipilot.costmodel.novelty import CLASS_NAMES, SEEN, novelty_of
from omnipilot.domain.targets import TARGETS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.envelope import Envelope
    from omnipilot.costmodel.frame import Frame
    from omnipilot.costmodel.heads import Head
    from omnipilot.costmodel.physics import Physics
    from omnipilot.costmodel.physics_fit import PhysicsParameters
    from omnipilot.costmodel.residual import GaussianLayer
    from omnipilot.costmodel.spread import Spread
    from omnipilot.domain.prediction import Source, SupportVerdict

# Half-width in log units of the 80 % interval of a target answered by the prior alone. No rows
# stand behind these: they say "within a factor of two" (occupancy: half) and mark low confidence.
PRIOR_ONLY_HALF_WIDTH_LOG = {"kv_cache_peak_frac": 0.5}
DEFAULT_HALF_WIDTH_LOG = float(np.log(2.0))
# Board power may pass its limit for moments; no mean above this share of TDP is believed.
POWER_MARGIN = 1.15
# A missing class is answered by the next broader one that was calibrated.
FALLBACK_ORDER = ("source", "gpu", "family", "model", SEEN)


@dataclass(frozen=True, slots=True)
class FittedHead:
    """One head: its residual layer and a spread for each calibrated novelty class."""

    head: Head
    layer: GaussianLayer
    spreads: dict[str, Spread]
    n_rows: int

    def spread(self, name: str) -> Spread:
        """Spread of a class; where it was not calibrated, of the nearest broader one."""
        if name in self.spreads:
            return self.spreads[name]
        at = FALLBACK_ORDER.index(name)
        broader = [*reversed(FALLBACK_ORDER[:at]), *FALLBACK_ORDER[at + 1 :]]
        return self.spreads[next(c for c in broader if c in self.spreads)]


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
    support: list[SupportVerdict]
    physics: Physics


@dataclass(frozen=True, slots=True)
class FittedModel:
    """Prior, heads by name, and the envelope of the rows behind them."""

    physics: PhysicsParameters
    heads: dict[str, FittedHead]
    envelope: Envelope

    def log_quantiles(
        self, frame: Frame, prior: Physics, name: str
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
        """Log residual of one head against the prior.

        Returns:
            q10, q50, q90, lower, upper of the residual (n, 5), whether the raw quantiles crossed
            (n,) and the similarity to the measured rows (n,).
        """
        head = self.heads[name]
        centre, similarity = head.layer.predict(frame, prior)
        out = np.empty((frame.n, 5))
        crossed = np.zeros(frame.n, dtype=bool)
        novelty = novelty_of(frame, self.envelope.novelty)
        for i in np.unique(novelty):
            rows = np.flatnonzero(novelty == i)
            spread = head.spread(CLASS_NAMES[i])
            part = frame.take(rows)
            terms = {k: v[rows] for k, v in prior.terms.items()}
            q, crossed[rows] = spread.quantiles(part, type(prior)(log={}, terms=terms))
            lower, upper = interval(q, spread.offsets(part))
            out[rows, :3] = q
            out[rows, 3], out[rows, 4] = lower, upper
        return out + centre[:, None], crossed, similarity

    def predict(self, frame: Frame) -> Answers:
        """Answer n questions on every target."""
        prior = self.physics.evaluate(frame)
        values: dict[str, NDArray[np.float64]] = {}
        crossed: dict[str, NDArray[np.bool_]] = {}
        source: dict[str, Literal["model", "prior"]] = {}
        similarity = np.zeros(frame.n)
        residuals = {}
        for name in self.heads:
            residuals[name] = self.log_quantiles(frame, prior, name)
            similarity = np.maximum(similarity, residuals[name][2])
        for target in TARGETS:
            head = HEAD_OF_TARGET.get(target.name)
            if head is not None and head.name in residuals:
                log = prior.log[target.name][:, None] + residuals[head.name][0]
                crossed[target.name] = residuals[head.name][1]
                source[target.name] = "model"
            else:
                half = PRIOR_ONLY_HALF_WIDTH_LOG.get(target.name, DEFAULT_HALF_WIDTH_LOG)
                steps = np.array([-half, 0.0, half, -half, half])
                log = prior.log[target.name][:, None] + steps[None, :]
                crossed[target.name] = np.zeros(frame.n, dtype=bool)
                source[target.name] = "prior"
            value = np.exp(np.minimum(log, 700.0))
            if target.fraction:
                value = np.minimum(value, 1.0)
            if target.name == "power_mean_w":
                limit = frame["tdp_w"] * frame["n_gpus"] * POWER_MARGIN
                value = np.minimum(value, limit[:, None])
            values[target.name] = value
        support = self.envelope.support(frame, similarity)
        return Answers(
            values=values, crossed=crossed, source=source, support=support, physics=prior
        )
