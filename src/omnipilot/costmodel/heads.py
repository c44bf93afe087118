"""The learned heads: which targets share one residual.

Aggregate, output and request rates are one measurement in three units (a closed loop fixes their
ratios), so they share a head; the other targets have one each. Targets without a head are answered
by the prior alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame

MIN_LABELLED_ROWS = 15  # PAPER, Targets: a target is fitted only with this many labels


@dataclass(frozen=True, slots=True)
class Head:
    """One learned residual: ``lead`` is the target it is fitted on, ``targets`` all it answers.

    ``withheld`` names features that its spread must not see.
    """

    name: str
    lead: str
    targets: tuple[str, ...]
    withheld: tuple[str, ...] = ()


HEADS: tuple[Head, ...] = (
    Head(
        "throughput",
        "output_tokens_per_s",
        ("aggregate_tokens_per_s", "output_tokens_per_s", "request_per_s"),
    ),
    Head("ttft", "ttft_p50_s", ("ttft_p50_s",)),
    Head("itl", "itl_p50_s", ("itl_p50_s",)),
    Head("tpot", "tpot_p50_s", ("tpot_p50_s",)),
    # No row with a power label states its prompt length: the columns made of the assumed lengths
    # only name the task there, and would mislead where a request states its own.
    Head(
        "power",
        "power_mean_w",
        ("power_mean_w",),
        withheld=("prompt_tokens", "context", "prompt_known"),
    ),
)
HEAD_OF_TARGET = {target: head for head in HEADS for target in head.targets}


def lead_labels(
    frame: Frame, labels: Mapping[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """Log labels of each head's lead target, (n,), NaN where a row has none.

    A row with only an aggregate or a request rate gives its output rate through the lengths.
    """
    out = {head.lead: np.array(labels[head.lead]) for head in HEADS}
    isl, osl = frame["prompt_tokens"], frame["output_tokens"]
    output = out["output_tokens_per_s"]
    for target, shift in (
        ("aggregate_tokens_per_s", np.log(osl / (isl + osl))),
        ("request_per_s", np.log(osl)),
    ):
        derived = np.where(frame["output_known"] > 0, labels[target] + shift, np.nan)
        output = np.where(np.isfinite(output), output, derived)
    out["output_tokens_per_s"] = output
    return out
