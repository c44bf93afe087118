"""A client of the service: the standard library alone, one call an address.

>>> client = Client("http://127.0.0.1:8088")
>>> client.url
'http://127.0.0.1:8088'
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final

from omnipilot.domain.errors import OmniPilotError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Client", "ServiceError"]

_MOST_BYTES: Final = 256 * 2**20
_UNAVAILABLE: Final = 0


class ServiceError(OmniPilotError):
    """The service refused, or did not answer.

    Args:
        detail: what happened and what to do.
        status: of the answer; 0 where there was none.
        kind: of the problem, such as ``urn:omnipilot:problem:unknown-name``; "" where not told.
        request_id: under which the service's log has it.
        document: the whole problem document.
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int = _UNAVAILABLE,
        kind: str = "",
        request_id: str = "",
        document: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.request_id = request_id
        self.document = dict(document or {})


@dataclass(frozen=True)
class Client:
    """One service.

    Answers are the JSON documents of the API (docs/service.md) as dictionaries.

    Args:
        url: of the service, without a path.
        token: of ``omnipilot token add``; "" where reading needs none.
        timeout_s: longest wait for an answer.
    """

    url: str
    token: str = ""
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ServiceError(f"'{self.url[:80]}' is no address of a service: http://HOST:PORT")
        if not (self.token.isascii() and self.token.isprintable()):
            raise ServiceError("the token holds a character that no token has")

    def advise(
        self, model: str, *, concurrency: int, context_tokens: int, **wishes: object
    ) -> dict[str, Any]:
        """Rank the arms of a request.

        Args:
            model: Hugging Face id.
            concurrency: requests in flight at the same time.
            context_tokens: longest request.
            wishes: further members of the body, such as ``slo_ttft_ms=500`` or ``gpus=[...]``.

        Raises:
            ServiceError: refused, or no answer.
        """
        return self._ask("advise", model, concurrency, context_tokens, wishes)

    def explain(
        self, model: str, *, concurrency: int, context_tokens: int, **wishes: object
    ) -> dict[str, Any]:
        """Rank the arms of a request and tell the grounds; as :meth:`advise`."""
        return self._ask("explain", model, concurrency, context_tokens, wishes)

    def fits(self, model: str, gpu: str, **launch: object) -> dict[str, Any]:
        """Say whether a configuration starts; ``launch`` are further members of the body."""
        return self._json("POST", "/v1/fits", {"model": model, "gpu": gpu, **launch})

    def predict(self, rows: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
        """Predict rows of the normalised columns; one answer each, in order."""
        body = {"rows": [dict(row) for row in rows]}
        return self._listed("rows", self._json("POST", "/v1/predict", body))

    def ingest_csv(self, text: str) -> dict[str, Any]:
        """Take measured rows into the site's store; needs a token with the scope write."""
        return self._json("POST", "/v1/rows", text.encode("utf-8", "replace"), "text/csv")

    def models(self) -> list[dict[str, Any]]:
        """The cost models; the one that answers first."""
        return self._listed("models", self._json("GET", "/v1/models"))

    def cluster(self) -> dict[str, Any]:
        """The cluster as the service read it last."""
        return self._json("GET", "/v1/cluster")

    def prior(self) -> dict[str, Any]:
        """What the cluster's history says of launches, demand and waits."""
        return self._json("GET", "/v1/prior")

    def catalog(self) -> dict[str, Any]:
        """Names that questions may use."""
        return self._json("GET", "/v1/catalog")

    def ready(self) -> dict[str, Any]:
        """Whether the service can answer, and with which model."""
        return self._json("GET", "/ready")

    def _ask(
        self,
        what: str,
        model: str,
        concurrency: int,
        context_tokens: int,
        wishes: Mapping[str, object],
    ) -> dict[str, Any]:
        body = {
            "model": model, "concurrency": concurrency, "context_tokens": context_tokens, **wishes,
        }  # fmt: skip
        return self._json("POST", f"/v1/{what}", body)

    def _json(
        self, method: str, path: str, body: object = None, media_type: str = "application/json"
    ) -> dict[str, Any]:
        data = body if isinstance(body, bytes) else None
        if body is not None and data is None:
            try:
                data = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise ServiceError(f"JSON cannot hold the question: {error}") from error
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = media_type
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self.url.rstrip("/") + path, data=data, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:  # noqa: S310
                found = json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            reason = getattr(error, "reason", None) or error
            raise ServiceError(f"{self.url} does not answer: {reason}") from error
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def _listed(self, name: str, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = answer.get(name)
        if not isinstance(found, list):
            raise self._stranger()
        return found

    def _stranger(self) -> ServiceError:
        return ServiceError(f"{self.url} answers something else than a service of OmniPilot")


def _refusal(error: urllib.error.HTTPError) -> ServiceError:
    try:
        document = json.loads(error.read(2**20))
    except (OSError, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or "detail" not in document:
        return ServiceError(f"the service answered {error.code}", status=error.code)
    return ServiceError(
        str(document["detail"]), status=error.code, kind=str(document.get("type", "")),
        request_id=str(document.get("request_id", "")), document=document,
    )  # fmt: skip
