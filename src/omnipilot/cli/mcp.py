"""``omnipilot mcp``: the advice as tools for an agent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from omnipilot.cli import exits
from omnipilot.cli.options import home_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.option(
    "--allow-launch",
    is_flag=True,
    help="Offer a tool that submits jobs; without it no tool writes or submits.",
)
@click.option(
    "--live/--no-live",
    "live",
    default=True,
    show_default=True,
    envvar="OMNIPILOT_LIVE",
    help="Ask Slurm how the cluster is, where its programs are on PATH; "
    "OMNIPILOT_LIVE=0 switches it off too.",
)
@home_option
def mcp(allow_launch: bool, live: bool, home: Path | None) -> int:
    """Offer the advice to an agent as MCP tools.

    Speaks the Model Context Protocol on standard input and output, so that an agent which manages
    deployments asks before it submits. The tools are advise, explain, probe, fits, cluster and
    script; launch only with --allow-launch.

    \b
    Example:
      omnipilot mcp
      claude mcp add omnipilot -- omnipilot mcp
    """  # fmt: skip
    try:
        from omnipilot.mcp.server import make_server  # noqa: PLC0415 - keeps --help quick
        from omnipilot.mcp.site import Site  # noqa: PLC0415 - same
    except ImportError as error:
        raise click.ClickException(
            "the tools need the extra 'mcp': install omnipilot[mcp] (uv sync --extra mcp) "
            f"({error.name or error} is missing)"
        ) from error
    from omnipilot.settings import default_home  # noqa: PLC0415 - keeps --help quick

    site = Site(home or default_home(), live, time.time)
    make_server(site, allow_launch=allow_launch).run("stdio")
    return exits.OK
