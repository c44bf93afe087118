"""Damage as it happens to files: for tests that no input crashes or hangs a reader."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from omnipilot.domain import BadInputError
from omnipilot.domain.rejection import Rejection
from omnipilot.store.codec import encode_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from omnipilot.domain import Row

__all__ = ["mutated", "survives"]

_JUNK = st.sampled_from(
    [
        b"\0", b"\xff\xfe", b"\xc3", b"9" * 400, b"1e999", b"-1", b"NaN", b"Infinity", b"[" * 5000,
        b"{" * 5000, b'"', b"\\", b"\n", b"\r", b"}", b"]", b"null", b"\x1b[", b"(" * 3000,
        b'\\"' * 3000, b" " * 5000, b"0." + b"0" * 3000, "١٢".encode(), "𝟙".encode(), b"a" * 70_000,
    ]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, base: bytes) -> bytes:
    """Give ``base`` with one to four pieces of damage."""
    data = bytearray(base)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        n = draw(st.integers(1, 200))
        match draw(st.sampled_from(["flip", "cut", "drop", "repeat", "insert", "swap", "digit"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + n]
            case "repeat":
                data[at:at] = data[at : at + n] * draw(st.integers(1, 20))
            case "insert":
                data[at:at] = draw(_JUNK)
            case "swap":
                data = data[at:] + data[:at]
            case "digit":
                digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
                if digits:
                    data[draw(st.sampled_from(digits))] = 48 + draw(st.integers(0, 9))
            case _:
                pass
    return bytes(data)


def survives(collect: Callable[[], Iterable[Row | Rejection]]) -> list[Row]:
    """Collect a damaged text: rows that can be stored, counted refusals, in a second of work."""
    began_s = time.process_time()
    rows: list[Row] = []
    try:
        for item in collect():
            if isinstance(item, Rejection):
                assert item.reason
                assert len(item.reason) < 400
                assert 0 < len(item.code) <= 40
            else:
                encode_row(item)
                rows.append(item)
    except BadInputError:
        rows.clear()
    assert time.process_time() - began_s < 1.0
    return rows
