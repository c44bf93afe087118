"""What cannot start whatever the memory: splits that do not divide, and an engine's own limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnipilot.catalog.engines import architecture_key, candidate_rules, launch_rules
from omnipilot.costmodel.fit_question import kv_dtype
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.catalog.engines import EngineVersion
    from omnipilot.costmodel.fit_question import FitQuestion
    from omnipilot.domain.model import ModelArch

_TENSOR_PARALLEL: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
# Formats whose kernels need every split weight to hold whole groups of scales. mxfp4 pads, and a
# group of nvfp4 (16) always divides.
_BLOCK: Final = 128
_GROUPED: Final = frozenset({"awq", "gptq", "gptq-int8", "fp8-block"})


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a launch is unsupported, in words that name the number, with a remedy."""

    reason_code: str
    reason: str


def obstacle(question: FitQuestion, version: EngineVersion) -> Obstacle | None:
    """The first thing that keeps a launch from starting, memory aside; None where nothing does."""
    for check in _CHECKS:
        found = check(question, version)
        if found is not None:
            return found
    return None


def _splittable(model: ModelArch, degree: int) -> bool:
    """Whether heads, KV heads and MLP width divide over ``degree`` GPUs."""
    return not (
        model.n_heads % degree
        or _kv_heads_misfit(model, degree)
        or (model.intermediate_size and model.intermediate_size % degree)
    )


def _kv_heads_misfit(model: ModelArch, degree: int) -> bool:
    """KV heads are split over the group, or each replicated over a whole number of GPUs."""
    heads = model.n_kv_heads
    return bool(heads > 0 and not model.is_mla and heads % degree and degree % heads)


def _split_expert_width(question: FitQuestion) -> int:
    """Width of the experts where tensor parallelism splits them, else 0."""
    split = question.model.is_moe and not question.expert_parallel
    return question.model.moe_intermediate_size if split else 0


def _choices(model: ModelArch) -> str:
    return ", ".join(str(n) for n in _TENSOR_PARALLEL if _splittable(model, n))


def _heads(question: FitQuestion, _version: EngineVersion) -> Obstacle | None:
    model, degree = question.model, question.tensor_parallel
    if model.n_heads % degree:
        return Obstacle(
            "heads_not_divisible",
            f"{model.n_heads} attention heads are not divisible by tensor parallel {degree}: use "
            f"tp {_choices(model)}",
        )
    if _kv_heads_misfit(model, degree):
        return Obstacle(
            "kv_heads_not_divisible",
            f"{model.n_kv_heads} KV heads neither divide by tensor parallel {degree} nor into it: "
            f"use tp {_choices(model)}",
        )
    for what, width in (
        ("MLP width", model.intermediate_size),
        ("expert width", _split_expert_width(question)),
    ):
        if width and width % degree:
            return Obstacle(
                "width_not_divisible",
                f"{what} {width} is not divisible by tensor parallel {degree}: use tp "
                f"{_choices(model)}",
            )
    return None


def _layers(question: FitQuestion, _version: EngineVersion) -> Obstacle | None:
    stages, layers = question.pipeline_parallel, question.model.n_layers
    if stages > layers > 0:
        return Obstacle(
            "layers_not_divisible",
            f"{layers} layers cannot fill {stages} pipeline stages: use pp ≤ {layers}",
        )
    return None


def _groups(question: FitQuestion, _version: EngineVersion) -> Obstacle | None:
    """Split weights must hold whole quantisation groups (320 % 128 leaves half a block)."""
    precision, model, degree = question.precision, question.model, question.tensor_parallel
    if precision.name not in _GROUPED:
        return None
    own = model.native_precision == precision.name
    group = (model.quant_group_size if own else 0) or precision.group_size or _BLOCK
    dense = not model.is_moe or model.n_moe_layers < model.n_layers
    for what, width in (
        ("MLP width", model.intermediate_size if dense else 0),
        ("expert width", _split_expert_width(question)),
    ):
        part = width // degree
        if part and part % group:
            other = ", another format or a checkpoint whose width is padded"
            if what == "expert width":
                other = " or whole experts (--enable-expert-parallel)"
            return Obstacle(
                "quant_group_not_divisible",
                f"{what} {width} over tensor parallel {degree} is {part}, not a multiple of the "
                f"{precision.name} group of {group}: use a smaller tp{other}",
            )
    return None


def _support(question: FitQuestion, version: EngineVersion) -> Obstacle | None:
    rules, model = launch_rules(), question.model
    known = rules.support.get(architecture_key(model.architecture))
    if known is not None and version.engine in known.first:
        first = known.first[version.engine]
        if first is None:
            return Obstacle(
                "engine_too_old",
                f"{version.text} does not know {model.architecture}: use another engine",
            )
        if version.version < first:
            return Obstacle(
                "engine_too_old",
                f"{model.architecture} needs {version.engine} {'.'.join(map(str, first))} or "
                f"newer, not {version.text}",
            )
    return None


def _rules(question: FitQuestion, version: EngineVersion) -> Obstacle | None:
    gpu = question.gpu
    candidates = candidate_rules(
        version.engine, version.version, question.precision.name, kv_dtype(question.kv_dtype).name,
        question.dtype, gpu,
    )  # fmt: skip
    for rule in candidates:
        if rule.matches_model(
            question.model,
            speculative=question.speculative,
            pipeline_parallel=question.pipeline_parallel,
        ):
            return Obstacle(
                rule.reason_code,
                f"{rule.why} ({question.precision.name} on {gpu.kind}, "
                f"{version.text}): {rule.remedy}",
            )
    lowest = question.precision.min_compute_capability
    if 0 < gpu.compute_capability < lowest:
        return Obstacle(
            "compute_capability",
            f"{question.precision.name} needs compute capability {lowest}, {gpu.kind} has "
            f"{gpu.compute_capability}: use another format or a newer GPU",
        )
    return None


def _node(question: FitQuestion, _version: EngineVersion) -> Obstacle | None:
    needed = question.tensor_parallel * question.pipeline_parallel
    if question.gpu.is_mig and needed > 1:
        return Obstacle(
            "mig_tensor_parallel",
            f"{needed} MIG slices cannot be combined (no peer-to-peer between instances): use one "
            f"slice, or whole {question.gpu.parent} parts",
        )
    if needed > question.gpus_per_node:
        return Obstacle(
            "gpus_per_node",
            f"tp {question.tensor_parallel} × pp {question.pipeline_parallel} = {needed} GPUs, the "
            f"node has {question.gpus_per_node}: use at most {question.gpus_per_node}",
        )
    return None


def _length(question: FitQuestion, _version: EngineVersion) -> Obstacle | None:
    limit, asked = question.model.max_position, question.max_model_len
    if asked and 0 < limit < asked:
        return Obstacle(
            "max_model_len_exceeds_model",
            f"max_model_len {asked} exceeds the model's {limit} positions: use at most {limit}",
        )
    return None


_CHECKS: Final[tuple[Callable[[FitQuestion, EngineVersion], Obstacle | None], ...]] = (
    _support, _heads, _layers, _rules, _groups, _node, _length,
)  # fmt: skip
