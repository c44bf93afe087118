"""Whether a candidate may replace the incumbent: every criterion with its numbers.

The paper's rule (§3.3.3, Appendix C.2): the grouped-CV error of the decision target does not
regress by more than half a percentage point on the same rows, and the rows did not become fewer;
the first fit promotes. The further criteria keep a candidate out that is better on average and
worse in what an operator relies on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE
from omnipilot.domain.frozen import dataclass
from omnipilot.learn.local_fit import DECISION_HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from omnipilot.learn.local_fit import Answered

    # Answers of the decision head on the judged rows → regret of each decision in USD per hour,
    # (n_decisions,).
    Regret = Callable[[Answered], NDArray[np.float64]]

__all__ = [
    "Comparison", "Criterion", "HeadFigures", "Verdict", "figures", "judge", "judge_cards",
]  # fmt: skip

MAPE_MARGIN: Final = 0.005
# Rows that the incumbent has learned may fit a quarter worse when others join them: they share
# what they say of an arm. Rows that contradict them cost far more.
KNOWN_ROWS_MARGIN: Final = 0.25
COVERAGE_MARGIN: Final = 0.03
WIDTH_FACTOR: Final = 1.5
# Latencies and power scatter more than rates, and MAPE ends at 100 % where a prediction is far too
# low: their errors are compared as logs. With public rows as a site's first and second batch (8 to
# 100 rows each) these two rules reject 1 of 228 honest second batches, and 181 of the same batches
# with latencies in wrong units. Of fewer than 5 rows one odd row decides.
OTHER_ERROR_FACTOR: Final = 2.0
OTHER_ERROR_MARGIN_LOG: Final = 0.1
OTHER_COVERAGE_FACTOR: Final = 0.5
FEWEST_ROWS: Final = 5
# The interval of the difference that a bootstrap over cells gives.
_RESAMPLES: Final = 2000
_INTERVAL: Final = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Criterion:
    """One test of the gate: ``candidate`` and ``incumbent`` in ``unit``, what had to hold."""

    name: str
    passed: bool
    candidate: float | None
    incumbent: float | None
    limit: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class HeadFigures:
    """Errors of one head on the judged rows; fractions."""

    n: int
    mape: float
    coverage: float
    log_width: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Promoted or not, in one sentence, with every criterion."""

    promoted: bool
    reason: str
    criteria: tuple[Criterion, ...] = ()
    first: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the gate judges: both models' answers on the same n rows, each predicted unseen.

    ``known`` marks rows that the incumbent was fitted on; ``cells`` are the groups that the
    bootstrap draws. On the ``first`` fit of a site the base model stands for the incumbent.
    """

    candidate: Mapping[str, Answered]
    incumbent: Mapping[str, Answered]
    cells: NDArray[np.str_]
    known: NDArray[np.bool_]
    rows_candidate: int
    rows_incumbent: int
    first: bool = False


def figures(answered: Answered) -> HeadFigures:
    """Errors of one head over the rows with a label and an answer."""
    ok = np.isfinite(answered.y) & np.isfinite(answered.log[:, 1])
    y, log = answered.y[ok], answered.log[ok]
    if not len(y):
        return HeadFigures(0, float("nan"), float("nan"), float("nan"))
    return HeadFigures(
        n=len(y),
        mape=float(np.mean(np.abs(np.expm1(log[:, 1] - y)))),
        coverage=float(np.mean((y >= log[:, 3]) & (y <= log[:, 4]))),
        log_width=float(np.mean(log[:, 4] - log[:, 3])),
    )


def judge(compared: Comparison, rng: np.random.Generator, regret: Regret | None = None) -> Verdict:
    """Judge a candidate.

    Args:
        compared: both models' answers.
        rng: draws the bootstrap.
        regret: what decisions on the judged rows cost; left out where None.
    """
    found: list[Criterion | None] = [_rows(compared)]
    if DECISION_HEAD in compared.candidate:
        found = [_mape(compared, rng), *found, _known(compared), _coverage(compared)]
    others = [h for h in compared.candidate if h != DECISION_HEAD and h in compared.incumbent]
    found += [rule(compared, head) for head in others for rule in (_other_known, _other_coverage)]
    criteria = [c for c in found if c is not None]
    criteria += _widths(compared)
    if regret is not None and DECISION_HEAD in compared.candidate:
        criteria += _regret(compared, rng, regret)
    return _verdict(criteria, first=compared.first)


def judge_cards(candidate: Mapping[str, Any], incumbent: Mapping[str, Any]) -> Verdict:
    """Judge one base model against another by what their cards tell of held-out cells.

    For sites without rows of their own; the paper compares versions so.
    """
    both = [card["held_out"].get(DECISION_HEAD, {}).get("seen", {}) for card in
            (candidate, incumbent)]  # fmt: skip
    ours, theirs = (f.get("mape", float("nan")) for f in both)
    covered, before = (f.get("nested_coverage", float("nan")) for f in both)
    floor = NOMINAL_COVERAGE - COVERAGE_MARGIN
    criteria = [
        Criterion(
            "mape", ours <= theirs + MAPE_MARGIN, ours, theirs,
            f"regresses by {MAPE_MARGIN * 100:g} points at most", "each on its own held-out cells",
        ),
        Criterion(
            "rows", candidate["rows"] >= incumbent["rows"],
            float(candidate["rows"]), float(incumbent["rows"]), "not fewer",
        ),
        Criterion(
            "coverage", covered >= floor or covered >= before, covered, before,
            f"at least {floor:.2f}, or the incumbent's where that is lower",
        ),
    ]  # fmt: skip
    return _verdict(criteria, first=False)


def _verdict(criteria: list[Criterion], *, first: bool) -> Verdict:
    failed = [c for c in criteria if not c.passed]
    if first:
        return Verdict(
            promoted=True, first=True, criteria=tuple(criteria),
            reason="the first fit of this site is promoted; the base model stands for the incumbent"
            + (f"; it would have failed {_names(failed)}" if failed else ""),
        )  # fmt: skip
    if failed:
        return Verdict(
            promoted=False, criteria=tuple(criteria),
            reason=f"rejected by {_names(failed)}: "
            + "; ".join(f"{c.name} {_pair(c)}, {c.limit}" for c in failed),
        )  # fmt: skip
    return Verdict(promoted=True, criteria=tuple(criteria), reason="every criterion holds")


def _names(criteria: list[Criterion]) -> str:
    return ", ".join(c.name for c in criteria)


def _pair(c: Criterion) -> str:
    shown = ["-" if v is None else f"{v:.4g}" for v in (c.candidate, c.incumbent)]
    return f"{shown[0]} against {shown[1]}"


def _rows(compared: Comparison) -> Criterion:
    return Criterion(
        "rows", compared.rows_candidate >= compared.rows_incumbent,
        float(compared.rows_candidate), float(compared.rows_incumbent), "not fewer",
    )  # fmt: skip


def _relative_errors(compared: Comparison) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """|predicted / measured − 1| of the decision head by both models, NaN without a label (n,)."""
    both = []
    for answers in (compared.candidate, compared.incumbent):
        a = answers[DECISION_HEAD]
        both.append(np.abs(np.expm1(a.log[:, 1] - a.y)))
    unusable = ~np.isfinite(both[0]) | ~np.isfinite(both[1])
    return np.where(unusable, np.nan, both[0]), np.where(unusable, np.nan, both[1])


def _mape(compared: Comparison, rng: np.random.Generator) -> Criterion | None:
    ours, theirs = _relative_errors(compared)
    ok = np.isfinite(ours)
    if not ok.any():
        return None
    low, high = _paired(ours[ok] - theirs[ok], compared.cells[ok], rng)
    noise = low <= 0.0 <= high
    return Criterion(
        "mape", bool(np.mean(ours[ok]) - np.mean(theirs[ok]) <= MAPE_MARGIN),
        float(np.mean(ours[ok])), float(np.mean(theirs[ok])),
        f"regresses by {MAPE_MARGIN * 100:g} points at most",
        f"difference between {low * 100:+.2f} and {high * 100:+.2f} points in 95 % of resamples "
        f"over cells: {'may be noise' if noise else 'no noise'}",
    )  # fmt: skip


def _known(compared: Comparison) -> Criterion | None:
    ours, theirs = _relative_errors(compared)
    ok = np.isfinite(ours) & compared.known
    if not ok.any():
        return None
    a, b = float(np.mean(ours[ok])), float(np.mean(theirs[ok]))
    return Criterion(
        "mape of known rows", a <= b + max(MAPE_MARGIN, KNOWN_ROWS_MARGIN * b), a, b,
        f"regresses by {KNOWN_ROWS_MARGIN:.0%} or {MAPE_MARGIN * 100:g} points at most",
        f"{int(ok.sum())} rows that the incumbent was fitted on",
    )  # fmt: skip


def _coverage(compared: Comparison) -> Criterion | None:
    a = figures(compared.candidate[DECISION_HEAD])
    b = figures(compared.incumbent[DECISION_HEAD])
    if not a.n:
        return None
    floor = NOMINAL_COVERAGE - COVERAGE_MARGIN
    return Criterion(
        "coverage", a.coverage >= floor or a.coverage >= b.coverage, a.coverage, b.coverage,
        f"at least {floor:.2f}, or the incumbent's where that is lower",
    )  # fmt: skip


def _other_known(compared: Comparison, head: str) -> Criterion | None:
    ours, theirs = (
        np.abs(a[head].log[:, 1] - a[head].y) for a in (compared.candidate, compared.incumbent)
    )
    ok = np.isfinite(ours) & np.isfinite(theirs) & compared.known
    if np.count_nonzero(ok) < FEWEST_ROWS:
        return None
    a, b = float(np.mean(ours[ok])), float(np.mean(theirs[ok]))
    return Criterion(
        f"known rows of {head}", a <= max(OTHER_ERROR_FACTOR * b, b + OTHER_ERROR_MARGIN_LOG), a, b,
        f"error (log) at most {OTHER_ERROR_FACTOR:g} times, or {OTHER_ERROR_MARGIN_LOG:g} more",
        f"{int(ok.sum())} rows that the incumbent was fitted on",
    )  # fmt: skip


def _other_coverage(compared: Comparison, head: str) -> Criterion | None:
    a, b = figures(compared.candidate[head]), figures(compared.incumbent[head])
    if min(a.n, b.n) < FEWEST_ROWS:
        return None
    return Criterion(
        f"coverage of {head}", a.coverage >= OTHER_COVERAGE_FACTOR * b.coverage,
        a.coverage, b.coverage, f"at least {OTHER_COVERAGE_FACTOR:g} times the incumbent's",
    )  # fmt: skip


def _widths(compared: Comparison) -> list[Criterion]:
    out = []
    for name, answered in compared.candidate.items():
        if name not in compared.incumbent:
            continue
        a, b = figures(answered), figures(compared.incumbent[name])
        if a.n and b.n:
            out.append(
                Criterion(
                    f"width of {name}",
                    a.log_width <= WIDTH_FACTOR * b.log_width,
                    a.log_width,
                    b.log_width,
                    f"at most {WIDTH_FACTOR:g} times as wide",
                )
            )
    return out


def _regret(compared: Comparison, rng: np.random.Generator, regret: Regret) -> list[Criterion]:
    ours = regret(compared.candidate[DECISION_HEAD])
    theirs = regret(compared.incumbent[DECISION_HEAD])
    if not len(ours):
        return []
    cells = np.arange(len(ours)).astype(np.str_)
    low, high = _paired(ours - theirs, cells, rng)
    return [
        Criterion(
            "decision regret",
            low <= 0.0,
            float(ours.mean()),
            float(theirs.mean()),
            "not higher beyond noise, USD per hour",
            f"{len(ours)} decisions; difference between {low:+.3f} and {high:+.3f} in 95 % of "
            "resamples",
        )
    ]


def _paired(
    difference: NDArray[np.float64], cells: NDArray[np.str_], rng: np.random.Generator
) -> tuple[float, float]:
    """Interval of the mean difference of paired rows, by resampling whole cells."""
    _, group = np.unique(cells, return_inverse=True)
    group = group.ravel()
    total = np.bincount(group, difference)
    count = np.bincount(group).astype(np.float64)
    drawn = rng.integers(len(total), size=(_RESAMPLES, len(total)))
    means = total[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    low, high = np.percentile(means, _INTERVAL)
    return float(low), float(high)
