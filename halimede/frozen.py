"""Classes of plain data that are made quickly. To whoever uses one, `frozen` is `dataclass(frozen=True, slots=True)`.

That one writes six methods of each class as text and compiles them, 0.35 ms a class: with a hundred and fifty of them a
quarter of the CPU time in which a server starts. Here only `__init__` is, 0.06 ms a class; the other methods go by the
names of the fields and are much the same for all. For plain fields, with a default, a factory of one, `compare=False`
or `repr=False`; anything else is for `dataclass` itself, and so are the modules that mypyc compiles, which knows that
one only. Any thread.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """The class with slots, which is another one; `fields`, `replace` and `asdict` know it."""
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    every = fields(made)
    made.__init__ = _init_of(made, every)
    made.__repr__ = _repr_of([each.name for each in every if each.repr])
    made.__eq__, made.__hash__ = _comparison_of([each.name for each in every if each.compare])
    made.__setattr__, made.__delattr__ = _refuse_to_set, _refuse_to_delete
    made.__getstate__, made.__setstate__ = _state_of, _set_state  # of `copy` and `pickle`
    result: type[T] = made
    return result


def _init_of(cls: Any, every: Iterable[Field[Any]]) -> Callable[..., None]:
    parameters, lines = ["self"], []
    known: dict[str, Any] = {"_MISSING": MISSING}
    for each in every:
        name = each.name
        known[f"_set_{name}"] = getattr(cls, name).__set__  # of its slot, past `__setattr__`
        parameter, value = name, name
        if each.default is not MISSING:
            known[f"_default_{name}"] = each.default
            parameter = f"{name}=_default_{name}"
        elif each.default_factory is not MISSING:
            known[f"_make_{name}"] = each.default_factory
            parameter, value = f"{name}=_MISSING", f"_make_{name}() if {name} is _MISSING else {name}"
        parameters.append(parameter)
        lines.append(f"_set_{name}(self, {value})")
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(lines) or 'pass'}", known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"  # which stands in the text of a TypeError
    return init


def _repr_of(names: Sequence[str]) -> Callable[[object], str]:
    def shown(self: object) -> str:
        return f"{type(self).__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in names])})"

    return shown


def _comparison_of(names: Sequence[str]) -> tuple[Callable[[object, object], bool], Callable[[object], int]]:
    """`__eq__` and `__hash__`."""
    compared: Callable[[object], object] = attrgetter(*names) if names else type

    def equal(self: object, other: object) -> bool:
        return compared(self) == compared(other) if type(self) is type(other) else NotImplemented

    def hashed(self: object) -> int:
        return hash(compared(self))

    return equal, hashed


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state_of(self: Any) -> list[object]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: Iterable[object]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
