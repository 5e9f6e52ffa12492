"""Arguments as Triton's compiled classes take them, and their TypeError for those that they do not take (P40 to P58).

A text may be `bytes`, a number may be numpy's, a list may be any sequence. Any thread.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

MODULE = "c_python_backend_utils"
"""The module of Triton's compiled classes; some models import it by this name."""
MISSING: Any = type("Missing", (), {})()
"""The default of an argument that must be given, if the function itself makes the error."""
NO_CAST = (
    "Unable to cast Python instance to C++ type (#define PYBIND11_DETAILED_ERROR_MESSAGES or compile in debug mode for "
    "details)"
)

INT64 = (-(1 << 63), (1 << 63) - 1)
UINT32 = (0, (1 << 32) - 1)
UINT64 = (0, (1 << 64) - 1)


class Refused(TypeError):
    """The function does not take an argument of this type or value."""


def text(value: Any) -> str:
    """The text of a str, `bytes` or bytearray. Raises UnicodeDecodeError for bytes that are no UTF-8."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:  # a lone surrogate, which cannot be sent
                raise Refused from None
        return str.__str__(value)  # without numpy's subclass
    if isinstance(value, (bytes, bytearray)):
        return value.decode()
    raise Refused


def integer(value: Any, limits: tuple[int, int]) -> int:
    """The number of an int, or of another object that has one. A float has none, but numpy's float32 has."""
    if type(value) is not int:
        if isinstance(value, float):
            raise Refused
        try:
            value = operator.index(value)
        except TypeError:
            if not hasattr(type(value), "__int__"):
                raise Refused from None
            try:
                value = int(value)
            except (TypeError, ValueError, OverflowError):  # an array of several, a NaN
                raise Refused from None
    lowest, highest = limits
    if not lowest <= value <= highest:
        raise Refused
    return cast(int, value)


def flag(value: Any) -> bool:
    """The truth of an object that has one by itself: a text or a list has only a length, and None is refused."""
    if value is True or value is False:
        return value
    if value is None or isinstance(value, (str, bytes)) or not hasattr(type(value), "__bool__"):
        raise Refused
    try:
        return bool(value)
    except ValueError:  # an array of several
        raise Refused from None


def items(value: Any) -> Sequence[Any]:
    """The items of a sequence. Texts, sets, dicts and iterators are none. Raises TypeError for one without a length."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (str, bytes, dict)) or not {"__getitem__", "__len__"} <= {*dir(type(value))}:
        raise Refused
    return [value[index] for index in range(len(value))]


def refusal(name: str, signature: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> TypeError:
    """The error of Triton's classes for wrong arguments. `signature` begins with a class if the function is its
    constructor."""
    what = "function" if signature.startswith("(") else "constructor"
    keywords = ", ".join(f"{key}={value!r}" for key, value in named.items())
    invoked = [", ".join(map(repr, arguments))] if arguments else []
    invoked += [f"kwargs: {keywords}"] if named else []
    return TypeError(
        f"{name}(): incompatible {what} arguments. The following argument types are supported:\n"
        f"    1. {signature}\n\nInvoked with: {'; '.join(invoked)}"
    )


def compiled_name(kind: type) -> str:
    """The name of a type as C has it: with its module if the type was made in C and is no builtin."""
    made_in_c = not kind.__flags__ & 1 << 9
    return kind.__name__ if not made_in_c or kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def native(signature: str, hidden: int = 0) -> Callable[[Function], Function]:
    """Gives a function the TypeError of Triton's classes: for arguments that it has not, and if it raises Refused. The
    text does not show the first `hidden` arguments. A call costs more, so what runs for each request makes its errors
    itself."""

    def decorated(function: Function) -> Function:
        @wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except Refused:
                pass
            except TypeError as error:
                trace = error.__traceback__
                if trace is None or trace.tb_next is not None:  # raised in the function, not by its call
                    raise
            raise refusal(function.__name__, signature, arguments[hidden:], named) from None

        return cast(Function, called)

    return decorated


def constructor(signature: str) -> Callable[[Function], Function]:
    """`native` for the constructor of a class of `MODULE`."""
    return native(f"{MODULE}.{signature}", hidden=1)
