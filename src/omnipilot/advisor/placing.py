"""Arms that fit with their place on the cluster, their wait and chance; the others with why not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omnipilot.decide.fallback import FALLBACK_RULE
from omnipilot.decide.placement import NoPlace
from omnipilot.domain import Abstention, InfeasibleArm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.advisor.outlook import ArmOutlook, Outlook
    from omnipilot.decide.candidate import Candidate
    from omnipilot.domain import Arm, GpuSpec

__all__ = ["Placed", "no_place", "place"]


@dataclass(frozen=True, slots=True)
class Placed:
    """Arms that fit, parted by whether the cluster can take them.

    Args:
        candidates: with wait and chance filled in.
        homeless: those that the cluster cannot take.
        arms: the outlook of each candidate.
    """

    candidates: tuple[Candidate, ...]
    homeless: tuple[InfeasibleArm, ...]
    arms: dict[Arm, ArmOutlook]


def place(outlook: Outlook, starting: Sequence[Candidate], gpus: Mapping[str, GpuSpec]) -> Placed:
    """Place the arms that fit.

    Args:
        outlook: of the request.
        starting: the arms that fit.
        gpus: by kind.
    """
    candidates: list[Candidate] = []
    homeless: list[InfeasibleArm] = []
    arms: dict[Arm, ArmOutlook] = {}
    for candidate in starting:
        arm = candidate.arm
        found = outlook.of(arm, candidate.fit, gpus[arm.gpu_kind].memory_gib)
        if isinstance(found, NoPlace):
            homeless.append(InfeasibleArm(arm, found.reason_code, found.reason))
            continue
        arms[arm] = found
        candidates.append(
            replace(
                candidate,
                wait_h=found.wait.expected_h,
                launch_success=found.chance.probability,
            )
        )
    return Placed(tuple(candidates), tuple(homeless), arms)


def no_place(homeless: Sequence[InfeasibleArm]) -> Abstention:
    """What to say where arms fit and the cluster can take none of them."""
    reasons = list(dict.fromkeys(arm.reason for arm in homeless))
    return Abstention(
        f"{len(homeless)} arms fit and the cluster can take none of them now: "
        f"{'; '.join(reasons[:4])}; --no-live ranks them all the same",
        (),
        FALLBACK_RULE,
        None,
    )
