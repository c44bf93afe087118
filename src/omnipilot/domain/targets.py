"""The quantities that the cost model predicts, in one table."""

from __future__ import annotations

from typing import Final

from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One predicted quantity.

    ``column`` names the normalised CSV column of its label and ``column_scale`` converts that
    column into ``unit``. ``higher_is_better`` is None for diagnostics without a direction.
    ``fraction`` marks quantities bounded by 1.
    """

    name: str
    unit: str
    column: str
    column_scale: float
    higher_is_better: bool | None
    decision: bool
    fraction: bool
    meaning: str


TARGETS: Final[tuple[Target, ...]] = (
    Target("aggregate_tokens_per_s", "tok/s", "agg_tok_s", 1.0, True, True, False,
           "input + output tokens per second of the whole deployment"),
    Target("output_tokens_per_s", "tok/s", "out_tok_s", 1.0, True, True, False,
           "output tokens per second of the whole deployment"),
    Target("request_per_s", "req/s", "req_s", 1.0, True, True, False,
           "completed requests per second"),
    Target("ttft_p50_s", "s", "ttft_p50_ms", 1e-3, False, True, False,
           "median time to first token"),
    Target("itl_p50_s", "s", "itl_p50_ms", 1e-3, False, True, False,
           "median inter-token latency"),
    Target("tpot_p50_s", "s", "tpot_p50_ms", 1e-3, False, True, False,
           "median time per output token after the first"),
    Target("cold_start_s", "s", "cold_start_s", 1.0, False, True, False,
           "launch until the server answers its health check"),
    Target("kv_cache_peak_frac", "fraction", "kv_usage_peak", 1.0, False, True, True,
           "peak share of the KV cache in use"),
    Target("power_mean_w", "W", "power_avg_w", 1.0, False, True, False,
           "mean power of all GPUs of the deployment"),
    Target("sm_active_frac", "fraction", "sm_active", 1.0, None, False, True,
           "share of time that the SMs were active (diagnostic)"),
    Target("tensor_active_frac", "fraction", "tensor_active", 1.0, None, False, True,
           "share of time that the tensor cores were active (diagnostic)"),
)  # fmt: skip

TARGET_NAMES: Final[tuple[str, ...]] = tuple(t.name for t in TARGETS)
TARGET_BY_NAME: Final[dict[str, Target]] = {t.name: t for t in TARGETS}
QUANTILES: Final[tuple[float, float, float]] = (0.1, 0.5, 0.9)
