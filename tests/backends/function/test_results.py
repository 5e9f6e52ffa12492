"""From what functions return to outputs, and the texts about what they must not return."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from halimede.backends.function.functions import Functions
from halimede.backends.function.results import Results
from halimede.binding.models import bound_model
from halimede.binding.tensors import Tensor as Declared
from halimede.config import ModelConfig, read_override
from halimede.errors import Internal
from halimede.models.repository import NOWHERE
from halimede.tensors import Tensor, array_of


@dataclass
class Request:
    """As much of a request as results need."""

    batch_size: int
    outputs: tuple[str, ...]


def config_of(*outputs: Declared, max_batch_size: int = 0, decoupled: bool = False) -> ModelConfig:
    functions, inputs = Functions((lambda x: x,)), [Declared("x", np.float32, [-1])]
    found = bound_model("m", functions, inputs, outputs, max_batch_size, True, decoupled, {}, 1)
    assert found.config is not None
    return read_override(found.config, NOWHERE / "m").finish()


Y = Declared("y", np.float32, [-1])
TEXT = Declared("y", bytes, [-1])


def parts(results: Results, values: Any, *sizes: int, outputs: tuple[str, ...] = ("y",)) -> Any:
    return results.parts([Request(size, outputs) for size in sizes], results.named(values))  # type: ignore[misc]


def only(results: Results, value: Any) -> Tensor:
    [[tensor]] = parts(results, value, 0)
    return tensor  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "result", [np.array([1, 2], np.float32), {"y": [1, 2]}, [np.array([1.0, 2.0])], [1, 2], range(1, 3)], ids=repr
)
def test_forms_of_a_result(result: Any) -> None:
    assert array_of(only(Results(config_of(Y)), result)).tolist() == [1, 2]


def test_outputs_in_the_order_of_their_declaration() -> None:
    results = Results(config_of(Y, Declared("z", np.int64, [1])))
    [tensors] = parts(results, (np.zeros(2, np.float32), np.array([7])), 0, outputs=("z", "y"))
    assert [(each.name, array_of(each).tolist()) for each in tensors] == [("z", [7]), ("y", [0, 0])]


def test_rows_are_split_and_only_requested_outputs_are_made() -> None:
    results = Results(config_of(Y, Declared("z", np.int64, [1]), max_batch_size=8))
    values = {"y": np.arange(6, dtype=np.float32).reshape(3, 2), "z": np.array([[1], [2], [3]])}
    first, second = parts(results, values, 1, 2)
    assert [array_of(each).tolist() for each in first] == [[[0, 1]]]
    assert [array_of(each).tolist() for each in second] == [[[2, 3], [4, 5]]]


@pytest.mark.parametrize("texts", [["ä", "b"], np.array(["ä", "b"]), np.array(["ä".encode(), b"b"], object)])
def test_texts_become_bytes(texts: Any) -> None:
    assert array_of(only(Results(config_of(TEXT)), {"y": texts})).tolist() == ["ä".encode(), b"b"]


@pytest.mark.parametrize(
    ("outputs", "result", "text"),
    [
        ([Y], np.zeros((2, 2), np.float32), "output 'y' has shape [2,2], and must have [-1]"),
        ([Y], np.array(["a"]), "output 'y' has dtype <U1, which cannot become FP32"),
        ([Declared("y", np.int32, [-1])], np.array([1.5]), "output 'y' has dtype float64, which cannot become INT32"),
        ([TEXT], np.array([1]), "output 'y' has dtype int64, which cannot become BYTES"),
        ([Y], None, "output 'y' has dtype object, which cannot become FP32"),
        ([Y], {"z": [1]}, "the function gave 'z', and the outputs are 'y'"),
        ([Y], [[1, 2, 3]], "output 'y' has shape [1,3], and must have [-1]"),
        (
            [Y, Declared("z", np.int64, [1])],
            np.zeros(2),
            "the function gave a ndarray for 2 outputs; it must give a dict of arrays, or a list or tuple with one "
            "array for each of 'y', 'z'",
        ),
    ],
)
def test_results_that_are_no_outputs(outputs: list[Declared], result: Any, text: str) -> None:
    with pytest.raises(Internal) as caught:
        parts(Results(config_of(*outputs)), result, 0)
    assert str(caught.value) == text


def test_result_with_other_rows_than_the_batch() -> None:
    with pytest.raises(Internal, match=r"output 'y' has shape \[2,4\], and must have \[3,-1\] for 3 rows"):
        parts(Results(config_of(Y, max_batch_size=8)), np.zeros((2, 4), np.float32), 1, 2)


def test_requests_each_have_their_result() -> None:
    results, error = Results(config_of(Y, max_batch_size=8)), ValueError("no")
    requests: Any = [Request(1, ("y",)) for _ in range(4)]
    given = [np.zeros((1, 1)), error, None, np.zeros((2, 1))]
    found = results.parts_of_each(requests, given)
    assert array_of(found[0][0]).tolist() == [[0]]  # type: ignore[index]
    assert found[1:3] == [error, None]
    assert isinstance(found[3], Internal)
    wrongs: list[Any] = [given[:3], 5, {"y": 1}]
    for wrong in wrongs:
        with pytest.raises(Internal, match="got 4 requests and must give a list of as many results, not"):
            results.parts_of_each(requests, wrong)


BIG = 10_000


class Keeper:
    def __init__(self, form: str) -> None:
        self.array = np.zeros(BIG, np.float32)
        self._form = form

    def result(self) -> Any:
        forms: Mapping[str, Any] = {
            "array": self.array,
            "dict": {"y": self.array},
            "view": self.array[:],
            "list": [self.array],
        }
        return forms[self._form]


@pytest.mark.parametrize("form", ["array", "dict", "view", "list"])
def test_array_that_the_function_still_has_is_copied(form: str) -> None:
    keeper = Keeper(form)
    [[tensor]] = parts(Results(config_of(Y)), keeper.result(), 0)
    keeper.array[:] = 1
    assert not array_of(tensor).any()


def test_dict_that_the_function_keeps_is_copied_too() -> None:
    kept = {"y": np.zeros(BIG, np.float32)}
    [[tensor]] = parts(Results(config_of(Y)), kept, 0)
    kept["y"][:] = 1
    assert not array_of(tensor).any()


def test_new_array_is_not_copied() -> None:
    address = []

    def result() -> Any:
        array = np.zeros(BIG, np.float32)
        address.append(array.ctypes.data)
        return array

    results, one = Results(config_of(Y)), Request(0, ("y",))
    [[tensor]] = results.parts([one], results.named(result()))  # type: ignore[list-item,misc]
    assert array_of(tensor).ctypes.data == address[0]


def test_array_of_a_generator_is_copied_always() -> None:
    address = []

    def result() -> Any:
        array = np.zeros(BIG, np.float32)
        address.append(array.ctypes.data)
        return array

    [[tensor]] = parts(Results(config_of(Y, decoupled=True)), result(), 0)
    assert array_of(tensor).ctypes.data != address[0]
