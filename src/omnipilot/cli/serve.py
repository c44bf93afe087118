"""``omnipilot serve``: the service and its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from omnipilot.cli import exits
from omnipilot.cli.options import Names, Number, home_option

if TYPE_CHECKING:
    from pathlib import Path

_MISSING = "the service needs the extra 'web': install omnipilot[web] (uv sync --extra web)"


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; any but the machine's own takes --auth.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8088,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--auth",
    type=click.Choice(["none", "token", "proxy"]),
    default="none",
    show_default=True,
    help="How callers prove who they are: tokens of 'omnipilot token', or a header that "
    "a reverse proxy sets.",
)
@click.option(
    "--proxy-header",
    default="X-Remote-User",
    show_default=True,
    help="Header that holds the caller's name.",
)
@click.option(
    "--proxy-from",
    "proxy_peers",
    type=Names(),
    default="127.0.0.1,::1",
    show_default=True,
    help="Addresses of the proxy; from others the header is ignored.",
)
@click.option(
    "--proxy-writers",
    "writers",
    type=Names(),
    default=None,
    help="Names from the proxy that may write; none if left out.",
)
@click.option(
    "--allow-host",
    "hosts",
    type=Names(),
    default=None,
    help="Further names that a request may say in its Host header.",
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
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that answer; each keeps one core busy at most.",
)
@click.option(
    "--rate",
    type=Number(min=0),
    default=500.0,
    show_default=True,
    help="Requests a second that one caller may make; 0 sets no limit.",
)
@click.option(
    "--time-limit-s",
    type=Number(min=0.1, max=600),
    default=30.0,
    show_default=True,
    help="Longest work on one answer.",
)
@home_option
def serve(
    host: str,
    port: int,
    auth: str,
    proxy_header: str,
    proxy_peers: tuple[str, ...],
    writers: tuple[str, ...] | None,
    hosts: tuple[str, ...] | None,
    live: bool,
    workers: int,
    rate: float,
    time_limit_s: float,
    home: Path | None,
) -> int:
    """Serve the advice over HTTP, with pages for operators.

    Answers on the machine's own address unless told otherwise; there everybody may read. Writing
    rows always takes a token with the scope write. A promoted cost model, changed settings and the
    cluster's state are taken over while it runs. The log is on stderr, a JSON object a line.

    \b
    Example:
      omnipilot serve
      omnipilot serve --host 0.0.0.0 --auth token
    """
    from omnipilot.cli.threads import single_threaded_algebra  # noqa: PLC0415 - keeps --help quick

    single_threaded_algebra()
    try:
        from omnipilot.web.limits import Limits  # noqa: PLC0415 - keeps --help quick
        from omnipilot.web.server import ServeOptions  # noqa: PLC0415 - same
        from omnipilot.web.server import serve as run  # noqa: PLC0415 - same
    except ImportError as error:
        raise click.ClickException(f"{_MISSING} ({error.name} is missing)") from error
    from omnipilot.settings import default_home  # noqa: PLC0415 - keeps --help quick

    run(
        ServeOptions(
            home=home or default_home(), host=host, port=port, auth=auth,
            proxy_header=proxy_header, proxy_peers=proxy_peers, writers=writers or (),
            hosts=hosts or (), live=live, workers=workers,
            limits=Limits(per_s=rate, burst=max(1, round(2 * rate)), answer_s=time_limit_s),
        )
    )  # fmt: skip
    return exits.OK
