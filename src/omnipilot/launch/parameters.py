"""The parameters that an arm needs so that its launch works the first time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.catalog.engines import parse_engine_version
from omnipilot.catalog.launch_flags import launch_flags
from omnipilot.costmodel.feasibility import check_fit
from omnipilot.costmodel.fit_question import fill_defaults
from omnipilot.domain.engine import EngineParameters, FlagReason

if TYPE_CHECKING:
    from omnipilot.costmodel.fit_question import FitQuestion
    from omnipilot.domain.feasibility import FitVerdict

__all__ = ["batch_load", "engine_parameters"]

# Batch limits below this save nothing: graphs for small batches are captured anyway.
_LEAST_SEQS: Final = 8


def engine_parameters(
    question: FitQuestion, concurrency: int, fit: FitVerdict | None = None
) -> EngineParameters:
    """Fill in what an arm's launch says to the engine.

    The batch limit is the version's own default where the load reaches it; else the load, rounded
    up to a power of two, because the profile run samples for the whole limit and may run out of
    memory for sequences that never come.

    Args:
        question: the launch as it was judged; the answers are for exactly this launch.
        concurrency: requests in flight.
        fit: its verdict, where it is known already.

    Example:
        >>> from omnipilot.catalog import Catalog
        >>> from omnipilot.costmodel.fit_question import FitQuestion
        >>> facts = Catalog.load()
        >>> question = FitQuestion(facts.model("Qwen/Qwen2.5-7B-Instruct"), facts.gpu("t4"),
        ...     facts.precision("fp16"), max_model_len=4096, engine_version="0.9.1")
        >>> found = engine_parameters(question, concurrency=20)
        >>> found.max_num_seqs, dict(found.environment)["VLLM_USE_V1"]
        (32, '0')
    """
    fit = fit or check_fit(question)
    version = parse_engine_version(question.engine_version, question.engine)
    graphs_too_large = fit.reason_code == "graph_capture_oom"
    if graphs_too_large:
        eager = check_fit(replace(question, enforce_eager=True))
        graphs_too_large = eager.verdict == "fits"
    arguments: list[str] = []
    environment: dict[str, str] = {}
    unset: list[str] = []
    needs: list[str] = []
    reasons = []
    for flag in launch_flags():
        if not flag.matches(
            version.engine, version.version, question.model, question.gpu,
            question.precision.name, question.tensor_parallel, graphs_too_large=graphs_too_large,
        ):  # fmt: skip
            continue
        arguments += flag.arguments
        environment.update(flag.environment)
        unset += flag.unset
        needs += [flag.needs] if flag.needs else []
        said = [" ".join(flag.arguments)] if flag.arguments else []
        said += [f"{name}={value}" for name, value in flag.environment.items()]
        said += [f"without {name}" for name in flag.unset]
        reasons.append(FlagReason(", ".join(said) or flag.id, flag.why, flag.source))
    if question.enforce_eager and "--enforce-eager" not in arguments:
        arguments.append("--enforce-eager")
    return EngineParameters(
        max_model_len=question.max_model_len or question.model.max_position or 0,
        memory_utilization_frac=question.gpu_memory_utilization or _share(question),
        max_num_seqs=question.max_num_seqs or _batch_limit(question, concurrency),
        kv_dtype=question.kv_dtype,
        arguments=tuple(arguments),
        environment=tuple(environment.items()),
        unset=tuple(unset),
        needs="; ".join(needs),
        reasons=tuple(reasons),
    )


def batch_load(concurrency: int) -> int:
    """Requests in flight rounded up to a power of two, at least 8."""
    return max(_LEAST_SEQS, 1 << max(concurrency - 1, 0).bit_length())


def _share(question: FitQuestion) -> float:
    version = parse_engine_version(question.engine_version, question.engine)
    return fill_defaults(question, version).utilization_frac if version.known_engine else 0.9


def _batch_limit(question: FitQuestion, concurrency: int) -> int:
    version = parse_engine_version(question.engine_version, question.engine)
    load = batch_load(concurrency)
    if not version.known_engine:
        return load
    return min(fill_defaults(question, version).max_num_seqs, load)
