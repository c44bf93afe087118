"""What the caller of a collector knows about a run and the source text does not tell."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Final

from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.rows import InferenceRun

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NO_CONTEXT", "RunContext", "benchmark_run", "model_name", "precision_name"]

_NAME_CHARACTERS: Final = 512
_HUB_CACHE: Final = re.compile(r"(?:^|[/\\])models--([^/\\]{1,200}?)--([^/\\]{1,200})(?=[/\\]|$)")
_SNAPSHOT: Final = re.compile(r"[0-9a-f]{40}|snapshots|original|checkpoint-\d+")
_HUB_ID: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*")

# Values of vLLM's ``quantization`` and ``dtype`` (model_executor/layers/quantization, ModelConfig)
# by the catalogue's names. Formats that hold several (compressed-tensors, torchao, quark) are
# left out: the name of the format does not tell the precision.
_PRECISION_OF: Final[dict[str, str]] = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "ptpc_fp8": "fp8", "modelopt": "fp8",
    "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq",
    "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4", "modelopt_fp4": "nvfp4",
    "bitsandbytes": "bnb-nf4",
    "torch.bfloat16": "bf16", "bfloat16": "bf16",
    "torch.float16": "fp16", "float16": "fp16", "half": "fp16",
    "torch.float32": "fp32", "float32": "fp32", "float": "fp32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunContext:
    """Facts of one run that the caller knows; what the file tells itself is left empty.

    A fact given here wins over the file's own word for it.

    Args:
        source: name of the data set or site.
        gpu: GPU kind in any spelling of the catalogue; with ``n_gpus`` or not at all.
        n_gpus: GPUs of the deployment.
        gpu_memory_gb: memory of one GPU, where ``gpu`` alone is ambiguous.
        workload: name of the request mix, so that runs of one mix compare across arms.
        engine_settings: flags that differ from the engine's defaults.
        expert_parallel: each GPU holds whole experts instead of a share of every one.
        pipeline_parallel: pipeline stages that ``n_gpus`` are shared among.

    Raises:
        BadInputError: a GPU without a count, or a negative number.
    """

    source: str = "site"
    model: str = ""
    engine: str = ""
    gpu: str = ""
    n_gpus: int = 0
    gpu_memory_gb: float = 0.0
    precision: str = ""
    kv_dtype: str = ""
    max_model_len: int = 0
    workload: str = ""
    stack: StackFingerprint = field(default_factory=StackFingerprint)
    engine_settings: str = ""
    expert_parallel: bool = False
    pipeline_parallel: int = 1

    def __post_init__(self) -> None:
        if min(self.n_gpus, self.gpu_memory_gb, self.max_model_len) < 0:
            raise BadInputError("a run's GPUs, memory and model length cannot be negative")
        if self.pipeline_parallel < 1:
            raise BadInputError("a run has one pipeline stage or more")
        if self.gpu and not self.n_gpus:
            raise BadInputError(f"say on how many GPUs of kind {self.gpu} the run was")

    def with_version(self, version: str) -> StackFingerprint:
        """Give the software of the run, the engine's version from the file where not known."""
        stack = self.stack
        return StackFingerprint(
            stack.engine_version or version, stack.cuda, stack.driver, stack.image_digest
        )


NO_CONTEXT: Final = RunContext()


def benchmark_run(
    context: RunContext,
    *,
    model: str,
    mode: str,
    status: str,
    labels: dict[str, float],
    prompt_tokens: float,
    output_tokens: float,
    concurrency: float,
    notes: Iterable[str],
    engine: str = "vllm",
    version: str = "",
    gpu: str = "",
    n_gpus: int = 0,
    precision: str = "",
) -> InferenceRun:
    """Make the row of a benchmark's result: what the file tells, and over it what the caller knows.

    Arguments are the row's fields of the same name; ``version`` is the engine's, and blank
    ``notes`` are left out.
    """
    n_gpus = context.n_gpus or n_gpus
    return InferenceRun(
        source=context.source,
        model=context.model or model,
        engine=context.engine or engine,
        gpu=context.gpu or (gpu if n_gpus else ""),
        n_gpus=n_gpus,
        precision=context.precision or precision,
        mode=mode,
        status=status,
        labels=labels,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        kv_dtype=context.kv_dtype,
        max_model_len=context.max_model_len,
        gpu_memory_gb=context.gpu_memory_gb,
        workload=context.workload,
        notes="; ".join(note for note in notes if note),
        stack=context.with_version(version),
        engine_settings=context.engine_settings,
        expert_parallel=context.expert_parallel,
        pipeline_parallel=context.pipeline_parallel,
    )


def model_name(text: str) -> str:
    """Reduce what an engine was given as its model to a name without a path.

    Of a path only the last part is kept, for it may hold a user's name; a folder of the Hugging
    Face cache gives the model's id.

    Example:
        >>> model_name("Qwen/Qwen2.5-7B"), model_name("/data/alice/models/Qwen2.5-7B/")
        ('Qwen/Qwen2.5-7B', 'Qwen2.5-7B')
        >>> model_name("/data/hub/models--Qwen--Qwen2.5-7B/snapshots/" + "0" * 40)
        'Qwen/Qwen2.5-7B'
    """
    text = text.strip()[: 4 * _NAME_CHARACTERS]
    cached = _HUB_CACHE.search(text)
    if cached:
        text = f"{cached[1]}/{cached[2]}"
    if not _HUB_ID.fullmatch(text):
        parts = [p.lstrip(".") for p in re.split(r"[/\\]+", text) if not _SNAPSHOT.fullmatch(p)]
        text = next((p for p in reversed(parts) if p), "")
    if not text.isprintable() or "@" in text or len(text) > _NAME_CHARACTERS:
        return ""
    return text


def precision_name(quantization: str, dtype: str) -> str:
    """Name the precision by vLLM's ``quantization`` and ``dtype``; "" where they do not tell."""
    if quantization and quantization != "None":
        return _PRECISION_OF.get(quantization, "")
    return _PRECISION_OF.get(dtype, "")
