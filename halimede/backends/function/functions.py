"""What a program binds: the functions of a model, one for each instance, and what kind of function they are.

Calls no function. Values, any thread.
"""

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from halimede.errors import Invalid

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Functions:
    """The functions of a model. All of them are of one kind.

    functions -- one for each instance
    takes_requests -- they get a list of requests, not arrays
    concurrency -- how many batches an instance of an async function has at a time
    """

    functions: tuple[Function, ...]
    takes_requests: bool = False
    concurrency: int = 1

    def __post_init__(self) -> None:
        """Raises Invalid."""
        if not self.functions:
            raise Invalid("there is no function to bind")
        for each in self.functions:
            if not callable(each):
                raise Invalid(f"{each!r} cannot be called")
        if len({(is_async(each), yields(each)) for each in self.functions}) > 1:
            raise Invalid("the functions of one model must be of one kind: plain, async, generator or async generator")
        if self.concurrency < 1:
            raise Invalid(f"concurrency must be at least 1, got {self.concurrency}")

    @property
    def is_async(self) -> bool:
        return is_async(self.functions[0])

    @property
    def yields(self) -> bool:
        return yields(self.functions[0])

    def check_inputs(self, required: Iterable[str], optional: Collection[str]) -> None:
        """Raises Invalid if a function cannot be called with these inputs as keyword arguments."""
        if self.takes_requests:
            return
        required = tuple(required)
        for each in self.functions:
            _check_call(each, required)
            _check_call(each, (*required, *optional))


def is_async(function: Function) -> bool:
    """Whether it is a coroutine function or an asynchronous generator function, or an object with such a `__call__`."""
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in _with_call(function))


def yields(function: Function) -> bool:
    """Whether it is a generator function, asynchronous or not, or an object with such a `__call__`."""
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in _with_call(function))


def _with_call(function: Function) -> tuple[Any, Any]:
    return function, getattr(function, "__call__", None)  # noqa: B004 - its kind matters


def name_of(function: Function) -> str:
    """For texts."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _check_call(function: Function, names: Iterable[str]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        called = ", ".join(f"{name}=..." for name in names)
        raise Invalid(f"{name_of(function)}{signature} cannot be called as ({called}): {error}") from None
