"""``omnipilot token``: who may use the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from omnipilot.cli import exits
from omnipilot.cli.options import format_option, home_option

if TYPE_CHECKING:
    from pathlib import Path

    from omnipilot.web.tokens import TokenFile


def _file(home: Path | None) -> TokenFile:
    from omnipilot.settings import default_home  # noqa: PLC0415 - keeps --help quick
    from omnipilot.web.tokens import TokenFile  # noqa: PLC0415 - same

    return TokenFile(home or default_home())


@click.group(no_args_is_help=False)
def token() -> None:
    """Add, list and revoke the tokens of the service.

    \b
    Example:
      omnipilot token add dashboard
    """


@token.command()
@click.argument("name")
@click.option("--write", is_flag=True, help="Let it take rows in too; else it may read only.")
@home_option
def add(name: str, write: bool, home: Path | None) -> int:
    """Make a token and print it, this once.

    The site's folder keeps its hash only; the service knows it at once.

    \b
    Example:
      omnipilot token add nightly-benchmarks --write
    """
    scopes = ("read", "write") if write else ("read",)
    click.echo(_file(home).add(name, scopes, time.time()))  # type: ignore[arg-type]
    return exits.OK


@token.command("list")
@home_option
@format_option("table", "json", "csv")
def list_(home: Path | None, form: str) -> int:
    """List the tokens: names, scopes and when they were made.

    \b
    Example:
      omnipilot token list
    """
    from omnipilot.cli import output  # noqa: PLC0415 - keeps --help quick

    rows = [
        (r.name, " ".join(r.scopes), time.strftime("%Y-%m-%d", time.gmtime(r.made_s)))
        for r in _file(home).records()
    ]
    names = ("name", "scopes", "made")
    if form == "json":
        output.emit_json({"tokens": [dict(zip(names, row, strict=True)) for row in rows]})
    elif form == "csv":
        output.emit_csv(names, rows)
    else:
        output.emit_table([output.Column(name) for name in names], rows)
    return exits.OK


@token.command()
@click.argument("name")
@home_option
def revoke(name: str, home: Path | None) -> int:
    """Take a token back; the service refuses it at once.

    \b
    Example:
      omnipilot token revoke dashboard
    """
    _file(home).revoke(name)
    return exits.OK
