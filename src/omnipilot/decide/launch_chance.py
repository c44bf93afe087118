"""Whether a launch comes up: the cluster's rate, the site's own launches, the fit, the node.

Each source shrinks toward the one before it: a configuration's launches on the cluster toward the
pooled rate, the site's own launches of the arm toward that. How sure the fit's arithmetic is and
how sound the node is multiply the result, since each of them alone can end a launch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from omnipilot.decide.priors import NO_LAUNCHES, LaunchPrior
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.decide.priors import LaunchCounts
    from omnipilot.domain import Arm, FitVerdict

__all__ = ["FIT_ERROR_FRAC", "LaunchChance", "LaunchOdds", "fit_confidence"]

# Error of the memory arithmetic as a share of a GPU's memory: KV-cache sizes that vLLM printed
# differ by 2.8 % in the median (docs/launch-cases.md).
FIT_ERROR_FRAC: Final = 0.03
_OWN_STRENGTH: Final = 20.0  # the cluster's rate is worth so many launches of the site's own

Configuration = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LaunchChance:
    """Probability that one launch comes up, and the sentence that says what it rests on."""

    probability: float
    note: str


@dataclass(frozen=True, slots=True)
class LaunchOdds:
    """Launches on record.

    Args:
        prior: the rate that configurations share.
        cluster: launches on the cluster by GPU kind of the catalogue and number; those of a name
            that could be several kinds stand under each.
        own: the site's own launches by arm (kind, number, precision); likewise.
    """

    prior: LaunchPrior
    cluster: Mapping[Configuration, LaunchCounts]
    own: Mapping[tuple[str, int, str], LaunchCounts]

    def chance(
        self, arm: Arm, fit: FitVerdict, memory_gib: float, *, node_factor: float = 1.0
    ) -> LaunchChance:
        """Chance of one arm.

        Args:
            arm: what is launched.
            fit: its verdict.
            memory_gib: memory of one GPU.
            node_factor: what the node's health leaves of the chance.
        """
        counts = self.cluster.get((arm.gpu_kind, arm.tensor_parallel), NO_LAUNCHES)
        shared = self.prior.posterior(counts)
        own = self.own.get((arm.gpu_kind, arm.tensor_parallel, arm.precision), NO_LAUNCHES)
        mine = LaunchPrior(shared.mean, _OWN_STRENGTH).posterior(own)
        sure = fit_confidence(fit, memory_gib)
        words = [f"{shared.mean:.0%} of launches come up ({shared.note})"]
        if own.attempts:
            words.append(f"{own.successes:g} of {own.attempts:g} of this arm on this site")
        if sure < 0.995:
            words.append(f"the fit is {sure:.0%} sure")
        if node_factor < 1.0:
            words.append(f"the node's health leaves {node_factor:.0%}")
        return LaunchChance(mine.mean * sure * node_factor, "; ".join(words))


def fit_confidence(fit: FitVerdict, memory_gib: float) -> float:
    """Chance that the memory arithmetic is right where it says that a launch fits.

    What is left beyond one request of full length, over the arithmetic's own error (normal).

    Args:
        fit: a verdict of "fits"; 1 for any without its numbers.
        memory_gib: memory of one GPU.

    Example:
        >>> from omnipilot.domain import FitVerdict
        >>> tight = FitVerdict("fits", "fits", "", kv_gib_per_gpu=4.0, max_concurrency=1.2)
        >>> round(fit_confidence(tight, 80.0), 2), round(fit_confidence(tight, 24.0), 2)
        (0.61, 0.82)
    """
    kv, requests = fit.kv_gib_per_gpu, fit.max_concurrency
    if kv is None or not requests or memory_gib <= 0:
        return 1.0
    spare_gib = kv * (1.0 - 1.0 / max(requests, 1.0))
    return 0.5 * (1.0 + math.erf(spare_gib / (FIT_ERROR_FRAC * memory_gib * math.sqrt(2.0))))
