"""``omnipilot collect``: evidence out of the site's tools into its logs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from omnipilot.cli import exits
from omnipilot.cli.collect_report import emit_report, exit_code
from omnipilot.cli.groups import CommandEntry, TableGroup
from omnipilot.cli.options import format_option, home_option, stack
from omnipilot.collect.base import COLLECTORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.collect.base import CollectorEntry

# Commands with options of their own, module and attribute by collector; every other collector gets
# the command that reads files.
OWN_COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "sacct": ("collect_sacct", "sacct"),
    "dcgm": ("collect_dcgm", "dcgm"),
}

_context_options = stack(
    click.option("--source", default="site", show_default=True,
                 help="Name of the data set or site."),
    click.option("--model", default="", help="The model, where the file names another or none."),
    click.option("--gpu", default="", help="GPU kind that the runs were on, with --n-gpus."),
    click.option("--n-gpus", type=click.IntRange(0, 100_000), default=0,
                 help="GPUs of the deployment."),
    click.option("--gpu-memory-gb", type=click.FloatRange(0, 10_000), default=0.0,
                 help="Memory of one GPU, where --gpu alone is ambiguous."),
    click.option("--precision", default="", help="Weight format, such as fp8."),
    click.option("--kv-dtype", default="", help="Format of the KV cache."),
    click.option("--max-model-len", type=click.IntRange(0, 100_000_000), default=0,
                 help="Longest request in tokens that the server takes."),
    click.option("--engine-version", default="", help="Version of the engine."),
    click.option("--workload", default="",
                 help="Name of the request mix, so that runs of one mix compare."),
    click.option("--engine-settings", default="",
                 help="Flags that differ from the engine's defaults, in one spelling."),
    click.option("--expert-parallel", is_flag=True,
                 help="Each GPU held whole experts (vLLM's --enable-expert-parallel)."),
    click.option("--pipeline-parallel", type=click.IntRange(1, 1000), default=1,
                 help="Pipeline stages that the GPUs were shared among."),
)  # fmt: skip


def _command_name(entry: CollectorEntry) -> str:
    return entry.name.replace("_", "-")


class CollectGroup(TableGroup):
    """One command a collector; those that read files are built when they are called."""

    table: ClassVar[Mapping[str, CommandEntry]] = {
        _command_name(entry): CommandEntry(*OWN_COMMANDS.get(entry.name, ("", "")), entry.reads)
        for entry in COLLECTORS
    }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Build or import one command; None where there is none of that name."""
        entry = next((e for e in COLLECTORS if _command_name(e) == cmd_name), None)
        if entry is None or entry.name in OWN_COMMANDS:
            return super().get_command(ctx, cmd_name)
        return _files_command(entry)


@click.group(cls=CollectGroup, invoke_without_command=True)
@click.option("--list", "list_", is_flag=True, help="List what can be collected, and stop.")
@format_option("table", "json", "csv")
@click.pass_context
def collect(ctx: click.Context, list_: bool, form: str) -> int | None:
    """Take evidence from Slurm, vLLM and other tools into the site's logs.

    \b
    Example:
      omnipilot collect --list
      omnipilot collect sacct --since 2026-01-01
      omnipilot collect vllm-bench results/*.json --gpu h100-80 --n-gpus 2
    """
    if list_:
        _emit_list(form)
        ctx.exit(exits.OK)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return None


def _emit_list(form: str) -> None:
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    rows = [
        (_command_name(entry), "cluster_history.jsonl" if entry.of_cluster else "history.jsonl",
         entry.reads)
        for entry in COLLECTORS
    ]  # fmt: skip
    if form == "json":
        output.emit_json([dict(zip(("name", "log", "reads"), row, strict=True)) for row in rows])
    elif form == "csv":
        output.emit_csv(("name", "log", "reads"), rows)
    else:
        columns = (
            output.Column("collector", narrow=True),
            output.Column("rows go to", narrow=True),
            output.Column("reads"),
        )
        output.emit_table(columns, rows)


def _files_command(entry: CollectorEntry) -> click.Command:
    """Build the command that reads files by one collector."""
    name = _command_name(entry)
    example = f"omnipilot collect {name} FILE"

    def run(files: tuple[Path, ...], home: Path | None, form: str, **known: Any) -> int:  # noqa: ANN401 - click's options
        return _collect(entry, files, home, form, known)

    decorated = home_option(format_option("table", "json", "csv")(run))
    if entry.takes_context:
        decorated = _context_options(decorated)
    decorated = click.argument(
        "files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path)
    )(decorated)
    text = (
        f"Take in {entry.reads}.\n\n"
        "Rows that are stored already are counted as duplicates; a record that cannot be read is "
        "refused with its place and the reason, and the others are kept.\n\n"
        f"\b\nExample:\n  {example}\n  {example} --format json\n"
    )
    return click.command(name, help=text)(decorated)


def _collect(
    entry: CollectorEntry,
    files: tuple[Path, ...],
    home: Path | None,
    form: str,
    known: dict[str, Any],
) -> int:
    from omnipilot.advisor import Advisor  # noqa: PLC0415 - keeps --help quick
    from omnipilot.advisor.harvest import collect_files  # noqa: PLC0415 - same
    from omnipilot.cli.progress_bar import progress_bar  # noqa: PLC0415 - same
    from omnipilot.collect.context import RunContext  # noqa: PLC0415 - same
    from omnipilot.domain import StackFingerprint  # noqa: PLC0415 - same

    context = None
    if entry.takes_context:
        stack_ = StackFingerprint(engine_version=known.pop("engine_version"))
        context = RunContext(stack=stack_, **known)
    with progress_bar() as tell:
        report = collect_files(
            Advisor.open(home).home,
            entry.name,
            files,
            now_s=time.time(),
            context=context,
            on_progress=tell,
        )
    emit_report(report, form)
    return exit_code(report)
