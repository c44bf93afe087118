"""The last answer of the cluster, kept in the site's folder with the time it was taken."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from omnipilot.domain.cluster import ClusterState
from omnipilot.domain.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CACHE_NAME", "load_state", "read_cache", "write_cache"]

CACHE_NAME: Final = "cluster_state.json"
_MOST_BYTES: Final = 256 * 2**20
_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_cache(home: Path, *, now_s: float, most_age_s: float) -> ClusterState | None:
    """The cached state; None where there is none, it is older, damaged or from the future."""
    try:
        state = _decode((home / CACHE_NAME).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not 0.0 <= now_s - state.taken_s <= most_age_s:
        return None
    return replace(state, origin="cache")


def write_cache(home: Path, state: ClusterState) -> None:
    """Keep a state, replacing the last one at once; a folder that cannot be written is no error."""
    path = home / CACHE_NAME
    beside = path.with_name(f"{CACHE_NAME}.{os.getpid()}")
    with suppress(OSError):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, _NEW_FLAGS, 0o600), "wb") as stream:
            stream.write(msgspec.json.encode(state))
        beside.replace(path)
    with suppress(OSError):
        beside.unlink(missing_ok=True)


def load_state(path: Path) -> ClusterState:
    """Read a state from a file of the form of the cache.

    Raises:
        BadInputError: it cannot be read or is of another form.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadInputError(f"{path} is too large for a cluster state")
        return replace(_decode(path.read_bytes()), origin="file")
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(
            f"{path} holds no cluster state ({error}): copy {CACHE_NAME} out of the site's folder"
        ) from error


def _decode(data: bytes) -> ClusterState:
    return msgspec.json.decode(data, type=ClusterState)
