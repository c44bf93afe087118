"""A small made-up training set and the cost model fitted on it, shared by the cost model's tests.

Labels come from the prior with planted parameters, times a smooth factor and noise, so that what
a fit should find is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from omnipilot.catalog.catalog import Catalog
from omnipilot.costmodel import fit
from omnipilot.costmodel.frame import Frame, build_frame
from omnipilot.costmodel.heads import HEADS
from omnipilot.costmodel.hyperparameters import Hyperparameters, Scales, tune
from omnipilot.costmodel.kernel import KERNEL_TERMS
from omnipilot.costmodel.physics import PARAMETER_NAMES, START_LOG, Physics, evaluate
from omnipilot.costmodel.physics_fit import PhysicsParameters
from omnipilot.domain.model import ModelArch
from omnipilot.domain.scenario import Scenario
from omnipilot.domain.targets import TARGET_NAMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnipilot.costmodel.fitted import FittedModel

CATALOG = Catalog.load()
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
MODELS = (
    LLAMA_8B,
    "Qwen/Qwen2.5-7B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen3-30B-A3B",
)
GPUS = ("a100-80", "h100-80", "l40s-48")
LOADS = (1.0, 4.0, 16.0, 64.0, 256.0)
LENGTHS = ((512.0, 128.0), (2048.0, 512.0))
NOISE_SD = 0.04


def scenario(
    model: str | ModelArch = LLAMA_8B,
    gpu: str = "h100-80",
    precision: str = "bf16",
    n_gpus: int = 1,
    prompt_tokens: float = 512.0,
    output_tokens: float = 128.0,
    concurrency: float = 16.0,
    **rest: Any,
) -> Scenario:
    """A question by names; ``rest`` goes to the scenario as it is."""
    fields = {"source": "alpha", "engine_version": "0.8.5", **rest}
    return Scenario(
        model=model if isinstance(model, ModelArch) else CATALOG.model(model),
        gpu=CATALOG.gpu(gpu), precision=CATALOG.precision(precision), n_gpus=n_gpus,
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, concurrency=concurrency,
        **fields,
    )  # fmt: skip


def dense_model(**changes: Any) -> ModelArch:
    """A dense model of round numbers: 1e9 parameters, 10 layers of width 1000."""
    base = ModelArch(
        model_id="round/dense", base_id="round/dense", family="round", architecture="Round",
        n_layers=10, hidden_size=1000, intermediate_size=4000, n_heads=10, n_kv_heads=5,
        head_dim=100, vocab_size=10_000, max_position=100_000, tied_embeddings=True,
        total_params=1_000_000_000, active_params=1_000_000_000, embedding_params=0,
        native_precision="bf16", n_full_attention_layers=10,
    )  # fmt: skip
    return replace(base, **changes)


@cache
def scenarios() -> tuple[Scenario, ...]:
    """300 questions: 2 sources x 5 models x 3 GPU kinds x 5 loads x 2 lengths."""
    return tuple(
        scenario(
            model, gpu, "fp8" if source == "beta" and gpu != "a100-80" else "bf16",
            4 if "70B" in model else 1 if source == "alpha" else 2,
            prompt, output, load, source=source,
            engine_version="0.8.5" if source == "alpha" else "0.15.0",
        )
        for source in ("alpha", "beta")
        for model in MODELS
        for gpu in GPUS
        for load in LOADS
        for prompt, output in LENGTHS
    )  # fmt: skip


def planted() -> PhysicsParameters:
    """Parameters that the labels are made with: base values moved, one source and kind off."""
    base = START_LOG.copy()
    base[PARAMETER_NAMES.index("weight_bandwidth_eff")] = np.log(0.8)
    base[PARAMETER_NAMES.index("idle_power_frac")] = np.log(0.2)
    beta, l40s = np.zeros_like(base), np.zeros_like(base)
    beta[PARAMETER_NAMES.index("step_overhead_s")] = 0.6
    l40s[PARAMETER_NAMES.index("decode_compute_eff")] = -0.3
    return PhysicsParameters(base, {"source": {"beta": beta}, "gpu_kind": {"l40s-48": l40s}})


@dataclass(frozen=True, slots=True)
class Made:
    """Rows with planted parameters: ``truth`` is the noiseless log label of every target."""

    data: fit.TrainingSet
    truth: dict[str, NDArray[np.float64]]


@cache
def made() -> Made:
    """300 rows: source alpha labelled with output rate and power, beta with aggregate rate only.

    A smooth factor of the load and one of each model are not in the prior: the residual layer's
    part. Ten rows have a TTFT, too few for a head.
    """
    frame = build_frame(scenarios())
    prior = planted().evaluate(frame)
    model = frame.codes["model"]
    bend = 0.10 * np.sin(np.log(frame["concurrency"])) + 0.08 * np.cos(3.0 * model)
    truth = {name: prior.log[name] + bend for name in TARGET_NAMES}
    rng = np.random.default_rng(7)
    nothing = np.full(frame.n, np.nan)
    labels = dict.fromkeys(TARGET_NAMES, nothing)
    noisy = {name: truth[name] + NOISE_SD * rng.standard_normal(frame.n) for name in TARGET_NAMES}
    alpha = frame.category("source") == "alpha"
    labels["output_tokens_per_s"] = np.where(alpha, noisy["output_tokens_per_s"], np.nan)
    labels["aggregate_tokens_per_s"] = np.where(alpha, np.nan, noisy["aggregate_tokens_per_s"])
    labels["power_mean_w"] = np.where(alpha, noisy["power_mean_w"] - bend, np.nan)
    labels["ttft_p50_s"] = np.where(np.arange(frame.n) < 10, noisy["ttft_p50_s"], np.nan)
    cells = np.asarray(
        [f"{s.model.base_id}|{s.concurrency}|{s.prompt_tokens}" for s in scenarios()]
    )
    return Made(fit.TrainingSet(frame, labels, cells, np.ones(frame.n)), truth)


@cache
def fitted() -> FittedModel:
    """The cost model of the made-up rows, with small layers and two calibrated classes."""
    return small_fit(made().data)


def small_fit(data: fit.TrainingSet) -> FittedModel:
    """The cost model of some rows, with small layers and two calibrated classes."""
    pytest.importorskip("catboost", reason="training needs catboost (extra 'fit')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "N_GLOBAL", 60)
        patch.setattr(fit, "N_SOURCE", 60)
        patch.setattr(fit, "HELD_OUT_N_SOURCE", 60)
        patch.setattr(fit, "tune", partial(tune, rows=120, subsets=1, iterations=6))
        heads = [h for h in HEADS if h.name in {"throughput", "power", "ttft"}]
        return fit.fit_cost_model(data, heads=heads, classes=("seen", "model"))


def prior_of(frame: Frame) -> Physics:
    """The prior at its starting parameters."""
    return evaluate(frame, np.tile(START_LOG, (frame.n, 1)))


def hyper(noise_sd: float = 0.08) -> Hyperparameters:
    """Hyper-parameters at their starting values."""
    sd = np.asarray([t.sd for t in KERNEL_TERMS])
    return Hyperparameters(Scales(sd, (1.0, 1.0)), noise_sd=noise_sd, group_noise_sd={})
