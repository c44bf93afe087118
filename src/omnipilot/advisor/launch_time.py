"""The time limit of a launch: as long as it may take, and no longer than its partition allows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.domain import BadInputError

if TYPE_CHECKING:
    from omnipilot.advisor.launch_place import LaunchPlace
    from omnipilot.domain import RankedArm
    from omnipilot.launch.spec import BenchLoad

__all__ = ["LaunchTime", "time_limit_min"]

# Time beyond the predictions: staging, modules, and the clean-up at the end.
_MARGIN_MIN: Final = 10
_ROUND_MIN: Final = 5


class LaunchTime(NamedTuple):
    """How long a launch takes: probably, and at the predictions' upper end; seconds."""

    likely_s: float
    upper_s: float

    @classmethod
    def of(cls, ranked: RankedArm, bench: BenchLoad | None, serving_s: float) -> LaunchTime:
        """Cold start, benchmark where there is one, and ``serving_s`` of service."""
        cold, rate = ranked.targets["cold_start_s"], ranked.targets["request_per_s"]
        likely_s, upper_s = cold.q50 + serving_s, max(cold.q50, cold.upper) + serving_s
        if bench is not None:
            likely_s += bench.num_prompts / max(rate.q50, 1e-6)
            upper_s += bench.num_prompts / max(min(rate.q50, rate.lower), 1e-6)
        return cls(likely_s, upper_s)

    @property
    def limit_min(self) -> int:
        """The limit to ask for, in minutes."""
        return _ROUND_MIN * math.ceil((self.upper_s / 60 + _MARGIN_MIN) / _ROUND_MIN)


def time_limit_min(time: LaunchTime, said_min: int, place: LaunchPlace, notes: list[str]) -> int:
    """The time limit of a launch, in minutes.

    Args:
        time: how long it takes.
        said_min: the operator's own limit, which is kept; 0 takes the prediction's.
        place: where it goes.
        notes: told what the limit is, and whether it is beyond the partition's.

    Raises:
        BadInputError: the partition probably ends the launch before its time.
    """
    most_min = place.max_time_s // 60
    where = f"partition {place.partition}" if place.partition else "Slurm's default partition"
    if said_min:
        if most_min and said_min > most_min:
            notes.append(
                f"{where} allows {most_min} min: Slurm refuses a job of {said_min} min there, or "
                "never starts it (--time)"
            )
        return said_min
    limit_min = time.limit_min
    if not most_min or limit_min <= most_min:
        notes.append(f"time limit {limit_min} min from the prediction's upper end")
        return limit_min
    likely_min = math.ceil(time.likely_s / 60)
    if likely_min > most_min:
        raise BadInputError(
            f"{where} allows {most_min} min and this launch takes about {likely_min}: name a "
            "longer --partition, fewer --hours or fewer --num-prompts"
        )
    notes.append(
        f"time limit {most_min} min, all that {where} allows; the prediction's upper end is "
        f"{limit_min} min"
    )
    return most_min
