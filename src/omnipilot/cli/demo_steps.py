"""The steps of ``omnipilot demo`` after its site is built: commands, as anyone would type them."""

from __future__ import annotations

import contextlib
import io
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from omnipilot.cli import exits

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OUTPUT_FOLDER", "STEPS", "Step", "StepResult", "run_step"]

OUTPUT_FOLDER: Final = "demo"
_HOME: Final = "{home}"
# Not live: a real cluster's state has no place in a simulated site.
_LOAD: Final = ("--concurrency", "200", "--context", "4096", "--no-live")


class Step(NamedTuple):
    """One command; ``{home}`` in its words stands for the folder.

    ``lines`` of its answer are shown, all of it is kept in a file named after the step.
    """

    name: str
    title: str
    command: tuple[str, ...]
    lines: int = 2

    def words(self, home: Path) -> list[str]:
        """The command's words for one folder."""
        return [word.replace(_HOME, str(home)) for word in self.command]


class StepResult(NamedTuple):
    """What a step answered; ``error`` is the last line of stderr where it failed."""

    step: Step
    exit_code: int
    seconds: float
    text: str
    error: str

    @property
    def answered(self) -> bool:
        """Whether it gave an answer; to abstain is one."""
        return self.exit_code in (exits.OK, exits.ABSTAINED)


# A further step is one entry. They run in this order, each on what those before it left behind.
STEPS: Final[tuple[Step, ...]] = (
    Step("stored", "What the site has measured", ("data", "stats", "--home", _HOME), 1),
    Step("fit", "Learning from the site's own runs", ("fit", "--home", _HOME), 3),
    Step(
        "advise-7b",
        "Advice for a 7B model",
        ("advise", "--home", _HOME, "--model", "Qwen/Qwen2.5-7B-Instruct", *_LOAD),
    ),
    Step(
        "advise-32b",
        "Advice for a 32B model",
        ("advise", "--home", _HOME, "--model", "Qwen/Qwen2.5-32B-Instruct", *_LOAD),
    ),
    Step(
        "explain-24b",
        "Why, for a 24B model",
        ("explain", "--home", _HOME, "--model", "Mistral-Small-24B", *_LOAD),
    ),
    Step(
        "fits-27b",
        "Whether a 27B model starts on one A100",
        ("fits", "--home", _HOME, "--model", "google/gemma-2-27b-it", "--gpu", "a100-40"),
        1,
    ),
    Step(
        "backtest",
        "Would the advice have been right on the site's own runs",
        ("backtest", "--home", _HOME, "--no-trees"),
        1,
    ),
    Step(
        "report",
        "Tables and figures on one page",
        ("report", "--home", _HOME, "--out", f"{_HOME}/{OUTPUT_FOLDER}/report", "--effort", "kept"),
        1,
    ),
)  # fmt: skip


def run_step(step: Step, home: Path) -> StepResult:
    """Run one step in this process and keep its answer in ``HOME/demo``.

    Raises:
        OSError: the folder cannot be written.
    """
    from omnipilot.cli import app  # noqa: PLC0415 - app imports the commands by name

    out, err = io.StringIO(), io.StringIO()
    begin_s = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.run(step.words(home))
    seconds = time.monotonic() - begin_s
    text, told = out.getvalue(), err.getvalue().strip().splitlines()
    folder = home / OUTPUT_FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"{step.name}.txt").write_text(text, encoding="utf-8")
    result = StepResult(step, code, seconds, text, "")
    return result if result.answered else result._replace(error=told[-1] if told else "no reason")
