"""The rule that answers where the cost model does not know: smallest fit with head-room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.decide.arms import PRECISION_ORDER
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.domain import Arm, FitVerdict

FALLBACK_RULE: Final = "smallest-fit-with-headroom"
KV_HEADROOM_FRAC: Final = 0.2


@dataclass(frozen=True, slots=True)
class FitOption:
    """An arm with its fit verdict and the price of one of its GPUs."""

    arm: Arm
    fit: FitVerdict
    price_usd_per_gpu_h: float


def demanded_kv_tokens(concurrency: int, context_tokens: int, max_num_seqs: int = 0) -> int:
    """KV-cache tokens of all requests that run at once; ``max_num_seqs`` 0 for no engine limit.

    >>> demanded_kv_tokens(200, 4096, max_num_seqs=128)
    524288
    """
    running = min(concurrency, max_num_seqs) if max_num_seqs > 0 else concurrency
    return running * context_tokens


def precision_rank(precision: str) -> int:
    """Position in ``PRECISION_ORDER``; unknown formats last."""
    known = precision in PRECISION_ORDER
    return PRECISION_ORDER.index(precision) if known else len(PRECISION_ORDER)


def smallest_fit_with_headroom(options: Sequence[FitOption], demand_tokens: int) -> Arm | None:
    """The rule's arm: fewest GPUs, then cheapest, whose KV cache holds the demand and 20 % more.

    Where nothing has that head-room the engine queues: the fitting arm with most KV-cache tokens
    is taken. Equal prices are settled by ``PRECISION_ORDER``, then by name, so the order of
    ``options`` does not matter.

    Args:
        options: arms with fit verdicts; those whose verdict is not "fits" are passed over.
        demand_tokens: KV-cache tokens asked for, see :func:`demanded_kv_tokens`.

    Returns:
        The arm, or None where nothing fits.
    """
    fitting = [option for option in options if option.fit.verdict == "fits"]
    if not fitting:
        return None
    needed = (1.0 + KV_HEADROOM_FRAC) * demand_tokens
    roomy = [option for option in fitting if (option.fit.kv_cache_tokens or 0) >= needed]
    if roomy:
        return min(roomy, key=_size_then_price).arm
    return min(fitting, key=lambda o: (-(o.fit.kv_cache_tokens or 0), *_size_then_price(o))).arm


def _size_then_price(option: FitOption) -> tuple[int, float, int, str]:
    arm = option.arm
    return (
        arm.tensor_parallel,
        arm.tensor_parallel * option.price_usd_per_gpu_h,
        precision_rank(arm.precision),
        arm.label,
    )
