import copy
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.errors import Internal, Invalid, Unsupported
from halimede.tensors import (
    BF16,
    BY_NUMBER,
    BYTES,
    DATATYPES,
    FP32,
    INT16,
    SMALL_BYTES,
    STRINGS_PER_TURN,
    UINT8,
    DataType,
    HostMemory,
    MemoryKind,
    RegionReference,
    Tensor,
    are_short_strings,
    array_of,
    join_bytes,
    shape_text,
    split_bytes,
    tensor_of,
)
from tests.fakes import UnreachableMemory


def test_datatypes_are_those_of_the_protocol() -> None:
    """Contract H36, R49: number and size of each."""
    assert {d.name: (d.number, d.size) for d in DATATYPES.values()} == {
        "BOOL": (1, 1),
        "UINT8": (2, 1),
        "UINT16": (3, 2),
        "UINT32": (4, 4),
        "UINT64": (5, 8),
        "INT8": (6, 1),
        "INT16": (7, 2),
        "INT32": (8, 4),
        "INT64": (9, 8),
        "FP16": (10, 2),
        "FP32": (11, 4),
        "FP64": (12, 8),
        "BYTES": (13, 0),
        "BF16": (14, 2),
    }


def test_datatypes_have_the_numbers_and_names_of_a_model_configuration() -> None:
    from tritonclient.grpc.model_config_pb2 import DataType as Numbers

    assert {d.config_name: d.number for d in DATATYPES.values()} == {
        name: number for name, number in Numbers.items() if name != "TYPE_INVALID"
    }
    assert all(BY_NUMBER[d.number] is d for d in DATATYPES.values())


@pytest.mark.parametrize("datatype", DATATYPES.values(), ids=str)
def test_datatype_stays_itself_when_copied_or_sent(datatype: DataType) -> None:
    assert pickle.loads(pickle.dumps(datatype)) is datatype
    assert copy.deepcopy(datatype) is datatype
    assert str(datatype) == datatype.name


@pytest.mark.parametrize(("shape", "text"), [((), "[]"), ((1,), "[1]"), ((-1, 16), "[-1,16]")])
def test_shape_text(shape: tuple[int, ...], text: str) -> None:
    assert shape_text(shape) == text


@pytest.mark.parametrize("datatype", [d for d in DATATYPES.values() if d is not BYTES], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (2, 600)], ids=str)
def test_array_and_tensor_hold_the_same_bytes_and_view_them_unless_they_are_few(
    datatype: DataType, shape: tuple[int, ...]
) -> None:
    size = int(np.prod(shape))
    whole = (np.arange(size) % 2).astype(datatype.numpy).reshape(shape)
    tensor = tensor_of("x", datatype, whole)
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, shape)
    assert bytes(tensor.memory.host()) == whole.tobytes()
    assert tensor.memory.byte_size == size * datatype.size
    back = array_of(tensor)
    assert (back.dtype, back.shape, back.tolist()) == (datatype.numpy, shape, whole.tolist())
    assert np.shares_memory(back, whole) is (whole.nbytes > SMALL_BYTES)


def test_numbers_are_little_endian() -> None:
    assert bytes(tensor_of("x", INT16, np.array([1, -2], "<i2")).memory.host()) == b"\x01\x00\xfe\xff"
    assert array_of(Tensor("x", FP32, (1,), HostMemory(b"\x00\x00\x80\x3f"))).tolist() == [1.0]


def test_bfloat16_is_handled_as_its_bits() -> None:
    array = array_of(Tensor("x", BF16, (2,), HostMemory(b"\x80\x3f\x00\xc0")))
    assert (array.dtype, array.tolist()) == (np.dtype(np.uint16), [0x3F80, 0xC000])


def test_array_that_is_not_contiguous_is_written_in_row_major_order() -> None:
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    tensor = tensor_of("x", FP32, turned)
    assert tensor.shape == (3, 2)
    assert array_of(tensor).tolist() == turned.tolist()


@pytest.mark.parametrize("offset", range(4))
def test_array_of_bytes_that_begin_anywhere(offset: int) -> None:
    body = b"." * offset + np.array([1.5, -2], np.float32).tobytes()
    assert array_of(Tensor("x", FP32, (2,), HostMemory(memoryview(body)[offset:]))).tolist() == [1.5, -2]


@pytest.mark.parametrize("size", [0, 4, 7, 9, 12])
def test_array_of_memory_that_does_not_fill_the_shape_is_refused(size: int) -> None:
    with pytest.raises(Invalid, match=rf"tensor 'x' has {size} bytes, which do not fill \[2\]"):
        array_of(Tensor("x", FP32, (2,), HostMemory(bytes(size))))


def test_array_of_memory_on_a_device_is_refused() -> None:
    with pytest.raises(Unsupported):
        array_of(Tensor("x", FP32, (2,), UnreachableMemory(8)))


def strings(shape: tuple[int, ...], elements: list[Any]) -> npt.NDArray[Any]:
    array = np.empty(len(elements), dtype=object)
    for i, element in enumerate(elements):
        array[i] = element
    return array.reshape(shape)


@pytest.mark.parametrize(
    ("shape", "elements", "framed"),
    [
        ((), [b"ab"], b"\x02\0\0\0ab"),
        ((2,), [b"", b"\0"], b"\0\0\0\0\x01\0\0\0\0"),
        ((1, 2), ["ä", b"\xff"], b"\x02\0\0\0\xc3\xa4\x01\0\0\0\xff"),
        ((0,), [], b""),
    ],
)
def test_strings_are_framed_by_their_lengths(shape: tuple[int, ...], elements: list[Any], framed: bytes) -> None:
    """Contract H41."""
    tensor = tensor_of("x", BYTES, strings(shape, elements))
    assert (tensor.shape, bytes(tensor.memory.host())) == (shape, framed)
    back = array_of(tensor)
    assert (back.dtype, back.shape) == (np.dtype(object), shape)
    assert back.ravel().tolist() == [e.encode() if isinstance(e, str) else e for e in elements]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9)))
def test_framed_strings_come_back(elements: list[bytes]) -> None:
    framed = join_bytes(elements)
    for view in (framed, bytearray(framed), memoryview(framed)):
        assert split_bytes(view, len(elements)) == elements
    assert array_of(Tensor("x", BYTES, (len(elements),), HostMemory(framed))).tolist() == elements


@pytest.mark.parametrize(
    ("framed", "expected", "text"),
    [
        (b"\x01\0\0", 1, "incomplete string length indicator: 3 bytes left"),
        (b"\0\0\0\0\x01", 2, "incomplete string length indicator: 1 bytes left"),
        (b"\x05\0\0\0abc", 1, "incomplete string: 3 of 5 bytes"),
        (b"\xff\xff\xff\xff", 1, "incomplete string: 0 of 4294967295 bytes"),
        (b"\0\0\0\0", 2, "1 strings where 2 are expected"),
        (b"\0\0\0\0", 0, "1 strings where 0 are expected"),
        (b"", 1, "0 strings where 1 are expected"),
    ],
)
def test_strings_that_are_not_framed_rightly_are_refused(framed: bytes, expected: int, text: str) -> None:
    with pytest.raises(Invalid) as raised:
        split_bytes(framed, expected)
    assert str(raised.value) == text
    with pytest.raises(Invalid):
        array_of(Tensor("x", BYTES, (expected,), HostMemory(framed)))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300) | st.text(max_size=9).map(str.encode), min_size=1), st.integers(-1, 1))
def test_short_strings_are_what_they_are_taken_for(elements: list[bytes], more: int) -> None:
    """Never what is no such frame; and each of text is."""
    framed, count = join_bytes(elements), len(elements) + more
    short = sum(map(len, elements)) <= 60 * len(elements)
    is_text = all(0 < len(each) < 256 and b"\0" not in each for each in elements)
    found = are_short_strings(memoryview(framed), count)
    assert found is False if more else found >= (short and is_text)
    assert not are_short_strings(framed[:-1], count)
    assert not are_short_strings(framed + b"\0", count)


def test_host_memory_is_a_view_that_keeps_its_owner() -> None:
    owner = bytearray(b"abcdef")
    memory = HostMemory(memoryview(owner)[2:4])
    assert (memory.kind, memory.device_id, memory.byte_size) == (MemoryKind.HOST, 0, 2)
    assert memory.owner is owner
    owner[2:4] = b"XY"
    assert bytes(memory.host()) == b"XY"


def test_host_memory_sent_to_another_process_is_only_its_own_bytes() -> None:
    there = pickle.loads(pickle.dumps(HostMemory(memoryview(b"abcdef")[2:4])))
    assert (bytes(there.host()), there.owner) == (b"cd", b"cd")


def test_tensor_shows_what_it_is_and_not_what_it_holds() -> None:
    tensor = Tensor("x", UINT8, (2, 3), UnreachableMemory(6))
    assert repr(tensor) == "Tensor('x', UINT8, [2,3], 6 bytes)"


def test_region_reference_is_plain_data_that_the_host_cannot_reach() -> None:
    reference = RegionReference("r", 4, 8)
    crossed = pickle.loads(pickle.dumps(reference))
    assert (crossed, crossed.kind, crossed.byte_size) == (reference, MemoryKind.SHARED, 8)
    with pytest.raises(Internal, match="shared memory region 'r' was not looked up"):
        crossed.host()


def test_tensor_of_an_array_with_another_dtype_is_refused() -> None:
    neither = "tensor 'x' of type BYTES has an element that is neither bytes nor str"
    for datatype, array, text in (
        (FP32, np.zeros((2, 3)), "tensor 'x' of type FP32 needs an array of float32, got float64"),
        (FP32, np.zeros(2, np.int32), "tensor 'x' of type FP32 needs an array of float32, got int32"),
        (FP32, np.zeros(2, ">f4"), "tensor 'x' of type FP32 needs an array of float32, got >f4"),
        (BYTES, np.array([b"a"]), "tensor 'x' of type BYTES needs an array of object, got |S1"),
        (BYTES, np.array([1], object), neither),
        (BYTES, np.array([None, b"a"], object), neither),
    ):
        with pytest.raises(Internal) as raised:
            tensor_of("x", datatype, array)
        assert str(raised.value) == text


@pytest.mark.parametrize("count", [STRINGS_PER_TURN, STRINGS_PER_TURN + 1, 3 * STRINGS_PER_TURN])
@pytest.mark.parametrize("more", [-1, 0, 1, STRINGS_PER_TURN])
def test_array_of_many_strings(count: int, more: int) -> None:
    elements = [b"%d" % i for i in range(count + more)]
    tensor = Tensor("x", BYTES, (count,), HostMemory(join_bytes(elements)))
    if more:
        with pytest.raises(Invalid, match=f"{count + more} strings where {count} are expected"):
            array_of(tensor)
        return
    array = array_of(tensor)
    assert array.tolist() == elements
    assert bytes(tensor_of("x", BYTES, array).memory.host()) == bytes(tensor.memory.host())
