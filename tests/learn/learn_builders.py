"""A site's made-up runs: what the shipped base model predicts, off by a known factor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from omnipilot.catalog import Catalog
from omnipilot.catalog.scenario import ScenarioBuilder
from omnipilot.costmodel.bundle import base_model_path, load_bundle
from omnipilot.costmodel.frame import build_frame
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.rows import InferenceRun
from omnipilot.learn.local_rows import LocalSet, StoredRun, local_set

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.costmodel.fitted import FittedModel

CATALOG = Catalog.load()
MODELS = ("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct")
GPUS = (("h100-80", 80.0), ("a100-80", 80.0), ("l40s-48", 48.0))
LOADS = (4.0, 16.0, 64.0, 128.0)
LENGTHS = ((512.0, 128.0), (1024.0, 256.0))
FASTER = 1.2
POLICY = {"engine_minor": 1.0, "cuda": 1.0, "driver": 1.0}


@cache
def base() -> FittedModel:
    """The shipped base model."""
    return load_bundle(base_model_path())[0]


def runs(factor: float = FASTER, noise_sd: float = 0.03, seed: int = 0) -> list[InferenceRun]:
    """48 runs: 2 models x 3 kinds x 4 loads x 2 lengths, ``factor`` times the prediction."""
    plain = [
        InferenceRun(
            source="ours", model=model, engine="vllm", gpu=gpu, gpu_memory_gb=memory, n_gpus=1,
            precision="bf16", mode="online", status="ok", labels={}, prompt_tokens=prompt,
            output_tokens=output, concurrency=load,
            stack=StackFingerprint(engine_version="0.11.2"),
        )
        for model in MODELS
        for gpu, memory in GPUS
        for load in LOADS
        for prompt, output in LENGTHS
    ]  # fmt: skip
    builder = ScenarioBuilder(CATALOG)
    scenarios = [builder.scenario(replace(run, source="")) for run in plain]
    predicted = base().predict(build_frame(scenarios)).values
    rng = np.random.default_rng(seed)
    noise = factor * np.exp(noise_sd * rng.standard_normal(len(plain)))
    return [
        replace(
            run,
            labels={
                "output_tokens_per_s": float(predicted["output_tokens_per_s"][i, 1] * noise[i]),
                "tpot_p50_s": float(predicted["tpot_p50_s"][i, 1] / noise[i]),
            },
        )
        for i, run in enumerate(plain)
    ]


def stored(items: Sequence[InferenceRun], at_s: float = 1e9) -> list[StoredRun]:
    """Runs as a store gives them."""
    return [StoredRun(run, f"{abs(hash(repr(run))):064x}"[-64:], at_s) for run in items]


def local(
    items: Sequence[InferenceRun], policy: Mapping[str, float] = POLICY, **rest: object
) -> LocalSet:
    """Runs as local rows."""
    options = {"learned": frozenset(), "window_s": 3.15e7, **rest}
    return local_set(stored(items), CATALOG, policy=policy, **options)  # type: ignore[arg-type]
