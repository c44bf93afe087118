"""The script of a launch: a header for Slurm, the values, and a body that is always the same.

Every value is quoted for the shell, so none can become a command, and the lines for Slurm take
checked names only (:class:`omnipilot.launch.spec.JobRequest`).
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnipilot.launch.spec import LaunchSpec

__all__ = ["SCRIPT_NAME", "job_name", "launch_script", "serve_arguments"]

SCRIPT_NAME: Final = "launch.sh"
_BODY: Final = Path(__file__).with_name("data") / "serve.sh"
# Below the range that Linux gives to outgoing connections (32768 to 60999).
_PORT_FIRST: Final = 20000
_PORT_SPAN: Final = 10000
_STOP_WAIT_S: Final = 30
_POLL_S: Final = 1
# Slurm may deliver a signal up to a minute early: a short job would get it at once.
_LEAST_MINUTES_FOR_SIGNAL: Final = 5
_LINE: Final = 96


def job_name(spec: LaunchSpec) -> str:
    """The job's name in Slurm; "vllm" in it makes the harvest count it as a vLLM server."""
    return f"omnipilot-{spec.arm.engine}-{spec.run_id}"


def serve_arguments(spec: LaunchSpec) -> list[str]:
    """The engine's arguments, without host, port and names.

    Raises:
        BadInputError: an engine for which no launch is known.
    """
    if spec.arm.engine != "vllm":
        raise BadInputError(f"launch knows vllm only, not {spec.arm.engine}: start it yourself")
    said = spec.parameters
    arguments = [
        "--tensor-parallel-size", str(spec.arm.tensor_parallel),
        "--max-model-len", str(said.max_model_len),
        "--gpu-memory-utilization", f"{said.memory_utilization_frac:g}",
        "--max-num-seqs", str(said.max_num_seqs),
    ]  # fmt: skip
    if said.kv_dtype != "auto":
        arguments += ["--kv-cache-dtype", said.kv_dtype]
    return [*arguments, *said.arguments, *spec.software.arguments]


def bench_arguments(spec: LaunchSpec) -> list[str]:
    """Arguments of the benchmark; none where none is asked for."""
    load = spec.bench
    if load is None:
        return []
    return [
        "--dataset-name", "random",
        "--random-input-len", str(load.prompt_tokens),
        "--random-output-len", str(load.output_tokens),
        "--num-prompts", str(load.num_prompts),
        "--max-concurrency", str(load.concurrency),
        "--seed", str(load.seed),
        "--ignore-eos",
        "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "50,90,99",
    ]  # fmt: skip


def launch_script(spec: LaunchSpec, run_dir: Path, emit: Sequence[str] = ()) -> str:
    """The whole script of a launch.

    The same text is submitted to Slurm and run without it: there the lines for Slurm are comments.

    Args:
        spec: the launch.
        run_dir: the run's folder, which compute nodes see.
        emit: program and arguments that take the finished run's rows in; none leaves that to later.

    Raises:
        BadInputError: an engine for which no launch is known, or a folder that Slurm cannot name.
    """
    serve, bench = serve_arguments(spec), bench_arguments(spec)
    said = spec.parameters
    # The operator's variables come last: they may override what is known to be needed.
    variables = [f"{k}={v}" for k, v in (*said.environment, *spec.software.environment)]
    values = [
        ("run_dir", str(run_dir)), ("model", spec.model_id), ("checkpoint", spec.checkpoint),
        ("image", spec.software.image), ("venv", spec.software.venv), ("vendor", spec.vendor),
        ("host", "0.0.0.0"),  # noqa: S104 - clients are on other nodes
        ("port_first", str(_PORT_FIRST)), ("port_span", str(_PORT_SPAN)),
        ("health_wait_s", str(spec.health_wait_s)), ("stop_wait_s", str(_STOP_WAIT_S)),
        ("poll_s", str(_POLL_S)), ("scrape_s", f"{spec.scrape_s:g}"),
        ("stop_after_bench", str(int(spec.stop_after_bench))),
    ]  # fmt: skip
    arrays = [
        ("engine", [spec.arm.engine]), ("modules", list(spec.software.modules)),
        ("unset_variables", list(said.unset)), ("variables", variables),
        ("serve_arguments", serve), ("bench_arguments", bench), ("emit", list(emit)),
    ]  # fmt: skip
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _sbatch_options(spec, run_dir)),
        "",
        f"# {_comment(spec.model_id)} on {_comment(spec.arm.label)}, written by omnipilot launch.",
        *(f"# {_comment(f'{r.flag}: {r.why} ({r.source})')}" for r in said.reasons),
        "",
        *(f"{name}={shlex.quote(value)}" for name, value in values),
        *(line for name, items in arrays for line in _array(name, items)),
        "",
    ]
    return "\n".join(lines) + _BODY.read_text(encoding="utf-8")


def _sbatch_options(spec: LaunchSpec, run_dir: Path) -> list[str]:
    job = spec.job
    folder = str(run_dir).replace("%", "%%")
    if not folder.isprintable() or any(c in folder for c in "\"\\' "):
        raise BadInputError(f"Slurm cannot name the folder '{folder}': choose one without blanks")
    gpus = f"--gres={job.gres}" if job.gres else f"--gpus-per-node={spec.arm.tensor_parallel}"
    options = [
        f"--job-name={job_name(spec)}", "--nodes=1", "--ntasks=1", gpus,
        f"--time={job.time_limit_min}", f"--output={folder}/job.out", "--open-mode=append",
        "--no-requeue",
    ]  # fmt: skip
    named = (("partition", job.partition), ("account", job.account), ("qos", job.qos))
    options += [f"--{name}={value}" for name, value in named if value]
    options += [f"--cpus-per-task={job.cpus}"] if job.cpus else []
    options += [f"--mem={job.memory_gib}G"] if job.memory_gib else []
    options += [f"--exclude={','.join(job.exclude)}"] if job.exclude else []
    if job.time_limit_min >= _LEAST_MINUTES_FOR_SIGNAL:
        options.append("--signal=B:TERM@60")
    return options


def _comment(text: str) -> str:
    """Text that stays on the line of its comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _array(name: str, items: Sequence[str]) -> list[str]:
    """An array's assignment, an option with its value on each line."""
    quoted = [shlex.quote(item) for item in items]
    one_line = f"{name}=({' '.join(quoted)})"
    if len(one_line) <= _LINE:
        return [one_line]
    lines: list[str] = []
    for text in quoted:
        if lines and not text.startswith("-") and lines[-1].lstrip().startswith("--"):
            lines[-1] += f" {text}"
        else:
            lines.append(f"  {text}")
    return [f"{name}=(", *lines, ")"]
