"""Groups of commands that stand in a table and are imported when they are called."""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CommandEntry", "TableGroup"]


class CommandEntry(NamedTuple):
    """Where a command lives in this package, and the line that its group's help shows for it."""

    module: str
    attribute: str
    summary: str

    def load(self) -> click.Command:
        """Import the command.

        Raises:
            TypeError: the table names something else.
        """
        module = importlib.import_module(f"omnipilot.cli.{self.module}")
        command = getattr(module, self.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.module}.{self.attribute} is not a command")
        return command


class TableGroup(click.Group):
    """A group whose help imports none of its commands; a subclass gives its ``table``."""

    table: ClassVar[Mapping[str, CommandEntry]] = MappingProxyType({})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names in the order of the table."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None where there is none of that name."""
        del ctx
        entry = self.table.get(cmd_name)
        return None if entry is None else entry.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names; a misspelt one names close ones."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - only a refusal needs it

            close = difflib.get_close_matches(args[0], self.table, n=1)
            hint = f"did you mean {close[0]}?" if close else f"say one of {', '.join(self.table)}"
            ctx.fail(f"no command '{args[0]}': {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.table.items()])
