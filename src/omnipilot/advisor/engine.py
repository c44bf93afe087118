"""What the launches of an advice say to the engine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.costmodel.fit_question import FitQuestion
from omnipilot.launch.parameters import batch_load, engine_parameters

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.arm_sheet import ArmSheet
    from omnipilot.domain import Arm, ModelArch, Recommendation, ServingRequest
    from omnipilot.domain.engine import EngineParameters

__all__ = ["fit_question", "model_option", "parameters_of", "weights_folder", "with_whole_probe"]

# Weights and their indexes as Hugging Face names them.
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.index.json")


def fit_question(
    advisor: Advisor, arm: Arm, request: ServingRequest, model: ModelArch, gpus_per_node: int
) -> FitQuestion:
    """The launch that an arm of a request stands for, on a node of so many GPUs."""
    gpu = advisor.catalog.gpu(arm.gpu_kind)
    return FitQuestion(
        model=model,
        gpu=gpu,
        precision=advisor.catalog.precision(arm.precision),
        tensor_parallel=arm.tensor_parallel,
        max_model_len=request.context_tokens,
        gpu_memory_utilization=arm.memory_utilization_frac,
        engine=arm.engine,
        engine_version=request.engine_version,
        gpus_per_node=gpus_per_node,
    )


def parameters_of(sheet: ArmSheet, arm: Arm, concurrency: int) -> EngineParameters:
    """What the launch of one arm that starts says to the engine."""
    load = batch_load(concurrency)
    found = sheet.parameters.get((arm, load))
    if found is None:
        question, fit = sheet.launches[arm]
        found = sheet.parameters[arm, load] = engine_parameters(question, load, fit)
    return found


def weights_folder(config: Path) -> Path | None:
    """The folder that an engine loads a config's model from; None where it holds no weights."""
    folder = (config if config.is_dir() else config.parent).absolute()
    if not config.is_dir() and config.name != "config.json":
        return None
    return folder if any(any(folder.glob(pattern)) for pattern in _WEIGHTS) else None


def model_option(config: Path | None, model_id: str) -> str:
    """What names a model that is given by its config on a command line; "" for one by its id."""
    if config is None:
        return ""
    name = f"--model {shlex.quote(model_id)} " if model_id else ""
    return f"{name}--model-config {shlex.quote(str(config))}"


def with_whole_probe(
    recommendation: Recommendation, sheet: ArmSheet, config: Path | None
) -> Recommendation:
    """Complete an abstention's probe with what its launch lacks.

    Args:
        recommendation: with an abstention or without.
        sheet: the arms.
        config: that the model is given by, where it has no id.
    """
    abstention = recommendation.abstention
    if abstention is None or abstention.fallback is None or not abstention.probe:
        return recommendation
    concurrency = recommendation.request.concurrency
    lacks = parameters_of(sheet, abstention.fallback, concurrency).needs
    if config is not None and weights_folder(config) is None:
        lacks = lacks or "its weights"
    if not lacks:
        return recommendation
    # Without it the command of the probe would be refused.
    probe = f"{abstention.probe}; --checkpoint must name {lacks}"
    return replace(recommendation, abstention=replace(abstention, probe=probe))
