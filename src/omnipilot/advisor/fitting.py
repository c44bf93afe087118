"""The use case "fits": will a launch start?"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.advisor.asked_release import asked_release
from omnipilot.catalog.engines import engines, parse_engine_version
from omnipilot.costmodel.feasibility import check_fit
from omnipilot.costmodel.fit_question import FitQuestion
from omnipilot.settings import DEFAULTS_FILE

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.question import Launch
    from omnipilot.domain import FitVerdict, GpuSpec, ModelArch, Scenario

# Where neither the question nor the site says how large a node is, a launch is judged on the usual
# node of eight: a default shape must not refuse what a real node holds.
GPUS_PER_NODE: Final = 8
GENEROUS_SHARE_FRAC: Final = 0.95
AS_PUBLISHED: Final = ("any", "native", "auto")
_ANY_NODE: Final = 1_000_000
_RECENT_CAPABILITY: Final = 9.0
_UNKNOWN_UTILIZATION_FRAC: Final = 0.9


def fits(advisor: Advisor, launch: Launch) -> FitVerdict:
    """Judge one launch; see :meth:`omnipilot.advisor.Advisor.fits`."""
    model = advisor.resolve_model(
        launch.model_id, launch.model_config, allow_fetch=launch.allow_fetch
    )
    gpu = advisor.catalog.gpu(launch.gpu)
    release = asked_release(launch.engine_version, launch.engine)
    site = advisor.settings
    node = GPUS_PER_NODE if site.origin == DEFAULTS_FILE else site.gpus_per_node(gpu)
    verdict = check_fit(
        FitQuestion(
            model=model,
            gpu=gpu,
            precision=advisor.catalog.precision(_precision_name(launch.precision, model, gpu)),
            tensor_parallel=launch.tensor_parallel,
            pipeline_parallel=launch.pipeline_parallel,
            kv_dtype=launch.kv_dtype,
            max_model_len=launch.max_model_len,
            gpu_memory_utilization=launch.gpu_memory_utilization,
            max_num_seqs=launch.max_num_seqs,
            max_num_batched_tokens=launch.max_num_batched_tokens,
            engine=launch.engine,
            engine_version=launch.engine_version,
            gpus_per_node=launch.gpus_per_node or node,
            enforce_eager=launch.enforce_eager,
        )
    )
    if not release.note:
        return verdict
    return replace(verdict, assumptions=(release.note, *verdict.assumptions))


def _precision_name(asked: str | None, model: ModelArch, gpu: GpuSpec) -> str:
    """The asked format; for "any" and "native" the checkpoint's own, fp16 on parts without bf16."""
    if asked and asked.strip().lower() not in AS_PUBLISHED:
        return asked
    native = model.native_precision
    return "fp16" if native == "bf16" and gpu.bf16_flops <= 0 else native


def judge_row(scenario: Scenario) -> FitVerdict:
    """Judge the launch behind a measured row, what the row leaves open settled in its favour.

    A row tells how many GPUs served, not how they were split, nor the node, nor the share of
    memory: it fits if it does under tensor parallel, else with pipeline stages (which stand for
    expert and data parallel too: the weights are shared out all the same), else with a generous
    share of memory. Where it tells no context length it must hold one request of the row.

    Returns:
        The first verdict that fits, else that of plain tensor parallel.
    """
    plain = check_fit(_row_question(scenario, _splits(scenario)[0], None))
    if plain.verdict in ("fits", "unknown"):
        return plain
    shares = (None,) if scenario.memory_utilization_frac else (None, GENEROUS_SHARE_FRAC)
    for share in shares:
        for split in _splits(scenario):
            fit = check_fit(_row_question(scenario, split, share))
            if fit.verdict == "fits":
                return fit
    return plain


def _splits(scenario: Scenario) -> list[tuple[int, int]]:
    """(tensor, pipeline) degrees that a row may mean, plain tensor parallel first."""
    if scenario.pipeline_parallel > 1:
        pipeline = scenario.pipeline_parallel
        return [(max(scenario.n_gpus // pipeline, 1), pipeline)]
    n = scenario.n_gpus
    return [(degree, n // degree) for degree in range(n, 0, -1) if n % degree == 0]


def _row_question(scenario: Scenario, split: tuple[int, int], share: float | None) -> FitQuestion:
    # Lengths beyond the model's positions do run (TensorRT-LLM builds with any length, vLLM when
    # told to allow it): the launch is judged at the positions that the model has.
    request = math.ceil(scenario.prompt_tokens + scenario.output_tokens)
    length = scenario.max_model_len or min(request, scenario.model.max_position or request)
    return FitQuestion(
        model=scenario.model,
        gpu=scenario.gpu,
        precision=scenario.precision,
        tensor_parallel=split[0],
        pipeline_parallel=split[1],
        kv_dtype=scenario.kv_dtype,
        max_model_len=length or None,
        gpu_memory_utilization=share or scenario.memory_utilization_frac or None,
        max_num_seqs=scenario.max_num_seqs or None,
        engine=scenario.engine,
        engine_version=scenario.engine_version,
        gpus_per_node=_ANY_NODE,
    )


def default_utilization_frac(engine: str, version: str) -> float:
    """Share of GPU memory that an engine's version takes unasked on recent GPUs."""
    asked = parse_engine_version(version, engine)
    if not asked.known_engine:
        return _UNKNOWN_UTILIZATION_FRAC
    era = engines()[asked.engine].era(asked.version, _RECENT_CAPABILITY, asked.generation)
    return era.memory_utilization_frac
