"""Names of measured rows on their way into the store that the catalogue cannot resolve.

Such rows are kept, and fits leave them out: a misspelt name would cost its runs in silence.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Final

from omnipilot.catalog.scenario import stated_precision
from omnipilot.domain.errors import AmbiguousNameError, UnknownNameError, UsageError
from omnipilot.domain.rows import InferenceRun
from omnipilot.domain.unknown_name import UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from omnipilot.catalog import Catalog
    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.rows import Row

__all__ = ["UnknownNames"]

# To find what resembles a name takes milliseconds: after so many unknown ones no more are sought.
MOST_NAMES: Final = 200

_Name = tuple[str, str, float]  # column, name, memory of the GPU in GB


class UnknownNames:
    """Watches rows pass.

    Args:
        catalog: gives what is known, the site's own GPU kinds and models too; asked once, when the
            first run passes.
    """

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._open = catalog
        self._faults: dict[_Name, UsageError | None] = {}
        self._rows: Counter[_Name] = Counter()

    @cached_property
    def _catalog(self) -> Catalog:
        return self._open()

    def watch(self, items: Iterable[Row | Rejection]) -> Iterator[Row | Rejection]:
        """Yield the items as they are and look their names up.

        Raises:
            BadInputError: a file of the site's own GPU kinds cannot be read.
        """
        for item in items:
            if isinstance(item, InferenceRun):
                self._look_up(("model", item.model, 0.0))
                self._look_up(("gpu", item.gpu, item.gpu_memory_gb))
                self._look_up(("precision", item.precision, 0.0))
            yield item

    def found(self) -> tuple[UnknownName, ...]:
        """The first names that cannot be resolved, those of most rows first."""
        return tuple(
            _unknown(name, n, fault)
            for name, n in self._rows.most_common()
            if (fault := self._faults[name]) is not None
        )

    def _look_up(self, name: _Name) -> None:
        if name not in self._faults:
            self._faults[name] = self._fault(*name) if len(self._rows) < MOST_NAMES else None
        if self._faults[name] is not None:
            self._rows[name] += 1

    def _fault(self, column: str, name: str, memory_gb: float) -> UsageError | None:
        try:
            if column == "model":
                self._catalog.model(name)
            elif column == "gpu":
                self._catalog.gpu(name, memory_gb or None)
            elif stated := stated_precision(name):
                self._catalog.precision(stated)
        except UsageError as error:
            return error
        return None


def _unknown(name: _Name, n_rows: int, fault: UsageError) -> UnknownName:
    column, text, _ = name
    if isinstance(fault, AmbiguousNameError):
        return UnknownName(column, text, n_rows, fault.candidates, ambiguous=True)
    close = fault.close if isinstance(fault, UnknownNameError) else ()
    return UnknownName(column, text, n_rows, close)
