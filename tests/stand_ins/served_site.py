"""A service with the stand-in cost model, for tests of what it answers."""

from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stand_in import StandInModel
from starlette.testclient import TestClient

from omnipilot.advisor import Advisor
from omnipilot.web.access import Access
from omnipilot.web.answering import Service
from omnipilot.web.app import make_app
from omnipilot.web.journal import Journal
from omnipilot.web.limits import Limits
from omnipilot.web.metrics import Metrics
from omnipilot.web.snapshot import Keeper
from omnipilot.web.tokens import TokenFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

ASK = {"model": "Qwen/Qwen2.5-7B-Instruct", "concurrency": 200, "context_tokens": 4096}
ROWS = (
    "source,model,engine,gpu,n_gpus,precision,isl,osl,concurrency,agg_tok_s,status\n"
    "our_site,Qwen/Qwen2.5-7B-Instruct,vllm,H100,1,bf16,512,128,8,4200,ok\n"
)


@dataclass
class Site:
    """A service under test: its client, its log and its tokens."""

    home: Path
    service: Service
    client: TestClient
    log: io.StringIO
    tokens: TokenFile
    versions: list[str] = field(default_factory=list)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def token(self, name: str, *scopes: str) -> dict[str, str]:
        """The header of a new token."""
        text = self.tokens.add(name, scopes, 0.0)  # type: ignore[arg-type]
        return {"authorization": f"Bearer {text}"}


def make_site(
    home: Path,
    *,
    auth: str = "none",
    limits: Limits | None = None,
    measured: Collection[str] | None = None,
    writers: tuple[str, ...] = (),
    peers: tuple[str, ...] = ("testclient",),
    hosts: frozenset[str] = frozenset({"testserver"}),
    clock: Callable[[], float] = time.time,
    open_advisor: Callable[[Path], Advisor] | None = None,
) -> Site:
    """A service of a folder; its watch is not started, tests call ``keeper.look``."""
    log = io.StringIO()
    journal, metrics = Journal(log), Metrics()
    opened = open_advisor or (lambda path: Advisor(path, model=StandInModel(measured=measured)))
    keeper = Keeper(home, False, clock, journal, metrics, open_advisor=opened)
    _ = keeper.current
    tokens = TokenFile(home)
    access = Access(auth, tokens, proxy_peers=peers, writers=writers)  # type: ignore[arg-type]
    service = Service(keeper, access, limits or Limits(), metrics, journal, clock)
    app = make_app(service, hosts)
    client = TestClient(app, raise_server_exceptions=False)
    return Site(home, service, client, log, tokens)
