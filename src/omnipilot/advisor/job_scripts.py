"""What a job script says of a vLLM server: the engine's own options, and what it asks of Slurm.

A script is read, never run: assignments of plain text are filled in, and whatever else the shell
would work out leaves the value untold.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ServingJob", "gpus_of", "read_job_script"]

_MOST_LINES: Final = 5000
_ASSIGNMENT: Final = re.compile(
    r"\s*(?:export\s+)?([A-Za-z_]\w*)=('[^']*'|\"[^\"$`]*\"|[^\s\"'$`]*)\s*$"
)
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_SBATCH: Final = re.compile(r"#SBATCH\s+(.*)")
_OURS: Final = re.compile(r"#\s*OMNIPILOT\s+(.*)")
_GRES: Final = re.compile(r"(?:gres[/:])?gpu(?::(?P<kind>[A-Za-z][\w.-]*))?(?:[:=](?P<n>\d+))?")
_GPUS: Final = re.compile(r"(?:(?P<kind>[A-Za-z][\w.-]*):)?(?P<n>\d+)")
# Options of the engine by every spelling; the value is the name of a field below.
_OPTIONS: Final = {
    "--model": "model",
    "--tensor-parallel-size": "tensor_parallel", "-tp": "tensor_parallel",
    "--pipeline-parallel-size": "pipeline_parallel", "-pp": "pipeline_parallel",
    "--data-parallel-size": "data_parallel", "-dp": "data_parallel",
    "--max-model-len": "max_model_len", "--max-num-seqs": "max_num_seqs",
    "--gpu-memory-utilization": "memory_utilization_frac",
    "--quantization": "quantization", "-q": "quantization", "--dtype": "dtype",
    "--kv-cache-dtype": "kv_dtype",
}  # fmt: skip
_OPERATORS: Final = (";", "&", "|", ">", "<", ")")
_OTHER_GRES: Final = frozenset({"mps", "nic", "shard"})
_SIZES: Final = {"k": 1000, "K": 1024, "m": 1_000_000, "M": 1024**2}


@dataclass(frozen=True, slots=True)
class ServingJob:
    """One vLLM server as its job script has it; 0 and "" for what the script does not tell.

    Args:
        gpu: type in ``--gres``, as the site's Slurm spells it.
        n_gpus: GPUs that the job asks for, on all its nodes.
        concurrency: of a line ``#OMNIPILOT concurrency=200 context=4096``.
        context_tokens: of the same line.
    """

    model: str
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    max_model_len: int = 0
    max_num_seqs: int = 0
    memory_utilization_frac: float = 0.0
    quantization: str = ""
    dtype: str = ""
    kv_dtype: str = "auto"
    gpu: str = ""
    n_gpus: int = 0
    partition: str = ""
    concurrency: int = 0
    context_tokens: int = 0

    @property
    def precision(self) -> str:
        """The weight format that the options ask for; "" for the checkpoint's own."""
        if self.quantization:
            return self.quantization.partition("_")[0].lower()
        return {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}.get(self.dtype, "")


def read_job_script(text: str, *, gres: str = "", partition: str = "") -> ServingJob | None:
    """Read a job script.

    Args:
        text: the script.
        gres: GPUs asked for on the command line, which win over the script's own.
        partition: the same.

    Returns:
        The first vLLM server of the script; None where there is none.
    """
    variables: dict[str, str] = {}
    slurm: dict[str, str] = {}
    load: dict[str, str] = {}
    found: dict[str, str] | None = None
    for line in _logical_lines(text):
        if option := _SBATCH.match(line):
            slurm |= _slurm_options(option[1])
        elif said := _OURS.match(line):
            load |= dict(part.split("=", 1) for part in said[1].split() if "=" in part)
        elif line.lstrip().startswith("#"):
            continue
        elif assigned := _ASSIGNMENT.match(line):
            variables[assigned[1]] = assigned[2].strip("'\"")
        elif found is None:
            found = _server(_filled(line, variables))
    if not found or not found.get("model") or "$" in found["model"]:
        return None
    nodes, tasks = (_least(slurm.get(name)) for name in ("nodes", "ntasks"))
    asked = (
        (gpus_of(text), times)
        for text, times in (
            (gres, nodes), (slurm.get("gres", ""), nodes), (slurm.get("gpus", ""), 1),
            (slurm.get("gpus_per_node", ""), nodes), (slurm.get("gpus_per_task", ""), tasks),
        )
    )  # fmt: skip
    gpu, n_gpus = next(((kind, n * times) for (kind, n), times in asked if n), ("", 0))
    return ServingJob(
        model=found["model"],
        tensor_parallel=_least(found.get("tensor_parallel")),
        pipeline_parallel=_least(found.get("pipeline_parallel")),
        data_parallel=_least(found.get("data_parallel")),
        max_model_len=_whole(found.get("max_model_len"), 0),
        max_num_seqs=_whole(found.get("max_num_seqs"), 0),
        memory_utilization_frac=_fraction(found.get("memory_utilization_frac")),
        quantization=found.get("quantization", ""),
        dtype=found.get("dtype", ""),
        kv_dtype=found.get("kv_dtype", "auto"),
        gpu=gpu,
        n_gpus=n_gpus,
        partition=partition or slurm.get("partition", ""),
        concurrency=_whole(load.get("concurrency"), 0),
        context_tokens=_whole(load.get("context"), 0),
    )


def gpus_of(text: str) -> tuple[str, int]:
    """(type, number) of ``--gres`` or ``--gpus``.

    >>> gpus_of("gpu:h100:2"), gpus_of("gres:gpu:a100:4"), gpus_of("h200:1"), gpus_of("2")
    (('h100', 2), ('a100', 4), ('h200', 1), ('', 2))
    """
    for part in text.split(","):
        part = part.strip()  # noqa: PLW2901 - blanks around a comma
        gres = _GRES.fullmatch(part)
        if gres:
            return gres["kind"] or "", int(gres["n"] or 1)
        gpus = _GPUS.fullmatch(part)
        if gpus and gpus["kind"] not in _OTHER_GRES:
            return gpus["kind"] or "", int(gpus["n"])
    return "", 0


def _logical_lines(text: str) -> Iterator[str]:
    """Lines with their continuations."""
    kept = ""
    for line in text.splitlines()[:_MOST_LINES]:
        if line.endswith("\\"):
            kept += line[:-1] + " "
            continue
        yield kept + line
        kept = ""
    if kept:
        yield kept


def _slurm_options(text: str) -> dict[str, str]:
    """Options of one #SBATCH line by their long names."""
    names = {
        "--gres": "gres", "--gpus": "gpus", "-G": "gpus", "--gpus-per-node": "gpus_per_node",
        "--gpus-per-task": "gpus_per_task", "--partition": "partition", "-p": "partition",
        "--nodes": "nodes", "-N": "nodes", "--ntasks": "ntasks", "-n": "ntasks",
    }  # fmt: skip
    words, found = _words(text), {}
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            found[names[name]] = value if equals else (words[i + 1] if i + 1 < len(words) else "")
    return found


def _server(line: str) -> dict[str, str] | None:
    """Options of the vLLM server that a line starts; None where it starts none."""
    words = _words(line)
    rest: list[str] | None = None
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        if word.rpartition("/")[2] == "vllm" and words[i + 1 : i + 2] == ["serve"]:
            rest = words[i + 2 :]
            if rest and not rest[0].startswith("-"):
                found["model"] = rest[0]
        elif word.startswith("vllm.entrypoints."):
            rest = words[i + 1 :]
        if rest is not None:
            break
    if rest is None:
        return None
    ended = next((i for i, word in enumerate(rest) if word.startswith(_OPERATORS)), len(rest))
    rest = [word.rstrip(";&") for word in rest[:ended]]
    for i, word in enumerate(rest):
        name, equals, value = word.partition("=")
        field = _OPTIONS.get(name.replace("_", "-") if name.startswith("--") else name)
        if field:
            found[field] = value if equals else (rest[i + 1] if i + 1 < len(rest) else "")
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _filled(line: str, variables: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[2], found[0])

    return _VARIABLE.sub(value, line)


def _whole(text: str | None, default: int) -> int:
    """A count, also as vLLM takes it: 32k is 32,000 and 32K is 32,768."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([kKmM]?)", text or "")
    return int(float(found[1]) * _SIZES.get(found[2], 1)) if found else default


def _least(text: str | None) -> int:
    """A count of 1 at least, the lower one of a range such as 2-4; 1 where it is not told."""
    return max(_whole((text or "").partition("-")[0], 1), 1)


def _fraction(text: str | None) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        return 0.0
    return value if 0 < value <= 1 else 0.0
