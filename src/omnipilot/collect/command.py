"""Programs of the site, run to their end or read a line at a time; the one place that starts any.

Arguments are a list and never pass through a shell. A program that does not answer in time or says
too much is ended with its children, and so is one that is left before its end.
"""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Final

from omnipilot.collect.lines import printable
from omnipilot.domain.errors import ToolError
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

__all__ = [
    "ANSWER_BYTES", "SILENCE_S", "Command", "CommandResult", "run_command",
    "run_commands", "stream_lines",
]  # fmt: skip

TIMEOUT_S: Final = 60.0
SILENCE_S: Final = 600.0
ANSWER_BYTES: Final = 64 * 2**20
STREAM_BYTES: Final = 64 * 2**30
_BLOCK_BYTES: Final = 2**18
_ERROR_BYTES: Final = 2**14
_END_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Command:
    """One program to run; see :func:`run_command`."""

    argv: tuple[str, ...]
    timeout_s: float = TIMEOUT_S
    output_bytes: int = ANSWER_BYTES
    stdin: bytes = b""
    env: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a program that succeeded printed, and how long it took."""

    returncode: int
    stdout: bytes
    stderr: str
    elapsed_s: float


def run_command(
    argv: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    output_bytes: int = ANSWER_BYTES,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a program to its end.

    Args:
        argv: program and arguments; the program is looked up on PATH.
        timeout_s: longest time to its end.
        output_bytes: most that it may print.
        stdin: what it reads.
        env: variables set on top of this process's.

    Raises:
        ToolError: the program is missing, fails, does not answer in time or prints too much.
    """
    begin_s = time.monotonic()
    with _started(argv, stdin, env) as (process, errors):
        output = _Output(process, errors, argv[0], output_bytes, timeout_s, begin_s + timeout_s)
        stdout = io.BufferedReader(output, _BLOCK_BYTES).read()
        return CommandResult(
            returncode=process.returncode,
            stdout=stdout,
            stderr=_said(errors).strip(),
            elapsed_s=time.monotonic() - begin_s,
        )


def run_commands(commands: Sequence[Command]) -> list[CommandResult | ToolError]:
    """Run programs side by side; one that fails leaves the others their answers.

    Returns:
        The result, or why there is none, of each command in its place.
    """
    answers: list[CommandResult | ToolError] = [ToolError("not run")] * len(commands)

    def answer(place: int, command: Command) -> None:
        try:
            answers[place] = run_command(
                command.argv,
                timeout_s=command.timeout_s,
                output_bytes=command.output_bytes,
                stdin=command.stdin,
                env=command.env,
            )
        except ToolError as error:
            answers[place] = error

    threads = [
        threading.Thread(target=answer, args=(place, command))
        for place, command in enumerate(commands)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def stream_lines(
    argv: Sequence[str],
    *,
    timeout_s: float = SILENCE_S,
    output_bytes: int = STREAM_BYTES,
    env: Mapping[str, str] | None = None,
) -> Generator[bytes, None, None]:
    """Run a program and give its lines as they are printed.

    The lines end without an error only where the program succeeded, so that half an answer is
    never taken for a whole one.

    Args:
        argv: program and arguments; the program is looked up on PATH.
        timeout_s: longest wait for its next output.
        output_bytes: most that it may print.
        env: variables set on top of this process's.

    Yields:
        Lines with their ends; one longer than 1 MiB in pieces.

    Raises:
        ToolError: as :func:`run_command`.
    """
    with _started(argv, b"", env) as (process, errors):
        output = _Output(process, errors, argv[0], output_bytes, timeout_s)
        stream = io.BufferedReader(output, _BLOCK_BYTES)
        while line := stream.readline(2**20):
            yield line


@contextmanager
def _started(
    argv: Sequence[str], stdin: bytes, env: Mapping[str, str] | None
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - a list, and no shell
                list(argv),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ToolError(
                f"{argv[0]} is not on PATH: run this on a machine that has it, or give files"
            ) from error
        except (OSError, ValueError) as error:
            name = printable(argv[0])
            raise ToolError(f"{name} cannot be started: {printable(str(error), 200)}") from error
        try:
            yield process, errors
        finally:
            _end(process)


class _Output(io.RawIOBase):
    """What a running program prints; its end is the program's success."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        errors: IO[bytes],
        name: str,
        most_bytes: int,
        wait_s: float,
        deadline_s: float | None = None,
    ) -> None:
        super().__init__()
        if process.stdout is None:
            raise ValueError("the program's output is not piped")
        self._stream = process.stdout
        self._process = process
        self._errors = errors
        self._name = name
        self._most_bytes = most_bytes
        self._wait_s = wait_s
        self._deadline_s = deadline_s
        self._n_bytes = 0

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with what comes next; 0 once the program has succeeded."""
        fd = self._stream.fileno()
        if not select.select([fd], [], [], self._left_s())[0]:
            raise self._late()
        n_bytes = os.readv(fd, [buffer])
        if not n_bytes:
            self._check_success()
        self._n_bytes += n_bytes
        if self._n_bytes > self._most_bytes:
            raise ToolError(
                f"{self._name} printed more than {self._most_bytes / 2**20:.0f} MiB and was ended: "
                "ask for less"
            )
        return n_bytes

    def _left_s(self) -> float:
        if self._deadline_s is None:
            return self._wait_s
        return max(self._deadline_s - time.monotonic(), 0.0)

    def _late(self) -> ToolError:
        return ToolError(
            f"{self._name} did not answer within {self._wait_s:g} s and was ended: "
            "ask for less, or allow a longer wait"
        )

    def _check_success(self) -> None:
        try:
            code = self._process.wait(self._left_s())
        except subprocess.TimeoutExpired:
            raise self._late() from None
        if code:
            said = " ".join(_said(self._errors).split())
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise ToolError(f"{self._name} failed ({how}): {printable(said, 300) or 'no reason'}")


def _said(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read(_ERROR_BYTES).decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe and end the program and its children where they still run."""
    if process.stdout is not None:
        process.stdout.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
