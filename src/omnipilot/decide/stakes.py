"""What is decided, what is uncertain about it, and what could be measured first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]
    BoolArray = npt.NDArray[np.bool_]
    IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One uncertain target of n arms, and what m probes tell of it; logs throughout.

    ``variance`` of each arm's error (n,); ``cross`` covariance with the places that can be measured
    (n, n_places); ``places`` their own (n_places, n_places); ``noise_var`` of each probe (m,),
    infinite where it does not measure the target. ``worth_usd`` (n,) is the part of the expected
    utility that is proportional to the target (negative for a cost). ``missed`` (n,) is the
    probability of missing the target's limit, None where there is none; ``loss_usd`` (n,) what that
    loses each arm, None where it loses the decision's one penalty, however many limits are missed.
    """

    name: str
    variance: FloatArray
    cross: FloatArray
    places: FloatArray
    noise_var: FloatArray
    worth_usd: FloatArray
    missed: FloatArray | None = None
    loss_usd: FloatArray | None = None

    @property
    def is_limit(self) -> bool:
        """Whether the target enters by its limit."""
        return self.missed is not None


@dataclass(frozen=True, slots=True)
class Stakes:
    """Decisions and what could be measured before them: n arms, m probes.

    ``total_usd`` expected utility of each arm over the whole horizon (n,); ``decision`` to which
    each arm belongs, from 0 and never falling (n,); ``taken`` the arm that each takes now
    (n_decisions,). One probe serves all decisions: their gains add up. ``allowed`` are the arms
    that may be taken now (n,). ``outside`` tells on which axes an arm is not supported
    (n_axes, n), ``covers`` which of these a probe would bring into the measured range
    (n_axes, m, n): an arm all of whose axes are covered may be taken afterwards.
    ``penalty_usd`` is lost where a limit is missed. Each probe measures one ``arm`` (m,), −1 where
    it is none of these, at one ``place`` (m,); ``cost_usd`` and ``node_h`` are what it takes (m,).
    """

    quantities: tuple[Quantity, ...]
    total_usd: FloatArray
    decision: IntArray
    taken: IntArray
    allowed: BoolArray
    arm: IntArray
    place: IntArray
    cost_usd: FloatArray
    node_h: FloatArray
    penalty_usd: float = 0.0
    outside: BoolArray | None = None
    covers: BoolArray | None = None

    @property
    def n_probes(self) -> int:
        """Probes that there are."""
        return len(self.place)

    @property
    def reference(self) -> IntArray:
        """For each arm the one that its decision takes now (n,)."""
        return self.taken[self.decision]

    def best_of(self, values: FloatArray) -> FloatArray:
        """Largest value within each decision: (n, …) to (n_decisions, …)."""
        starts = np.searchsorted(self.decision, np.arange(len(self.taken)))
        return np.asarray(np.maximum.reduceat(values, starts, axis=0))

    def leading(self, most: int) -> IntArray:
        """Probes of the arms that lead each decision now, in order (c,).

        Args:
            most: arms of each decision.
        """
        order = np.lexsort((-self.total_usd, self.decision))
        starts = np.searchsorted(self.decision, self.decision[order])
        leads = np.zeros(len(order), dtype=bool)
        leads[order] = np.arange(len(order)) - starts < most
        leads[self.taken] = True
        return np.flatnonzero((self.arm >= 0) & leads[self.arm])

    def with_menu(self, probes: IntArray) -> Stakes:
        """The decisions with some of the probes only."""
        return replace(
            self,
            quantities=tuple(replace(q, noise_var=q.noise_var[probes]) for q in self.quantities),
            arm=self.arm[probes],
            place=self.place[probes],
            cost_usd=self.cost_usd[probes],
            node_h=self.node_h[probes],
            covers=None if self.covers is None else self.covers[:, probes],
        )

    def among(self, arms: IntArray) -> Stakes:
        """The decisions among some of the arms only, in order, with those that are taken now.

        Which arm a probe measures is forgotten.
        """
        return replace(
            self,
            quantities=tuple(
                replace(
                    q,
                    variance=q.variance[arms],
                    cross=q.cross[arms],
                    worth_usd=q.worth_usd[arms],
                    missed=None if q.missed is None else q.missed[arms],
                    loss_usd=None if q.loss_usd is None else q.loss_usd[arms],
                )
                for q in self.quantities
            ),
            total_usd=self.total_usd[arms],
            decision=self.decision[arms],
            taken=np.searchsorted(arms, self.taken),
            arm=np.full(len(self.arm), -1, dtype=np.int64),
            allowed=self.allowed[arms],
            outside=None if self.outside is None else self.outside[:, arms],
            covers=None if self.covers is None else self.covers[:, :, arms],
        )

    def takes(self, before: Sequence[int], probes: IntArray) -> BoolArray:
        """Arms that may be taken after some probes and each of c further ones (n, c)."""
        allowed = self.allowed.copy()
        allowed[self.taken] = True
        found = np.repeat(allowed[:, None], len(probes), axis=1)
        if self.outside is not None and self.covers is not None:
            left = self.outside & ~self.covers[:, list(before)].any(axis=1)
            out = (left[:, None, :] & ~self.covers[:, probes]).any(axis=0).T
            found |= np.any(self.outside, axis=0, keepdims=True).T & ~out
        return found
