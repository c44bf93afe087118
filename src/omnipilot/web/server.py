"""The service on a port."""

from __future__ import annotations

import logging
import socket
import sys
import tempfile
import time
from dataclasses import field, replace
from pathlib import Path
from typing import Final

import uvicorn

from omnipilot.domain.errors import StateError
from omnipilot.domain.frozen import dataclass
from omnipilot.web.accepting import Shares, SharingServer
from omnipilot.web.access import Access, is_loopback
from omnipilot.web.answering import Service
from omnipilot.web.app import make_app
from omnipilot.web.journal import Journal, JournalHandler
from omnipilot.web.limits import Limits
from omnipilot.web.memory import settle_memory
from omnipilot.web.metrics import Metrics
from omnipilot.web.snapshot import Keeper
from omnipilot.web.tokens import TokenFile
from omnipilot.web.wire import GuardedProtocol
from omnipilot.web.workers import run_workers

__all__ = ["ServeOptions", "make_service", "serve"]

_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_GRACE_S: Final = 15
_BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How the service runs.

    Args:
        home: the site's folder.
        host: address to listen on.
        port: 0 takes any that is free.
        auth: "none", "token" or "proxy".
        proxy_header: header with the caller's name.
        proxy_peers: addresses whose header is believed.
        writers: names from the proxy that may write.
        hosts: further names that a request may say in Host.
        live: ask Slurm.
        workers: processes that answer.
        limits: of requests.
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 8088
    auth: str = "none"
    proxy_header: str = "x-remote-user"
    proxy_peers: tuple[str, ...] = ("127.0.0.1", "::1")
    writers: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    live: bool = True
    workers: int = 1
    limits: Limits = field(default_factory=Limits)


def make_service(
    options: ServeOptions, journal: Journal | None = None, shared: Path | None = None
) -> Service:
    """The service, not started.

    Raises:
        BadInputError: an address of the network without authentication.
    """
    access = Access(
        way=options.auth,  # type: ignore[arg-type]
        tokens=TokenFile(options.home),
        proxy_header=options.proxy_header.lower(),
        proxy_peers=options.proxy_peers,
        writers=options.writers,
    )
    access.check_address(options.host)
    access.tokens.records()
    journal = journal or Journal(sys.stderr)
    metrics = Metrics(shared)
    keeper = Keeper(options.home, options.live, time.time, journal, metrics)
    return Service(keeper, access, options.limits, metrics, journal, time.time)


def host_names(options: ServeOptions) -> frozenset[str]:
    """Names that a request may say in Host; none given on the network means any."""
    given = tuple(name.lower() for name in options.hosts)
    if is_loopback(options.host):
        return frozenset((*_LOOPBACK_NAMES, options.host.lower(), *given))
    return frozenset((*_LOOPBACK_NAMES, options.host.lower(), *given)) if given else frozenset()


def serve(options: ServeOptions) -> None:
    """Serve until told to stop.

    Raises:
        BadInputError: an address of the network without authentication.
        StateError: the port is taken, or the site's folder cannot be used.
    """
    journal = Journal(sys.stderr)
    if options.workers <= 1:
        service = make_service(options, journal)
        # The first snapshot before the port opens: an unusable folder is one line, not a service
        # that answers nothing.
        service.keeper.start()
        settle_memory()
        with _listen(options.host, options.port) as listener:
            _announce(service, options, listener)
            _run(uvicorn.Server(_config(service, options)), service, [listener])
        journal.write("stopped")
        return
    with (
        tempfile.TemporaryDirectory(prefix="omnipilot-metrics-") as shared,
        # One socket for all, opened here: what waits at it outlives a worker that dies.
        _listen(options.host, options.port) as listener,
    ):
        limits = replace(options.limits, per_s=options.limits.per_s / options.workers)
        settled = replace(options, port=listener.getsockname()[1], limits=limits)
        first = make_service(settled, journal)
        _ = first.keeper.current
        shares = Shares(options.workers)
        _announce(first, settled, listener)
        settle_memory()

        def work(i: int) -> None:
            service = make_service(settled, journal, Path(shared))
            service.keeper.adopt(first.keeper.current)
            service.keeper.start()
            _run(SharingServer(_config(service, settled), listener, shares, i), service)

        def ended(i: int, process: int) -> None:
            shares.leave(i)
            Metrics(Path(shared)).bury(process)

        run_workers(options.workers, work, journal, ended)
    journal.write("stopped")


def _announce(service: Service, options: ServeOptions, listener: socket.socket) -> None:
    address = listener.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    service.journal.write(
        "listening", url=f"http://{shown}:{address[1]}/", auth=options.auth,
        workers=max(options.workers, 1), model_version=service.keeper.current.version,
        origin=service.keeper.current.origin,
    )  # fmt: skip


def _config(service: Service, options: ServeOptions) -> uvicorn.Config:
    limits = options.limits
    return uvicorn.Config(
        make_app(service, host_names(options)),
        http=type(
            "Protocol",
            (GuardedProtocol,),
            {"head_s": limits.head_s, "head_bytes": limits.head_bytes},
        ),
        log_config=None, access_log=False, server_header=False, date_header=True,
        limit_concurrency=limits.connections,
        timeout_keep_alive=30, timeout_graceful_shutdown=_GRACE_S, proxy_headers=False,
        lifespan="on", ws="none",
    )  # fmt: skip


def _run(
    server: uvicorn.Server, service: Service, listeners: list[socket.socket] | None = None
) -> None:
    logger = logging.getLogger("uvicorn")
    logger.handlers[:] = [JournalHandler(service.journal)]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    server.run(sockets=listeners or [])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        raise StateError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose --port"
        ) from error
    listener.set_inheritable(False)
    return listener
