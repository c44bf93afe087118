"""Exit codes of every command."""

from __future__ import annotations

from typing import Final

OK: Final = 0
ERROR: Final = 1
USAGE: Final = 2
ABSTAINED: Final = 3
INTERRUPTED: Final = 130
