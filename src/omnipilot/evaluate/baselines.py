"""Policies that a decision is compared with (PAPER, last paragraph); a further one is one entry.

Every policy picks among the measured arms of a cell. A rule that names an arm which was not
measured takes the measured arm nearest to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.decide.fallback import precision_rank
from omnipilot.domain.frozen import dataclass
from omnipilot.evaluate.decision_cells import arm_key
from omnipilot.evaluate.decisions import (
    best_of,
    certain_utility_usd_per_h,
    choose,
    measured_utility_usd_per_h,
    with_limits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from omnipilot.evaluate.decision_cells import ArmKey, DecisionCell
    from omnipilot.evaluate.decisions import OperatingPoint

    FloatArray = NDArray[np.float64]

SIXTEEN_BIT: Final = ("bf16", "fp16")
# Device memory bandwidth in bytes/s of the kinds that the rules name (vendor data sheets): the
# nearest measured kind is the one of the nearest bandwidth.
_A100_BANDWIDTH: Final = 1.555e12
_H100_BANDWIDTH: Final = 3.35e12
# PAPER, C: up to these parameters one A100, one H100, else four H100.
_ONE_A100_PARAMS: Final = 9.5e9
_ONE_H100_PARAMS: Final = 35.5e9
_FP8_BITS: Final = 8.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy may look at besides its cell.

    ``cells`` are the measured decisions of the filter, those with a choice; ``likeness`` (n_cells,
    5), told apart by ``scale`` (5,), and ``groups`` (n_cells,) are theirs, ``utility`` what each
    of their arms earned; ``gbm`` maps a cell's name to the tokens per second (n_arms,) that the
    GBM without physics expects.
    """

    point: OperatingPoint
    cells: tuple[DecisionCell, ...]
    likeness: FloatArray
    scale: FloatArray
    groups: NDArray[np.str_]
    utility: tuple[FloatArray, ...]
    gbm: Mapping[str, Mapping[ArmKey, float]]

    @classmethod
    def of(
        cls,
        cells: Sequence[DecisionCell],
        point: OperatingPoint,
        gbm: Mapping[str, Mapping[ArmKey, float]],
    ) -> Setting:
        """Prepare what policies look at."""
        usable = with_limits(cells) if point.has_limits else list(cells)
        table = np.stack([c.likeness for c in usable])
        spread = np.std(table, axis=0)
        return cls(
            point=point,
            cells=tuple(usable),
            likeness=table,
            scale=np.where(spread > 0, spread, 1.0),
            groups=np.asarray([c.group for c in usable]),
            utility=tuple(measured_utility_usd_per_h(c, point) for c in usable),
            gbm=gbm,
        )

    def nearest(self, cell: DecisionCell) -> list[int]:
        """Other cells that are not held out together with this one, most similar first."""
        distance = np.sum(((self.likeness - cell.likeness) / self.scale) ** 2, axis=1)
        order = np.argsort(distance, kind="stable")
        return [int(i) for i in order[self.groups[order] != cell.group]]


@dataclass(frozen=True, slots=True)
class Policy:
    """One baseline: ``pick`` gives the index of the arm that it takes in a cell."""

    name: str
    meaning: str
    pick: Callable[[DecisionCell, Setting], int]
    needs_gbm: bool = False


def _least(cell: DecisionCell, *keys: FloatArray) -> int:
    """Index of the arm with the least first key, ties by the next ones, then by price and name."""

    def key(i: int) -> tuple[float | str, ...]:
        price = cell.arms[i].tensor_parallel * float(cell.price_usd_per_gpu_h[i])
        return (*(round(float(k[i]), 9) for k in keys), price, cell.arms[i].label)

    return min(range(len(cell.arms)), key=key)


def _size_threshold(cell: DecisionCell, _: Setting) -> int:
    small, middle = cell.params <= _ONE_A100_PARAMS, cell.params <= _ONE_H100_PARAMS
    bandwidth = _A100_BANDWIDTH if small else _H100_BANDWIDTH
    count = 1.0 if middle else 4.0
    hardware = np.abs(np.log(cell.bandwidth / bandwidth)) + np.abs(np.log(cell.n_gpus / count))
    return _least(cell, hardware, -cell.bits)


def _h100_fp8(cell: DecisionCell, _: Setting) -> int:
    kind = np.abs(np.log(cell.bandwidth / _H100_BANDWIDTH))
    return _least(cell, kind, np.abs(np.log(cell.bits / _FP8_BITS)), cell.n_gpus)


def _throughput_max(cell: DecisionCell, _: Setting) -> int:
    return _least(cell, -cell.n_gpus * cell.bandwidth / 1e9, cell.bits)


def _cheapest_fit(cell: DecisionCell, _: Setting) -> int:
    ranks = np.array([float(precision_rank(arm.precision)) for arm in cell.arms])
    return _least(cell, cell.n_gpus * cell.price_usd_per_gpu_h, ranks)


def _always_16_bit(cell: DecisionCell, setting: Setting) -> int:
    allowed = [i for i, arm in enumerate(cell.arms) if arm.precision in SIXTEEN_BIT]
    if not allowed:
        return choose(cell, setting.point)
    return allowed[choose(cell.take(allowed), setting.point)]


def _of_points(cell: DecisionCell, tokens_per_s: FloatArray, setting: Setting) -> int:
    latency = {name: values[:, 1] for name, values in cell.latency_predicted.items()}
    return best_of(cell, certain_utility_usd_per_h(cell, tokens_per_s, setting.point, latency))


def _of_trees(cell: DecisionCell, setting: Setting) -> FloatArray:
    told = setting.gbm[cell.name]
    return np.array([told[arm_key(arm)] for arm in cell.arms])


def _nearest_neighbour(cell: DecisionCell, setting: Setting) -> int:
    """Take what was best in the nearest cell that is not held out with this one.

    The nearest cell that measured all arms of this one, or as many of them as any did: a cell that
    measured few of them tells little about the choice.
    """
    here = {arm_key(arm): i for i, arm in enumerate(cell.arms)}
    most: list[tuple[float, int]] = []
    for at in setting.nearest(cell):
        utility = setting.utility[at]
        there = [(float(utility[i]), arm_key(a)) for i, a in enumerate(setting.cells[at].arms)]
        common = [(earned, here[key]) for earned, key in there if key in here]
        if len(common) > len(most):
            most = common
        if len(most) == len(cell.arms):
            break
    return max(most)[1] if most else _cheapest_fit(cell, setting)


POLICIES: Final[tuple[Policy, ...]] = (
    Policy("size-threshold", "one A100 up to 9B, one H100 up to 35B, else four H100; 16 bit",
           _size_threshold),
    Policy("h100-fp8", "the fewest H100 in fp8 that serve it", _h100_fp8),
    Policy("throughput-max", "most memory bandwidth in all, then fewest bits", _throughput_max),
    Policy("cheapest-fit", "the lowest price per hour that serves it", _cheapest_fit),
    Policy("nearest-neighbour", "what was best in the most similar other cell",
           _nearest_neighbour),
    Policy("always-16-bit", "our choice among bf16 and fp16 arms only", _always_16_bit),
    Policy("physics-alone", "our utility on the physics prior without the learned residual",
           lambda cell, setting: _of_points(cell, cell.prior, setting)),
    Policy("gbm-without-physics", "our utility on boosted trees that know no physics",
           lambda cell, setting: _of_points(cell, _of_trees(cell, setting), setting),
           needs_gbm=True),
)  # fmt: skip

# Not a rival but a variant of ours: what the intervals of the predictions are worth.
WITHOUT_INTERVALS: Final = Policy(
    "without-intervals",
    "our utility on the predicted medians, as if they were certain",
    lambda cell, setting: _of_points(cell, cell.predicted[:, 1], setting),
)
