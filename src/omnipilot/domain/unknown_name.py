"""A name in measured rows that the catalogue cannot resolve."""

from __future__ import annotations

from omnipilot.domain.frozen import dataclass


@dataclass(frozen=True, slots=True)
class UnknownName:
    """One name of one column, with the rows that have it.

    Args:
        column: "model", "gpu" or "precision".
        name: as the rows spell it.
        rows: how many have it.
        close: canonical names that it resembles or, where ``ambiguous``, that it could mean.
        ambiguous: several kinds share the spelling.
    """

    column: str
    name: str
    rows: int
    close: tuple[str, ...]
    ambiguous: bool = False

    @property
    def text(self) -> str:
        """The same in words."""
        if self.ambiguous:
            wrong = f"is ambiguous: say one of {', '.join(self.close)}"
        else:
            wrong = "is not in the catalogue"
            wrong += f", close: {', '.join(self.close)}" if self.close else ""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        return f"{self.column} '{self.name}' ({rows}) {wrong}"
