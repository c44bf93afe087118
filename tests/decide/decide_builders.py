"""Round-number builders shared by the tests of decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from omnipilot.decide import ArmCosts, Candidate
from omnipilot.decide.sampling import SAMPLED_TARGETS
from omnipilot.domain import (
    TARGET_BY_NAME,
    Arm,
    FitVerdict,
    GpuSpec,
    ModelArch,
    ServingRequest,
    Slo,
    SupportVerdict,
    TargetPrediction,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.domain.prediction import Confidence, Source

FloatArray = npt.NDArray[np.float64]

SURE = {
    "aggregate_tokens_per_s": 10_000.0,
    "ttft_p50_s": 0.5,
    "tpot_p50_s": 0.02,
    "cold_start_s": 360.0,
    "kv_cache_peak_frac": 0.5,
    "power_mean_w": 1000.0,
}


def predictions(
    n_arms: int = 1, spread: float = 1.0, **middles: float | list[float]
) -> dict[str, FloatArray]:
    """Arrays (n_arms, 5) with lower = q50 / spread and upper = q50 × spread."""
    tables = {}
    for name in SAMPLED_TARGETS:
        middle = np.broadcast_to(np.asarray(middles.get(name, SURE[name]), float), (n_arms,))
        low, high = middle / spread, middle * spread
        tables[name] = np.column_stack((low, middle, high, low, high))
    return tables


def costs(
    n_gpus: float | list[float] = 2.0,
    price_usd_per_gpu_h: float | list[float] = 1.5,
    wait_h: float | list[float] = 0.0,
    launch_success: float | list[float] = 1.0,
    n_arms: int = 1,
) -> ArmCosts:
    """Costs of ``n_arms`` arms from scalars or lists."""
    arrays = [
        np.broadcast_to(np.asarray(value, float), (n_arms,)).copy()
        for value in (n_gpus, price_usd_per_gpu_h, wait_h, launch_success)
    ]
    return ArmCosts(*arrays)


def fit(
    verdict: str = "fits",
    kv_cache_tokens: int | None = 1_000_000,
    max_model_len_possible: int | None = None,
    weights_gib: float | None = 10.0,
    reason: str = "fits",
) -> FitVerdict:
    """Fit verdict with the fields that decide reads."""
    return FitVerdict(
        verdict=verdict,  # type: ignore[arg-type]
        reason_code=verdict,
        reason=reason,
        weights_gib_per_gpu=weights_gib,
        kv_cache_tokens=kv_cache_tokens,
        max_model_len_possible=max_model_len_possible,
    )


def support(
    supported: bool = True,
    violations: tuple[str, ...] = (),
    confidence: Confidence = "high",
) -> SupportVerdict:
    """Support verdict; an unsupported one violates the family unless told otherwise."""
    if not supported:
        violations, confidence = violations or ("family olmo was not measured",), "low"
    return SupportVerdict(supported, violations, "seen" if supported else "family", 0.0, confidence)


def candidate(
    gpu_kind: str = "h100-80",
    tensor_parallel: int = 1,
    precision: str = "bf16",
    *,
    price: float = 2.0,
    spread: float = 1.0,
    supported: bool = True,
    verdict: FitVerdict | None = None,
    sources: Mapping[str, Source] | None = None,
    violations: tuple[str, ...] = (),
    **middles: float,
) -> Candidate:
    """Candidate whose predictions are round numbers."""
    targets = {
        name: TargetPrediction(
            q10=middle / spread,
            q50=middle,
            q90=middle * spread,
            lower=middle / spread,
            upper=middle * spread,
            unit=TARGET_BY_NAME[name].unit,
            source=(sources or {}).get(name, "model"),
        )
        for name, middle in {**SURE, **middles}.items()
    }
    return Candidate(
        arm=Arm(gpu_kind, tensor_parallel, precision),
        fit=verdict or fit(),
        targets=targets,
        support=support(supported, violations),
        price_usd_per_gpu_h=price,
        launch_success=1.0,
    )


def request(
    concurrency: int = 100,
    context_tokens: int = 4096,
    duration_h: float = 1.0,
    slo: Slo | None = None,
) -> ServingRequest:
    """Request of 3072 + 1024 tokens by default."""
    prompt = context_tokens * 3 // 4
    return ServingRequest(
        model_id="org/model",
        concurrency=concurrency,
        context_tokens=context_tokens,
        prompt_tokens=prompt,
        output_tokens=context_tokens - prompt,
        duration_h=duration_h,
        slo=slo or Slo(),
    )


def gpu(
    kind: str = "h100-80",
    capability: float = 9.0,
    *,
    vendor: str = "nvidia",
    bf16: float = 1e15,
    fp8: float = 2e15,
    fp4: float = 0.0,
    int8: float = 2e15,
    parent: str = "",
) -> GpuSpec:
    """GPU kind; only what decides the arms is realistic."""
    return GpuSpec(
        kind=kind, name=kind, vendor=vendor, architecture="test", compute_capability=capability,
        memory_gib=80.0, bandwidth_bytes_per_s=3e12, bf16_flops=bf16, fp16_flops=1e15,
        fp8_flops=fp8, fp4_flops=fp4, int8_flops=int8, tdp_w=700.0, link="nvlink",
        link_bytes_per_s=4.5e11, source="test", parent=parent,
    )  # fmt: skip


def model(native_precision: str = "bf16") -> ModelArch:
    """Model of which decide reads the id and the published precision only."""
    return ModelArch(
        model_id="org/model", base_id="org/model", family="test", architecture="Test",
        n_layers=2, hidden_size=64, intermediate_size=128, n_heads=4, n_kv_heads=2, head_dim=16,
        vocab_size=100, max_position=8192, tied_embeddings=False, total_params=1000,
        active_params=1000, embedding_params=100, native_precision=native_precision,
        n_full_attention_layers=2,
    )  # fmt: skip
