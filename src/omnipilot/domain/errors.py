"""The exceptions a user can meet, in one tree.

    OmniPilotError            exit code 1
    ├── UsageError            exit code 2: the request itself is wrong
    │   ├── UnknownNameError      no such GPU kind, model, precision, engine
    │   ├── AmbiguousNameError    several kinds share that spelling
    │   └── BadInputError         a file or value that cannot be read
    ├── ToolError             a program of the site is missing, failed or did not answer
    └── StateError            the site's folder cannot be used
        └── BundleError           a model bundle is missing, damaged or of another version

A refusal that is an answer (an arm that cannot start, an abstention) is a value, not an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class OmniPilotError(Exception):
    """An expected failure; its text tells the user what to do next."""

    exit_code = 1


class UsageError(OmniPilotError):
    """The request is wrong and can be corrected by the user."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that no catalogue entry answers to.

    Args:
        message: what the user is told.
        close: canonical names that it resembles, the closest first.
    """

    def __init__(self, message: str, close: Sequence[str] = ()) -> None:
        self.close = tuple(close)
        super().__init__(message)


class AmbiguousNameError(UsageError):
    """A spelling shared by several catalogue entries.

    Args:
        text: what was asked for.
        candidates: canonical names that it could mean.
    """

    def __init__(self, text: str, candidates: Sequence[str]) -> None:
        self.candidates = tuple(candidates)
        super().__init__(f"'{text}' is ambiguous: say one of {', '.join(self.candidates)}")


class BadInputError(UsageError):
    """A file, row or value that cannot be read."""


class ToolError(OmniPilotError):
    """A program of the site, such as sinfo, is missing, failed or did not answer in time."""


class StateError(OmniPilotError):
    """The site's folder or a file in it cannot be used."""


class BundleError(StateError):
    """A model bundle that is missing, damaged or of another version."""


class OlderBundleError(BundleError):
    """A whole bundle of a version of the program whose cost model had other parts."""
