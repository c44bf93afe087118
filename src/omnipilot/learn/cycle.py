"""One turn of learning: screen the new rows, condition on them, judge the candidate.

The same turn serves a site's refit and the study that replays a source month by month.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.domain.frozen import dataclass
from omnipilot.learn.contradiction import WRONG_UNITS
from omnipilot.learn.drift import watch
from omnipilot.learn.exchanged import exchanged
from omnipilot.learn.gate import Comparison, Verdict, judge
from omnipilot.learn.local_fit import DECISION_HEAD, Recipe, answer, cell_folds
from omnipilot.learn.recalibrate import UNSCALED, Scale, adapted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.fit import TrainingSet
    from omnipilot.costmodel.fitted import FittedModel
    from omnipilot.learn.drift import Stream
    from omnipilot.learn.exchanged import Relabel
    from omnipilot.learn.gate import Regret
    from omnipilot.learn.local_fit import Answered

__all__ = ["Incumbent", "Turn", "hold_back", "turn"]

_MOST_SCREENS: Final = 20
# Sites differ: rows are implausible where chance does not explain them and their median is off by
# half and more. Latencies and power differ by more than rates (public sources by up to 8 times,
# against what the base model expects of a site): only wrong units are implausible there.
IMPLAUSIBLE_LOG: Final = math.log(1.5)


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The model that answers now.

    Args:
        recipe: how it was made, its weights over the judged rows.
        seen: rows that its intervals have been held against already (n,).
        rows: rows that it was fitted on, those of its base and retired ones included.
        first: nothing was ever promoted; the base model answers.
    """

    recipe: Recipe
    seen: NDArray[np.bool_]
    rows: int
    first: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn found.

    Args:
        recipe: of the candidate.
        held: new rows that were held back as implausible (n,).
        screened: the streams that they were held back for.
        drift: new rows against the incumbent's intervals, the strongest evidence first.
        verdict: of the gate.
        candidate: out-of-fold answers by head, on the ``judged`` rows (n_judged,).
        incumbent: the same of the incumbent.
        judged: rows that took part in the judgement (n,).
    """

    recipe: Recipe
    held: NDArray[np.bool_]
    screened: tuple[Stream, ...]
    drift: tuple[Stream, ...]
    verdict: Verdict
    candidate: Mapping[str, Answered]
    incumbent: Mapping[str, Answered]
    judged: NDArray[np.bool_]

    @property
    def alarms(self) -> tuple[Stream, ...]:
        """Streams of new rows that chance does not explain."""
        return tuple(s for s in self.drift if s.alarm)


def hold_back(
    base: FittedModel, data: TrainingSet, new: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], tuple[Stream, ...]]:
    """Find new rows that no site would be expected to measure.

    Their throughput, then their other labels, are held against the base model's intervals for a
    site that it has never seen, which are as wide as sites differ. Rows of a GPU kind or an engine
    version that fall out of them beyond chance, and far, are held back; all new rows are where the
    rest still falls out.

    Args:
        base: model without local rows.
        data: n rows.
        new: rows to be screened (n,).

    Returns:
        Which rows are held back (n,), and the streams that tell why.
    """
    held = np.zeros(len(new), dtype=bool)
    answers = answer(base, data) if new.any() else {}
    rate = {name: a for name, a in answers.items() if name == DECISION_HEAD}
    others = {name: a for name, a in answers.items() if name != DECISION_HEAD}
    why = _hold(held, rate, data, new, IMPLAUSIBLE_LOG)
    why += _hold(held, others, data, new, math.log(WRONG_UNITS))
    return held, tuple(why)


def _hold(
    held: NDArray[np.bool_],
    answers: Mapping[str, Answered],
    data: TrainingSet,
    new: NDArray[np.bool_],
    least_log: float,
) -> list[Stream]:
    """Mark rows as ``held`` whose answers are off beyond chance and by ``least_log``; tell why."""
    why: list[Stream] = []
    for _ in range(_MOST_SCREENS):
        rows = np.flatnonzero(new & ~held)
        if not len(rows):
            break
        frame = data.frame.take(rows)
        alarms = [
            s
            for s in watch(frame, {k: a.take(rows) for k, a in answers.items()})
            if s.alarm and abs(math.log(s.ratio)) >= least_log
        ]
        if not alarms:
            break
        # The level whose rows fall out most: others may alarm for rows that they share with it.
        named = [s for s in alarms if s.level] or alarms
        worst = max(named, key=lambda s: (s.above + s.below, s.wealth))
        matching = np.ones(len(rows), dtype=bool)
        if worst.level:
            category = "gpu_kind" if worst.kind == "GPU kind" else "engine_release"
            matching = frame.category(category) == worst.level
        why.append(worst)
        held[rows[matching & np.isfinite(answers[worst.head].y[rows])]] = True
    return why


def turn(
    data: TrainingSet,
    incumbent: Incumbent,
    base: FittedModel,
    weight: NDArray[np.float64],
    *,
    rng: np.random.Generator,
    regret: Callable[[NDArray[np.bool_]], Regret] | None = None,
    relabel: Relabel | None = None,
    accept: bool = False,
    widths_only: bool = False,
    base_rows: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Turn:
    """Make a candidate of all rows and judge it against the incumbent.

    Args:
        data: n ≥ 1 local rows.
        incumbent: the model that answers now.
        base: model that the candidate is conditioned from.
        weight: what each row counts in the candidate (n,); 0 for retired rows.
        rng: draws the bootstrap.
        regret: of the judged rows (n,), what decisions on them cost; see the gate.
        relabel: what rows would be on other GPU kinds; without it none are held to be exchanged.
        accept: learn from implausible rows too.
        widths_only: leave the incumbent's centres alone and adapt its interval widths.
        base_rows: rows that the candidate's base model was fitted on.
        progress: told in words what is being done.
    """
    new = ~incumbent.seen & (weight > 0.0)
    held = np.zeros(len(new), dtype=bool)
    screened: tuple[Stream, ...] = ()
    if not accept:
        progress(f"holding {int(new.sum()):,} new rows against what any site may measure")
        held, screened = hold_back(base, data, new)
    fresh = np.flatnonzero(new & ~held)
    drift: tuple[Stream, ...] = ()
    scales: dict[str, Scale] = dict(incumbent.recipe.scales)
    if len(fresh):
        progress("holding the new rows against what was predicted of them")
        part = data.take(fresh)
        model = incumbent.recipe.model(data)
        predicted = answer(model, part)
        claim = exchanged(model, data, fresh, relabel) if relabel is not None else None
        drift = watch(part.frame, predicted, claim=claim)
        if not incumbent.recipe.is_base:  # the base model's own intervals are sized already
            for name, a in predicted.items():
                rows = np.flatnonzero(a.usable)
                before = scales.get(name, UNSCALED)
                scales[name] = adapted(before, a.inside[rows], a.informed[rows])
    recipe = Recipe(base, np.where(held, 0.0, weight), scales)
    if widths_only:
        recipe = replace(incumbent.recipe, scales=scales)
    judged = (weight > 0.0) & ~held
    at = np.flatnonzero(judged)
    part = data.take(at)
    fold = cell_folds(part.cells) if len(at) else np.zeros(0, dtype=np.int64)

    def unseen(made: Recipe, who: str) -> tuple[dict[str, Answered], dict[str, Scale]]:
        if not len(at):
            return {}, {}
        own = made.take(at)
        return own.cross_validate(part, fold, lambda text: progress(f"{who}, {text}"))

    candidate, widths = unseen(recipe, "judging the candidate")
    theirs, _ = unseen(incumbent.recipe, "judging the incumbent")
    if not widths_only:
        recipe = replace(recipe, widths=widths)
    verdict = judge(
        Comparison(
            candidate=candidate,
            incumbent=theirs,
            cells=part.cells,
            known=incumbent.recipe.weight[at] > 0.0,
            rows_candidate=base_rows + int(np.count_nonzero(~held)),
            rows_incumbent=incumbent.rows,
            first=incumbent.first,
        ),
        rng,
        regret(judged) if regret is not None and len(at) else None,
    )
    return Turn(recipe, held, screened, drift, verdict, candidate, theirs, judged)
