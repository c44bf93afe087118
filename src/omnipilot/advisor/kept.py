"""What was worked out last, by what it follows from; the key holds everything that it rests on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["Kept"]

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """The values asked for last, by what was asked; safe to use from several threads.

    Args:
        most: values that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._items: OrderedDict[Hashable, Value] = OrderedDict()

    def __iter__(self) -> Iterator[Hashable]:
        """The keys, the one not asked for longest first."""
        with self._lock:
            return iter(tuple(self._items))

    def get(self, key: Hashable) -> Value | None:
        """A kept value; None where there is none."""
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._items.move_to_end(key)
            return found

    def put(self, key: Hashable, value: Value) -> None:
        """Keep a value; the one not asked for longest goes."""
        with self._lock:
            self._items[key] = value
            self._items.move_to_end(key)
            while len(self._items) > self._most:
                self._items.popitem(last=False)
