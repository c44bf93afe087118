"""Who calls, and what the caller may do."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from typing import TYPE_CHECKING, Final, Literal

from omnipilot.domain.errors import BadInputError
from omnipilot.domain.frozen import dataclass
from omnipilot.web.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnipilot.web.tokens import Scope, TokenFile

__all__ = ["Access", "Principal", "is_loopback"]

AuthWay = Literal["none", "token", "proxy"]
_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: its name in the log, and its scopes."""

    name: str
    scopes: tuple[Scope, ...]


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Access:
    """How callers prove who they are.

    ``none`` lets everybody read; writing takes a token always, or a name of ``writers``.

    Args:
        way: "none" (loopback only), "token", or "proxy": a header of a reverse proxy.
        tokens: the site's.
        proxy_header: header that holds the caller's name.
        proxy_peers: addresses whose header is believed.
        writers: names from the proxy that may write.
    """

    way: AuthWay
    tokens: TokenFile
    proxy_header: str = "x-remote-user"
    proxy_peers: tuple[str, ...] = ("127.0.0.1", "::1")
    writers: tuple[str, ...] = ()

    def check_address(self, host: str) -> None:
        """Refuse to listen to others without asking who they are.

        Raises:
            BadInputError: an address of the network and nobody asked.
        """
        if self.way == "none" and not is_loopback(host):
            raise BadInputError(
                f"{host} can be reached from the network: say --auth token or --auth proxy, or "
                "listen on 127.0.0.1"
            )

    def principal(self, headers: Mapping[str, str], peer: str) -> Principal | None:
        """The caller of a request; None where it did not say.

        Raises:
            ProblemError: it said something that is not so.
            StateError: the tokens cannot be read.
        """
        said = headers.get("authorization", "")
        if said:
            return self._of_token(said)
        if self.way == "proxy" and peer in self.proxy_peers:
            name = headers.get(self.proxy_header, "").strip()
            if name and len(name) <= _LONGEST and name.isprintable():
                scopes: tuple[Scope, ...] = ("read", "write") if name in self.writers else ("read",)
                return Principal(name, scopes)
        return Principal(peer or "local", ("read",)) if self.way == "none" else None

    def _of_token(self, said: str) -> Principal:
        kind, _, value = said.partition(" ")
        token, browser = value.strip(), False
        if kind.lower() == "basic":
            token, browser = _password(token), True
        elif kind.lower() != "bearer":
            token = ""
        record = self.tokens.find(token) if 0 < len(token) <= _LONGEST else None
        if record is None:
            raise ProblemError("unauthenticated", "the token is not known here")
        # A browser sends its password along with requests that other sites make: read only.
        scopes = tuple(s for s in record.scopes if s == "read" or not browser)
        return Principal(record.name, scopes)

    def challenge(self) -> str:
        """What a caller without a token is told: browsers ask for it as the password."""
        return 'Basic realm="OmniPilot, token as the password", charset="UTF-8"'


def _password(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
