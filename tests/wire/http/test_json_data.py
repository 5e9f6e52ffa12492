"""Tensors as JSON: coercions, refusals and texts as Triton gives them."""

import math
import struct
import warnings

import numpy as np
import orjson
import pytest

from halimede.errors import Error, Internal, Invalid
from halimede.tensors import (
    BYTES,
    DATATYPES,
    FP32,
    INT32,
    UNKNOWN_DATATYPE,
    HostMemory,
    Shape,
    Tensor,
    join_bytes,
    split_bytes,
)
from halimede.wire.http.json_data import pack_data, text_bytes_of, write_data, write_slices

SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
UNSIGNED = "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"
NUMBER = "Unable to parse 'data': attempt to access JSON non-number as double"
BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"
ARRAY = "Unable to parse 'data': attempt to access JSON non-array as array"
STRING = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
TOO_MANY = "Unable to parse 'data': Shape does not match true shape of 'data' field"
TOO_FEW = "Failed to parse 'data' field: shape does not match true shape"


NUMBERS = [name for name in DATATYPES if name not in ("FP16", "BF16", "BYTES")]
MANY = 5000
"""Floats: more than are taken one by one."""


def tensor(name: str, shape: Shape, raw: bytes) -> Tensor:
    return Tensor("OUTPUT0", DATATYPES[name], shape, HostMemory(raw))


@pytest.mark.parametrize(
    ("datatype", "value", "result"),
    [
        ("UINT8", 300, 44),
        ("UINT8", 4294967297, 1),
        ("UINT8", 18446744073709551615, 255),
        ("UINT16", 65536, 0),
        ("UINT16", 9223372036854775808, 0),
        ("UINT32", 4294967296, 0),
        ("UINT64", 18446744073709551615, 18446744073709551615),
        ("INT8", 200, -56),
        ("INT8", -129, 127),
        ("INT8", 9223372036854775807, -1),
        ("INT16", 40000, -25536),
        ("INT32", 2147483648, -2147483648),
        ("INT32", 4294967296, 0),
        ("INT32", -9223372036854775808, 0),
        ("INT64", -9223372036854775808, -9223372036854775808),
        ("FP32", 1e39, math.inf),
        ("FP32", -1e39, -math.inf),
        ("FP32", 3.5e38, math.inf),
        ("FP32", 16777217, 16777216.0),
        ("FP32", 18446744073709551616.0, 18446744073709551616.0),
        ("FP64", 9007199254740993, 9007199254740992.0),
        ("FP64", 18446744073709551615, 18446744073709551616.0),
        ("BOOL", True, True),
    ],
)
def test_number_coerced(datatype: str, value: object, result: object) -> None:
    raw = pack_data("INPUT0", DATATYPES[datatype], (1,), [value])
    assert np.frombuffer(raw, DATATYPES[datatype].numpy).tolist() == [result]


@pytest.mark.parametrize(
    ("datatype", "value", "words"),
    [
        ("UINT8", -1, UNSIGNED),
        ("UINT32", 2.5, UNSIGNED),
        ("UINT64", 1.8446744073709552e19, UNSIGNED),
        ("UINT64", -1, UNSIGNED),
        ("UINT64", True, UNSIGNED),
        ("INT32", 1.0, SIGNED),
        ("INT32", True, SIGNED),
        ("INT32", "1", SIGNED),
        ("INT32", {}, SIGNED),
        ("INT64", 1.5, SIGNED),
        ("INT64", 9223372036854775808, SIGNED),
        ("INT32", 9223372036854775808, SIGNED),
        ("BOOL", 1, BOOLEAN),
        ("FP32", True, NUMBER),
        ("FP32", "1", NUMBER),
        ("FP64", None, NUMBER),
        ("BYTES", 1, STRING),
        ("BYTES", None, STRING),
        ("BYTES", {}, STRING),
    ],
)
def test_element_of_wrong_type(datatype: str, value: object, words: str) -> None:
    with pytest.raises(Internal) as caught:
        pack_data("INPUT0", DATATYPES[datatype], (1,), [value])
    assert caught.value.message == words


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ((2, 2), [1, 2, 3, 4]),
        ((2, 2), [[1, 2], [3, 4]]),
        ((2, 2), [[1, 2, 3], [4]]),
        ((2, 2), [1, [2, [3]], 4]),
        ((4,), [[[1], [2]], [[3], [4]]]),
        ((4,), [[], 1, [2, 3, [], 4]]),
        ((4,), [[1, 2], [], [3, 4]]),
    ],
)
def test_nesting_of_any_kind(shape: Shape, data: list[object]) -> None:
    assert pack_data("INPUT0", INT32, shape, data) == struct.pack("<4i", 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("shape", "data", "words"),
    [
        ((1,), [1, 2], TOO_MANY),
        ((1,), [1, 2, "x"], TOO_MANY),
        ((1,), [1, "x"], TOO_MANY),
        ((2,), [[1, 2], [3]], TOO_MANY),
        ((1,), ["x", 1, 2], SIGNED),
        ((3,), [1, "x", 3], SIGNED),
        ((3,), [1, "x"], SIGNED),
        ((3,), [1, [2, "x"]], SIGNED),
        ((2,), [[1], {}], SIGNED),
        ((1,), [], TOO_FEW),
        ((3,), [1, 2], TOO_FEW),
        ((1,), [[]], TOO_FEW),
        ((), [1, 2], TOO_MANY),
        ((), [], TOO_FEW),
        ((1,), None, ARRAY),
        ((1,), {}, ARRAY),
        ((1,), 1, ARRAY),
    ],
)
def test_data_refused(shape: Shape, data: object, words: str) -> None:
    with pytest.raises(Internal) as caught:
        pack_data("INPUT0", INT32, shape, data)
    assert caught.value.message == words


def nested(depth: int, value: object) -> list[object]:
    data = [value]
    for _ in range(depth - 1):
        data = [data]
    return data


def test_nesting_up_to_the_limit() -> None:
    assert pack_data("INPUT0", INT32, (1,), nested(99, 1)) == struct.pack("<i", 1)
    assert pack_data("INPUT0", BYTES, (1,), nested(99, "a")) == b"\1\0\0\0a"


@pytest.mark.parametrize("depth", [100, 101, 900])
def test_nesting_past_the_limit(depth: int) -> None:
    with pytest.raises(Invalid) as caught:
        pack_data("INPUT0", INT32, (1,), nested(depth, 1))
    assert caught.value.message == "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)"
    with pytest.raises(Invalid) as caught:
        pack_data("INPUT0", BYTES, (1,), nested(depth, "a"))
    assert caught.value.message == "JSON nesting depth exceeds maximum allowed limit (100)"


@pytest.mark.parametrize("data", [["a", "é", ""], [["a", "é"], [""]], ["a", ["é", [""]]]])
def test_strings_nested_in_any_way(data: list[object]) -> None:
    # How many there are is the core's to check.
    assert split_bytes(pack_data("INPUT0", BYTES, (1,), data), 3) == [b"a", "é".encode(), b""]


def test_string_of_undecodable_bytes() -> None:
    assert pack_data("INPUT0", BYTES, (1,), ["\udcff"]) == b"\1\0\0\0\xff"


@pytest.mark.parametrize("data", [[], [1, 2], 5, {}, None, ["x"]])
@pytest.mark.parametrize("datatype", ["INT32", "BYTES", "FP16"])
def test_no_elements_whatever_the_data(datatype: str, data: object) -> None:
    assert pack_data("INPUT0", DATATYPES[datatype], (2, 0), data) == b""


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "size"),
    [("FP64", (2, 3), [1] * 6, 48), ("BYTES", (2,), ["é", "abc"], 13)],
)
def test_data_up_to_the_limit_and_past_it(datatype: str, shape: Shape, data: list[object], size: int) -> None:
    """The limit applies to the bytes of the tensor (H17)."""
    assert len(pack_data("I", DATATYPES[datatype], shape, data, size)) == size
    with pytest.raises(Invalid) as caught:
        pack_data("I", DATATYPES[datatype], shape, data, size - 1)
    assert caught.value.message == (
        f"JSON input 'I' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {size - 1} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def test_shape_over_the_limit_is_refused_before_the_data() -> None:
    with pytest.raises(Invalid, match=r"^JSON input 'I' has a byte_size \(4000000000000 bytes\)"):
        pack_data("I", INT32, (10**12,), ["x"], 100)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_refused(datatype: str) -> None:
    with pytest.raises(Invalid) as caught:
        pack_data("INPUT0", DATATYPES[datatype], (1,), [1.0])
    words = f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input INPUT0"
    assert caught.value.message == words
    with pytest.raises(Internal, match="non-array"):
        pack_data("INPUT0", DATATYPES[datatype], (1,), 5)
    with pytest.raises(Invalid) as caught:
        write_data(tensor(datatype, (1,), b"\0\0"))
    words = f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
    assert caught.value.message == words


def test_datatype_that_does_not_exist() -> None:
    with pytest.raises(Invalid, match=r"^invalid datatype for input INPUT0$"):
        pack_data("INPUT0", UNKNOWN_DATATYPE, (1,), [1])


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((-1,), "invalid shape for input 'I': shape [-1] contains one or more invalid dimensions"),
        (
            (2**62, 2),
            "invalid shape for input 'I': shape [4611686018427387904,2] causes total element count to exceed maximum "
            "size of 9223372036854775807",
        ),
        (
            (2**62,),
            "byte size overflow for input 'I': element count (4611686018427387904) * data type size (4) exceeds "
            "maximum allowed size (9223372036854775807)",
        ),
    ],
)
def test_shape_too_large(shape: Shape, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        pack_data("I", FP32, shape, [1])
    assert caught.value.message == words


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        ("BOOL", [True, False], b"[true,false]"),
        ("UINT8", [0, 255], b"[0,255]"),
        ("INT64", [2**63 - 1, -(2**63), 0, -1], b"[9223372036854775807,-9223372036854775808,0,-1]"),
        ("UINT64", [2**64 - 1], b"[18446744073709551615]"),
        ("FP32", [0.1, 3.0, math.nan], b"[0.10000000149011612,3.0,NaN]"),
        ("FP64", [0.1, 1e-7], b"[0.1,1e-7]"),
        ("FP32", [], b"[]"),
    ],
)
def test_numbers_written(datatype: str, values: list[object], text: bytes) -> None:
    raw = np.array(values, DATATYPES[datatype].numpy).tobytes()
    assert write_data(tensor(datatype, (len(values),), raw)) == text


@pytest.mark.parametrize("sizes", [(66, 20_000), (66, 1 << 19, 66), (1 << 18, 1, 1 << 18), (), (3 << 18,)])
def test_long_strings_are_written_in_few_parts(sizes: tuple[int, ...]) -> None:
    """The transport cannot send an answer of more than a million parts."""
    strings = [b"a" * 66] * 20_000 if sizes == (66, 20_000) else [b"b" * size for size in sizes]
    parts = write_slices(tensor("BYTES", (len(strings),), join_bytes(strings)))
    assert orjson.loads(b"".join(parts)) == [string.decode() for string in strings]
    assert len(parts) < 30


def test_strings_written() -> None:
    raw = join_bytes([b"a", b'"', b"\xff"])
    assert write_data(tensor("BYTES", (3, 1), raw)) == b'["a","\\"","\xff"]'


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [("FP32", (2,), b"1234"), ("INT32", (1,), b"12345"), ("INT8", (0,), b"1"), ("BYTES", (1,), b"d\0\0\0abc")],
)
def test_output_that_does_not_fill_its_shape(datatype: str, shape: Shape, raw: bytes) -> None:
    with pytest.raises(Error) as caught:
        write_data(tensor(datatype, shape, raw))
    assert type(caught.value) is Internal
    assert caught.value.message == "output tensor shape does not match size of output for 'OUTPUT0'"


@pytest.mark.parametrize(("datatype", "code"), [("FP32", "f"), ("FP64", "d")])
@pytest.mark.parametrize("begin", [0, 1], ids=["aligned", "unaligned"])
def test_many_floats_are_written_as_few_are(datatype: str, code: str, begin: int) -> None:
    special = [0.1, -0.0, math.nan, math.inf, -math.inf, 1e-6, 1.5e-7, 3e16, 1e20, 1e21, 16777217.0]
    values = (special * (MANY // len(special) + 1))[:MANY]
    raw = bytes(begin) + struct.pack(f"<{MANY}{code}", *values)
    view = memoryview(raw)[begin:]
    many = Tensor("OUTPUT0", DATATYPES[datatype], (MANY,), HostMemory(view))
    size = view.nbytes // MANY
    few = [write_data(tensor(datatype, (1,), bytes(view[at : at + size])))[1:-1] for at in range(0, view.nbytes, size)]
    assert write_data(many) == b"[" + b",".join(few) + b"]"


@pytest.mark.parametrize("count", [1, 255, 256, 257])
@pytest.mark.parametrize("datatype", NUMBERS)
def test_few_numbers_and_many_are_the_same(datatype: str, count: int) -> None:
    """Whether they are taken one by one or as an array."""
    known = DATATYPES[datatype]
    shape = (1, count)
    values = np.arange(count).astype(known.numpy)
    assert pack_data("INPUT0", known, shape, values.tolist()) == values.tobytes()
    assert pack_data("INPUT0", known, shape, [[value] for value in values.tolist()]) == values.tobytes()
    written = write_data(Tensor("OUTPUT0", known, shape, HostMemory(values.tobytes())))
    assert orjson.loads(written) == values.tolist()


@pytest.mark.parametrize("count", [1, 257])
def test_signalling_nan_is_written_as_another(count: int) -> None:
    """And no warning goes to standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = write_data(tensor("FP32", (count,), struct.pack("<I", 0x7F800001) * count))
    assert written == b"[" + b",".join([b"NaN"] * count) + b"]"


def test_shape_of_many_dimensions() -> None:
    shape = (1,) * 1000
    assert pack_data("INPUT0", FP32, shape, [2.5]) == struct.pack("<f", 2.5)
    assert write_data(tensor("FP32", shape, struct.pack("<f", 2.5))) == b"[2.5]"


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "UINT16", "INT32", "UINT64", "FP32", "FP64"])
@pytest.mark.parametrize("seed", range(3))
def test_text_of_numbers_is_not_longer_than_expected(datatype: str, seed: int) -> None:
    raw = np.random.default_rng(seed).bytes(1 << 16)
    raw = bytes(len(raw)) if datatype == "BOOL" else raw
    made = tensor(datatype, (len(raw) // DATATYPES[datatype].size,), raw)
    assert text_bytes_of(made) // 3 < len(write_data(made)) <= text_bytes_of(made) + 2


def test_pieces_of_large_data_are_counted() -> None:
    sizes: list[int] = []
    made = tensor("INT32", (1 << 17,), bytes(1 << 19))
    text = write_data(made, sizes.append)
    assert len(sizes) > 8
    assert sum(sizes) == len(text) - 1
