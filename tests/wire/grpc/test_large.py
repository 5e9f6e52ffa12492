"""Large gRPC inferences: the same values as protobuf reads, and the limits."""

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from halimede.errors import Error, Internal, Invalid
from halimede.requests import MAX_REQUEST_ID_BYTES, InferRequest
from halimede.tensors import MAX_DIMS, STRINGS_PER_TURN, FramedMemory, Framing
from halimede.wire.grpc import large
from halimede.wire.grpc.infer import InferDecoder, TakesLong, parse_large
from halimede.wire.grpc.scan import MAX_FIELDS, MAX_HEAD_BYTES, MAX_SCANNED_FIELDS
from tests.wire.grpc.test_infer import message, tensor

TYPED: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False, True]),
    "INT8": ("int_contents", [-128, 127, 300, -1]),
    "INT32": ("int_contents", [0, 1, -1, 2**31 - 1, -(2**31)]),
    "INT64": ("int64_contents", [-1, 2**62, -(2**63), 127, 128]),
    "UINT8": ("uint_contents", [0, 255, 256]),
    "UINT32": ("uint_contents", [2**32 - 1, 0]),
    "UINT64": ("uint64_contents", [2**64 - 1, 1]),
    "FP32": ("fp32_contents", [1.5, -0.0, 3e38]),
    "FP64": ("fp64_contents", [1e300, 2.0]),
    "BYTES": ("bytes_contents", [b"", b"a" * 200, b"b"]),
}


def parsed_large(data: bytes) -> InferRequest:
    return InferDecoder().request(parse_large(data), 3)


def parsed(data: bytes) -> InferRequest:
    decoder = InferDecoder()
    return decoder.request(decoder.parse(data), 3)


def refusal(data: bytes) -> Error:
    with pytest.raises(Error) as caught:
        parsed_large(data)
    return caught.value


def values(request: InferRequest) -> Any:
    inputs = [(t.name, t.datatype, t.shape, bytes(t.memory.host())) for t in request.inputs.values()]
    return inputs, request.id, request.version, request.outputs, request.classes, request.parameters


@pytest.mark.parametrize("datatype", TYPED)
@pytest.mark.parametrize("slice_bytes", [10, 1 << 15])
def test_typed_contents_are_those_that_protobuf_reads(
    datatype: str, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "_SLICE_BYTES", slice_bytes)
    field, numbers = TYPED[datatype]
    data = message(tensor("A", datatype, (len(numbers),), {field: numbers}), tensor("B", "INT32", (0,), {}), id="x")
    assert values(parsed_large(data)) == values(parsed(data))


def test_numbers_that_are_not_packed_are_read_too() -> None:
    contents = b"\x10\x05\x10\xac\x02" + b"\x12\x01\x07"
    item = b"\x0a\x01A\x12\x05INT32\x1a\x01\x03" + b"\x2a" + bytes((len(contents),)) + contents
    request = parsed_large(b"\x0a\x01m\x2a" + bytes((len(item),)) + item)
    assert bytes(request.inputs["A"].memory.host()) == np.array([5, 300, 7], "<i4").tobytes()


def test_raw_contents_parameters_and_outputs_are_those_that_protobuf_reads() -> None:
    data = message(
        tensor("A"),
        tensor("B"),
        raws=(b"12345678", b"abcdefgh"),
        outputs=("O",),
        output_parameters={"classification": ("int64_param", 3)},
        parameters={"x": ("string_param", "y"), "priority": ("int64_param", 2)},
        id="7",
    )
    large_request = parsed_large(data)
    assert values(large_request) == values(parsed(data))
    assert large_request.priority == 2


@pytest.mark.parametrize(
    "data",
    [
        b"\x2a\x7f\x0a",
        b"\x2a",
        b"\x2a\x03\x2a\x05\x01",
        b"\x0b",
        b"\x2a\x02\x0a\x05",
        # A varint without an end, one of eleven bytes, and a float of three bytes.
        *(
            b"\x2a"
            + bytes((len(c) + 9,))
            + b"\x12\x05INT32\x2a"
            + bytes((len(c) + 2,))
            + b"\x12"
            + bytes((len(c),))
            + c
            for c in (b"\xff", b"\xff" * 10 + b"\x01")
        ),
        b"\x2a\x0d\x12\x04FP32\x2a\x05\x32\x03abc",
    ],
)
def test_malformed_message_is_refused(data: bytes) -> None:
    error = refusal(data)
    assert isinstance(error, Internal)
    assert error.message == "Unable to parse request"


def test_fields_are_limited() -> None:
    head, text = b"\x0a\x01m", f"the request has more than {MAX_FIELDS} inputs, outputs, parameters and raw contents"
    assert len(parse_large(head + b"\x3a\x00" * (MAX_FIELDS - 1)).raws) == MAX_FIELDS - 1
    error = refusal(head + b"\x3a\x00" * MAX_FIELDS)
    assert isinstance(error, Invalid)
    assert error.message == text


def test_strings_in_typed_contents_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "MAX_TYPED_STRINGS", 10)
    assert parsed_large(message(tensor("A", "BYTES", (10,), {"bytes_contents": [b""] * 10})))
    error = refusal(message(tensor("A", "BYTES", (11,), {"bytes_contents": [b""] * 11})))
    assert error.message == "the request has more than 10 elements in 'bytes_contents'. Use raw_input_contents."


def test_bytes_besides_contents_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = message(tensor("A", "INT32", (2,), {"int_contents": [1] * 1000}), tensor("B", "INT32", (2,), {}))
    monkeypatch.setattr(large, "MAX_LARGE_HEAD_BYTES", 28)
    assert isinstance(refusal(data), Invalid)
    monkeypatch.setattr(large, "MAX_LARGE_HEAD_BYTES", 29)
    # Its contents have too many numbers for its shape, which is not the concern of the decoder.
    assert parsed_large(data).inputs["A"].memory.byte_size == 4000


def test_dimensions_and_ids_are_limited() -> None:
    assert parsed_large(message(tensor("A", shape=(1,) * MAX_DIMS), raws=(b"1234",)))
    error = refusal(message(tensor("A", shape=(1,) * (MAX_DIMS + 1)), raws=(b"1234",)))
    assert error.message == f"input 'A' has {MAX_DIMS + 1} dimensions; the largest number is {MAX_DIMS}"
    # A shape with more bytes than `MAX_DIMS` dimensions can take never reaches protobuf.
    for shapes in ([(1,) * (10 * MAX_DIMS + 1)], [(1,) * MAX_DIMS] * 11):
        whole = b"".join(tensor("A", shape=shape).SerializeToString() for shape in shapes)
        error = refusal(message(pb.ModelInferRequest.InferInputTensor.FromString(whole), raws=(b"1234",)))
        assert error.message == f"an input has more than {MAX_DIMS} dimensions"
    size = MAX_REQUEST_ID_BYTES
    text = f"the request id has {size + 1} bytes; the largest has {size}"
    for read in (parsed, parsed_large):
        assert read(message(tensor(), raws=(b"12345678",), id="x" * size)).id == "x" * size
        with pytest.raises(Invalid, match=text):
            read(message(tensor(), raws=(b"12345678",), id="x" * (size + 1)))


def test_lengths_of_many_strings_are_checked_for_the_engine() -> None:
    count = STRINGS_PER_TURN + 1
    few, many = (message(tensor("A", "BYTES", (n,)), raws=(bytes(4 * n),)) for n in (count - 1, count))
    decoder = InferDecoder()
    for _ in range(3):
        assert decoder.parse(few)
        with pytest.raises(TakesLong):
            decoder.parse(many)
    memory = parsed_large(many).inputs["A"].memory
    assert isinstance(memory, FramedMemory)
    assert memory.framing == Framing(count, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x01m" + b"\x3a\x00" * (2 * MAX_SCANNED_FIELDS),
        message(tensor("A", "FP32", (9000,), {"fp32_contents": [0.5] * (MAX_HEAD_BYTES // 4)})),
        message(parameters={"x": ("string_param", "y" * MAX_HEAD_BYTES)}),
        pb.ModelInferRequest(model_name="m").SerializeToString() + b"\x50\x01" + b"\x3a\x01a" * 20_000,
    ],
)
def test_message_that_takes_long_is_left_to_another_thread(data: bytes) -> None:
    with pytest.raises(TakesLong):
        InferDecoder().parse(data)
    assert parse_large(data).model_name == "m"


def test_message_with_much_raw_contents_is_read_at_once() -> None:
    data = message(tensor("A", "FP32", (1 << 20,)), raws=(bytes(1 << 22),))
    assert InferDecoder().parse(data).raws
