"""Programs of the site, run and read a line at a time; the one place here that starts any.

Arguments are a list and never pass through a shell. A program that is silent for too long or says
too much is ended, and so is one that is left before its end.
"""

from __future__ import annotations

import io
import os
import select
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from omnipilot.collect.lines import printable
from omnipilot.domain.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["DEFAULT_SILENCE_S", "open_output", "read_output"]

DEFAULT_SILENCE_S: Final = 600.0
_BLOCK_BYTES: Final = 2**18
_ANSWER_BYTES: Final = 2**20
_ERROR_BYTES: Final = 2**14
_END_S: Final = 5.0


@contextmanager
def open_output(
    argv: Sequence[str],
    *,
    most_bytes: int,
    silence_s: float = DEFAULT_SILENCE_S,
    env: Mapping[str, str] | None = None,
) -> Iterator[io.BufferedReader]:
    """Run a program and read what it prints.

    The end of the stream is reached only where the program succeeded, so that half an answer is
    never taken for a whole one.

    Args:
        argv: program and arguments; the program is looked up on PATH.
        most_bytes: most that it may print.
        silence_s: longest wait for its next output.
        env: variables set on top of this process's.

    Raises:
        ToolError: here or while the stream is read: the program is missing, exits with another
            code than 0, falls silent or prints more than ``most_bytes``.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # noqa: S603 - a list, and no shell
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
            )
        except OSError as error:
            raise ToolError(
                f"{argv[0]} cannot be run ({error.strerror}): "
                "run this where it is installed and on PATH, or give files"
            ) from error
        try:
            output = _Output(process, errors, argv[0], most_bytes, silence_s)
            yield io.BufferedReader(output, _BLOCK_BYTES)
        finally:
            _end(process)


def read_output(
    argv: Sequence[str],
    *,
    most_bytes: int = _ANSWER_BYTES,
    silence_s: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program and give all that it prints; see :func:`open_output`."""
    with open_output(argv, most_bytes=most_bytes, silence_s=silence_s, env=env) as stream:
        return stream.read().decode("utf-8", "replace")


class _Output(io.RawIOBase):
    """What a running program prints; its end is the program's success."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        errors: IO[bytes],
        name: str,
        most_bytes: int,
        silence_s: float,
    ) -> None:
        super().__init__()
        if process.stdout is None:
            raise ValueError("the program's output is not piped")
        self._stream = process.stdout
        self._process = process
        self._errors = errors
        self._name = name
        self._most_bytes = most_bytes
        self._silence_s = silence_s
        self._n_bytes = 0

    def readable(self) -> bool:
        """Tell that this can be read."""
        return True

    def tell(self) -> int:
        """Give the number of bytes read."""
        return self._n_bytes

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with what comes next; 0 once the program has succeeded."""
        fd = self._stream.fileno()
        if not select.select([fd], [], [], self._silence_s)[0]:
            raise ToolError(
                f"{self._name} has been silent for {self._silence_s:.0f} s and was ended: "
                "ask for a shorter time, or allow a longer wait"
            )
        n_bytes = os.readv(fd, [buffer])
        if not n_bytes:
            self._check_success()
        self._n_bytes += n_bytes
        if self._n_bytes > self._most_bytes:
            raise ToolError(
                f"{self._name} printed more than {self._most_bytes / 2**20:.0f} MiB and was ended: "
                "ask for a shorter time"
            )
        return n_bytes

    def _check_success(self) -> None:
        try:
            code = self._process.wait(self._silence_s)
        except subprocess.TimeoutExpired:
            raise ToolError(f"{self._name} closed its output and did not end") from None
        if code:
            self._errors.seek(0)
            said = self._errors.read(_ERROR_BYTES).decode("utf-8", "replace").split("\n")
            reason = next((printable(line, 200) for line in said if line.strip()), "no reason told")
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise ToolError(f"{self._name} failed ({how}): {reason}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe and end the program where it still runs."""
    if process.stdout is not None:
        process.stdout.close()
    deadline_s = time.monotonic() + _END_S
    for stop in (process.terminate, process.kill):
        if process.poll() is not None:
            return
        stop()
        try:
            process.wait(max(deadline_s - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            continue
    process.wait()
