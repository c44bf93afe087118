"""Starts of a vLLM server, from its log.

One row a start: what was loaded, how much memory and time each step took, when the server was
ready, and why a start failed. The figures are read from the lines that 0.6 to 0.32 print; the
texts changed over time, so each figure has all its forms. No text of the log gets into a row.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from omnipilot.collect.context import NO_CONTEXT, RunContext, model_name, precision_name
from omnipilot.collect.lines import Limits
from omnipilot.collect.vllm_failures import ErrorBlock, Verdict, classify, is_fatal
from omnipilot.collect.vllm_figures import CONFIG, config_of, figures_of, gpu_of
from omnipilot.collect.vllm_log_lines import LogLine, read_log_lines, seconds_between
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.labels import FAILURE_BY_NAME
from omnipilot.domain.rejection import Rejection
from omnipilot.domain.rows import StartupRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

__all__ = ["LOG_LIMITS", "collect_vllm_log"]

LOG_LIMITS: Final = replace(Limits(), file_bytes=2 * 2**30)
_LONGEST_START_S: Final = 7 * 86400.0
_MOST_BLOCKS: Final = 16
_ERROR_LEVELS: Final = frozenset(("ERROR", "CRITICAL"))

_STAGES: Final[tuple[tuple[str, re.Pattern[str] | None], ...]] = (
    ("config", None),
    ("weights", re.compile(
        r"Starting to load model|Loading (?:safetensors checkpoint|model weights|pt checkpoint)")),
    ("profiling", re.compile(
        r"Model loading took|Loading model weights took|model weights take|Memory profiling")),
    ("kv_cache", re.compile(
        r"KV cache size: [\d,]+ tokens|Available KV cache memory|# [A-Za-z]{1,8} blocks: \d")),
    ("graph_capture", re.compile(r"Capturing (?:the model for )?(?:CUDA|HIP|ACL|cuda)\w*[ -]?graph"
                                 r"|Graph capturing finished", re.IGNORECASE)),
    ("initialised", re.compile(r"init engine \(profile")),
    ("ready", re.compile(
        r"Application startup complete\.|Uvicorn running on |Avg prompt throughput: "
        r'|"(?:GET /health|POST /v1/\w[\w/]{0,40}) HTTP/1\.[01]" 200')),
)  # fmt: skip
_READY: Final = len(_STAGES) - 1

_VERSION: Final = re.compile(
    r"(?:API server version |LLM engine \(v|█.{0,40}\bversion )(\d[\w.+-]{0,60})"
)
_NEW_SERVER: Final = re.compile(r"API server version |█.{0,40}\bversion \d")

# What is no exception but ends a start, by class; printed past the engine's logger.
_MARKERS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("oom_host", re.compile(r"oom[-_]kill event|Out of memory: Killed process|\boom-kill:")),
    ("terminated", re.compile(r"slurmstepd: error: .{0,200}(?:CANCELLED|DUE TO TIME LIMIT)")),
    # Older servers bind the port last, and uvicorn alone tells that it is taken.
    ("port_in_use", re.compile(r"error while attempting to bind on address")),
    ("bad_arguments", re.compile(
        r": error: (?:unrecognized arguments|argument |the following arguments|ambiguous option)")),
    ("engine_dead", re.compile(
        r"Segfault encountered|Fatal Python error|Segmentation fault|\(core dumped\)"
        r"|terminate called after throwing|^\s*Killed\s*$")),
)  # fmt: skip
_STOPPED: Final = re.compile(
    r"\[shutdown\]|Shutting down FastAPI|^INFO:\s+Shutting down|signal[= ]SIG(?:TERM|INT)"
    r"|Received (?:signal )?SIG(?:TERM|INT)|KeyboardInterrupt: terminated"
)
# Most lines hold none of the words of the two tables above and are not searched further.
_END_HINT: Final = re.compile(
    r"error: |error while|kill|Kill|SIG|hutting down|\[shutdown\]|ault|dumped|terminat"
)
_TRACEBACK: Final = "Traceback (most recent call last):"


@dataclass(slots=True)
class _Start:
    """What is known of one start so far."""

    labels: dict[str, float] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    version: str = ""
    gpu: str = ""
    stage: int = 0
    first: datetime | None = None
    last: datetime | None = None
    blocks: list[ErrorBlock] = field(default_factory=list)
    open_block: ErrorBlock | None = None
    open_level: str = ""
    marker: str = ""
    oom_killed: bool = False
    stopped: bool = False
    died: bool = False
    has_times: bool = False

    def ends_before(self, line: LogLine) -> bool:
        """Whether a line is the banner of another start.

        A start that was killed without a word (a lost node) is over too; API servers beside the
        first print their banner while the engine loads.
        """
        over = self.stage == _READY or self.stopped or bool(self.blocks or self.marker)
        over = over or (self.stage > 0 and not line.process.startswith("ApiServer_"))
        return over and _NEW_SERVER.search(line.text) is not None

    @property
    def told(self) -> bool:
        """Whether the lines were an engine's at all."""
        known = self.version or self.config or self.stage or self.blocks or self.marker
        return self.has_times and bool(known)


def collect_vllm_log(
    path: Path, *, context: RunContext = NO_CONTEXT, limits: Limits = LOG_LIMITS
) -> Iterator[StartupRun | Rejection]:
    """Read the starts of one log.

    ``cold_start_s`` runs from the first line with a time to the last before the server is ready,
    in whole seconds; what happened before the first line (the import of the engine, seconds) is
    not in it. A start that is stopped after it got ready is no failure. Lines that are no text
    are refused and the rest of the log is read.

    Args:
        path: a log, plain or gzip-compressed; of one server, which may have been started several
            times.
        context: what the log does not tell (the GPU, mostly).
        limits: what the file may cost.

    Yields:
        Refused lines and one row a start, in file order.

    Raises:
        BadInputError: the file is no text, is too large or no log of a vLLM server.
    """
    start = _Start()
    n_starts = 0
    for line in read_log_lines(path, limits):
        if isinstance(line, Rejection):
            yield line
            continue
        if start.ends_before(line):
            n_starts += 1
            yield _row(start, context)
            start = _Start()
        _read(start, line)
    if n_starts or start.told:
        yield _row(start, context)
    else:
        raise BadInputError(f"{path} is no log of a vLLM server: it has none of its lines")


def _read(start: _Start, line: LogLine) -> None:
    if line.at is not None:
        start.has_times = True
        start.first = start.first or line.at
    if start.stage < _READY:
        _read_start(start, line)
        start.last = line.at or start.last
    _read_errors(start, line)
    if line.level not in _ERROR_LEVELS and _END_HINT.search(line.text):
        _read_end(start, line)


def _read_end(start: _Start, line: LogLine) -> None:
    """Take in that the server is told to stop, or is killed."""
    marker = ""
    if not line.level:
        marker = next((name for name, found in _MARKERS if found.search(line.text)), "")
    start.oom_killed = start.oom_killed or marker == "oom_host"
    if not (start.marker or start.stopped or start.blocks):
        start.marker = marker
    start.stopped = start.stopped or marker == "terminated" or bool(_STOPPED.search(line.text))


def _read_start(start: _Start, line: LogLine) -> None:
    """Take in what a start prints until the server is ready."""
    text = line.text
    version = _VERSION.search(text)
    if version and not start.version:
        start.version = version[1].rstrip(").")
    if line.level not in _ERROR_LEVELS:
        for name, value, smallest in figures_of(text):
            known = start.labels.get(name, value)
            start.labels[name] = min(known, value) if smallest else max(known, value)
    # The engine's own line comes after the command line's and holds what "auto" became.
    start.config.update(config_of(text))
    start.gpu = start.gpu or gpu_of(text)
    for n, (_, pattern) in enumerate(_STAGES[start.stage + 1 :], start.stage + 1):
        if pattern is not None and pattern.search(text):
            start.stage = n
    if start.stage == _READY:
        # Errors on the way did no harm, or it would not have got here.
        start.blocks, start.open_block = [], None
        if start.first and start.last:
            seconds = seconds_between(start.first, start.last)
            if 0 < seconds < _LONGEST_START_S:
                start.labels["cold_start_s"] = seconds


def _read_errors(start: _Start, line: LogLine) -> None:
    """Collect the error lines of the process that failed first, and of those after it."""
    if start.stopped:
        return
    is_error = line.level in _ERROR_LEVELS
    if start.stage == _READY and not start.blocks:
        # Requests may fail without harm: only what kills the engine begins a block now.
        if not (is_error and is_fatal(line.text)):
            return
        start.died = True
    begins = is_error or (not line.level and line.text.startswith(_TRACEBACK))
    block = start.open_block
    level = "ERROR" if is_error else line.level
    if begins and (block is None or block.process != line.process or start.open_level != level):
        block = next((b for b in start.blocks if b.process == line.process and is_error), None)
        if block is None:
            if len(start.blocks) >= _MOST_BLOCKS:
                return
            block = ErrorBlock(line.process)
            start.blocks.append(block)
        start.open_block, start.open_level = block, level
    elif block is None or block.process != line.process or start.open_level != level:
        return
    block.take(line.text)


def _verdict(start: _Start) -> Verdict:
    """Judge the start; a verdict without a failure for one that got ready and did not die."""
    stage = _STAGES[start.stage][0]
    if start.blocks and (start.died or stage != "ready"):
        verdict = classify(start.blocks, stage)
    elif stage == "ready":
        verdict = Verdict("" if start.stopped else start.marker, "", {})
    elif stage == "initialised" and not (start.marker or "api_server" in start.config):
        # Without a server there is nothing to wait for after the engine.
        verdict = Verdict("", "", {})
    else:
        marker = start.marker or ("terminated" if start.stopped else "cut_off")
        verdict = Verdict(marker, "", {})
    if start.oom_killed and verdict.failure in {"engine_dead", "error", "cut_off"}:
        return verdict._replace(failure="oom_host")
    return verdict


def _row(start: _Start, context: RunContext) -> StartupRun:
    failure, error_type, figures = _verdict(start)
    sizes = {key: int(start.config.get(key, "0")) for key in CONFIG if CONFIG[key].whole}
    parallel = [sizes[f"{axis}_parallel"] for axis in ("tensor", "pipeline", "data")]
    n_gpus = math.prod(max(size, 1) for size in parallel) if any(parallel) else 0
    config = start.config
    return StartupRun(
        source=context.source,
        model=context.model or model_name(config.get("model", "")),
        engine=context.engine or "vllm",
        gpu=context.gpu or start.gpu,
        n_gpus=context.n_gpus or n_gpus,
        precision=context.precision
        or precision_name(config.get("quantization", ""), config.get("dtype", "")),
        status=FAILURE_BY_NAME[failure].status if failure else "ok",
        labels=start.labels | figures,
        failure=failure,
        stage=_STAGES[start.stage][0],
        error_type=error_type,
        stopped=start.stopped and failure in {"", "terminated"},
        tensor_parallel=parallel[0],
        pipeline_parallel=parallel[1],
        data_parallel=parallel[2],
        kv_dtype=context.kv_dtype or config.get("kv_dtype", ""),
        max_model_len=context.max_model_len or sizes["max_model_len"],
        memory_utilization_frac=float(config.get("memory_utilization", "0")),
        gpu_memory_gb=context.gpu_memory_gb,
        stack=context.with_version(start.version),
    )
