"""The arms of a model at one context length: all of an advice that its load does not change.

A service is asked about few models and lengths, under ever new loads: which arms there are, which
of them start, what they cost and what they are to the cost model is worked out once for all loads;
the last, which is the most, once for all lengths too at which the same arms start.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from omnipilot.advisor.asked_release import asked_release
from omnipilot.advisor.engine import fit_question
from omnipilot.advisor.fitting import default_utilization_frac
from omnipilot.costmodel.feasibility import check_fit
from omnipilot.decide.arms import enumerate_arms
from omnipilot.domain import InfeasibleArm, Scenario
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.scenario import ScenarioGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.costmodel.fit_question import FitQuestion
    from omnipilot.domain import Arm, FitVerdict, GpuSpec, ModelArch, ServingRequest
    from omnipilot.domain.engine import EngineParameters

__all__ = ["ArmSheet", "scenario_of", "sheet_of"]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ArmSheet:
    """The arms of a model at one context length.

    Args:
        starting: arms that start, with their verdicts.
        refused: arms whose verdict is another.
        cannot: refused arms and those that the checkpoint rules out, with why.
        prices_usd_per_gpu_h: by GPU kind, of every kind asked about.
        memory_gib: of one GPU, by kind.
        scenarios: what the starting arms are to the cost model.
        launches: the starting arms as they were judged.
        parameters: what launches say to the engine, of the arms and batch sizes asked about.
    """

    starting: tuple[tuple[Arm, FitVerdict], ...]
    refused: tuple[tuple[Arm, FitVerdict], ...]
    cannot: tuple[InfeasibleArm, ...]
    prices_usd_per_gpu_h: Mapping[str, float]
    memory_gib: Mapping[str, float]
    scenarios: ScenarioGroup
    launches: Mapping[Arm, tuple[FitQuestion, FitVerdict]]
    parameters: dict[tuple[Arm, int], EngineParameters] = field(default_factory=dict)


def sheet_of(
    advisor: Advisor,
    request: ServingRequest,
    model: ModelArch,
    gpus: Sequence[GpuSpec],
    gpus_per_node: Mapping[str, int],
    precisions: Sequence[str],
) -> ArmSheet:
    """The arms of a request, those of an earlier one where only the load differs.

    Args:
        advisor: the site, whose facts and settings do not change.
        request: with the engine's own name.
        model: of the request.
        gpus: GPU kinds to try.
        gpus_per_node: of one node, by kind.
        precisions: to judge; those on offer where empty.
    """
    # Facts and settings are the advisor's own and stay as they are; all else is in the key.
    key = (
        model, tuple(gpu.kind for gpu in gpus), tuple(gpus_per_node.items()), tuple(precisions),
        request.engine, request.engine_version, request.context_tokens,
    )  # fmt: skip
    sheet = advisor.sheets.get(key)
    if sheet is None:
        sheet = _judged(advisor, request, model, gpus, gpus_per_node, precisions)
        advisor.sheets.put(key, sheet)
    return sheet


def _judged(
    advisor: Advisor,
    request: ServingRequest,
    model: ModelArch,
    gpus: Sequence[GpuSpec],
    gpus_per_node: Mapping[str, int],
    precisions: Sequence[str],
) -> ArmSheet:
    arms = enumerate_arms(
        model,
        gpus,
        gpus_per_node.__getitem__,
        only_precisions=precisions,
        engine=request.engine,
        memory_utilization_frac=default_utilization_frac(request.engine, request.engine_version),
    )
    questions = {
        arm: fit_question(advisor, arm, request, model, gpus_per_node[arm.gpu_kind])
        for arm in arms.arms
    }
    judged = [(arm, check_fit(question)) for arm, question in questions.items()]
    starting = tuple((arm, fit) for arm, fit in judged if fit.verdict == "fits")
    refused = tuple((arm, fit) for arm, fit in judged if fit.verdict != "fits")
    return ArmSheet(
        starting=starting,
        refused=refused,
        cannot=(
            *arms.ruled_out,
            *(InfeasibleArm(arm, fit.reason_code, fit.reason) for arm, fit in refused),
        ),
        prices_usd_per_gpu_h={gpu.kind: advisor.settings.price_usd_per_gpu_h(gpu) for gpu in gpus},
        memory_gib={gpu.kind: gpu.memory_gib for gpu in gpus},
        scenarios=_group_of(advisor, [arm for arm, _ in starting], request, model),
        launches={arm: (questions[arm], fit) for arm, fit in starting},
    )


def _group_of(
    advisor: Advisor, arms: Sequence[Arm], request: ServingRequest, model: ModelArch
) -> ScenarioGroup:
    """What arms are to the cost model, whatever the load and the context length."""
    key = (model, request.engine_version, tuple(arms))
    group = advisor.groups.get(key)
    if group is None:
        group = ScenarioGroup(tuple(scenario_of(advisor, arm, request, model) for arm in arms))
        advisor.groups.put(key, group)
    return group


def scenario_of(advisor: Advisor, arm: Arm, request: ServingRequest, model: ModelArch) -> Scenario:
    """The question to the cost model that an arm of a request poses."""
    return Scenario(
        model=model,
        gpu=advisor.catalog.gpu(arm.gpu_kind),
        precision=advisor.catalog.precision(arm.precision),
        n_gpus=arm.tensor_parallel,
        prompt_tokens=float(request.prompt_tokens),
        output_tokens=float(request.output_tokens),
        concurrency=float(request.concurrency),
        mode="online",
        engine=arm.engine,
        engine_version=asked_release(request.engine_version, arm.engine).version,
        memory_utilization_frac=arm.memory_utilization_frac,
        max_model_len=request.context_tokens,
    )
