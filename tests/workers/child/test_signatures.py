from typing import Any

import numpy as np
import pytest

from halimede.workers.child.requests import InferenceRequest
from halimede.workers.child.signatures import (
    INT64,
    UINT32,
    Refused,
    compiled_name,
    constructor,
    flag,
    integer,
    items,
    native,
    text,
)
from halimede.workers.child.values import TritonError


@pytest.mark.parametrize("given", ["x", b"x", bytearray(b"x"), np.str_("x"), np.bytes_(b"x")])
def test_text_of_any_form_is_a_plain_str(given: Any) -> None:
    assert (text(given), type(text(given))) == ("x", str)


@pytest.mark.parametrize("given", [None, 3, ["x"], "\ud800", memoryview(b"x")])
def test_text_of_something_else_is_refused(given: Any) -> None:
    with pytest.raises(Refused):
        text(given)


def test_text_of_bytes_that_are_no_utf_8_says_so() -> None:
    with pytest.raises(UnicodeDecodeError):
        text(b"\xff")


@pytest.mark.parametrize(
    ("given", "number"),
    [(3, 3), (True, 1), (np.int8(3), 3), (np.float32(3.5), 3), (np.bool_(True), 1), (np.array(3), 3)],
)
def test_integer_of_any_number_is_a_plain_int(given: Any, number: int) -> None:
    assert (integer(given, INT64), type(integer(given, INT64))) == (number, int)


@pytest.mark.parametrize("given", [None, 1.5, np.float64(1.5), "3", b"3", -1, 1 << 32, np.float32("nan"), [3]])
def test_integer_of_something_else_is_refused(given: Any) -> None:
    with pytest.raises(Refused):
        integer(given, UINT32)


def test_flag_is_the_truth_of_what_is_no_text_or_list() -> None:
    assert [flag(given) for given in (True, False, 3, 0.0, np.bool_(True))] == [True, False, True, False, True]
    wrong: tuple[object, ...] = (None, "x", b"", [], np.str_("x"), np.zeros(2))
    for given in wrong:
        with pytest.raises(Refused):
            flag(given)


def test_items_are_those_of_sequences() -> None:
    assert [list(items(given)) for given in ([1], (1,), range(2), np.array([3]))] == [[1], [1], [0, 1], [3]]
    wrong: tuple[object, ...] = (None, 3, "x", b"x", {}, set(), iter(()), np.int32(3))
    for given in wrong:
        with pytest.raises(Refused):
            items(given)
    with pytest.raises(TypeError, match=r"^len\(\) of unsized object$"):
        items(np.array(3))


class Thing:
    @constructor("Thing(size: int)")
    def __init__(self, size: int) -> None:
        self.size = integer(size, INT64)

    @native("(self: Thing, arg0: int) -> int")
    def more(self, by: int, /) -> int:
        return self.size + by

    def __repr__(self) -> str:
        return "Thing()"


@pytest.mark.parametrize(
    ("call", "invoked"),
    [
        ("Thing('x')", "'x'"),
        ("Thing()", ""),
        ("Thing(1, 2)", "1, 2"),
        ("Thing(sise=1)", "kwargs: sise=1"),
        ("Thing(1, size=[2])", "1; kwargs: size=[2]"),
    ],
)
def test_wrong_call_of_a_constructor_shows_its_arguments(call: str, invoked: str) -> None:
    with pytest.raises(TypeError) as caught:
        eval(call)
    assert str(caught.value) == (
        "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
        f"    1. c_python_backend_utils.Thing(size: int)\n\nInvoked with: {invoked}"
    )
    assert caught.value.__cause__ is None


def test_wrong_call_of_a_method_shows_the_object() -> None:
    with pytest.raises(TypeError, match=r"(?s)^more\(\): incompatible function.*Invoked with: Thing\(\), 1, 2$"):
        Thing(1).more(1, 2)  # type: ignore[call-arg]


def test_type_error_of_the_function_itself_stays() -> None:
    with pytest.raises(TypeError, match=r"^unsupported operand"):
        Thing(1).more("x")  # type: ignore[arg-type]


def test_compiled_names_are_those_that_c_has() -> None:
    assert [compiled_name(each) for each in (dict, np.int32, Thing)] == ["dict", "numpy.int32", "Thing"]


def test_request_of_bytes_is_one_of_texts() -> None:
    given: Any = {"request_id": b"i", "model_name": b"m", "requested_output_names": [b"Y"], "inputs": []}
    made = InferenceRequest(**given)
    assert (made.request_id(), made.model_name, made.requested_output_names()) == ("i", "m", {"Y"})
    assert TritonError(b"").message() == ""  # type: ignore[arg-type]
