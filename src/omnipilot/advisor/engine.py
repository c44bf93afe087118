"""Advice completed with what each arm's launch says to the engine."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from omnipilot.costmodel.feasibility import check_fit
from omnipilot.costmodel.fit_question import FitQuestion
from omnipilot.launch.parameters import batch_load, engine_parameters

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.domain import Arm, FitVerdict, ModelArch, Recommendation, ServingRequest
    from omnipilot.domain.engine import EngineParameters

# Launches whose verdict and parameters are remembered.
KEPT: Final = 8192

__all__ = ["fit_question", "parameters_of", "verdict_of", "with_engine_parameters"]


def fit_question(
    advisor: Advisor, arm: Arm, request: ServingRequest, model: ModelArch
) -> FitQuestion:
    """The launch that an arm of a request stands for."""
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
        gpus_per_node=advisor.settings.gpus_per_node(gpu),
    )


@lru_cache(maxsize=KEPT)
def verdict_of(question: FitQuestion) -> FitVerdict:
    """Whether a launch starts; the same launch gets the same verdict without being judged again."""
    return check_fit(question)


@lru_cache(maxsize=KEPT)
def _parameters(question: FitQuestion, load: int) -> EngineParameters:
    """The same launch says the same; a service is asked about few models, often."""
    return engine_parameters(question, load, verdict_of(question))


def parameters_of(
    advisor: Advisor, arm: Arm, request: ServingRequest, model: ModelArch
) -> EngineParameters:
    """What the launch of one arm says to the engine."""
    question = fit_question(advisor, arm, request, model)
    return _parameters(question, batch_load(request.concurrency))


def with_engine_parameters(
    advisor: Advisor, recommendation: Recommendation, model: ModelArch
) -> Recommendation:
    """Give every ranked arm its engine parameters, and the probe what its launch lacks."""
    request = recommendation.request
    ranked = tuple(
        replace(r, engine_parameters=parameters_of(advisor, r.arm, request, model))
        for r in recommendation.ranked
    )
    abstention = recommendation.abstention
    if abstention is not None and abstention.fallback is not None and abstention.probe:
        lacks = parameters_of(advisor, abstention.fallback, request, model).needs
        if lacks:
            # Without it the command of the probe would be refused.
            probe = f"{abstention.probe}; --checkpoint must name {lacks}"
            abstention = replace(abstention, probe=probe)
    return replace(recommendation, ranked=ranked, abstention=abstention)
