"""What the cost model answers."""

from __future__ import annotations

from typing import Literal, NamedTuple

from omnipilot.domain.frozen import dataclass

Source = Literal["model", "prior"]
Confidence = Literal["high", "medium", "low"]


class TargetPrediction(NamedTuple):
    """Quantiles and the conformal interval of one target, in the target's unit.

    ``source`` is "prior" where no labelled row exists and the physics prior answers alone. A tuple,
    because an answer makes a hundred of them and a frozen dataclass takes several times as long.
    """

    q10: float
    q50: float
    q90: float
    lower: float
    upper: float
    unit: str
    source: Source
    crossed: bool = False


@dataclass(frozen=True, slots=True)
class SupportVerdict:
    """Whether a question lies inside what was measured.

    ``violations`` name the axes that are out, in words; ``novelty`` is one of "seen", "model",
    "family", "gpu", "source"; ``distance`` is the log-space distance to the nearest measured row.
    """

    supported: bool
    violations: tuple[str, ...]
    novelty: str
    distance: float
    confidence: Confidence
    reasons: tuple[str, ...] = ()
