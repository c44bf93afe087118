"""Slurm's accounting as rows of cluster jobs: ``sacct -P`` text or ``sacct --json``.

Tried on captures of Slurm 22.05.8 and 24.11.5; other versions are read by shape.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Final

from omnipilot.collect.lines import Limits, open_lines
from omnipilot.collect.sacct_json import collect_json
from omnipilot.collect.sacct_text import collect_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo
    from pathlib import Path

    from omnipilot.collect.identity import SiteKey
    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.rows import ClusterJob

__all__ = ["collect_sacct"]

# A year of a large site's accounting; real ones compress about 15 times.
_LIMITS: Final = Limits(file_bytes=64 * 2**30)


def collect_sacct(
    path: Path,
    *,
    key: SiteKey | None = None,
    zone: tzinfo = UTC,
    limits: Limits = _LIMITS,
) -> Iterator[ClusterJob | Rejection]:
    """Read the ended jobs of a file that sacct printed.

    A job that has not ended is a rejection of code "not ended": it is taken when it has. So is one
    whose start has not reached the accounting, "not recorded whole". Steps are passed over.

    Args:
        path: the file, plain or gzip-compressed, text or JSON (told by its first character).
        key: the site's key; without it users and accounts are left out.
        zone: where times without an offset were printed (``SLURM_TIME_FORMAT=%s`` avoids them).
        limits: what the file may cost.

    Yields:
        One item a record, in file order: the row, or why the record is none.

    Raises:
        BadInputError: the file is not what sacct prints, cannot be read or is too large.
    """
    with open_lines(path, limits, "the output of sacct") as lines:
        if lines.peek().lstrip()[:1] in {b"{", b"["}:
            yield from collect_json(path, lines, key=key)
        else:
            yield from collect_text(path, lines, key=key, zone=zone)
