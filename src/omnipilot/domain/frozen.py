"""Frozen dataclasses whose methods are compiled when they are needed.

Python compiles six methods for each such class in every process, which took two fifths of the time
that the imports of an advice took (docs/speed.md). Most are never called, and most classes are made
a few times only: their fields are set one by one, and from then on as Python does it.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, **options: bool) -> Any:  # noqa: ANN401 - as there
        """Do what ``dataclasses.dataclass`` does, and for frozen classes later."""
        later = frozen and options.keys() <= _KNOWN
        make = (
            partial(_frozen, **options)
            if later
            else dataclasses.dataclass(frozen=frozen, **options)
        )
        return make if cls is None else make(cls)


__all__ = ["dataclass"]

_KNOWN: Final = {"slots", "eq", "weakref_slot"}
# The options of ``dataclasses.dataclass`` that make each method and as few others as can be.
_NONE: Final = {"init": False, "repr": False, "eq": False}
_MADE_BY: Final[dict[str, dict[str, bool]]] = {
    "__init__": _NONE | {"init": True, "frozen": True},
    "__repr__": _NONE | {"repr": True},
    "__eq__": _NONE | {"eq": True},
    "__hash__": _NONE | {"eq": True, "unsafe_hash": True},
}
# Setting fields one by one takes some 20 us longer, compiling 1 ms.
_FEW: Final = 16
_NOT_COMPARED: Final = ("__init__", "__repr__")


def _frozen(cls: type, *, eq: bool = True, slots: bool = False, **more: bool) -> Any:  # noqa: ANN401 - a class with what its decorator adds
    cls.__doc__ = cls.__doc__ or cls.__name__  # else made of a signature, which takes milliseconds
    made: Any = dataclasses.dataclass(slots=slots, **_NONE, **more)(cls)
    for name in _MADE_BY if eq else _NOT_COMPARED:
        # A class that says what is equal says None of its hash, unless it says more.
        if vars(cls).get(name) is None:
            later = _first_objects(made) if name == "__init__" else _at_first_call(made, name)
            setattr(made, name, later)
            if name == "__init__":
                made.__signature__ = _Signature()
    made.__setattr__, made.__delattr__ = _no_assignment, _no_deletion
    if slots:
        made.__getstate__, made.__setstate__ = _state, _restore
    return made


class _Signature:
    """What ``help`` and editors show of a class: the arguments that its ``__init__`` will take."""

    def __get__(self, _: object, owner: type) -> inspect.Signature:
        from inspect import signature  # noqa: PLC0415 - only who asks pays for it

        found = signature(_compiled(owner, "__init__"))
        return found.replace(parameters=list(found.parameters.values())[1:])


def _at_first_call(owner: type, name: str) -> Callable[..., Any]:
    """Stand in for a method until it is called."""

    def method(self: object, *args: object, **values: object) -> Any:  # noqa: ANN401 - any method
        real = _compiled(owner, name)
        setattr(owner, name, real)
        return real(self, *args, **values)

    return method


def _first_objects(owner: type) -> Callable[..., None]:
    """Stand in for ``__init__`` until a class is made often, or called as it cannot be."""
    numbers = count()

    def method(self: object, /, *args: object, **values: object) -> None:
        given = _arguments(owner, args, values) if next(numbers) < _FEW else None
        if given is None:
            real = _compiled(owner, "__init__")
            setattr(owner, "__init__", real)  # noqa: B010 - mypy refuses it as an assignment
            real(self, *args, **values)
            return
        for name, value in given.items():
            object.__setattr__(self, name, value)
        if hasattr(owner, "__post_init__"):
            self.__post_init__()  # type: ignore[attr-defined]

    return method


def _arguments(
    owner: Any,  # noqa: ANN401 - any dataclass
    args: tuple[object, ...],
    values: dict[str, object],
) -> dict[str, object] | None:
    """The value of every field; None where Python has to say what is wrong."""
    fields = dataclasses.fields(owner)
    places = [f.name for f in fields if not f.kw_only]
    given = dict(zip(places, args, strict=False)) | values
    if len(args) > len(places) or len(given) != len(args) + len(values):
        return None
    for f in fields:
        if f.name in given:
            continue
        if f.default is not dataclasses.MISSING:
            given[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            given[f.name] = f.default_factory()
    return given if len(given) == len(fields) and all(f.init for f in fields) else None


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
