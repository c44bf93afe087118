"""Foreign text made harmless before it reaches a terminal or a spreadsheet."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["cell", "escaped", "visible"]

# Controls (with the escape that begins a terminal's commands), and what turns the reading order.
_UNSEEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    r"""Show control characters instead of sending them.

    Example:
        >>> visible("\x1b[2Jmodel")
        '\\x1b[2Jmodel'
    """
    return _UNSEEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def escaped(json_text: str) -> str:
    """Escape in a JSON document what JSON allows and a terminal obeys; it means the same."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def cell(text: str) -> str:
    """Keep a spreadsheet from taking text for a formula; numbers stay numbers.

    Example:
        >>> cell("=HYPERLINK(1)"), cell("-3.5"), cell("@sum"), cell("h100-80")
        ("'=HYPERLINK(1)", '-3.5', "'@sum", 'h100-80')
    """
    text = visible(text)
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
