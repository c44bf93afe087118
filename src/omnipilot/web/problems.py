"""What went wrong, as RFC 9457 says it: application/problem+json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from omnipilot.domain.errors import (
    AmbiguousNameError,
    BadInputError,
    BundleError,
    StateError,
    ToolError,
    UnknownNameError,
    UsageError,
)
from omnipilot.domain.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MEDIA_TYPE", "PROBLEMS", "Problem", "ProblemError", "problem_of"]

MEDIA_TYPE: Final = "application/problem+json"
_PREFIX: Final = "urn:omnipilot:problem:"


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of refusal."""

    slug: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """Its name as a URI."""
        return _PREFIX + self.slug


PROBLEMS: Final[dict[str, Problem]] = {
    p.slug: p
    for p in (
        Problem("bad-request", 400, "The request cannot be read"),
        Problem("unauthenticated", 401, "A token is needed"),
        Problem("forbidden", 403, "The token does not allow this"),
        Problem("unknown-name", 404, "Nothing answers to that name"),
        Problem("not-found", 404, "There is no such page"),
        Problem("method-not-allowed", 405, "This address does not take that method"),
        Problem("slow-body", 408, "The body did not arrive in time"),
        Problem("ambiguous-name", 409, "Several things answer to that name"),
        Problem("too-large", 413, "The body is too large"),
        Problem("unsupported-media-type", 415, "The body is of a type that is not read here"),
        Problem("wrong-host", 421, "The request names another host"),
        Problem("invalid", 422, "The question cannot be answered as it stands"),
        Problem("too-many-requests", 429, "Too many requests"),
        Problem("internal", 500, "The service failed"),
        Problem("unavailable", 503, "The service cannot answer now"),
        Problem("too-slow", 504, "The answer took too long"),
    )
}

# The first class that fits decides.
_OF_ERROR: Final[tuple[tuple[type[Exception], str], ...]] = (
    (UnknownNameError, "unknown-name"),
    (AmbiguousNameError, "ambiguous-name"),
    (BadInputError, "invalid"),
    (UsageError, "invalid"),
    (BundleError, "unavailable"),
    (StateError, "unavailable"),
    (ToolError, "unavailable"),
)


class ProblemError(Exception):
    """A refusal on its way to the caller.

    Args:
        slug: key of :data:`PROBLEMS`.
        detail: what happened and what to do, for a person.
        headers: further headers of the answer.
        extra: further members of the document.
    """

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = PROBLEMS[slug]
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def body(self, request_id: str) -> bytes:
        """The document."""
        return msgspec.json.encode(
            {
                "type": self.problem.type,
                "title": self.problem.title,
                "status": self.problem.status,
                "detail": self.detail,
                "request_id": request_id,
                **self.extra,
            }
        )


def problem_of(error: Exception) -> ProblemError | None:
    """The refusal that an expected error means; None for a bug."""
    for kind, slug in _OF_ERROR:
        if isinstance(error, kind):
            extra = (
                {"candidates": list(error.candidates)}
                if isinstance(error, AmbiguousNameError)
                else {}
            )
            return ProblemError(slug, str(error), extra=extra)
    return None
