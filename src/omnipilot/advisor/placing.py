"""Arms that fit with their place on the cluster, their wait and chance; the others with why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.decide.economics import ArmCosts
from omnipilot.decide.fallback import FALLBACK_RULE
from omnipilot.decide.placement import NoPlace
from omnipilot.domain import Abstention, InfeasibleArm
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.advisor.arm_sheet import ArmSheet
    from omnipilot.advisor.outlook import ArmOutlook, Outlook
    from omnipilot.domain import Arm

__all__ = ["Placed", "costs_of", "no_place", "place"]


@dataclass(frozen=True, slots=True)
class Placed:
    """Arms that fit, parted by whether the cluster can take them.

    Args:
        rows: places of those that it can take among the arms that fit.
        homeless: those that it cannot take.
        arms: the outlook of each that it can take, in the order of ``rows``.
        costs: what each of them costs, in the order of ``rows``.
    """

    rows: tuple[int, ...]
    homeless: tuple[InfeasibleArm, ...]
    arms: dict[Arm, ArmOutlook]
    costs: ArmCosts


def place(outlook: Outlook, sheet: ArmSheet) -> Placed:
    """Place the arms that fit; kept as long as nothing moves that their places rest on.

    Args:
        outlook: of the request.
        sheet: the arms.
    """
    kept = outlook.now.placed
    found = kept.get(sheet)
    grounds = outlook.grounds
    if found is None or found[0] != grounds:
        found = kept[sheet] = (grounds, _placed(outlook, sheet))
    return found[1]


def _placed(outlook: Outlook, sheet: ArmSheet) -> Placed:
    rows: list[int] = []
    homeless: list[InfeasibleArm] = []
    arms: dict[Arm, ArmOutlook] = {}
    for i, (arm, fit) in enumerate(sheet.starting):
        found = outlook.of(arm, fit, sheet.memory_gib[arm.gpu_kind])
        if isinstance(found, NoPlace):
            homeless.append(InfeasibleArm(arm, found.reason_code, found.reason))
            continue
        rows.append(i)
        arms[arm] = found
    waits = [(found.wait.expected_h, found.chance.probability) for found in arms.values()]
    return Placed(tuple(rows), tuple(homeless), arms, costs_of(sheet, rows, waits))


def costs_of(
    sheet: ArmSheet, rows: Sequence[int], waits: Sequence[tuple[float, float]]
) -> ArmCosts:
    """What some of the arms of a sheet cost.

    Args:
        sheet: the arms.
        rows: places of those meant among the arms that fit.
        waits: of each the hours in the queue and the chance to come up.
    """
    arms = [sheet.starting[i][0] for i in rows]
    prices = sheet.prices_usd_per_gpu_h
    return ArmCosts(
        n_gpus=np.array([float(arm.tensor_parallel) for arm in arms]),
        price_usd_per_gpu_h=np.array([prices[arm.gpu_kind] for arm in arms]),
        wait_h=np.array([wait_h for wait_h, _ in waits]),
        launch_success=np.array([chance for _, chance in waits]),
    )


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
