"""What models make and read: tensors, errors, responses (P40 to P46)."""

import math
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from halimede.workers.child.frames import MAX_PARAMETERS
from halimede.workers.child.values import (
    BF16,
    BYTES,
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
    deserialize,
    serialize,
)


def received(name: str, number: int, shape: tuple[int, ...], raw: bytes) -> Tensor:
    return Tensor.received(name, number, shape, memoryview(bytearray(raw)))


@pytest.mark.parametrize("code", ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
def test_tensor_of_every_number_type_survives_the_way(code: str) -> None:
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(code)
    made = Tensor("x", array)
    back = received("x", made.triton_dtype(), tuple(made.shape()), bytes(made.payload()))
    assert back.as_numpy().dtype == array.dtype
    assert back.as_numpy().tolist() == array.tolist()
    assert back.as_numpy().flags.writeable


@pytest.mark.parametrize(
    ("array", "elements"),
    [
        (np.array([b"a", b"", b"\x00\xff"], dtype=object), [b"a", b"", b"\x00\xff"]),
        (np.array(["é", 5, b"x"], dtype=object), ["é".encode(), b"5", b"x"]),
        (np.array([b"ab", b"c"]), [b"ab", b"c"]),
        (np.array(["ab", "é"]), [b"ab", "é".encode()]),
        (np.array([], dtype=object), []),
    ],
)
def test_tensor_of_strings_is_bytes_at_the_other_end(array: Any, elements: list[bytes]) -> None:
    made = Tensor("x", array)
    assert made.triton_dtype() == BYTES
    assert received("x", BYTES, array.shape, made.payload()).as_numpy().tolist() == elements


def test_tensor_keeps_shape_of_strings() -> None:
    array = np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object)
    assert received("x", BYTES, (2, 2), Tensor("x", array).payload()).as_numpy().tolist() == array.tolist()


def test_tensor_of_a_strided_array_is_sent_in_row_order() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3).T
    made = Tensor("x", array)
    assert bytes(made.payload()) == array.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_tensor_of_any_rank_has_its_bytes(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    made = Tensor("x", array)
    assert made.shape() == list(shape)
    assert bytes(made.payload()) == array.tobytes()


@pytest.mark.parametrize("array", [np.zeros(1, complex), np.zeros(1, ">f4"), np.zeros(1, "M8[s]"), np.zeros(1, "g")])
def test_tensor_of_a_foreign_dtype_is_refused(array: Any) -> None:
    with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported\.$"):
        Tensor("x", array)


def test_tensor_without_a_name_is_refused() -> None:
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        Tensor("", np.zeros(1))


def test_tensor_of_a_list_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        Tensor("x", [1, 2])  # type: ignore[arg-type]  # what a model may do wrong


@pytest.mark.parametrize("parameters", [[], 0, "", False])
def test_response_parameters_that_are_no_dict_are_refused_by_their_type(parameters: Any) -> None:
    with pytest.raises(TritonModelException, match=f"got {type(parameters)}$"):
        InferenceResponse([], parameters=parameters)


def test_response_without_a_list_of_tensors_is_a_type_error() -> None:
    with pytest.raises(
        TypeError, match=r"(?s)^__init__\(\): incompatible .*Invoked with: kwargs: output_tensors=None$"
    ):
        InferenceResponse(output_tensors=None)  # type: ignore[arg-type]  # what a model may do wrong


def test_bf16_tensor_is_not_an_array_but_can_be_handed_on() -> None:
    tensor = received("x", BF16, (2,), b"\x80\x3f\x00\x40")
    with pytest.raises(TritonModelException, match=r"^Tensor dtype is BF16 and cannot be converted to NumPy\."):
        tensor.as_numpy()
    assert bytes(tensor.payload()) == b"\x80\x3f\x00\x40"


def test_dlpack_gives_the_memory_and_takes_a_copy() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = np.from_dlpack(Tensor("x", array))
    back = Tensor.from_dlpack("y", array).as_numpy()
    assert np.shares_memory(there, array)
    assert not np.shares_memory(back, array)
    assert (back.tolist(), back.flags.writeable) == (array.tolist(), True)
    assert Tensor.from_dlpack("y", array.__dlpack__()).as_numpy().tolist() == array.tolist()
    assert Tensor("x", array).__dlpack_device__() == (1, 0)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (np.zeros((2, 3)).T, "DLPack tensor is not contiguous."),
        (5, "Provided tensor is not supported."),
    ],
)
def test_dlpack_of_something_else_is_refused(source: Any, text: str) -> None:
    with pytest.raises(TritonModelException, match=f"^{text}"):
        Tensor.from_dlpack("x", source)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_bf16_goes_through_dlpack(shape: tuple[int, ...]) -> None:
    raw = bytes(range(2 * math.prod(shape)))
    back = Tensor.from_dlpack("y", received("x", BF16, shape, raw).to_dlpack())
    assert (back.name(), back.triton_dtype(), back.shape()) == ("y", BF16, list(shape))
    assert bytes(back.payload()) == raw


@pytest.mark.parametrize("writeable", [True, False])
def test_bool_goes_through_dlpack(writeable: bool) -> None:
    array = np.array([True, False])
    array.flags.writeable = writeable
    assert np.from_dlpack(Tensor("x", array)).tolist() == [True, False]
    assert Tensor.from_dlpack("y", Tensor("x", array)).as_numpy().dtype == np.bool_


def test_bf16_that_is_read_only_goes_through_dlpack() -> None:
    tensor = Tensor.received("x", BF16, (2,), memoryview(b"\x80\x3f\x00\x40"))
    assert bytes(Tensor.from_dlpack("y", tensor).payload()) == b"\x80\x3f\x00\x40"


def test_memory_of_dlpack_lives_as_long_as_it_is_used() -> None:
    array = np.arange(4)
    held = sys.getrefcount(array)
    capsule = Tensor("x", array).to_dlpack()
    used = Tensor("x", array).to_dlpack()
    taken = Tensor.from_dlpack("y", used)
    del capsule, used, taken
    assert sys.getrefcount(array) == held


def test_capsule_that_was_used_is_refused() -> None:
    capsule = Tensor("x", np.arange(2)).to_dlpack()
    Tensor.from_dlpack("y", capsule)
    with pytest.raises(TritonModelException, match=r"^The DLPack capsule is none, or was used before\.$"):
        Tensor.from_dlpack("y", capsule)


def test_elements_are_framed_when_the_tensor_is_made() -> None:
    array = np.array(["a", b"b"], object)
    tensor = Tensor("x", array)
    array[0] = "c"
    assert bytes(tensor.payload()) == b"\1\0\0\0a\1\0\0\0b"
    with pytest.raises(UnicodeEncodeError):
        Tensor("x", np.array(["\ud800"], object))


def test_dlpack_of_strings_is_refused() -> None:
    with pytest.raises(TritonModelException, match=r"^DLPack does not have support for string tensors\.$"):
        Tensor("x", np.array([b"a"], dtype=object)).to_dlpack()


def test_response_with_none_among_its_outputs_is_refused() -> None:
    with pytest.raises(TritonModelException, match=r"^Output tensor for inference response should not be empty\.$"):
        InferenceResponse([None])  # type: ignore[list-item]  # what a model may do wrong


def test_response_parameters_must_be_simple() -> None:
    with pytest.raises(TritonModelException, match="type bool/int/str, found type <class 'float'>"):
        InferenceResponse([], parameters={"a": 0.5})
    assert InferenceResponse([], parameters={"a": 1, "b": True}).parameters() == '{"a":1,"b":true}'


def test_error_is_internal_unless_said_otherwise() -> None:
    assert TritonError("x").code() == TritonError.INTERNAL
    assert TritonError("x", TritonError.NOT_FOUND).code() == TritonError.NOT_FOUND
    response = InferenceResponse(error=TritonError("broken"))
    error = response.error()
    assert response.has_error()
    assert error is not None
    assert error.message() == "broken"


def test_framing_of_strings_goes_both_ways() -> None:
    assert serialize([b"ab", "é", 7]) == b"\x02\0\0\0ab\x02\0\0\0\xc3\xa9\x01\0\0\x007"
    assert deserialize(serialize([b"", b"xyz"])) == [b"", b"xyz"]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda framed: np.frombuffer(framed, np.uint8)])
def test_strings_are_read_from_any_buffer(kind: Callable[[bytes], Any]) -> None:
    elements = deserialize(kind(serialize([b"", b"xyz"])))
    assert elements == [b"", b"xyz"]
    assert {type(element) for element in elements} == {bytes}


@pytest.mark.parametrize("framed", [b"\1\0\0", b"\0\0\0\0\1", b"\5\0\0\0abc", b"\1\0\0\0"])
def test_strings_that_are_cut_off_are_refused(framed: bytes) -> None:
    with pytest.raises(struct.error):
        deserialize(framed)


def test_parameters_have_a_limit() -> None:
    parameters = {str(i): i for i in range(MAX_PARAMETERS)}
    assert InferenceResponse([], parameters=parameters)._parameters == parameters
    with pytest.raises(TritonModelException, match=f"{MAX_PARAMETERS + 1} parameters were given"):
        InferenceResponse([], parameters={**parameters, "one more": 1})
