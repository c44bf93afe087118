"""What the tables and figures of a report are made of, computed once and only when asked for."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.domain.errors import OmniPilotError
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.decision_cells import AGGREGATE, OUTPUT
from omnipilot.evaluate.decision_report import document, gather
from omnipilot.evaluate.holdout_cache import held_out, is_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from omnipilot.evaluate.decision_report import Evidence
    from omnipilot.evaluate.holdout import HeldOut, Holdout
    from omnipilot.learn.dataset import Dataset

REQUEST_RATE: Final = "request_per_s"
THROUGHPUTS: Final = (AGGREGATE, OUTPUT, REQUEST_RATE)
# Up to so many rows every fit is quick enough for the usual effort.
SMALL_ROWS: Final = 2000


class NotComputedError(OmniPilotError):
    """A part of a report that this run may not compute; the text tells how to have it."""


@dataclass(frozen=True, slots=True)
class ArmFact:
    """One arm of the example advice; ``terms`` are signed USD of the utility's terms."""

    label: str
    gpu_kind: str
    precision: str
    usd_per_h: float
    tokens_per_s: float
    total_usd: float
    supported: bool
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FanPoint:
    """Predicted aggregate tokens per second at one load."""

    concurrency: float
    lower: float
    q10: float
    q50: float
    q90: float
    upper: float


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """What a report shows of a site besides its rows.

    ``launches`` maps a configuration to (successes, attempts); ``request`` says the example's
    request in words, ``command`` how to ask it again.
    """

    freshness_s: Mapping[str, float] = field(default_factory=dict)
    launches: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    request: str = ""
    command: str = ""
    arms: Sequence[ArmFact] = ()
    fan_arm: str = ""
    fan: Sequence[FanPoint] = ()


@dataclass(frozen=True)
class Material:
    """Rows, what may be computed of them, and the site.

    Args:
        dataset: the rows.
        question: filter and split of the decisions.
        prices: USD per GPU and hour by kind.
        value_per_token_usd: of the figures at one value.
        home: where answers are kept; None keeps none.
        effort: "kept" computes nothing that takes minutes, "usual" what decisions need (and
            everything where there are few rows), "all" everything.
        site: facts of the site.
        words: the options that name the rows, as typed.
        say: told in words what is being done.
    """

    dataset: Dataset
    question: Holdout
    prices: Mapping[str, float]
    value_per_token_usd: float
    home: Path | None
    effort: str
    site: SiteFacts
    words: str
    say: Callable[[str], None] = lambda _: None

    def _allowed(self, *, costly: bool) -> bool:
        small = self.dataset.data.frame.n <= SMALL_ROWS
        return self.effort == "all" or (self.effort == "usual" and (small or not costly))

    def held(
        self,
        target: str,
        split: str = "cell",
        dataset: Dataset | None = None,
        *,
        calibrated_on: str = "",
        costly: bool = True,
    ) -> HeldOut:
        """Out-of-fold answers, kept or computed.

        Raises:
            NotComputedError: they are not kept and this run may not compute them.
            UsageError: no row has the label, or there is only one group.
        """
        rows = dataset or self.dataset
        question = replace(self.question, target=target, split=split, calibrated_on=calibrated_on)
        if not self._allowed(costly=costly) and not is_kept(rows, question, self.home):
            raise NotComputedError("not computed: report with --effort all")
        return held_out(rows, question, self.home, self.say)

    @cached_property
    def throughput(self) -> str:
        """The throughput that was predicted for the decisions."""
        return self.evidence.target

    @cached_property
    def cells(self) -> HeldOut:
        """Answers on throughput with the workload cells held out."""
        return self.held(self.throughput, costly=False)

    @cached_property
    def evidence(self) -> Evidence:
        """Decisions with their out-of-fold answers."""
        if self.effort == "kept":
            for target in (AGGREGATE, OUTPUT):
                question = replace(self.question, target=target)
                try:
                    kept = is_kept(self.dataset, question, self.home)
                except OmniPilotError:
                    kept = False
                if kept:
                    break
            else:
                raise NotComputedError("not computed: report with --effort usual")
        return gather(
            self.dataset, self.question, self.prices, self.home,
            limits=self._allowed(costly=True), trees=self.effort != "kept", progress=self.say,
        )  # fmt: skip

    @cached_property
    def decisions(self) -> dict[str, Any]:
        """The document of ``omnipilot evaluate decision``."""
        return document(self.evidence, self.question, self.value_per_token_usd)

    def as_target(self, held: HeldOut, answered: str, target: str) -> HeldOut | None:
        """Answers on one throughput as answers on another; None where no row has its label."""
        labels = self.dataset.data.labels[target][held.index]
        labelled = np.isfinite(labels)
        if not labelled.any():
            return None
        frame = self.dataset.data.frame.take(held.index)
        shift = (_per_output(frame, target) - _per_output(frame, answered))[labelled]
        return replace(
            held, index=held.index[labelled], y=labels[labelled],
            log=held.log[labelled] + shift[:, None], prior=held.prior[labelled] + shift,
            confidence=held.confidence[labelled],
        )  # fmt: skip


def _per_output(frame: Any, target: str) -> NDArray[np.float64]:  # noqa: ANN401 - a Frame
    """Log of a rate over that of output tokens, by the lengths of the row (n,)."""
    prompt, output = frame["prompt_tokens"], frame["output_tokens"]
    logs = {AGGREGATE: np.log1p(prompt / output), OUTPUT: np.zeros(frame.n),
            REQUEST_RATE: -np.log(output)}  # fmt: skip
    return np.asarray(logs[target])
