"""The use case "launch": a question, or an arm that the operator names, as a script to run."""

from __future__ import annotations

import math
import sys
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from omnipilot.advisor.engine import weights_folder
from omnipilot.advisor.launch_place import LaunchPlace, check_gres, find_place
from omnipilot.advisor.launch_time import LaunchTime, time_limit_min
from omnipilot.catalog.engines import engine_name
from omnipilot.domain import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.launch.ingest import launches_folder
from omnipilot.launch.script import SCRIPT_NAME, launch_script
from omnipilot.launch.spec import (
    BenchLoad,
    JobRequest,
    LaunchSpec,
    Software,
    write_atomically,
    write_spec,
)

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.question import Advice, Question
    from omnipilot.domain import Arm, RankedArm, TargetPrediction

__all__ = ["LaunchOrder", "PreparedLaunch", "prepare_launch", "save_launch"]

_LEAST_HEALTH_WAIT_S: Final = 900
_HEALTH_FACTOR: Final = 2.0
_REQUESTS_A_CLIENT: Final = 4
_LEAST_REQUESTS: Final = 32
_MOST_REQUESTS: Final = 4000


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """What the operator asks for.

    Args:
        question: the request, as for advice.
        arm: "GPU:TP:PRECISION"; the best arm of the advice where empty.
        checkpoint: what the engine loads, where it is neither the model id itself nor the folder
            of the config that the question gives.
        anyway: launch an arm that is judged not to start.
        bench: run a benchmark of the request's load once the server is ready.
        num_prompts: its requests; 0 for four a client.
        stop_after_bench: end the server after the benchmark.
        time_limit_min: 0 takes the limit from the prediction.
        ask_slurm: take the cluster's state into account, and find a partition with the GPU kind.
    """

    question: Question
    arm: str = ""
    checkpoint: str = ""
    anyway: bool = False
    bench: bool = False
    num_prompts: int = 0
    stop_after_bench: bool = False
    software: Software = field(default_factory=Software)
    partition: str = ""
    account: str = ""
    qos: str = ""
    gres: str = ""
    cpus: int = 0
    memory_gib: int = 0
    time_limit_min: int = 0
    ask_slurm: bool = True


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """A launch ready to be written: its folder, its script, and what was decided on the way."""

    spec: LaunchSpec
    run_dir: Path
    script: str
    notes: tuple[str, ...]


def prepare_launch(advisor: Advisor, order: LaunchOrder, run_id: str) -> PreparedLaunch:
    """Choose the arm and write its script; nothing is stored yet.

    Raises:
        UsageError: as for advice; an arm that is unknown, cannot start, or needs a checkpoint; a
            partition that cannot take it; GPUs in ``gres`` that are not its own.
    """
    if engine_name(order.question.request.engine) != "vllm":
        raise BadInputError("launch knows vllm only: leave --engine out")
    question = _narrowed(advisor, order)
    if not order.ask_slurm:
        question = replace(question, live=False)
    advice = advisor.advise(question)
    notes: list[str] = []
    chosen = _chosen(advice, order, notes)
    request = advice.recommendation.request
    parameters = chosen.engine_parameters
    if parameters is None:
        raise ValueError("advice without engine parameters")
    if parameters.needs and not order.checkpoint:
        raise BadInputError(
            f"{chosen.arm.label} needs {parameters.needs}: name it with --checkpoint, or choose "
            "another precision with --precisions"
        )
    bench = None
    if order.bench:
        count = min(max(_REQUESTS_A_CLIENT * request.concurrency, _LEAST_REQUESTS), _MOST_REQUESTS)
        bench = BenchLoad(request.concurrency, request.prompt_tokens, request.output_tokens,
                          order.num_prompts or count)  # fmt: skip
    gpu = advisor.catalog.gpu(chosen.arm.gpu_kind)
    cold_start_s = _upper(chosen.targets["cold_start_s"])
    spec = LaunchSpec(
        run_id=run_id,
        model_id=advice.model.model_id,
        checkpoint=_checkpoint(order, advice.model.model_id),
        arm=chosen.arm,
        parameters=parameters,
        concurrency=request.concurrency,
        context_tokens=request.context_tokens,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        engine_version=request.engine_version,
        vendor=gpu.vendor.lower(),
        bench=bench,
        stop_after_bench=order.stop_after_bench,
        software=order.software,
        job=_job(advisor, question, advice, order, chosen, bench, request.duration_h, notes),
        health_wait_s=max(_LEAST_HEALTH_WAIT_S, math.ceil(_HEALTH_FACTOR * cold_start_s)),
    )
    run_dir = launches_folder(advisor.home).resolve() / run_id
    return PreparedLaunch(
        spec, run_dir, launch_script(spec, run_dir, _emit_command(advisor.home, run_dir)),
        tuple(notes),
    )  # fmt: skip


def save_launch(prepared: PreparedLaunch) -> Path:
    """Write a launch's folder; the script's path.

    Raises:
        StateError: the folder cannot be written.
    """
    write_spec(prepared.run_dir, prepared.spec)
    path = prepared.run_dir / SCRIPT_NAME
    write_atomically(path, prepared.script.encode())
    return path


def _emit_command(home: Path, run_dir: Path) -> list[str]:
    """This program, taking the run's rows in: where the job runs it is at the same place."""
    return [
        sys.executable, "-I", "-m", "omnipilot", "bench", "ingest", str(run_dir),
        "--home", str(home.resolve()),
    ]  # fmt: skip


def _narrowed(advisor: Advisor, order: LaunchOrder) -> Question:
    """The question, of the named arm's kind and precision only where one is named."""
    if not order.arm:
        return order.question
    parts = order.arm.split(":")
    if len(parts) != 3 or not parts[1].isdecimal():
        raise BadInputError(
            f"'{order.arm[:80]}' is no arm: say GPU:TP:PRECISION, such as h100-80:2:fp8"
        )
    kind = advisor.catalog.gpu(parts[0]).kind
    precision = advisor.catalog.precision(parts[2]).name
    return replace(order.question, gpus=(kind,), precisions=(precision,))


def _chosen(advice: Advice, order: LaunchOrder, notes: list[str]) -> RankedArm:
    recommendation = advice.recommendation
    ranked = recommendation.ranked
    if order.arm:
        return _named(advice, order)
    if not ranked:
        reason = recommendation.abstention.reason if recommendation.abstention else "no arm"
        raise BadInputError(f"nothing starts: {reason}")
    best = ranked[0]
    abstention = recommendation.abstention
    if abstention is not None and abstention.fallback is not None:
        notes.append(f"{abstention.reason}; launching by the rule {abstention.fallback_rule}")
        best = next((r for r in ranked if r.arm == abstention.fallback), best)
    if order.checkpoint or not _needs(best):
        return best
    # Without a checkpoint of the format only what the engine makes of the model itself works.
    other = next((r for r in ranked if not _needs(r)), None)
    if other is None:
        return best
    notes.append(
        f"{best.arm.label} ranks first and needs {_needs(best)} (--checkpoint): "
        f"launching {other.arm.label}, the best that needs none"
    )
    return other


def _needs(ranked: RankedArm) -> str:
    return ranked.engine_parameters.needs if ranked.engine_parameters else ""


def _named(advice: Advice, order: LaunchOrder) -> RankedArm:
    degree = int(order.arm.split(":")[1])
    recommendation = advice.recommendation
    for ranked in recommendation.ranked:
        if ranked.arm.tensor_parallel == degree:
            return ranked
    for infeasible in recommendation.infeasible:
        if infeasible.arm.tensor_parallel == degree:
            if order.anyway and recommendation.ranked:
                return _as_if(advice, infeasible.arm)
            raise BadInputError(f"{infeasible.arm.label} does not start: {infeasible.reason}")
    tried = {r.arm.tensor_parallel for r in recommendation.ranked}
    tried |= {i.arm.tensor_parallel for i in recommendation.infeasible}
    choices = ", ".join(map(str, sorted(tried)))
    raise BadInputError(f"no arm with tensor parallel {degree} here: say one of {choices}")


def _as_if(advice: Advice, arm: Arm) -> RankedArm:
    """An arm that is judged not to start, with the predictions of the nearest that does."""
    near = min(
        advice.recommendation.ranked,
        key=lambda r: abs(r.arm.tensor_parallel - arm.tensor_parallel),
    )
    return replace(near, arm=arm)


def _checkpoint(order: LaunchOrder, model_id: str) -> str:
    """What the engine loads: what the operator names, else the config's own folder or the id."""
    config = order.question.model_config
    if order.checkpoint or config is None:
        return order.checkpoint or model_id
    folder = weights_folder(config) or order.question.request.model_id
    if not folder:
        raise BadInputError(
            f"{config} has no weights beside it that an engine loads: name the model's id or its "
            "folder with --checkpoint"
        )
    return str(folder)


def _upper(target: TargetPrediction) -> float:
    return max(target.q50, target.upper)


def _job(
    advisor: Advisor,
    question: Question,
    advice: Advice,
    order: LaunchOrder,
    chosen: RankedArm,
    bench: BenchLoad | None,
    duration_h: float,
    notes: list[str],
) -> JobRequest:
    serves = bench is None or not order.stop_after_bench
    time = LaunchTime.of(chosen, bench, 3600 * duration_h if serves else 0.0)
    place = LaunchPlace(order.partition, order.gres)
    if order.ask_slurm:
        least_s = 60.0 * order.time_limit_min or time.likely_s
        now = advisor.cluster(question)
        check_gres(now.naming, order.gres, chosen.arm)
        place = find_place(now, advice, chosen.arm, place, least_s, notes)
    minutes = time_limit_min(time, order.time_limit_min, place, notes)
    return JobRequest(
        partition=place.partition, account=order.account, qos=order.qos, gres=place.gres,
        time_limit_min=minutes, cpus=order.cpus, memory_gib=order.memory_gib,
        exclude=place.exclude,
    )  # fmt: skip
