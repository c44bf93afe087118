"""Why a vLLM server failed: the first error of the log, classified.

Later errors are echoes: a worker's exception is raised again by the engine core, and the API
server ends with "Engine core initialization failed". So the first block of error lines of one
process decides, and in it the first exception that a rule knows (an exception may stand below the
one that caused it).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["ErrorBlock", "Verdict", "classify", "is_fatal"]

_MOST_STATEMENTS: Final = 64
_STATEMENT_CHARACTERS: Final = 4096

_FRAME: Final = re.compile(r'\s*File "[^"]{0,500}", line \d+, in (\w{1,100})')
_EXCEPTION: Final = re.compile(
    r"(?:[A-Za-z_]\w{0,80}\.){0,8}([A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit))(?:: (.*))?"
)
# pydantic prints the reason of a ValidationError on a line of its own.
_REASON: Final = re.compile(r"\s{0,4}(Value error|Assertion failed), (.*)")

_OOM: Final = "oom"


class _Rule(NamedTuple):
    """What an exception says when it is of a class; the first rule that fits decides."""

    failure: str
    pattern: re.Pattern[str]


def _rule(failure: str, *patterns: str) -> _Rule:
    return _Rule(failure, re.compile("|".join(patterns), re.IGNORECASE))


# Texts of vLLM (v1/core/kv_cache_utils.py, v1/worker/*_worker.py, config/*.py,
# model_executor/layers/quantization), PyTorch, NCCL and huggingface_hub.
_RULES: Final[tuple[_Rule, ...]] = (
    # What vLLM makes of SIGTERM, and Python of SIGINT.
    _rule("terminated", r"^KeyboardInterrupt: "),
    _rule("kv_too_small",
          r"KV cache is needed, which is larger than the available KV cache memory",
          r"max seq len \(\d+\) is larger than the maximum number of tokens that can be stored",
          r"No available memory for the cache blocks"),
    _rule("memory_not_free", r"Free memory on device .{0,80}is less than desired GPU memory",
          r"Error in memory profiling"),
    _rule("oom_kv_cache", r"Available memory on node .{0,120}less than requested memory for kv"),
    _rule("oom_host", r"Cannot allocate memory", r"DefaultCPUAllocator: (can't|not enough)",
          r"^MemoryError"),
    _rule(_OOM, r"out of memory", r"OutOfMemoryError", r"CUBLAS_STATUS_ALLOC_FAILED"),
    _rule("port_in_use", r"Address already in use"),
    _rule("too_few_gpus", r"larger than the (?:total )?number of available (?:GPUs|devices)",
          r"number of required GPUs exceeds", r"invalid device ordinal",
          r"World size \(\d+\) is larger than the number of available",
          r"local rank \d+ is out of bounds"),
    _rule("max_model_len",
          r"User-specified max_model_len .{0,40}is greater than the derived max_model_len"),
    _rule("divisibility", r"must be divisible by", r"(?:is )?not divisible by", r"divisibility",
          r"not aligned with the quantized weight shape"),
    _rule("no_such_model", r"LocalEntryNotFoundError", r"RepositoryNotFoundError",
          r"RevisionNotFoundError", r"GatedRepoError", r"HFValidationError",
          r"is not a local folder and is not a valid model identifier",
          r"does not appear to have a file named", r"Can't load the configuration of",
          r"Invalid repository ID or local directory", r"is not a valid model id",
          r"Cannot find any model weights", r"couldn't connect to 'https://huggingface"),
    _rule("device_error", r"CUDA error: (?!no kernel image)", r"NCCL error", r"ncclUnhandled",
          r"No CUDA GPUs are available", r"NVIDIA driver .{0,40}too old", r"uncorrectable ECC",
          r"Found no NVIDIA driver", r"Failed to infer device type", r"cudaErrorUnknown"),
    _rule("unsupported", r"not supported", r"does not support", r"unsupported",
          r"only supported", r"Unknown quantization method", r"Invalid quantization method",
          r"Cannot find the config file for", r"compute capability", r"minimum capability",
          r"no kernel image is available", r"Please install .{0,200}to use",
          r"'_OpNamespace' .{0,80}has no attribute", r"expected at most \d+ argument",
          r"Quantization method specified in the model config", r"Failed to find a kernel",
          r"No valid attention backend", r"NotImplementedError",
          r"Model architectures .{0,200}(?:failed to be inspected|are not supported)",
          r"does not recognize this architecture", r"Could not run '.{0,80}' with arguments from",
          r"requires? (?:a )?(?:device|GPU|CUDA|triton)"),
    _rule("engine_dead", r"EngineDeadError", r"WorkerProc initialization failed",
          r"Engine core initialization failed", r"Engine process failed to start",
          r"died unexpectedly", r"Worker failed with error"),
)  # fmt: skip

# Where in the start a function of the traceback stands; the outermost one decides, for the
# profiling run and the warm-up call the same functions.
_STAGE_OF_FRAMES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("profiling", ("determine_available_memory", "determine_num_available_blocks", "profile_run")),
    ("weights", ("load_model", "load_weights", "create_weights")),
    ("graph_capture", ("compile_or_warm_up_model", "capture_model")),
    ("kv_cache", ("initialize_kv_cache", "initialize_from_config", "initialize_cache")),
)
_OOM_OF_STAGE: Final[dict[str, str]] = {
    "config": "oom_weights",
    "weights": "oom_weights",
    "profiling": "oom_profiling",
    "kv_cache": "oom_kv_cache",
    "graph_capture": "oom_graph_capture",
    "initialised": "oom_graph_capture",
    "ready": "oom_serving",
}

# After a server is ready a request may fail with any error; these end the server.
_FATAL: Final = re.compile(
    r"EngineCore encountered a fatal error|EngineDeadError|AsyncLLM output_handler failed"
    r"|AsyncEngineDeadError|Background loop has errored|engine process died"
    r"|WorkerProc hit an exception|died unexpectedly|engine is dead",
    re.IGNORECASE,
)

_GIB: Final = {"GiB": 1.0, "MiB": 2.0**-10}
_GIB_FIGURES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("kv_needed_gib", re.compile(r"\((\d+(?:\.\d+)?) (GiB) KV cache is needed")),
    ("kv_needed_gib", re.compile(r"requested memory for kv \((\d+(?:\.\d+)?) (GiB)\)")),
    ("kv_available_gib", re.compile(r"available KV cache memory \((\d+(?:\.\d+)?) (GiB)\)")),
    ("kv_available_gib", re.compile(r"memory on node \d+ \((\d+(?:\.\d+)?)/[\d.]+ (GiB)\)")),
    ("allocation_gib", re.compile(r"Tried to allocate (\d+(?:\.\d+)?) ([GM]iB)")),
    ("gpu_total_gib", re.compile(r"total capacity of (\d+(?:\.\d+)?) ([GM]iB)")),
    ("gpu_total_gib", re.compile(r"Free memory on device[^(]{0,40}\([\d.]+/(\d+(?:\.\d+)?) (GiB)")),
    ("gpu_free_gib", re.compile(r"of which (\d+(?:\.\d+)?) ([GM]iB) is free")),
    ("gpu_free_gib", re.compile(r"Free memory on device[^(]{0,40}\((\d+(?:\.\d+)?)/[\d.]+ (GiB)")),
)
_POSSIBLE_LENGTH: Final = re.compile(
    r"estimated maximum model length is (\d{1,12})"
    r"|tokens that can be stored in KV cache \((\d{1,12})\)"
    r"|derived max_model_len \(max_position_embeddings=(\d{1,12})"
)


class Verdict(NamedTuple):
    """Class of a failure, the exception that decided it, and the figures that it told."""

    failure: str
    error_type: str
    figures: dict[str, float]


@dataclass(slots=True)
class ErrorBlock:
    """The error lines of one process, as far as they are needed."""

    process: str
    statements: list[tuple[str, str]] = field(default_factory=list)
    frames: set[str] = field(default_factory=set)

    def take(self, text: str) -> None:
        """Read one line of the block, without the logger's prefix."""
        frame = _FRAME.match(text)
        if frame:
            if len(self.frames) < 1000:
                self.frames.add(frame[1])
            return
        found = _EXCEPTION.fullmatch(text[:_STATEMENT_CHARACTERS].rstrip()) or _REASON.match(text)
        if found and len(self.statements) < _MOST_STATEMENTS:
            name = "ValueError" if found[1] == "Value error" else found[1]
            name = "AssertionError" if name == "Assertion failed" else name
            self.statements.append((name, (found[2] or "")[:_STATEMENT_CHARACTERS]))

    def stage(self, otherwise: str) -> str:
        """Tell in which stage of the start the traceback stands."""
        for stage, names in _STAGE_OF_FRAMES:
            if not self.frames.isdisjoint(names):
                return stage
        return otherwise


def is_fatal(text: str) -> bool:
    """Tell whether a line says that a server that was ready has died."""
    return _FATAL.search(text) is not None


def classify(blocks: list[ErrorBlock], stage: str) -> Verdict:
    """Classify the errors of one start.

    Args:
        blocks: error blocks in the order in which they began.
        stage: how far the start had come; "ready" for a server that died later, which is
            "oom_serving" or else "engine_dead" whatever the error was.
    """
    block = next((b for b in blocks if b.statements), None)
    if block is None:
        return Verdict("engine_dead" if stage == "ready" else "error", "", {})
    failure, (error_type, message) = next(
        (
            (rule.failure, statement)
            for statement in block.statements
            for rule in _RULES
            if rule.pattern.search(f"{statement[0]}: {statement[1]}")
        ),
        ("error", block.statements[0]),
    )
    if failure == _OOM:
        failure = _OOM_OF_STAGE[stage if stage == "ready" else block.stage(stage)]
    elif stage == "ready":
        failure = "engine_dead"
    return Verdict(failure, error_type, _figures(message))


def _figures(message: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, pattern in _GIB_FIGURES:
        found = pattern.search(message)
        if found and len(found[1]) <= 12:
            figures.setdefault(name, float(found[1]) * _GIB[found[2]])
    length = _POSSIBLE_LENGTH.search(message)
    if length:
        figures["max_model_len_possible"] = float(next(g for g in length.groups() if g))
    return figures
