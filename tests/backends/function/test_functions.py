"""What kind of function a program binds, and whether it can be called with the inputs."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from halimede.backends.function.functions import Function, Functions, is_async, yields
from halimede.errors import Invalid


def plain(x: Any) -> Any:
    return x


async def asynchronous(x: Any) -> Any:
    return x


def generator(x: Any) -> Iterator[Any]:
    yield x


async def async_generator(x: Any) -> AsyncIterator[Any]:
    yield x


class Called:
    def __call__(self, x: Any) -> Any:
        return x


class Awaited:
    async def __call__(self, x: Any) -> Any:
        return x


class Iterated:
    def __call__(self, x: Any) -> Iterator[Any]:
        yield x

    def method(self, x: Any) -> Iterator[Any]:
        yield x


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (plain, (False, False)),
        (asynchronous, (True, False)),
        (generator, (False, True)),
        (async_generator, (True, True)),
        (Called(), (False, False)),
        (Awaited(), (True, False)),
        (Iterated(), (False, True)),
        (Iterated().method, (False, True)),
        (partial(generator, x=1), (False, True)),
        (np.negative, (False, False)),
    ],
)
def test_kind_of_a_function(function: Function, kind: tuple[bool, bool]) -> None:
    assert (is_async(function), yields(function)) == kind


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ((), "there is no function to bind"),
        ((3,), "3 cannot be called"),
        ((plain, asynchronous), "the functions of one model must be of one kind"),
    ],
)
def test_functions_that_cannot_be_a_model(functions: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        Functions(functions)


def test_concurrency_of_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="at least 1, got 0"):
        Functions((asynchronous,), concurrency=0)


def test_function_that_lacks_a_parameter_for_an_input() -> None:
    with pytest.raises(Invalid) as caught:
        Functions((plain,)).check_inputs(["y"], [])
    assert str(caught.value) == ("plain(x: Any) -> Any cannot be called as (y=...): missing a required argument: 'x'")


def test_function_must_do_without_an_optional_input() -> None:
    def with_default(x: Any, bias: Any = None) -> Any:
        return x

    Functions((with_default,)).check_inputs(["x"], ["bias"])
    with pytest.raises(Invalid, match="missing a required argument: 'x'"):
        Functions((with_default,)).check_inputs([], ["x", "bias"])


def test_function_of_requests_and_one_without_a_signature_are_not_checked() -> None:
    Functions((plain,), takes_requests=True).check_inputs(["a", "b"], [])
    Functions((max,)).check_inputs(["a"], [])
