"""What one caller may cost the service."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Limits", "RateLimiter"]

_MOST_CALLERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes, times and rates beyond which a request is refused.

    Args:
        head_s: longest wait for a request's head, from the first byte of the connection on.
        body_s: longest wait for its body.
        answer_s: longest work on an answer.
        body_bytes: largest body of a question.
        rows_bytes: largest body of rows.
        rows: most rows of one prediction.
        head_bytes: largest head.
        in_flight: most requests at a time, those that wait included.
        connections: most connections.
        per_s: requests that one caller may make a second; 0 sets no limit.
        burst: requests that it may make at once.
    """

    head_s: float = 10.0
    body_s: float = 10.0
    answer_s: float = 30.0
    body_bytes: int = 64 * 2**10
    rows_bytes: int = 8 * 2**20
    rows: int = 10_000
    head_bytes: int = 16 * 2**10
    in_flight: int = 64
    connections: int = 512
    per_s: float = 500.0
    burst: int = 1000


class RateLimiter:
    """A bucket of requests a caller, filled with time.

    Args:
        limits: rate and burst.
        clock: seconds of any origin that only go up.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """Take one request of a caller; 0 where it may go ahead, else seconds to wait first."""
        if self._limits.per_s <= 0:
            return 0.0
        now_s = self._clock()
        left, seen_s = self._buckets.pop(caller, (float(self._limits.burst), now_s))
        left = min(left + (now_s - seen_s) * self._limits.per_s, float(self._limits.burst))
        allowed = left >= 1.0
        self._buckets[caller] = (left - 1.0 if allowed else left, now_s)
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self._limits.per_s
