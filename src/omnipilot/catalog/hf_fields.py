"""Checked reading of a Hugging Face ``config.json``: every value is hostile until proven."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_LAYERS: Final = 2_048
"""Deepest published decoder is below 200 layers; more is a damaged file."""

MAX_COUNT: Final = 1_000_000
"""Limit of heads, experts and the like."""

MAX_WIDTH: Final = 100_000_000
"""Limit of widths, vocabularies, context lengths and windows."""


def shorten(value: object, limit: int = 40) -> str:
    """Show a refused value in at most ``limit`` characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    if isinstance(value, (dict, list)):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)} entries"
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(text: object, limit: int = 200) -> str:
    """Show a name or path in one line: control characters become "?", the rest is cut."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


class ConfigFields:
    """Typed look-ups over the tables of one config, most specific table first.

    Args:
        tables: the tables to search in order (``text_config`` before the top level).
        where: names the file or model in error texts.

    Example:
        >>> fields = ConfigFields([{"n_layer": 28}], "a config")
        >>> fields.need("num_hidden_layers", "n_layer", high=100)
        28
    """

    def __init__(self, tables: Sequence[Mapping[str, object]], where: str) -> None:
        self._tables = tuple(tables)
        self.where = where

    def raw(self, *names: str) -> tuple[str, object]:
        """First value that is present and not null, with the key that held it."""
        for table in self._tables:
            for name in names:
                value = table.get(name)
                if value is not None:
                    return name, value
        return names[0], None

    def refuse(self, name: str, expected: str, value: object) -> BadInputError:
        """The error for a key whose value is not what a model can have."""
        return BadInputError(f"{self.where}: '{name}' must be {expected}, got {shorten(value)}")

    def integer(self, *names: str, default: int = 0, low: int = 0, high: int = MAX_COUNT) -> int:
        """A whole number in [low, high], ``default`` where no key is present.

        Raises:
            BadInputError: text, a fraction, NaN, or a number out of range.
        """
        name, value = self.raw(*names)
        if value is None:
            return default
        return self.checked_int(name, value, low, high)

    def checked_int(self, name: str, value: object, low: int, high: int) -> int:
        """Refuse everything but a whole number in [low, high]; 4096.0 counts as whole."""
        expected = f"a whole number from {low} to {high}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(name, expected, value)
        if isinstance(value, float) and not (math.isfinite(value) and value == int(value)):
            raise self.refuse(name, expected, value)
        if not low <= value <= high:
            raise self.refuse(name, expected, value)
        return int(value)

    def need(self, *names: str, low: int = 1, high: int = MAX_COUNT) -> int:
        """A whole number that the config must state.

        Raises:
            BadInputError: absent under every name, or not a number in range.
        """
        name, value = self.raw(*names)
        if value is None:
            other = f" (or '{names[1]}')" if len(names) > 1 else ""
            raise BadInputError(
                f"{self.where}: '{names[0]}'{other} is missing: give the model's own config.json"
            )
        return self.checked_int(name, value, low, high)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A finite number in [low, high].

        Raises:
            BadInputError: text, NaN or a number out of range.
        """
        _, value = self.raw(name)
        if value is None:
            return default
        bad = isinstance(value, bool) or not isinstance(value, (int, float))
        if bad or not low <= value <= high:  # type: ignore[operator]
            raise self.refuse(name, f"a number from {low:g} to {high:g}", value)
        return float(value)  # type: ignore[arg-type]

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false; 0 and 1 count.

        Raises:
            BadInputError: anything else.
        """
        name, value = self.raw(*names)
        if value is None:
            return default
        if isinstance(value, bool) or (isinstance(value, int) and value in {0, 1}):
            return bool(value)
        raise self.refuse(name, "true or false", value)

    def text(self, *names: str, default: str = "") -> str:
        """Short text.

        Raises:
            BadInputError: not text, or longer than 200 characters.
        """
        name, value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 200:
            raise self.refuse(name, "a short text", value)
        return value

    def text_long(self, name: str, limit: int) -> str:
        """Text of at most ``limit`` characters, empty where absent.

        Raises:
            BadInputError: not text, or longer.
        """
        _, value = self.raw(name)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > limit:
            raise self.refuse(name, f"a text of at most {limit} characters", value)
        return value

    def table(self, name: str) -> Mapping[str, object]:
        """A nested table, empty where absent.

        Raises:
            BadInputError: present but not a table.
        """
        _, value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.refuse(name, "a table", value)
        return value

    def listing(self, *names: str, length: int | None = None) -> tuple[object, ...]:
        """A list of at most :data:`MAX_LAYERS` entries, empty where absent.

        Raises:
            BadInputError: not a list, too long, or not of the ``length`` asked for.
        """
        name, value = self.raw(*names)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > MAX_LAYERS:
            raise self.refuse(name, f"a list of at most {MAX_LAYERS} entries", value)
        if length is not None and len(value) != length:
            raise self.refuse(name, f"a list of {length} entries, one a layer", value)
        return tuple(value)

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        """A list of whole numbers in [low, high], empty where absent.

        Raises:
            BadInputError: not a list of such numbers.
        """
        return tuple(self.checked_int(name, item, low, high) for item in self.listing(name))
