"""How much a row still counts: less with age, and less where it was measured on other software."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnipilot.domain.frozen import dataclass
from omnipilot.store import freshness_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.domain.rows import InferenceRun

__all__ = ["Retirement", "StackGroup", "weigh"]

_NUMBERS: Final = re.compile(r"\d+")
_UNSTATED: Final = "not stated"


class StackGroup(NamedTuple):
    """Rows of one runtime fingerprint and what they count; ``weight`` is the mean of a row."""

    engine: str
    engine_version: str
    cuda: str
    driver: str
    rows: int
    weight: float


@dataclass(frozen=True, slots=True)
class Retirement:
    """What the policy does to n rows.

    ``weight`` is in [0, 1], (n,); a row of weight 0 is retired. ``groups`` has one entry a
    fingerprint, most rows first.
    """

    weight: NDArray[np.float64]
    groups: tuple[StackGroup, ...]

    @property
    def retired(self) -> int:
        """Rows that take no part any more."""
        return int(np.count_nonzero(self.weight <= 0.0))


def version_key(text: str, parts: int | None = None) -> tuple[int, ...]:
    """Numbers of a version, the first ``parts`` of them; () where none is stated.

    Example:
        >>> version_key("0.10.2rc1", 2), version_key("nightly-dev")
        ((0, 10), ())
    """
    head = text.lstrip("vV").split("+", maxsplit=1)[0]
    if not head[:1].isdigit():
        return ()
    return tuple(int(n) for n in _NUMBERS.findall(head))[:parts]


def weigh(
    runs: Sequence[InferenceRun],
    kinds: Sequence[str],
    at_s: NDArray[np.float64],
    policy: Mapping[str, float],
    window_s: float,
) -> Retirement:
    """Weigh rows by the software and the age of their measurement.

    The software that counts in full is the newest that the rows themselves state: of each engine
    its newest minor version, of each GPU kind its newest CUDA and driver. A row that does not
    state one is not held to be older. Ages are counted from the newest row, so that the same rows
    weigh the same on any day.

    Args:
        runs: n rows.
        kinds: GPU kind of each (n,).
        at_s: when each was taken in, Unix seconds (n,).
        policy: weight of a row of another ``engine_minor``, ``cuda`` or ``driver``; 1 keeps it
            whole, 0 retires it.
        window_s: age at which a row counts half.
    """
    n = len(runs)
    stated = {
        "engine_minor": [version_key(run.stack.engine_version, 2) for run in runs],
        "cuda": [version_key(run.stack.cuda, 2) for run in runs],
        "driver": [version_key(run.stack.driver, 1) for run in runs],
    }
    owners = {"engine_minor": [run.engine for run in runs], "cuda": kinds, "driver": kinds}
    weight = freshness_weights(at_s.max(initial=0.0) - at_s, window_s)
    for field, versions in stated.items():
        newest: dict[str, tuple[int, ...]] = {}
        for owner, version in zip(owners[field], versions, strict=True):
            newest[owner] = max(newest.get(owner, ()), version)
        old = np.asarray(
            [bool(v) and v < newest[o] for o, v in zip(owners[field], versions, strict=True)],
            dtype=bool,
        ).reshape(n)
        weight = np.where(old, weight * policy.get(field, 1.0), weight)
    return Retirement(weight, _groups(runs, weight))


def _groups(runs: Sequence[InferenceRun], weight: NDArray[np.float64]) -> tuple[StackGroup, ...]:
    rows: Counter[tuple[str, str, str, str]] = Counter()
    total: Counter[tuple[str, str, str, str]] = Counter()
    for run, w in zip(runs, weight.tolist(), strict=True):
        key = (
            run.engine,
            run.stack.engine_version or _UNSTATED,
            run.stack.cuda or _UNSTATED,
            run.stack.driver or _UNSTATED,
        )
        rows[key] += 1
        total[key] += w
    return tuple(
        StackGroup(*key, n, total[key] / n)
        for key, n in sorted(rows.items(), key=lambda item: (-item[1], item[0]))
    )
