"""What the use cases of learning answer, and as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.frozen import dataclass
from omnipilot.learn.drift import EXCHANGED
from omnipilot.learn.gate import figures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.learn.drift import Stream
    from omnipilot.learn.gate import HeadFigures, Verdict
    from omnipilot.learn.local_fit import Answered
    from omnipilot.learn.retirement import StackGroup

__all__ = [
    "FitReport", "Health", "ModelEntry", "alarm_note", "criteria_data", "excluded_words",
    "figures_data", "stream_data", "untrue_words",
]  # fmt: skip


_EXCLUDED: Final = {
    "not_ok": "left out as failed",
    "no_label": "left out without a measured value",
    "unresolved": "left out for a model, GPU or precision that the catalogue does not know",
    "duplicate": "left out as repeats",
    "several_engines": "left out as runs of several engines",
    "physically_impossible": "left out: faster than the GPUs can be",
    "contradictory": "left out: their latencies contradict their rate or the GPUs, check the units",
    "rejected": "left out as unreadable",
}
_UNTRUE: Final = ("physically_impossible", "contradictory")


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a fit made of the site's rows.

    Args:
        version: of the candidate, "" for a dry run.
        incumbent: version that answered before; that of the base model where the site had none.
        base: version of the base model that was conditioned.
        verdict: of the gate.
        rows: usable rows of the site.
        by_source: rows by the source that they came with.
        excluded: runs of the site that no model can learn from, by reason.
        learned: rows left out because the base model has learned their source.
        retired: rows that count nothing any more.
        withheld: rows that an operator took out.
        held_back: new rows that no site would be expected to measure.
        screened: the streams of rows that were held back.
        drift: new rows against the incumbent's intervals.
        stacks: rows by runtime fingerprint and what they count.
        candidate: errors by head, out of fold.
        before: the incumbent's on the same rows.
        unchanged: the candidate is the incumbent.
        dry_run: nothing was written.
    """

    version: str
    incumbent: str
    base: str
    verdict: Verdict
    rows: int
    by_source: Mapping[str, int]
    excluded: Mapping[str, int]
    learned: int
    retired: int
    withheld: int
    held_back: int
    screened: Sequence[Stream]
    drift: Sequence[Stream]
    stacks: Sequence[StackGroup]
    candidate: Mapping[str, HeadFigures]
    before: Mapping[str, HeadFigures]
    unchanged: bool = False
    dry_run: bool = False

    @property
    def promoted(self) -> bool:
        """Whether the candidate answers now."""
        return self.verdict.promoted and not self.dry_run and not self.unchanged

    def data(self) -> dict[str, Any]:
        """The report for JSON and for the ledger."""
        return {
            "version": self.version,
            "incumbent": self.incumbent,
            "base": self.base,
            "promoted": self.promoted,
            "unchanged": self.unchanged,
            "dry_run": self.dry_run,
            "reason": self.verdict.reason,
            "criteria": criteria_data(self.verdict),
            "rows": self.rows,
            "rows_by_source": dict(self.by_source),
            "rows_excluded": dict(self.excluded),
            "rows_learned_by_base": self.learned,
            "rows_retired": self.retired,
            "rows_withheld": self.withheld,
            "rows_held_back": self.held_back,
            "held_back_for": [stream_data(s) for s in self.screened],
            "alarms": [stream_data(s) for s in self.drift if s.alarm],
            "stacks": [g._asdict() for g in self.stacks],
            "candidate": {k: asdict(v) for k, v in self.candidate.items()},
            "incumbent_figures": {k: asdict(v) for k, v in self.before.items()},
        }


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One cost model of a site.

    ``kind`` is "site" (conditioned on its rows), "base" (fitted on public rows), "shipped", or
    "older" (an earlier version of the program fitted it, and this one cannot read it).
    """

    version: str
    kind: str
    answers: bool
    base: str
    rows: int
    site_rows: int
    fitted_s: float | None
    promoted_s: float | None
    verdict: str
    mape: float | None
    coverage: float | None


@dataclass(frozen=True, slots=True)
class Health:
    """How the model that answers stands up to what was measured since.

    ``notes`` are sentences on what to do; ``streams`` the strongest evidence first.
    """

    version: str
    new_rows: int
    streams: Sequence[Stream]
    false_alarm_rate: float
    engines: Mapping[str, str]
    notes: Sequence[str]

    @property
    def alarms(self) -> list[Stream]:
        """Streams that chance does not explain."""
        return [s for s in self.streams if s.alarm]

    def data(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "version": self.version,
            "new_rows": self.new_rows,
            "alarms": [stream_data(s) for s in self.alarms],
            "streams": [stream_data(s) for s in self.streams],
            "false_alarm_rate": self.false_alarm_rate,
            "engines": dict(self.engines),
            "notes": list(self.notes),
        }


def excluded_words(excluded: Mapping[str, int]) -> list[str]:
    """What is said of runs that no model can learn from, given by reason."""
    return [f"{n:,} {_EXCLUDED[reason]}" for reason, n in excluded.items()]


def untrue_words(excluded: Mapping[str, int]) -> list[str]:
    """What is said of those among them whose numbers cannot be true."""
    return excluded_words({reason: n for reason, n in excluded.items() if reason in _UNTRUE})


def criteria_data(verdict: Verdict) -> list[dict[str, Any]]:
    """Every criterion of a verdict."""
    return [asdict(c) for c in verdict.criteria]


def stream_data(stream: Stream) -> dict[str, Any]:
    """One stream of the drift watch."""
    return {**asdict(stream), "alarm": stream.alarm}


def alarm_note(stream: Stream) -> str:
    """What an alarm means and what to do about it, in a sentence or two."""
    again = "; ".join(stream.again)
    if stream.kind == EXCHANGED:
        return (
            f"{stream.head} of {stream.level}: the {stream.rows:,} new runs fall as if the two GPU "
            "kinds had been taken for one another. Check the GPU that they state, first of: "
            f"{again}; "
            "omnipilot models withhold VERSION takes the runs of a fit out of further ones"
        )
    return (
        f"{stream.head} of {stream.level or 'all new rows'} ({stream.kind}): {stream.above:.0%} "
        f"above and {stream.below:.0%} below an interval that should hold 80 %, measured "
        f"{stream.ratio:.2f} times the prediction. Measure again: {again}"
    )


def figures_data(answers: Mapping[str, Answered]) -> dict[str, HeadFigures]:
    """Errors by head, of the heads with a labelled row."""
    found = {name: figures(a) for name, a in answers.items()}
    return {name: f for name, f in found.items() if f.n}
