"""The entry point: a table of commands, each imported only when it is called."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from typing import TYPE_CHECKING, Final

import click

from omnipilot.cli import exits
from omnipilot.cli.groups import CommandEntry, TableGroup
from omnipilot.cli.visible import visible
from omnipilot.domain.errors import OmniPilotError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALLOCATIONS_A_COLLECTION: Final = 100_000
_LONG_LIVED: Final = frozenset({"serve", "mcp"})
_BUG: Final = 1000  # inside this module only: the process exits with ERROR


COMMANDS: Final[dict[str, CommandEntry]] = {
    "advise": CommandEntry(
        "advise", "advise", "Rank GPU kind, tensor parallel and precision for a model and a load."
    ),
    "explain": CommandEntry("explain", "explain", "Show why the advice is what it is."),
    "fits": CommandEntry("fits", "fits", "Say whether a configuration starts, and why not."),
    "launch": CommandEntry(
        "launch", "launch", "Write the advice as a job script; submit it or run it here."
    ),
    "probe": CommandEntry(
        "probe", "probe", "Say which short measurements pay before the decision, and make them."
    ),
    "bench": CommandEntry(
        "bench", "bench", "Plan and run a grid of benchmarks, and take its rows in."
    ),
    "predict": CommandEntry("predict", "predict", "Predict every row of a CSV file."),
    "collect": CommandEntry(
        "collect", "collect", "Take evidence from Slurm, vLLM and other tools into the site's logs."
    ),
    "prior": CommandEntry(
        "prior",
        "prior",
        "Show how often jobs of each size came up, how much they are asked for, and how they "
        "waited.",
    ),
    "data": CommandEntry("data", "data", "Import measured runs and show what is stored."),
    "fit": CommandEntry("fit", "fit", "Learn from the site's own rows, or fit a new base model."),
    "evaluate": CommandEntry(
        "evaluate", "evaluate", "Measure the cost model on rows it has not seen."
    ),
    "backtest": CommandEntry(
        "backtest",
        "backtest",
        "Compare past advice on the site's own runs with what they measured.",
    ),
    "report": CommandEntry(
        "report", "report", "Write every table and figure to one page that works offline."
    ),
    "demo": CommandEntry(
        "demo", "demo", "Build a simulated site and run the whole pipeline on it."
    ),
    "doctor": CommandEntry("doctor", "doctor", "Check Slurm, stores, the model and prices."),
    "models": CommandEntry("models", "models", "Show the cost models that answer."),
    "serve": CommandEntry(
        "serve", "serve", "Serve the advice over HTTP, with pages for operators."
    ),
    "mcp": CommandEntry("mcp", "mcp", "Offer the advice to an agent as MCP tools."),
    "token": CommandEntry("token", "token", "Add, list and revoke the tokens of the service."),
}


class LazyGroup(TableGroup):
    """All commands."""

    table = COMMANDS


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from omnipilot import __version__  # noqa: PLC0415 - only this option needs it

        click.echo(f"omnipilot {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Print the version and exit.",
)  # fmt: skip
@click.pass_context
def cli(ctx: click.Context) -> None:
    """The advisor to ask before an LLM server is submitted to a shared GPU cluster.

    It answers which GPU kind, tensor parallel and precision to take for a model and a load, with
    checked intervals, and says so when it does not know.

    \b
    Example:
      omnipilot advise --model Qwen/Qwen2.5-7B-Instruct --concurrency 200 --context 4096

    \b
    Exit codes: 0 answered, 1 error, 2 wrong usage or input, 3 abstained.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code; expected errors are one line on stderr."""
    # Modules and tables are made once and kept: looking for garbage among them takes 5 % of advice.
    if not _LONG_LIVED.intersection((sys.argv[1:] if argv is None else argv)[:1]):
        gc.set_threshold(_ALLOCATIONS_A_COLLECTION)
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; the process's own where None.

    Returns:
        The exit code: 0 ok, 1 error, 2 usage, 3 abstained, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        result = cli.main(args=argv, prog_name="omnipilot", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (``| head``): nothing is left to say, also not at shutdown.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except (Exception, KeyboardInterrupt) as error:
        message, code = _in_words(error)
        if code == _BUG and os.environ.get("OMNIPILOT_DEBUG"):
            raise
        # A closed stderr leaves nobody to tell.
        with contextlib.suppress(OSError, ValueError):
            click.echo(f"omnipilot: error: {visible(' '.join(message.split()))}", err=True)
        return exits.ERROR if code == _BUG else code
    return result if isinstance(result, int) else exits.OK


def _in_words(error: BaseException) -> tuple[str, int]:
    """One line for the user and the exit code for an exception that reached the top."""
    message = str(error)
    code = exits.USAGE
    match error:
        case OmniPilotError():
            code = error.exit_code
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "omnipilot"
            message = f"{error.format_message().rstrip('.')} (see {path} --help)"
        case click.ClickException():
            message = error.format_message()
        case click.Abort() | KeyboardInterrupt():
            message, code = "interrupted", exits.INTERRUPTED
        case OSError():
            message, code = f"{error.filename or 'system'}: {error.strerror or error}", exits.ERROR
        case UnicodeEncodeError():
            # Half of a surrogate pair, as a program may pass one: no file can be named so.
            message = f"{error.object[:80]!a} holds a character that no name can: write it anew"
        case MemoryError():
            message, code = "out of memory: pass fewer rows at a time", exits.ERROR
        case ModuleNotFoundError(name=("scipy" | "catboost") as name):
            message = f"training needs {name}: install omnipilot[fit] (uv sync --extra fit)"
            code = exits.ERROR
        case _:
            what = f"{type(error).__name__}: {error}"
            message = f"internal error, please report it: {what} (OMNIPILOT_DEBUG=1 shows where)"
            code = _BUG
    return message, code
