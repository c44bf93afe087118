"""Measured rows as cost-model scenarios: names resolved through the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnipilot.domain.scenario import Scenario

if TYPE_CHECKING:
    from omnipilot.catalog.catalog import Catalog
    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch
    from omnipilot.domain.precision import PrecisionSpec
    from omnipilot.domain.rows import InferenceRun


def _kv_dtype(engine: str, precision: PrecisionSpec) -> str:
    """TensorRT-LLM's FP8 and NVFP4 checkpoints carry an FP8 cache (its quantization guide)."""
    low = engine == "trtllm" and precision.name in {"fp8", "fp8-block", "nvfp4"}
    return "fp8" if low else "auto"


def stated_precision(text: str) -> str:
    """The weight format that a row states, "" where it leaves it to the model."""
    return text.split("/unknown", maxsplit=1)[0].strip().lower()


class ScenarioBuilder:
    """Turns rows into scenarios, resolving each distinct name once.

    A row's GPU is found by its name and memory size, its precision by its name; where the row
    leaves the precision out it is the model's native one, on parts without bf16 fp16.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._models: dict[str, ModelArch] = {}
        self._gpus: dict[tuple[str, float], GpuSpec] = {}
        self._precisions: dict[tuple[str, str, str], PrecisionSpec] = {}

    def scenario(self, run: InferenceRun) -> Scenario:
        """Resolve one row.

        Raises:
            UnknownNameError: the model, GPU or precision has no catalogue entry.
            AmbiguousNameError: the GPU spelling fits several kinds.
        """
        model = self._models.get(run.model)
        if model is None:
            model = self._models[run.model] = self._catalog.model(run.model)
        gpu_key = (run.gpu, run.gpu_memory_gb)
        gpu = self._gpus.get(gpu_key)
        if gpu is None:
            gpu = self._gpus[gpu_key] = self._catalog.gpu(run.gpu, run.gpu_memory_gb or None)
        key = (run.precision, model.model_id, gpu.kind)
        precision = self._precisions.get(key)
        if precision is None:
            precision = self._precisions[key] = self._precision(run.precision, model, gpu)
        return Scenario(
            model=model,
            gpu=gpu,
            precision=precision,
            n_gpus=run.n_gpus,
            prompt_tokens=run.prompt_tokens,
            output_tokens=run.output_tokens,
            concurrency=run.concurrency,
            mode=run.mode or "online",
            kv_dtype=run.kv_dtype or _kv_dtype(run.engine, precision),
            engine=run.engine,
            engine_version=run.stack.engine_version,
            max_model_len=run.max_model_len,
            attention_dp=run.attention_dp,
            source=run.source,
            workload=run.workload,
            pipeline_parallel=run.pipeline_parallel,
            expert_parallel=run.expert_parallel,
            engine_settings=run.engine_settings,
        )

    def _precision(self, text: str, model: ModelArch, gpu: GpuSpec) -> PrecisionSpec:
        name = stated_precision(text)
        if name == "fp4" and model.native_precision == "mxfp4":
            name = "mxfp4"
        if not name:
            name = model.native_precision or "bf16"
            if name == "bf16" and gpu.bf16_flops <= 0:
                name = "fp16"
        return self._catalog.model_precision(name, model)
