"""The engine's release that a question is about, as the cost model is asked for it."""

from __future__ import annotations

from functools import lru_cache

from omnipilot.catalog.engines import EngineVersion, engines, parse_engine_version
from omnipilot.domain.errors import UnknownNameError
from omnipilot.domain.frozen import dataclass

__all__ = ["AskedRelease", "asked_release", "release_of_row"]

# What people call the newest release.
_NEWEST = ("", "latest", "newest", "nightly", "main")


@dataclass(frozen=True, slots=True)
class AskedRelease:
    """``version`` is what the cost model is asked for; ``note`` says where that is another."""

    version: str
    note: str = ""


@lru_cache(maxsize=1024)
def asked_release(text: str, engine: str) -> AskedRelease:
    """Read the version in a question.

    Args:
        text: as it was asked; "", "latest" and "nightly" mean the newest known release.
        engine: its name.

    Raises:
        UnknownNameError: it is no version.

    Example:
        >>> asked_release("vllm 0.11.2", "vllm").version
        '0.11.2'
    """
    read = parse_engine_version(text, engine)
    if not read.known_engine:
        return AskedRelease(text)
    if read.stated:
        return _known(read)
    latest = _number(engines()[read.engine].latest)
    if text.strip().lower().split("-")[0] not in _NEWEST:
        raise UnknownNameError(
            f"'{text[:80]}' is no version of {read.engine}: say a release such as {latest}, or "
            "latest"
        )
    return AskedRelease(latest)


@lru_cache(maxsize=1024)
def release_of_row(text: str, engine: str) -> AskedRelease:
    """Read the version in a row: one that it does not tell stays unknown, as in rows measured."""
    read = parse_engine_version(text, engine)
    if not text or not read.known_engine:
        return AskedRelease(text)
    if not read.stated:
        note = f"'{text[:80]}' is no version of {read.engine}: answered as a version not known"
        return AskedRelease("", note)
    known = _known(read)
    return known if known.note else AskedRelease(text)


def _known(read: EngineVersion) -> AskedRelease:
    """A release that was stated, the newest known one where it is of a later line."""
    number = _number(read.version)
    known = engines()[read.engine].latest
    latest = _number(known)
    if read.version[:2] <= known[:2]:
        return AskedRelease(number)
    from omnipilot.costmodel.frame import engine_era  # noqa: PLC0415 - fits needs no arrays

    newer = f"{read.text} is newer than {latest}, the newest known release"
    if engine_era(read.engine, number, "") == engine_era(read.engine, latest, ""):
        return AskedRelease(number, f"{newer}: answered as a release of that line")
    return AskedRelease(latest, f"{newer}: answered as that one")


def _number(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
