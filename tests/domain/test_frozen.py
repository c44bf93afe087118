from __future__ import annotations

import copy
import dataclasses
import inspect
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any

import pytest

from omnipilot.domain import frozen


def pair_of(make: Any) -> Any:
    """One class as the decorator makes it."""

    @make(frozen=True, slots=True)
    class Pair:
        """Two numbers."""

        left: int
        right: int = 2
        more: list[int] = field(default_factory=list, compare=False)
        hidden: str = field(default="x", repr=False, kw_only=True)

        def __post_init__(self) -> None:
            if self.left < 0:
                raise ValueError("left is negative")

        @property
        def total(self) -> int:
            return self.left + self.right

    return Pair


OURS, THEIRS = pair_of(frozen.dataclass), pair_of(dataclasses.dataclass)
METHODS = ("__init__", "__repr__", "__eq__", "__hash__")


def message(call: Any) -> str:
    with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
        call()
    assert type(caught.value) in {TypeError, ValueError, FrozenInstanceError}
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(
    "look",
    [
        lambda c: repr(c(1)),
        lambda c: hash(c(1, 3)) == hash(c(1, 3, [5])),
        lambda c: hash(c(1, 3)),
        lambda c: (c(1) == c(1), c(1) == c(1, 3), c(1) == c(1, more=[3]), c(1) == (1, 2)),
        lambda c: {c(1): "a"}[c(1)],
        lambda c: (c(1).more, c(1).more is c(1).more),
        lambda c: c(1, hidden="s").hidden,
        lambda c: c(4).total,
        lambda c: dataclasses.asdict(c(1)),
        lambda c: dataclasses.astuple(dataclasses.replace(c(1), right=9)),
        lambda c: [(f.name, f.type, f.repr, f.kw_only) for f in dataclasses.fields(c)],
        lambda c: (copy.copy(c(1)) == c(1), copy.deepcopy(c(1, 2, [3])).more),
        lambda c: (c.__match_args__, c.__slots__, hasattr(c(1), "__dict__"), c.__doc__),
        message,
        lambda c: message(lambda: c(1, 2, [], "s")),
        lambda c: message(lambda: c(1, wrong=2)),
        lambda c: message(lambda: c(1, left=2)),
        lambda c: message(lambda: c(right=2)),
        lambda c: dataclasses.astuple(c(right=3, left=1, more=[4])),
        lambda c: message(lambda: c(-1)),
        lambda c: message(lambda: setattr(c(1), "left", 2)),
        lambda c: message(lambda: delattr(c(1), "left")),
        lambda c: message(lambda: dataclasses.replace(c(1), left=-1)),
    ],
)
def test_a_frozen_class_does_what_that_of_the_standard_library_does(look: Any) -> None:
    assert look(OURS) == look(THEIRS)
    assert look(pair_of(frozen.dataclass)) == look(OURS)  # at its first call too


def test_help_shows_the_arguments_before_anything_is_compiled() -> None:
    ours, theirs = pair_of(frozen.dataclass), pair_of(dataclasses.dataclass)
    before = vars(ours)["__init__"]
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert vars(ours)["__init__"] is before
    ours(1)
    assert inspect.signature(ours) == inspect.signature(theirs)


def test_a_method_is_compiled_when_first_called() -> None:
    pair = pair_of(frozen.dataclass)
    compiled = {name: pair_of(dataclasses.dataclass).__dict__[name].__code__ for name in METHODS}

    def ready() -> list[str]:
        return [name for name in METHODS if vars(pair)[name].__code__ == compiled[name]]

    assert ready() == []
    one = pair(1)
    assert ready() == []
    assert one == pair(1)
    assert ready() == ["__eq__"]
    made = [pair(n) for n in range(20)]
    assert ready() == ["__init__", "__eq__"]
    assert [p.total for p in made] == [n + 2 for n in range(20)]


def test_a_field_that_is_not_given_is_the_class_s_own_affair() -> None:
    def make(decorate: Any) -> Any:
        @decorate(frozen=True)
        class Twice:
            text: str
            doubled: str = field(init=False, default="")

            def __post_init__(self) -> None:
                object.__setattr__(self, "doubled", 2 * self.text)

        return Twice

    ours, theirs = make(frozen.dataclass), make(dataclasses.dataclass)
    assert repr(ours("a")) == repr(theirs("a"))
    assert message(lambda: ours("a", "b")) == message(lambda: theirs("a", "b"))
    assert message(lambda: ours("a", doubled="b")) == message(lambda: theirs("a", doubled="b"))


def test_methods_that_a_class_has_stay() -> None:
    @frozen.dataclass(frozen=True, slots=True)
    class Name:  # noqa: PLW1641 - the decorator adds the hash
        text: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Name) and self.text.lower() == other.text.lower()

        def __repr__(self) -> str:
            return self.text

    assert Name("a") == Name("A")
    assert repr(Name("a")) == "a"
    assert hash(Name("a")) == hash(Name("a"))


@pytest.mark.parametrize("options", [{"slots": False}, {"slots": True}, {"eq": False}])
def test_frozen_classes_of_other_forms_are_those_of_the_standard_library_too(
    options: dict[str, bool],
) -> None:
    made: Any
    theirs: Any
    made, theirs = (
        make(frozen=True, **options)(type("Plain", (), {"__annotations__": {"text": "str"}}))
        for make in (frozen.dataclass, dataclasses.dataclass)
    )
    for name in (*METHODS, "__getstate__", "__dict__"):
        assert (name in vars(made)) == (name in vars(theirs)), name
    one = made("a")
    assert copy.deepcopy(one).text == "a"
    assert (one == made("a")) is (theirs("a") == theirs("a"))
    assert (hash(one) == hash(made("a"))) is options.get("eq", True)
    with pytest.raises(FrozenInstanceError):
        one.text = "b"


@pytest.mark.parametrize("options", [{}, {"slots": True}, {"order": True}])
def test_other_options_are_those_of_the_standard_library(options: dict[str, bool]) -> None:
    class Plain:
        text: str

    made: Any = frozen.dataclass(**options)(Plain)
    assert "__init__" in vars(made)
    assert made.__dataclass_params__.frozen is options.get("frozen", False)
    assert made.__dataclass_params__.order is options.get("order", False)


def test_it_is_called_with_the_class_alone() -> None:
    @frozen.dataclass
    class Plain:
        text: str

    plain = Plain("a")
    plain.text = "b"
    assert plain == Plain("b")


def test_a_name_that_is_no_field_cannot_be_set() -> None:
    """The standard library refuses it too, but for a wrong reason (Python 3.11)."""
    with pytest.raises(FrozenInstanceError, match="other"):
        OURS(1).other = 2


def test_the_program_has_one_way_to_make_frozen_classes() -> None:
    root = Path(frozen.__file__).parents[1]
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    made = [path for path, text in texts.items() if "dataclass(frozen=True" in text]
    imported = "from omnipilot.domain.frozen import dataclass\n"
    assert len(made) > 100
    # The client is the standard library alone.
    assert [path.name for path in made if imported not in texts[path]] == ["client.py"]
