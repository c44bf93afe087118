"""A group of rows that a cost model never saw: its beliefs before and after some are revealed.

The same arithmetic as :meth:`FittedModel.condition`, on the joint errors of the group's rows, so
that a thousand choices of probes cost no more than a thousand small linear systems.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.costmodel import new_kind
from omnipilot.costmodel.conformal import interval
from omnipilot.costmodel.deviation import LEFT_EDGES
from omnipilot.costmodel.fitted import UNTOUCHED_SHARE
from omnipilot.costmodel.heads import HEAD_OF_TARGET, lead_labels
from omnipilot.costmodel.novelty import CLASS_NAMES, novelty_of
from omnipilot.decide.sampling import Z90
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.targets import TARGET_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.costmodel.frame import Frame
    from omnipilot.evaluate.holdout import Holdout
    from omnipilot.learn.dataset import Dataset

    FloatArray = NDArray[np.float64]

# Rows of a group among which the most telling one is looked for; of more some are drawn. The
# largest group of one model or GPU kind in a public source has 1,125.
MOST_CANDIDATES = 1200


def most_telling(
    covariance: FloatArray,
    noise_sd: FloatArray,
    rows: NDArray[np.int64],
    candidates: NDArray[np.int64],
) -> int:
    """The candidate whose row would take most off the expected errors of some rows.

    An expected error is proportional to its standard deviation: the row that takes most off the sum
    of the variances would tell of the few that are known least.

    Args:
        covariance: of the errors of all rows (n, n).
        noise_sd: noise of a single row (n,).
        rows: whose errors count.
        candidates: among all rows.
    """
    variance = np.maximum(np.diag(covariance), 0.0)
    cross = covariance[np.ix_(rows, candidates)]
    gone = cross**2 / (variance[candidates] + noise_sd[candidates] ** 2)
    left = np.sqrt(np.maximum(variance[rows][:, None] - gone, 0.0))
    return int(candidates[np.argmin(left.sum(axis=0))])


@dataclass(frozen=True, slots=True)
class HiddenGroup:
    """Rows of decisions in which a hidden model or GPU kind takes part.

    ``rows`` of the dataset (n,); ``hidden`` those that the model never saw and that may be probed
    (n,); ``log`` log q10, q50, q90, lower, upper before any probe (n, 5); ``y`` log labels (n,);
    ``covariance`` of their errors (n, n), ``noise_sd`` of a single row (n,). ``request_per_s`` and
    ``cold_start_s`` are the physics prior's (n,): what a benchmark of the row would take.
    ``offsets`` are the conformal offsets of narrowed bands (n, n_bins). ``model`` was asked about
    the ``target`` of the rows ``frame``.
    """

    name: str
    rows: NDArray[np.int64]
    hidden: NDArray[np.bool_]
    log: FloatArray
    y: FloatArray
    covariance: FloatArray
    noise_sd: FloatArray
    request_per_s: FloatArray
    cold_start_s: FloatArray
    offsets: FloatArray
    model: FittedModel
    target: str
    frame: Frame

    @classmethod
    def ask(
        cls,
        name: str,
        dataset: Dataset,
        question: Holdout,
        model: FittedModel,
        rows: NDArray[np.int64],
        hidden: NDArray[np.bool_],
    ) -> HiddenGroup:
        """Ask a fold's model about the rows of a group.

        Rows that were not held out are known: their measured values stand for them.

        Args:
            name: of the group.
            dataset: all rows.
            question: its target is asked.
            model: never saw the hidden rows.
            rows: of the dataset (n,).
            hidden: which of them were held out (n,).
        """
        frame = dataset.data.frame.take(rows)
        asked = model.questions(frame)
        prior = asked.prior
        head = question.head.name
        log = prior.log[question.target][:, None] + model.log_quantiles(asked, head).log
        joint = model.joint(frame, prior, head)
        y = dataset.data.labels[question.target][rows]
        width = Z90 * joint.noise_sd[:, None] * np.array([-1.0, 0.0, 1.0, -1.0, 1.0])
        log = np.where(hidden[:, None], log, y[:, None] + width)
        covariance = joint.covariance * np.outer(hidden, hidden)
        novelty = novelty_of(frame, model.envelope.novelty)
        fitted = model.heads[head]
        by_class = [fitted.deviations[fitted.calibrated(c)].offsets for c in CLASS_NAMES]
        rate, cold = (np.exp(prior.log[t]) for t in ("request_per_s", "cold_start_s"))
        return cls(
            name, rows, hidden, log, y, covariance, joint.noise_sd, np.asarray(rate),
            np.asarray(cold), np.array([by_class[i] for i in novelty]), model, question.target,
            frame,
        )  # fmt: skip

    def take(self, at: NDArray[np.int64]) -> HiddenGroup:
        """Some of the rows, by position."""
        return replace(
            self,
            rows=self.rows[at],
            hidden=self.hidden[at],
            log=self.log[at],
            y=self.y[at],
            covariance=self.covariance[np.ix_(at, at)],
            noise_sd=self.noise_sd[at],
            request_per_s=self.request_per_s[at],
            cold_start_s=self.cold_start_s[at],
            offsets=self.offsets[at],
            frame=self.frame.take(at),
        )

    def after(self, revealed: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Answers (n, 5) and covariance (n, n) once the rows at these positions are known."""
        if not len(revealed):
            return self.log, self.covariance
        at = np.asarray(revealed, dtype=np.int64)
        adapted = self._adapted(at)
        gain, left = self._gain(at)
        mean = gain @ (self.y[at] - adapted[at, 1])
        before, noise = np.diag(self.covariance), self.noise_sd**2
        share = np.clip(np.diag(left) / np.where(before > 0, before, 1.0), 0.0, 1.0)
        share[before <= 0] = 1.0
        narrow = np.sqrt((share * before + noise) / (before + noise))[:, None]
        middle = adapted[:, 1:2]
        log = middle + (adapted - middle) * narrow
        touched = np.flatnonzero(share < UNTOUCHED_SHARE)
        offset = self.offsets[touched, np.searchsorted(LEFT_EDGES, share[touched])]
        log[touched, 3], log[touched, 4] = interval(log[touched, :3], offset)
        return log + mean[:, None], left

    def left(self, revealed: Sequence[int]) -> FloatArray:
        """Covariance (n, n) once the rows at these positions are known, whatever they say."""
        if not len(revealed):
            return self.covariance
        return self._gain(np.asarray(revealed, dtype=np.int64))[1]

    def _gain(self, at: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """How rows at these positions move all (n, len(at)), and the covariance left (n, n)."""
        cross = self.covariance[:, at]
        seen = self.covariance[np.ix_(at, at)] + np.diag(self.noise_sd[at] ** 2)
        gain = np.asarray(np.linalg.solve(seen, cross.T).T, dtype=np.float64)
        return gain, self.covariance - gain @ cross.T

    def _adapted(self, at: NDArray[np.int64]) -> FloatArray:
        """Answers (n, 5) with the parameters that the rows at ``at`` tell of a new GPU kind."""
        seen = self.frame.take(at)
        labels = {t: np.full(len(at), np.nan) for t in TARGET_NAMES} | {self.target: self.y[at]}
        told = new_kind.adapted(self.model, seen, lead_labels(seen, labels), np.ones(len(at)))
        if told is self.model:
            return self.log
        moved = np.zeros(len(self.rows))
        rows = np.flatnonzero(self.hidden)
        frame = self.frame.take(rows)
        after, before = (
            m.centre(frame, m.physics.evaluate(frame), HEAD_OF_TARGET[self.target].name)
            for m in (told, self.model)
        )
        moved[rows] = after - before
        return self.log + moved[:, None]

    def most_telling(self, covariance: FloatArray, candidates: NDArray[np.int64]) -> int:
        """The candidate whose row would take most off the expected errors of the hidden rows."""
        return most_telling(covariance, self.noise_sd, np.flatnonzero(self.hidden), candidates)

    def ape(self, log: FloatArray, revealed: Sequence[int]) -> FloatArray:
        """Absolute percentage error of each hidden row (n,); NaN for revealed and known ones."""
        error = np.abs(np.expm1(log[:, 1] - self.y))
        error[~self.hidden] = np.nan
        error[list(revealed)] = np.nan
        return np.asarray(error)
