"""A grid of models × arms × concurrency × context turned into a plan.

Left out, each with its reason: what cannot start (the fit verdict), what is known already (the
store), what needs a checkpoint that nobody named, and what the budget does not reach.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from omnipilot.catalog.engines import parse_engine_version
from omnipilot.costmodel.feasibility import check_fit
from omnipilot.costmodel.fit_question import FitQuestion
from omnipilot.decide.arms import default_precisions
from omnipilot.domain.arm import Arm
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.request import ServingRequest
from omnipilot.domain.scenario import Scenario
from omnipilot.launch.axes import AXES, Value, axis_value, check_represented
from omnipilot.launch.information import information_per_node_h, order_by_information
from omnipilot.launch.parameters import engine_parameters
from omnipilot.launch.plan import Plan, PlannedRun, SkippedRun, run_name
from omnipilot.launch.spec import BenchLoad, JobRequest, LaunchSpec, Software

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from omnipilot.catalog import Catalog
    from omnipilot.domain.hardware import GpuSpec
    from omnipilot.domain.model import ModelArch
    from omnipilot.launch.known import KnownRuns

__all__ = ["Grid", "make_plan"]

_THROUGHPUT: Final = "aggregate_tokens_per_s"
_LEAST_REQUESTS: Final = 32
_REQUESTS_A_CLIENT: Final = 4
_SETUP_S: Final = 60.0
_MARGIN_MIN: Final = 10
_ROUND_MIN: Final = 5
_LEAST_HEALTH_WAIT_S: Final = 900


@dataclass(frozen=True, slots=True)
class Grid:
    """What to measure.

    Args:
        models: model ids.
        gpus: GPU kinds in any spelling.
        concurrency: clients of the closed loop.
        context_tokens: longest request; the prompt takes 3/4 of it.
        tensor_parallel: degrees; those beyond a node are left out.
        precisions: formats; what the model is offered in on the part where empty.
        further: values by further axis (:data:`omnipilot.launch.axes.AXES`), as text.
        checkpoints: what the engine loads, by (model id, precision); under "" what it loads for
            formats without an entry, the model id where that has none either.
        bench_s: about how long one benchmark is to take.
        time_limit_min: of each run; 0 takes it from the prediction.
        max_points: refuse larger grids.
    """

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    concurrency: tuple[int, ...]
    context_tokens: tuple[int, ...]
    tensor_parallel: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ()
    further: dict[str, tuple[str, ...]] = field(default_factory=dict)
    checkpoints: dict[tuple[str, str], str] = field(default_factory=dict)
    engine_version: str = ""
    bench_s: float = 120.0
    budget_node_h: float = 10.0
    max_gpus: int = 8
    software: Software = field(default_factory=Software)
    job: JobRequest = field(default_factory=JobRequest)
    time_limit_min: int = 0
    max_points: int = 20_000


@dataclass(frozen=True, slots=True)
class _Point:
    model: ModelArch
    gpu: GpuSpec
    question: FitQuestion
    scenario: Scenario
    concurrency: int
    context_tokens: int
    further: tuple[tuple[str, Value], ...]

    @property
    def label(self) -> str:
        more = "".join(f", {name} {value}" for name, value in self.further)
        return (
            f"{self.model.model_id} on {self.question.tensor_parallel}x {self.gpu.kind} "
            f"{self.question.precision.name}, {self.concurrency} at once, context "
            f"{self.context_tokens}{more}"
        )


def make_plan(
    grid: Grid,
    catalog: Catalog,
    gpus_per_node: Callable[[GpuSpec], int],
    predict: Callable[[Sequence[Scenario]], Any],
    known: KnownRuns,
    *,
    model_version: str = "",
    default_utilization_frac: float = 0.9,
) -> Plan:
    """Plan a grid.

    Args:
        grid: what to measure.
        catalog: facts of models, GPUs and precisions.
        gpus_per_node: GPUs of a node by kind.
        predict: the cost model's answers to scenarios, with ``targets(i)`` by name.
        known: what the store holds already.
        model_version: of the cost model, for the plan's record.
        default_utilization_frac: share of GPU memory where no axis says it.

    Raises:
        UsageError: an unknown name, an axis without a feature, or a grid that is too large.
    """
    points = _points(grid, catalog, gpus_per_node, default_utilization_frac)
    skipped: list[SkippedRun] = []
    starting: list[tuple[_Point, Any, str]] = []
    for point in points:
        fit = check_fit(point.question)
        if fit.verdict not in ("fits", "unknown"):
            skipped.append(SkippedRun(point.label, "cannot_start", fit.reason))
            continue
        # Where the grid states no version, a run of any is an answer.
        asked = replace(point.scenario, engine_version=point.question.engine_version)
        seen = known.answer(asked, point.model.base_id)
        if seen:
            skipped.append(SkippedRun(point.label, "known", seen))
            continue
        parameters = engine_parameters(point.question, point.concurrency, fit)
        name = (point.model.model_id, point.question.precision.name)
        checkpoint = grid.checkpoints.get(name, "")
        if parameters.needs and not checkpoint:
            skipped.append(SkippedRun(point.label, "needs", parameters.needs))
            continue
        starting.append((point, parameters, checkpoint))
    runs = _predicted(grid, starting, predict, gpus_per_node) if starting else []
    order = order_by_information(
        [run.information for run in runs],
        [(run.spec.model_id, run.spec.arm) for run in runs],
    )
    chosen, spent_h = [], 0.0
    for i in order:
        run = runs[i]
        if spent_h + run.node_h > grid.budget_node_h:
            reason = f"{run.node_h:.2f} node-hours beyond the budget of {grid.budget_node_h:g}"
            skipped.append(SkippedRun(starting[i][0].label, "budget", reason))
            continue
        spent_h += run.node_h
        chosen.append(run)
    return Plan(_axes(grid, points), grid.budget_node_h, grid.max_gpus, model_version,
                tuple(chosen), tuple(skipped))  # fmt: skip


def _axes(grid: Grid, points: list[_Point]) -> dict[str, tuple[str, ...]]:
    precisions = tuple(dict.fromkeys(p.question.precision.name for p in points))
    return {
        "model": grid.models, "gpu": grid.gpus,
        "tensor_parallel": tuple(map(str, grid.tensor_parallel)), "precision": precisions,
        "concurrency": tuple(map(str, grid.concurrency)),
        "context": tuple(map(str, grid.context_tokens)), **grid.further,
    }  # fmt: skip


def _points(
    grid: Grid,
    catalog: Catalog,
    gpus_per_node: Callable[[GpuSpec], int],
    utilization_frac: float,
) -> list[_Point]:
    further = {
        name: [axis_value(name, text) for text in texts] for name, texts in grid.further.items()
    }
    combinations = [
        tuple(zip(further, values, strict=True)) for values in itertools.product(*further.values())
    ]
    points = []
    # Without a stated version a launch runs the newest that is known.
    version = grid.engine_version or ".".join(map(str, parse_engine_version("").version))
    for model_id, spelling in itertools.product(grid.models, grid.gpus):
        model, gpu = catalog.model(model_id), catalog.gpu(spelling)
        asked = grid.precisions or default_precisions(model, gpu)
        formats = dict.fromkeys(catalog.model_precision(name, model) for name in asked)
        degrees = [n for n in grid.tensor_parallel if n <= min(gpus_per_node(gpu), grid.max_gpus)]
        for degree, precision, load, context, values in itertools.product(
            degrees, formats, grid.concurrency, grid.context_tokens, combinations
        ):
            prompt, output = ServingRequest.with_lengths(context, None, None)
            question = FitQuestion(
                model=model, gpu=gpu, precision=precision, tensor_parallel=degree,
                max_model_len=context, gpu_memory_utilization=utilization_frac,
                engine_version=grid.engine_version, gpus_per_node=gpus_per_node(gpu),
            )  # fmt: skip
            scenario = Scenario(
                model=model, gpu=gpu, precision=precision, n_gpus=degree,
                prompt_tokens=float(prompt), output_tokens=float(output), concurrency=float(load),
                engine_version=version, max_model_len=context,
                memory_utilization_frac=utilization_frac,
            )  # fmt: skip
            for axis, value in values:
                question = AXES[axis].of_question(question, value)
                scenario = AXES[axis].of_scenario(scenario, value)
            points.append(_Point(model, gpu, question, scenario, load, context, values))
            if len(points) > grid.max_points:
                raise BadInputError(
                    f"the grid has more than {grid.max_points:,} points: name fewer values"
                )
    if not points:
        raise BadInputError("the grid has no point: no tensor parallel fits a node and the limit")
    _check_axes(points, further)
    return points


def _check_axes(points: list[_Point], further: dict[str, list[Value]]) -> None:
    """Check that every further axis has a feature; one value is compared with the default."""
    for name, values in further.items():
        axis = AXES[name]
        plain = [replace(p, further=()) for p in points if all(v == values[0] for n, v in p.further
                                                               if n == name)]  # fmt: skip

        def at(value: Value, axis: Any = axis, loads: list[_Point] = plain) -> list[Scenario]:  # noqa: ANN401
            return [axis.of_scenario(point.scenario, value) for point in loads]

        compared = list(dict.fromkeys(values))
        if len(compared) == 1:
            compared.append(_default_of(axis.scenario_field))
        if len(set(compared)) > 1:
            check_represented(name, compared, at)


def _default_of(scenario_field: str) -> Value:
    defaults: dict[str, Value] = {"kv_dtype": "auto", "engine_version": "", "max_num_seqs": 0,
                "memory_utilization_frac": 0.0}  # fmt: skip
    return defaults.get(scenario_field, "")


def _predicted(
    grid: Grid,
    starting: list[tuple[_Point, Any, str]],
    predict: Callable[[Sequence[Scenario]], Any],
    gpus_per_node: Callable[[GpuSpec], int],
) -> list[PlannedRun]:
    answers = predict([point.scenario for point, _, _ in starting])
    runs = []
    for i, (point, parameters, checkpoint) in enumerate(starting):
        targets = answers.targets(i)
        rate, cold = targets["request_per_s"], targets["cold_start_s"]
        count = _request_count(point.concurrency, rate.q50, grid.bench_s)
        seconds = cold.q50 + _SETUP_S + count / max(rate.q50, 1e-6)
        slow_s = max(cold.upper, cold.q50) + count / max(min(rate.lower, rate.q50), 1e-6)
        minutes = _ROUND_MIN * math.ceil((slow_s / 60 + _MARGIN_MIN) / _ROUND_MIN)
        share = point.question.tensor_parallel / gpus_per_node(point.gpu)
        node_h = share * seconds / 3600
        prompt, output = ServingRequest.with_lengths(point.context_tokens, None, None)
        arm = Arm(point.gpu.kind, point.question.tensor_parallel, point.question.precision.name,
                  "vllm", parameters.memory_utilization_frac)  # fmt: skip
        load = BenchLoad(point.concurrency, prompt, output, count)
        name = run_name((point.model.model_id, arm, load, parameters, point.further))
        spec = LaunchSpec(
            run_id=name,
            model_id=point.model.model_id,
            checkpoint=checkpoint
            or grid.checkpoints.get((point.model.model_id, ""), point.model.model_id),
            arm=arm,
            parameters=parameters,
            concurrency=point.concurrency,
            context_tokens=point.context_tokens,
            prompt_tokens=prompt,
            output_tokens=output,
            engine_version=point.question.engine_version,
            vendor=point.gpu.vendor.lower(),
            bench=load,
            stop_after_bench=True,
            software=grid.software,
            job=replace(grid.job, time_limit_min=grid.time_limit_min or minutes),
            health_wait_s=max(_LEAST_HEALTH_WAIT_S, math.ceil(2 * max(cold.upper, cold.q50))),
        )
        target = targets[_THROUGHPUT]
        runs.append(PlannedRun(spec, node_h, information_per_node_h(target, node_h), share))
    return runs


def _request_count(concurrency: int, request_per_s: float, bench_s: float) -> int:
    """Requests of a benchmark: four a client, fewer where they take too long, one at least."""
    wanted = max(_LEAST_REQUESTS, _REQUESTS_A_CLIENT * concurrency)
    affordable = math.floor(request_per_s * bench_s)
    return max(min(wanted, affordable), concurrency)
