"""The rows of a finished launch, read from its run's folder.

The script leaves the launch (``launch.json``), moments (``marks``), the server's log, the result of
the benchmark and pages of /metrics. From these the same rows follow whoever reads them and however
often: the store keeps each once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnipilot.collect.context import RunContext
from omnipilot.collect.vllm_bench import collect_vllm_bench
from omnipilot.collect.vllm_log import collect_vllm_log
from omnipilot.collect.vllm_metrics import collect_vllm_metrics
from omnipilot.domain.arm import StackFingerprint
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.rows import InferenceRun, ServingWindow, StartupRun
from omnipilot.launch.settings import settings_text, shares_experts
from omnipilot.launch.spec import read_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.domain.rows import Row
    from omnipilot.launch.spec import LaunchSpec

__all__ = ["DONE_NAME", "is_done", "outcome_of", "outcome_words", "read_marks", "run_rows"]

DONE_NAME: Final = "done"
# Lengths that differ from those asked for by more are another load than the one planned.
_LENGTH_TOLERANCE_FRAC: Final = 0.1
_UNFINISHED: Final = "unfinished"
_NOT_STARTED: Final = "not_started"


def is_done(folder: Path) -> bool:
    """Whether the script of a run came to its end."""
    return (folder / DONE_NAME).is_file()


def outcome_of(folder: Path) -> str:
    """How a run ended, in a word of its script; "" while it has not.

    "benchmarked", "served" (until it was told to stop), "bench_failed", "died" (after it was
    ready), "failed" (never got ready), "stopped" (before it was ready), "interrupted" (the script
    was gone when it was run again) or "not_started" (the engine never ran: a program, module or
    virtual environment is missing).
    """
    try:
        return (folder / DONE_NAME).read_text(encoding="utf-8", errors="replace").strip()[:40]
    except OSError:
        return ""


def outcome_words(outcome: str) -> str:
    """How a run ended, for a person."""
    if outcome == _NOT_STARTED:
        return (
            "not started, because the engine was not found or what it comes from did not load (the "
            "script says what); that tells nothing of the arm"
        )
    return outcome or "interrupted"


def read_marks(folder: Path) -> dict[str, float]:
    """Moments of a run in Unix seconds, by name; the last where there are several of one name.

    Those before the last ``script_start`` are of an earlier run of the script.
    """
    marks: dict[str, float] = {}
    try:
        lines = (folder / "marks").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return marks
    for line in lines:
        name, _, when = line.partition(" ")
        try:
            moment = float(when)
        except ValueError:
            continue
        if name == "script_start":
            marks.clear()
        marks[name] = moment
    return marks


def run_rows(folder: Path) -> Iterator[Row | Rejection]:
    """Read the rows of one run.

    A benchmark gives an inference run with the cold start and the KV peak joined to it; a launch
    that failed gives one with the failure's status and class; the server's start is a row of its
    own either way, and so is the serving window that /metrics tells of. Where the engine never ran
    there is no row: that is no failure of the arm.

    Raises:
        BadInputError: the folder holds no launch.
    """
    spec = read_spec(folder)
    marks, outcome = read_marks(folder), outcome_of(folder)
    if outcome == _NOT_STARTED:
        return
    context = _context(spec)
    startups = [*_startups(folder, context)]
    yield from (item for item in startups if isinstance(item, Rejection))
    starts = [item for item in startups if isinstance(item, StartupRun)]
    start = starts[-1] if starts else None
    if start is None and outcome == "failed" and "server_start" in marks:
        # The program ran and said nothing that an engine says.
        start = _no_start(spec, context)
        starts = [start]
    version = start.stack.engine_version if start else ""
    context = replace(context, stack=context.with_version(version))
    yield from starts
    windows = [*_windows(folder, marks, context)]
    yield from windows
    # A result without a server that was ready is an earlier run's.
    run = _benchmark(folder, spec, context) if "serve_start" in marks else None
    if isinstance(run, Rejection):
        yield run
    elif run is None:
        run = _without_benchmark(spec, context, start, marks, outcome)
    if isinstance(run, InferenceRun):
        yield _joined(run, start, windows, marks)


def _context(spec: LaunchSpec) -> RunContext:
    said = spec.parameters
    return RunContext(
        source=spec.source,
        model=spec.model_id,
        engine=spec.arm.engine,
        gpu=spec.arm.gpu_kind,
        n_gpus=spec.arm.tensor_parallel,
        precision=spec.arm.precision,
        kv_dtype="" if said.kv_dtype == "auto" else said.kv_dtype,
        max_model_len=said.max_model_len,
        stack=StackFingerprint(engine_version=spec.engine_version),
        engine_settings=settings_text(spec.software.arguments),
        expert_parallel=shares_experts(spec.software.arguments),
    )


def _startups(folder: Path, context: RunContext) -> Iterator[StartupRun | Rejection]:
    # The version asked for is a wish; the log tells what ran.
    asked = replace(context, stack=StackFingerprint())
    try:
        for item in collect_vllm_log(folder / "server.log", context=asked):
            if isinstance(item, StartupRun) and not item.stack.engine_version:
                item = replace(item, stack=context.stack)  # noqa: PLW2901 - same start
            if isinstance(item, StartupRun) and item.status == "ok":
                # How it was stopped later is no part of a start that got ready: the rows that are
                # read after the benchmark and at the end are the same.
                item = replace(item, stopped=False)  # noqa: PLW2901 - same start
            yield item
    except BadInputError:
        return


def _no_start(spec: LaunchSpec, context: RunContext) -> StartupRun:
    return StartupRun(
        source=spec.source, model=spec.model_id, engine=spec.arm.engine, gpu=spec.arm.gpu_kind,
        n_gpus=spec.arm.tensor_parallel, precision=spec.arm.precision, status="error", labels={},
        failure="error", stage="config", tensor_parallel=spec.arm.tensor_parallel,
        max_model_len=spec.parameters.max_model_len,
        memory_utilization_frac=spec.parameters.memory_utilization_frac, stack=context.stack,
    )  # fmt: skip


def _windows(
    folder: Path, marks: dict[str, float], context: RunContext
) -> Iterator[ServingWindow | Rejection]:
    """The window of the benchmark, from the pages of /metrics around and in it."""
    pages = sorted(folder.glob("metrics-[0-9][0-9][0-9][0-9].prom"))
    began_s, ended_s = marks.get("bench_start", 0.0), marks.get("bench_end", 0.0)
    if len(pages) < 2 or not 0 < began_s < ended_s:
        return
    try:
        yield from collect_vllm_metrics(
            pages[-1], earlier=pages[:-1], start_s=began_s, end_s=ended_s, context=context
        )
    except BadInputError as error:
        yield Rejection(0, str(error), "no metrics")


def _benchmark(
    folder: Path, spec: LaunchSpec, context: RunContext
) -> InferenceRun | Rejection | None:
    path = folder / "bench.json"
    if spec.bench is None or not path.is_file():
        return None
    try:
        run = next(iter(collect_vllm_bench(path, context=context)), None)
    except BadInputError as error:
        return Rejection(0, str(error), "no result")
    if not isinstance(run, InferenceRun):
        return run
    # Random prompts are a token or two off; the lengths that were set name the workload cell, so
    # that arms are compared on one load.
    asked = {
        "prompt_tokens": float(spec.bench.prompt_tokens),
        "output_tokens": float(spec.bench.output_tokens),
    }
    near = all(
        abs(getattr(run, name) - value) <= _LENGTH_TOLERANCE_FRAC * value
        for name, value in asked.items()
    )
    return replace(run, **asked) if near else run  # type: ignore[arg-type]


def _without_benchmark(
    spec: LaunchSpec,
    context: RunContext,
    start: StartupRun | None,
    marks: dict[str, float],
    outcome: str,
) -> InferenceRun | None:
    """What a run without a result tells: why it failed, or only how long its start took."""
    if start is None or not outcome:
        return None
    status, note = start.status, f"failed: {start.failure}" if start.failure else ""
    if status == _UNFINISHED:
        late = "health_timeout" in marks
        if outcome != "failed" or (start.failure == "terminated" and not late):
            return None  # stopped from outside: nothing about the configuration
        how = f"not ready within {spec.health_wait_s} s" if late else "ended without an error"
        status, note = "error", f"failed: {start.failure}, {how}"
    if status == "ok" and outcome == "bench_failed":
        status, note = "error", "the benchmark failed, the server did not"
    if status == "ok" and "serve_start" not in marks:
        status, note = "error", "the server never answered"
    return InferenceRun(
        source=spec.source, model=spec.model_id, engine=spec.arm.engine, gpu=context.gpu,
        n_gpus=context.n_gpus, precision=context.precision, mode="online", status=status,
        labels={}, prompt_tokens=float(spec.prompt_tokens),
        output_tokens=float(spec.output_tokens), concurrency=float(spec.concurrency),
        kv_dtype=context.kv_dtype, max_model_len=context.max_model_len, notes=note,
        stack=context.stack, engine_settings=context.engine_settings,
        expert_parallel=context.expert_parallel,
    )  # fmt: skip


def _joined(
    run: InferenceRun,
    start: StartupRun | None,
    windows: list[ServingWindow | Rejection],
    marks: dict[str, float],
) -> InferenceRun:
    """Add what the log, the marks and /metrics know to the run's own figures."""
    if run.status != "ok":
        return run
    labels = dict(run.labels)
    cold_start_s = marks.get("serve_start", 0.0) - marks.get("server_start", 0.0)
    if "server_start" in marks and cold_start_s > 0:
        # From the launch to the first good answer of /health, as the target is defined.
        labels["cold_start_s"] = cold_start_s
    elif start is not None and "cold_start_s" in start.labels:
        labels["cold_start_s"] = start.labels["cold_start_s"]
    for window in windows:
        if isinstance(window, ServingWindow) and "kv_cache_peak_frac" in window.labels:
            labels["kv_cache_peak_frac"] = window.labels["kv_cache_peak_frac"]
    return replace(run, labels=labels)
