"""One launch as data: what is served, where, and what becomes a row."""

from __future__ import annotations

import os
import re
from dataclasses import field
from typing import TYPE_CHECKING, Final

import msgspec

from omnipilot.domain.arm import Arm  # noqa: TC001 - msgspec reads the annotations
from omnipilot.domain.engine import EngineParameters  # noqa: TC001 - same
from omnipilot.domain.errors import BadInputError, StateError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SPEC_NAME", "BenchLoad", "JobRequest", "LaunchSpec", "Software", "read_spec",
           "write_atomically", "write_spec"]  # fmt: skip

SPEC_NAME: Final = "launch.json"
_NAME: Final = re.compile(r"[\w.+:@/,=\[\]-]{1,200}", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


@dataclass(frozen=True, slots=True)
class Software:
    """Where the engine comes from; all empty: it is on PATH.

    Args:
        image: Apptainer or Singularity image.
        venv: folder of a virtual environment.
        modules: environment modules, loaded first.
        environment: further variables of the operator, (name, value).
        arguments: further arguments of the engine's command line.

    Raises:
        BadInputError: both an image and a venv, or a name that is none.
    """

    image: str = ""
    venv: str = ""
    modules: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.image and self.venv:
            raise BadInputError("give --image or --venv, not both")
        for name, value in self.environment:
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise BadInputError(f"'{name[:80]}' is no name of a variable: --env NAME=VALUE")
        for text in (self.image, self.venv, *self.modules, *self.arguments):
            _check_text(text, "a path, module or argument")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is asked of Slurm; "" and 0 leave it to the site. ``exclude`` are nodes to keep off.

    Raises:
        BadInputError: a name that could not be one, so that it would change the script's header.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    gres: str = ""
    time_limit_min: int = 60
    cpus: int = 0
    memory_gib: int = 0
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = [(w, getattr(self, w)) for w in ("partition", "account", "qos", "gres")]
        for what, value in (*named, *(("node", node) for node in self.exclude)):
            if value and not _NAME.fullmatch(value):
                raise BadInputError(
                    f"{what} '{value[:80]}' is no name of Slurm: letters, digits and .+:@/,=- only"
                )
        if self.time_limit_min < 1:
            raise BadInputError("the time limit must be at least one minute")


@dataclass(frozen=True, slots=True)
class BenchLoad:
    """The load of one benchmark: random prompts of set lengths in a closed loop."""

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    num_prompts: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything that one launch is.

    Args:
        run_id: name of the run's folder, and of the job.
        model_id: the model as rows name it, and as the server answers to it.
        checkpoint: what the engine loads: a model id or a folder.
        vendor: of the GPU, for the container.
        context_tokens: longest request that the server takes.
        bench: the benchmark to run once the server is ready; None serves only.
        stop_after_bench: end the server after the benchmark.
        health_wait_s: longest wait for the server to answer.
        source: name of the site in the rows.
    """

    run_id: str
    model_id: str
    checkpoint: str
    arm: Arm
    parameters: EngineParameters
    concurrency: int
    context_tokens: int
    prompt_tokens: int
    output_tokens: int
    engine_version: str = ""
    vendor: str = "nvidia"
    bench: BenchLoad | None = None
    stop_after_bench: bool = False
    software: Software = field(default_factory=Software)
    job: JobRequest = field(default_factory=JobRequest)
    health_wait_s: int = 1800
    scrape_s: float = 5.0
    source: str = "site"

    def __post_init__(self) -> None:
        if not _RUN_ID.fullmatch(self.run_id):
            raise BadInputError(f"'{self.run_id[:80]}' is no name of a run")
        for text, what in ((self.model_id, "the model"), (self.checkpoint, "the checkpoint")):
            _check_text(text, what)
            if not text or text.startswith("-"):
                raise BadInputError(f"{what} '{text[:80]}' is no model id and no folder")


def _check_text(text: str, what: str) -> None:
    if not text.isprintable():
        raise BadInputError(f"{what} {text[:80]!r} holds characters that are not printable")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that others see all of it or nothing of it.

    Raises:
        StateError: the folder or the disk refuses.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror or error}") from error


def write_spec(folder: Path, spec: LaunchSpec) -> None:
    """Write a launch into its run's folder.

    Raises:
        StateError: the folder cannot be written.
    """
    write_atomically(folder / SPEC_NAME, msgspec.json.format(msgspec.json.encode(spec)) + b"\n")


def read_spec(folder: Path) -> LaunchSpec:
    """Read the launch of a run's folder.

    Raises:
        BadInputError: the folder holds none.
    """
    path = folder / SPEC_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=LaunchSpec)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"{folder} is no folder of a launch: {error}") from error
