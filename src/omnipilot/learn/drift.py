"""A watch on how new rows fall against what was predicted of them before they were seen.

Each arm bets once against "at most a tenth lie above, at most a tenth below, the 80 % interval".
The wealth of a bettor who cannot win in expectation passes 1/alpha with probability at most alpha,
however long one watches (Ville's inequality): so the rate of false alarms is stated, not tuned.
Conformal test martingales: Vovk et al. 2005; betting on means: Waudby-Smith and Ramdas 2024.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.costmodel.conformal import NOMINAL_COVERAGE
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame
    from omnipilot.learn.local_fit import Answered

__all__ = [
    "EXCHANGED",
    "FALSE_ALARM_RATE",
    "Claim",
    "Stream",
    "arms_of",
    "evidence",
    "limit_of",
    "watch",
]

FALSE_ALARM_RATE: Final = 0.01
# Categories of a row by which the watch is split, with the words for them.
STREAMS: Final[tuple[tuple[str, str], ...]] = (
    ("", "all rows"), ("gpu_kind", "GPU kind"), ("engine_release", "engine version"),
)  # fmt: skip
EXCHANGED: Final = "GPU kinds exchanged"
_STAKES: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
_TAIL: Final = (1.0 - NOMINAL_COVERAGE) / 2.0
_WORST_ARMS: Final = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """What another test than intervals says of some new rows (its wealth can reach any limit).

    ``rows`` are positions among the new rows (n,); ``wealth`` is 1 at most in expectation where
    nothing is wrong.
    """

    head: str
    kind: str
    level: str
    rows: NDArray[np.int64]
    wealth: float


@dataclass(frozen=True, slots=True)
class Stream:
    """New rows of one head that share a level, against their predictions.

    Args:
        head: what was predicted.
        kind: "all rows", "GPU kind", "engine version", or that of a claim.
        level: which one, "" for all rows.
        rows: new rows.
        arms: arms among them, each of which bet once.
        above: share of rows above the interval; ``below`` the share below.
        ratio: median of measured over predicted.
        wealth: of the bettor; an alarm at ``limit`` or more.
        limit: streams that may alarm over the false-alarm rate, which so holds for all together.
        again: arms that lie farthest off, to be measured again first.
    """

    head: str
    kind: str
    level: str
    rows: int
    arms: int
    above: float
    below: float
    ratio: float
    wealth: float
    limit: float
    again: tuple[str, ...]

    @property
    def alarm(self) -> bool:
        """Whether chance is no explanation any more."""
        return self.wealth >= self.limit


def evidence(shares: NDArray[np.float64], tail: float = _TAIL) -> float:
    """Largest wealth of a bettor against "each share is at most ``tail`` in expectation".

    Args:
        shares: share of each arm's rows outside, in the order seen: one row of n for each side
            that is bet on, (n_sides, n), in [0, 1].
        tail: expected share where nothing has changed.

    Example:
        >>> evidence(np.zeros((1, 50))), evidence(np.ones((1, 5))) > 1000
        (1.0, True)
    """
    sides, n = shares.shape
    wealth = np.zeros(n + 1)
    for side in shares:
        for stake in _STAKES:
            wealth += np.exp(np.r_[0.0, np.cumsum(np.log1p(stake * (side - tail)))])
    return float(np.max(wealth) / (len(_STAKES) * sides))


def arms_of(frame: Frame) -> NDArray[np.str_]:
    """What bets once: model, GPU kind and count, format and engine version of each row (n,)."""
    parts = [frame.category(c) for c in ("model", "gpu_kind", "precision", "engine_release")]
    gpus = frame["n_gpus"].astype(np.int64).astype(np.str_)
    return np.asarray(
        [
            f"{model} on {n}x {gpu} {precision}, {engine}"
            for model, gpu, precision, engine, n in zip(*parts, gpus, strict=True)
        ],
        dtype=np.str_,
    )


def watch(
    frame: Frame,
    answers: Mapping[str, Answered],
    alpha: float = FALSE_ALARM_RATE,
    claim: Claim | None = None,
) -> tuple[Stream, ...]:
    """Judge new rows by the intervals that were predicted of them.

    Args:
        frame: n new rows, oldest first.
        answers: by head, predicted without them.
        alpha: chance of any alarm where nothing has changed.
        claim: a further stream, judged already.

    Returns:
        Every stream with a label, the strongest evidence first.
    """
    found = []
    arms = arms_of(frame)
    for head, answered in answers.items():
        known = np.isfinite(answered.y) & np.isfinite(answered.log[:, 1])
        for category, words in STREAMS:
            levels = frame.category(category) if category else np.zeros(frame.n, dtype="<U1")
            for level in np.unique(levels[known]):
                rows = np.flatnonzero(known & (levels == level))
                found.append((head, words, str(level) if category else "", rows))
    limit = limit_of(
        [len(set(arms[rows].tolist())) for *_, rows in found], alpha, int(claim is not None)
    )
    streams = [
        _stream(head, words, level, rows, answers[head], arms, limit)
        for head, words, level, rows in found
    ]
    if claim is not None:
        streams.append(
            replace(
                _stream(
                    claim.head,
                    claim.kind,
                    claim.level,
                    claim.rows,
                    answers[claim.head],
                    arms,
                    limit,
                ),
                wealth=claim.wealth,
            )
        )
    return tuple(sorted(streams, key=lambda s: (-s.wealth, s.head, s.kind, s.level)))


def limit_of(arms: Sequence[int], alpha: float, claims: int = 0) -> float:
    """Wealth at which a stream alarms, so that all of them together keep the rate.

    The rate is shared out among the streams that could reach the limit at all (Tarone 1990): one of
    two arms never does, whatever it shows.

    Args:
        arms: arms of each stream, each of which bets once.
        alpha: chance of any alarm where nothing has changed.
        claims: further streams, which can reach any limit.

    Example:
        >>> limit_of([20, 6, 2, 2], 0.01)
        200.0
    """
    most = [evidence(np.stack([np.ones(n), np.zeros(n)])) for n in arms]
    able = range(1, len(most) + claims + 2)
    shared = next(k for k in able if claims + sum(m >= k / alpha for m in most) <= k)
    return shared / alpha


def _stream(
    head: str,
    words: str,
    level: str,
    rows: NDArray[np.int64],
    answered: Answered,
    arms: NDArray[np.str_],
    limit: float,
) -> Stream:
    y, log = answered.y[rows], answered.log[rows]
    above, below, off = y > log[:, 4], y < log[:, 3], y - log[:, 1]
    names = list(dict.fromkeys(arms[rows].tolist()))
    of = [np.flatnonzero(arms[rows] == name) for name in names]
    wealth = evidence(np.stack([_means(above, of), _means(below, of)]))
    size = np.abs(_means(off, of))
    order = np.argsort(-size, kind="stable")[:_WORST_ARMS]
    return Stream(
        head=head, kind=words, level=level, rows=len(rows), arms=len(names),
        above=float(above.mean()), below=float(below.mean()),
        ratio=float(np.exp(np.median(off))), wealth=wealth, limit=limit,
        again=tuple(names[i] for i in order.tolist()),
    )  # fmt: skip


def _means(values: NDArray[np.generic], groups: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    return np.asarray([values[g].astype(np.float64).mean() for g in groups], dtype=np.float64)
