"""The answer to "will it start?"."""

from __future__ import annotations

from typing import Literal

from omnipilot.domain.frozen import dataclass

Verdict = Literal["fits", "oom", "unsupported", "unknown"]


@dataclass(frozen=True, slots=True)
class FitVerdict:
    """Whether an arm starts, with the arithmetic that decided it; sizes in GiB per GPU.

    ``reason`` names the number that failed and what would make it run. A size is None where the
    decision did not need it (an unsupported pair has no memory arithmetic).
    """

    verdict: Verdict
    reason_code: str
    reason: str
    weights_gib_per_gpu: float | None = None
    activation_gib: float | None = None
    graph_gib: float | None = None
    kv_gib_per_gpu: float | None = None
    kv_cache_tokens: int | None = None
    max_model_len_possible: int | None = None
    max_concurrency: float | None = None
    assumptions: tuple[str, ...] = ()
