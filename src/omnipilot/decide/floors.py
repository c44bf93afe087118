"""A cost model that does not claim to know more than it can: least variances for probing.

Variances learned from other groups may say that an arm has no error of its own; a probe of a rival
would then be worth nothing, and the gate would stop on a bias that all arms seem to share. The
floors keep what a model, a GPU kind, a GPU count, a format and an arm may each be off by.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.costmodel.deviation import DEVIATION_TERMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.costmodel.deviation import Deviation
    from omnipilot.costmodel.fitted import FittedModel

# Least standard deviations of the log error by term of the deviation (COSTMODEL §6).
VARIANCE_FLOORS: Final[Mapping[str, float]] = MappingProxyType(
    {"model": 0.10, "GPU kind": 0.10, "arm": 0.10, "GPUs of model": 0.07, "format": 0.07}
)


def with_floors(model: FittedModel) -> FittedModel:
    """The model with no term's standard deviation below its floor; its answers stay as they are.

    Rows that the model was conditioned on before keep what they told.

    Args:
        model: a fitted model.
    """
    heads = {
        name: replace(head, deviations={c: _floored(d) for c, d in head.deviations.items()})
        for name, head in model.heads.items()
    }
    return replace(model, heads=heads)


def _floored(deviation: Deviation) -> Deviation:
    floors = np.array([VARIANCE_FLOORS.get(term.name, 0.0) for term in DEVIATION_TERMS])
    return replace(deviation, sd=np.maximum(deviation.sd, floors))
