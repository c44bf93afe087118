"""The question "will it start?" and how an engine fills in what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from omnipilot.catalog.engines import Engine, EngineVersion, Era, engines, parse_engine_version
from omnipilot.catalog.precisions import KvDtype, load_precisions
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch
    from omnipilot.domain.precision import PrecisionSpec

LARGE_PART_GIB = 70.0
LONG_CONTEXT_TOKENS = 32768


@dataclass(frozen=True, slots=True)
class FitQuestion:
    """One launch to judge; None and "" take the engine's default of that version.

    ``max_model_len`` defaults to the model's own length. ``engine_version`` is any text that
    :func:`parse_engine_version` reads, "" the newest known. ``dtype`` is the activation type asked
    for. ``speculative`` asks for a drafter or multi-token prediction. ``expert_parallel`` keeps
    each expert whole on one GPU of the tensor-parallel group.
    """

    model: ModelArch
    gpu: GpuSpec
    precision: PrecisionSpec
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    engine: str = "vllm"
    engine_version: str = ""
    gpus_per_node: int = 8
    enforce_eager: bool = False
    speculative: bool = False
    dtype: str = "auto"
    expert_parallel: bool = False


@dataclass(frozen=True, slots=True)
class LaunchSetup:
    """A question with every default filled in.

    ``step_tokens`` is what one step, and so the profile run, takes.
    """

    question: FitQuestion
    version: EngineVersion
    era: Era
    kv: KvDtype
    utilization_frac: float
    max_model_len: int
    max_num_seqs: int
    step_tokens: int
    chunked: bool


def as_held(question: FitQuestion) -> FitQuestion:
    """The question in the format of the checkpoint, where the one asked for is another name of it.

    Block-scaled fp8 keeps its blocks, whatever a row or an operator calls it.
    """
    native, name = question.model.native_precision, question.precision.name
    if name == native or not question.model.holds(name):
        return question
    return replace(question, precision=_weight_format(native))


@lru_cache(maxsize=64)
def _weight_format(name: str) -> PrecisionSpec:
    return load_precisions().resolve(name)


@lru_cache(maxsize=64)
def kv_dtype(text: str) -> KvDtype:
    """The cache format that a spelling means.

    Raises:
        UnknownNameError: no format answers to it.
    """
    return load_precisions().resolve_kv(text)


def is_large(era: Era, gpu: GpuSpec) -> bool:
    """Whether an engine takes its larger batch defaults on a part."""
    if era.large_when == "hopper":
        return gpu.kind.startswith(("h100", "h200"))
    if era.large_when == "70gib":
        return gpu.memory_gib >= LARGE_PART_GIB and not gpu.kind.startswith("a100")
    return False


def fill_defaults(question: FitQuestion, version: EngineVersion) -> LaunchSetup:
    """Fill a question in as the engine would.

    Args:
        question: the question.
        version: its engine version, of an engine with an entry.

    Raises:
        UnknownNameError: the cache format has no entry.
    """
    gpu = question.gpu
    engine: Engine = engines()[version.engine]
    era = engine.era(version.version, gpu.compute_capability, version.generation)
    large = is_large(era, gpu)
    length = question.max_model_len or question.model.max_position or era.batched_tokens
    seqs = question.max_num_seqs or (era.max_num_seqs_large if large else era.max_num_seqs)
    chunked = era.chunked == "always" or (
        era.chunked == "above_32k"
        and length > LONG_CONTEXT_TOKENS
        and gpu.compute_capability >= 8.0
    )
    if question.max_num_batched_tokens:
        tokens = question.max_num_batched_tokens
    elif not chunked:
        tokens = max(length, era.batched_tokens)
    else:
        tokens = era.batched_tokens_large if large else era.chunk_tokens
    return LaunchSetup(
        question=question,
        version=version,
        era=era,
        kv=kv_dtype(question.kv_dtype),
        utilization_frac=question.gpu_memory_utilization or era.memory_utilization_frac,
        max_model_len=length,
        max_num_seqs=seqs,
        step_tokens=tokens,
        chunked=chunked,
    )


def version_asked(question: FitQuestion) -> EngineVersion:
    """The engine version that a question means."""
    return parse_engine_version(question.engine_version, question.engine)
