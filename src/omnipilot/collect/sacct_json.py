"""The JSON of ``sacct --json``: its jobs one at a time in bounded memory.

Slurm prints one job's members further in than its braces, which is how jobs are told apart without
parsing: a damaged one spoils only itself. JSON without line ends is read whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from omnipilot.collect.sacct_json_job import read_job
from omnipilot.collect.sacct_row import row_of
from omnipilot.collect.slurm_values import FieldError
from omnipilot.domain.errors import BadInputError
from omnipilot.domain.rejection import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.collect.identity import SiteKey
    from omnipilot.collect.lines import Lines
    from omnipilot.domain.rows import ClusterJob

__all__ = ["collect_json"]

_HEAD_BYTES: Final = 4 * 2**20
_JOB_BYTES: Final = 16 * 2**20
_WHOLE_BYTES: Final = 256 * 2**20
_JOBS: Final = re.compile(rb'(?<!\\)"jobs"\s*:\s*\[')
_FIRST_JOB: Final = re.compile(rb"[ \t\r]*(\n[ \t]+)\{")
_NEXT_JOB: Final = re.compile(rb"\s*,\s*(?=\{)")
_END: Final = re.compile(rb"\s*\]")
_MARGIN_BYTES: Final = 4096


class _Document(msgspec.Struct):
    jobs: list[msgspec.Raw]


_document_decoder = msgspec.json.Decoder(_Document)


def collect_json(
    path: Path, lines: Lines, *, key: SiteKey | None
) -> Iterator[ClusterJob | Rejection]:
    """Read the jobs of the document.

    Args:
        path: for messages.
        lines: the opened file.
        key: the site's key; without it users and accounts are left out.

    Yields:
        One item a job, in file order; a rejection's line is the job's place, from 1.

    Raises:
        BadInputError: no JSON with a list of jobs.
    """
    for n, text in enumerate(_jobs(path, lines), start=1):
        yield _item(n, text, key)


def _item(n: int, text: bytes | msgspec.Raw | None, key: SiteKey | None) -> ClusterJob | Rejection:
    if text is None:
        return Rejection(n, "the list of jobs breaks off here: damaged or cut", "damaged JSON")
    try:
        return row_of(read_job(text), key)
    except FieldError as fault:
        return Rejection(n, str(fault), fault.code)
    except msgspec.ValidationError as error:
        return Rejection(n, f"a member of unknown shape: {error}", "unknown shape")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Rejection(n, "no JSON object: damaged", "damaged JSON")


class _Text:
    """The unread text, a block at a time."""

    def __init__(self, text: bytes, lines: Lines) -> None:
        self._text = text
        self._at = 0
        self._lines = lines

    def take(self, mark: bytes, most: int) -> bytes | None:
        """Take the text up to and with ``mark``; None where it does not come within ``most``."""
        searched = self._at
        while (found := self._text.find(mark, searched)) < 0:
            searched = max(len(self._text) - self._at - len(mark), 0)
            if len(self._text) - self._at > most or not self._more():
                return None
        end = found + len(mark)
        taken, self._at = self._text[self._at : end], end
        return taken

    def follows(self, pattern: re.Pattern[bytes], within: int) -> bool:
        """Pass over what matches ``pattern`` right here; False where nothing does."""
        while len(self._text) - self._at < within and self._more():
            pass
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found is not None

    def step_back(self) -> None:
        """Give the last byte taken again."""
        self._at -= 1

    def _more(self) -> bool:
        block = self._lines.read_block()
        self._text, self._at = self._text[self._at :] + block, 0
        return bool(block)


def _jobs(path: Path, lines: Lines) -> Iterator[bytes | msgspec.Raw | None]:
    """Give the text of each job; None where the list is damaged."""
    head = _head(path, lines)
    found = _FIRST_JOB.match(head)
    if found is None:
        yield from _whole(path, head, lines)
        return
    margin = found[1]
    text = _Text(head[found.end() - 1 :], lines)
    while (job := text.take(margin + b"}", _JOB_BYTES)) is not None:
        yield job
        if text.follows(_NEXT_JOB, len(margin) + 8):
            continue
        if text.follows(_END, len(margin) + 8):
            return
        yield None
        if text.take(margin + b"{", _JOB_BYTES) is None:
            return
        text.step_back()
    yield None


def _head(path: Path, lines: Lines) -> bytes:
    """Read up to the list of jobs and give what follows."""
    text = b""
    while len(text) < _HEAD_BYTES:
        block = lines.read_block()
        text += block
        found = _JOBS.search(text)
        if found is not None:
            if len(text) - found.end() < _MARGIN_BYTES:  # so that the first brace is there
                text += lines.read_block()
            return text[found.end() :]
        if not block:
            break
    raise BadInputError(f"{path} is no JSON of sacct: it has no list of jobs; run sacct --json")


def _whole(path: Path, text: bytes, lines: Lines) -> Iterator[msgspec.Raw]:
    blocks = [b'{"jobs":[', text]
    n_bytes = len(text)
    while block := lines.read_block():
        n_bytes += len(block)
        if n_bytes > _WHOLE_BYTES:
            raise BadInputError(
                f"{path} is JSON of more than {_WHOLE_BYTES / 2**20:.0f} MiB without line ends: "
                "print it with indentation, as sacct does, or harvest shorter times"
            )
        blocks.append(block)
    try:
        yield from _document_decoder.decode(b"".join(blocks)).jobs
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"{path} is damaged JSON: print it again with sacct --json") from error
