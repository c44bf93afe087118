"""Rows whose own numbers cannot all be true.

Two laws tie a row's latencies to what else it states, whatever the engine. Little's law: a closed
loop of N clients has N requests in flight, the rate of requests times what each takes. And no token
comes sooner than the active weights are read. Neither says which number is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from omnipilot.costmodel.heads import lead_labels
from omnipilot.costmodel.physics import throughput_ceiling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from omnipilot.costmodel.frame import Frame

__all__ = ["WRONG_UNITS", "contradictory"]

# A factor that wrong units pass (1,000 between s and ms) and no honest run reaches, halfway between
# both on a log scale. In 3,533 public rows of closed loops the requests in flight are 0.51 to 1.15
# times the clients, medians taken for means; with the assumed ones of open arrivals 0.09 to 1.84.
WRONG_UNITS: Final = 30.0
# Tokens that one reading of the weights may yield: speculation gives several. Without it the
# shortest public TPOT is 1.18 readings. Gaps between tokens (ITL) have no such floor: an engine may
# hand out several tokens at once.
_TOKENS_OF_A_READ: Final = 10.0


def contradictory(frame: Frame, labels: Mapping[str, NDArray[np.float64]]) -> NDArray[np.bool_]:
    """Rows whose rate and latencies contradict each other or the weights that are read, (n,).

    Args:
        frame: n rows.
        labels: natural logs by target (n,), NaN where a row has none.
    """
    ttft, tpot = labels["ttft_p50_s"], labels["tpot_p50_s"]
    floor = _read_log_s(frame) - np.log(_TOKENS_OF_A_READ)
    in_flight = _in_flight(frame, labels)
    known = np.isfinite(ttft) & np.isfinite(tpot)
    # Without one of the latencies the rest still bounds what is in flight from below.
    return np.asarray(
        (ttft < floor)
        | (tpot < floor)
        | (in_flight > WRONG_UNITS)
        | (known & (in_flight < 1.0 / WRONG_UNITS))
    )


def _read_log_s(frame: Frame) -> NDArray[np.float64]:
    """Log seconds of reading the active weights once at full bandwidth, (n,)."""
    return -throughput_ceiling(frame.under(prompt_tokens=1.0, output_tokens=1.0, concurrency=1.0))


def _in_flight(frame: Frame, labels: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Requests in flight by Little's law over the clients told, (n,); NaN without a closed loop."""
    closed = (
        (frame.category("mode") == "online")
        & (frame["concurrency_known"] > 0)
        & (frame["output_known"] > 0)
    )
    ttft, tpot = (np.nan_to_num(np.exp(labels[name])) for name in ("ttft_p50_s", "tpot_p50_s"))
    osl = frame["output_tokens"]
    request_per_s = np.exp(lead_labels(frame, labels)["output_tokens_per_s"]) / osl
    in_flight = request_per_s * (ttft + (osl - 1.0) * tpot)
    return np.where(closed, in_flight / frame["concurrency"], np.nan)
