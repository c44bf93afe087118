"""Frozen dataclasses with slots whose methods are compiled when first called.

Python compiles six methods for each such class in every process, which took two fifths of the time
that the imports of an advice took (docs/speed.md), and most of them are never called.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:  # noqa: ANN401 - as there
        """Do what ``dataclasses.dataclass`` does, and for frozen classes with slots later."""
        make = _frozen if options == _LATER else dataclasses.dataclass(**options)
        return make if cls is None else make(cls)


__all__ = ["dataclass"]

_LATER: Final = {"frozen": True, "slots": True}
# The options of ``dataclasses.dataclass`` that make each method and as few others as can be.
_NONE: Final = {"init": False, "repr": False, "eq": False}
_MADE_BY: Final[dict[str, dict[str, bool]]] = {
    "__init__": _NONE | {"init": True, "frozen": True},
    "__repr__": _NONE | {"repr": True},
    "__eq__": _NONE | {"eq": True},
    "__hash__": _NONE | {"eq": True, "unsafe_hash": True},
}


def _frozen(cls: type) -> Any:  # noqa: ANN401 - a class with what its decorator adds
    made: Any = dataclasses.dataclass(slots=True, **_NONE)(cls)
    for name in _MADE_BY:
        # A class that says what is equal says None of its hash, unless it says more.
        if vars(cls).get(name) is None:
            setattr(made, name, _at_first_call(made, name))
    made.__setattr__, made.__delattr__ = _no_assignment, _no_deletion
    made.__getstate__, made.__setstate__ = _state, _restore
    return made


def _at_first_call(owner: type, name: str) -> Callable[..., Any]:
    """Stand in for a method until it is called."""

    def method(self: object, *args: object, **values: object) -> Any:  # noqa: ANN401 - any method
        real = _compiled(owner, name)
        setattr(owner, name, real)
        return real(self, *args, **values)

    return method


def _compiled(owner: Any, name: str) -> Callable[..., Any]:  # noqa: ANN401 - any dataclass
    """Let ``dataclasses`` make the method for a class of the same fields."""
    body = {"__doc__": owner.__doc__ or name, "__qualname__": owner.__qualname__}
    body |= {"__module__": owner.__module__, "__annotations__": {}}
    if hasattr(owner, "__post_init__"):
        body["__post_init__"] = owner.__post_init__
    for f in dataclasses.fields(owner):
        body["__annotations__"][f.name] = f.type
        body[f.name] = dataclasses.field(
            default=f.default, default_factory=f.default_factory, init=f.init, repr=f.repr,
            hash=f.hash, compare=f.compare, kw_only=f.kw_only,
        )  # fmt: skip
    twin: Any = dataclasses.dataclass(**_MADE_BY[name])(type(owner.__name__, (), body))
    made: Callable[..., Any] = vars(twin)[name]
    return made


def _no_assignment(_: object, name: str, __: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_deletion(_: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:  # noqa: ANN401 - any dataclass
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore(self: Any, state: list[object]) -> None:  # noqa: ANN401 - any dataclass
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
