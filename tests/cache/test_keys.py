"""Which requests have equal keys (K2, and stricter): everything that the response depends on is in the key."""

from collections.abc import Callable

import numpy as np
import pytest

from halimede.cache.keys import key_of, make_private, on_host
from halimede.requests import InferRequest
from halimede.tensors import BYTES, FP32, INT32, HostMemory, MemoryKind, Shape, Tensor, tensor_of
from tests.fakes import FakeMemory

IDENTITY = bytes(32)


def a_request(values: tuple[int, ...] = (1, 2, 3, 4), shape: Shape = (1, 4), **fields: object) -> InferRequest:
    request = InferRequest("m")
    request.inputs = {
        "A": tensor_of("A", INT32, np.array(values, np.int32).reshape(shape)),
        "B": tensor_of("B", INT32, np.array([7], np.int32)),
    }
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def a_key(
    request: InferRequest, seen: bool = False, identity: bytes = IDENTITY, outputs: tuple[str, ...] = ()
) -> bytes:
    return key_of(identity, request, outputs or ("X", "Y"), seen)


def of_another_datatype() -> InferRequest:
    request = a_request()
    request.inputs["B"] = Tensor("B", FP32, (1,), request.inputs["B"].memory)
    return request


def of_another_name() -> InferRequest:
    request = a_request()
    request.inputs["C"] = request.inputs.pop("B")
    return request


def without_an_input() -> InferRequest:
    request = a_request()
    del request.inputs["B"]
    return request


@pytest.mark.parametrize(
    "other",
    [
        lambda: a_request((1, 2, 3, 5)),
        lambda: a_request(shape=(2, 2)),
        lambda: a_request(shape=(4, 1)),
        of_another_datatype,
        of_another_name,
        without_an_input,
    ],
)
def test_other_inputs_give_another_key(other: Callable[[], InferRequest]) -> None:
    assert a_key(a_request()) != a_key(other())


def test_key_depends_on_version_and_outputs() -> None:
    assert a_key(a_request()) != a_key(a_request(), identity=b"1" * 32)
    assert a_key(a_request()) != a_key(a_request(), outputs=("X",))
    assert a_key(a_request(), outputs=("X,Y",)) != a_key(a_request(), outputs=("X", "Y"))
    assert a_key(a_request(), outputs=("Y", "X")) == a_key(a_request(), outputs=("X", "Y"))


def test_key_does_not_depend_on_the_order_of_inputs() -> None:
    request = a_request()
    request.inputs = dict(reversed(request.inputs.items()))
    assert a_key(request) == a_key(a_request())


@pytest.mark.parametrize("seen", [False, True])
def test_key_does_not_depend_on_id_priority_and_timeout(seen: bool) -> None:
    other = a_request(id="other", priority=3, timeout_us=5)
    assert a_key(other, seen) == a_key(a_request(), seen)


@pytest.mark.parametrize(
    "fields",
    [{"parameters": {"p": 1}}, {"correlation_id": 3}, {"correlation_id": "3"}, {"sequence_start": True}],
    ids=str,
)
def test_key_depends_on_parameters_if_the_model_can_see_them(fields: dict[str, object]) -> None:
    other = a_request()
    for name, value in fields.items():
        setattr(other, name, value)
    assert a_key(other, seen=False) == a_key(a_request(), seen=False)
    assert a_key(other, seen=True) != a_key(a_request(), seen=True)


def test_equal_parameters_of_other_types_give_another_key() -> None:
    values: list[object] = [1, True, "1", 1.0, "true"]
    keys = {a_key(a_request(parameters={"p": value}), seen=True) for value in values}
    assert len(keys) == len(values)
    both, swapped = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert a_key(a_request(parameters=both), seen=True) == a_key(a_request(parameters=swapped), seen=True)


def test_key_depends_on_the_boundaries_between_inputs() -> None:
    def two(first: bytes, second: bytes) -> InferRequest:
        request = InferRequest("m")
        request.inputs = {
            name: Tensor(name, BYTES, (1,), HostMemory(data)) for name, data in (("A", first), ("B", second))
        }
        return request

    assert a_key(two(b"ab", b"c")) != a_key(two(b"a", b"bc"))


def test_shared_memory_is_copied_before_the_key_is_made() -> None:
    data, request = bytearray(b"\1\0\0\0"), InferRequest("m")
    request.inputs = {"A": Tensor("A", INT32, (1,), FakeMemory(data, MemoryKind.SHARED))}
    make_private(request)
    key = a_key(request)
    data[0] = 9
    assert a_key(request) == key
    assert bytes(request.inputs["A"].memory.host()) == b"\1\0\0\0"


def test_device_memory_is_not_on_the_host() -> None:
    assert on_host([Tensor("A", INT32, (1,), FakeMemory(b"", MemoryKind.PINNED))])
    assert not on_host([Tensor("A", INT32, (1,), FakeMemory(b"", MemoryKind.DEVICE))])
