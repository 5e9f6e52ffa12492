"""Classes of plain data: what `frozen` makes is what `dataclass(frozen=True, slots=True)` makes of the same class."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, astuple, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

import halimede
from halimede.frozen import frozen
from tools.compile import MODULES

A = TypeVar("A")


class Shape(Generic[A]):
    __slots__ = ()


def circle_of(make: Callable[[type[Any]], type[Any]]) -> type[Any]:
    class Circle(Shape[int]):
        """One with all that `frozen` knows of."""

        radius: float
        names: tuple[str, ...] = ()
        tags: dict[str, str] = field(default_factory=dict, compare=False)
        seen: object = field(default=None, compare=False, repr=False)

        @property
        def diameter(self) -> float:
            return 2 * self.radius

    return make(Circle)


OURS = circle_of(frozen)
THEIRS = circle_of(dataclass(frozen=True, slots=True))
BOTH = pytest.mark.parametrize("circle", [OURS, THEIRS], ids=["frozen", "dataclass"])


@frozen
class Point:
    x: int
    y: int = 0


@frozen
class Named(Point):
    name: str = ""


@frozen
class Nothing:
    """Without a field."""


@frozen
class NothingElse:
    """Neither."""


@BOTH
def test_fields_are_given_by_place_by_name_or_by_default(circle: type[Any]) -> None:
    assert astuple(circle(1.5)) == (1.5, (), {}, None)
    assert astuple(circle(1.5, ("a",), seen=3)) == (1.5, ("a",), {}, 3)
    assert circle(1.5).diameter == 3
    assert circle(1.5).tags is not circle(1.5).tags
    assert [each.name for each in fields(circle)] == ["radius", "names", "tags", "seen"]
    assert circle.__match_args__ == ("radius", "names", "tags", "seen")
    assert circle.__doc__ == "One with all that `frozen` knows of."


@BOTH
@pytest.mark.parametrize(
    ("args", "named", "text"),
    [
        ((), {}, r"Circle\.__init__\(\) missing 1 required positional argument: 'radius'"),
        ((1, (), {}, None, 5), {}, r"Circle\.__init__\(\) takes from 2 to 5 positional arguments but 6 were given"),
        ((1,), {"colour": 1}, r"Circle\.__init__\(\) got an unexpected keyword argument 'colour'"),
    ],
)
def test_wrong_arguments_are_told(circle: type[Any], args: tuple[Any, ...], named: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        circle(*args, **named)


@BOTH
def test_equal_ones_are_those_of_one_class_with_equal_fields(circle: type[Any]) -> None:
    one = circle(1, ("a",), {"b": "c"}, 4)
    assert one == circle(1, ("a",), {}, 5)
    assert hash(one) == hash(circle(1, ("a",), {}, 5))
    assert len({one, circle(1, ("a",)), circle(2, ("a",))}) == 2
    assert one != circle(1, ("b",))
    assert one != 1
    assert one != (THEIRS if circle is OURS else OURS)(1, ("a",), {"b": "c"}, 4)
    with pytest.raises(TypeError, match="unhashable"):
        hash(circle(1, []))


def test_those_without_fields_are_equal_where_the_class_is_one() -> None:
    assert Nothing() == Nothing()
    assert Nothing() != NothingElse()  # type: ignore[comparison-overlap] # which is what this is about
    assert len({Nothing(), Nothing(), NothingElse()}) == 2
    assert repr(Nothing()) == "Nothing()"


@BOTH
def test_nothing_of_it_changes(circle: type[Any]) -> None:
    one = circle(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'radius'"):
        one.radius = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'radius'"):
        del one.radius
    assert one.radius == 1
    assert not hasattr(one, "__dict__")


@BOTH
def test_others_are_made_of_it(circle: type[Any]) -> None:
    one = circle(1, ("a",), {"b": "c"}, 4)
    assert astuple(replace(one, radius=2)) == (2, ("a",), {"b": "c"}, 4)
    assert asdict(one) == {"radius": 1, "names": ("a",), "tags": {"b": "c"}, "seen": 4}
    assert astuple(copy.copy(one)) == astuple(copy.deepcopy(one)) == astuple(one)
    assert is_dataclass(one)


def test_text_of_it_is_the_same() -> None:
    assert repr(OURS(1, ("a",), seen=3)) == repr(THEIRS(1, ("a",), seen=3))
    assert repr(OURS(1)).endswith("Circle(radius=1, names=(), tags={})")


def test_it_crosses_to_other_processes() -> None:
    for one in (Point(1, 2), Named(1, 2, "a"), Nothing()):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(one, protocol)) == one


def test_class_derived_from_one_has_its_fields_first() -> None:
    named = Named(1, 2, "a")
    assert (named.x, named.y, named.name) == (1, 2, "a")
    assert repr(named) == "Named(x=1, y=2, name='a')"
    assert named != Point(1, 2)
    with pytest.raises(FrozenInstanceError):
        named.x = 3  # type: ignore[misc] # which is what this is about


def test_package_has_it_wherever_mypyc_does_not_compile() -> None:
    """A class made by `dataclass` alone costs a start six times as much."""
    package = Path(halimede.__file__).parent
    other = [*MODULES, "halimede.frozen"]
    slow = [
        name
        for path in sorted(package.rglob("*.py"))
        if (name := ".".join(["halimede", *path.relative_to(package).with_suffix("").parts])) not in other
        and not name.startswith("halimede.workers.child.")  # which is a process, and a package, of its own
        and "@dataclass(frozen=True, slots=True)" in path.read_text()
    ]
    assert not slow


def test_field_without_a_default_after_one_with_it_is_refused() -> None:
    with pytest.raises(SyntaxError, match="default"):

        @frozen
        class Wrong:
            a: int = 0
            b: int  # type: ignore[misc]
