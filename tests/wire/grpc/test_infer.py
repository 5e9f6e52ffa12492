import mmap
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from halimede.errors import Error, Internal, Invalid, Unsupported
from halimede.requests import NO_SEQUENCE, InferRequest, InferResponse
from halimede.tensors import BYTES, DATATYPES, FP32, INT32, HostMemory, Tensor, array_of
from halimede.wire.grpc.infer import (
    InferDecoder,
    InferEncoder,
    InferMessage,
    stream_empty_final,
    stream_failure,
    stream_refusal,
    version_of,
)

Value = tuple[str | None, Any]
PAIR = struct.pack("<2i", 1, 2)
SHM: dict[str, Value] = {"shared_memory_region": ("string_param", "r"), "shared_memory_byte_size": ("int64_param", 8)}


def put(parameters: Any, values: dict[str, Value]) -> None:
    for key, (kind, value) in values.items():
        if kind is None:
            parameters[key].SetInParent()
        else:
            setattr(parameters[key], kind, value)


def tensor(
    name: str = "INPUT0",
    datatype: str = "INT32",
    shape: tuple[int, ...] = (2,),
    contents: dict[str, list[Any]] | None = None,
    parameters: dict[str, Value] | None = None,
) -> Any:
    item = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents is not None:
        item.contents.CopyFrom(pb.InferTensorContents(**contents))
    put(item.parameters, parameters or {})
    return item


def message(
    *inputs: Any,
    raws: tuple[bytes, ...] = (),
    outputs: tuple[str, ...] = (),
    parameters: dict[str, Value] | None = None,
    output_parameters: dict[str, Value] | None = None,
    id: str = "",
    version: str = "",
) -> bytes:
    request = pb.ModelInferRequest(model_name="m", model_version=version, id=id, inputs=inputs, raw_input_contents=raws)
    put(request.parameters, parameters or {})
    for name in outputs:
        put(request.outputs.add(name=name).parameters, output_parameters or {})
    return bytes(request.SerializeToString())


def parsed(data: bytes, decoder: InferDecoder | None = None) -> tuple[InferMessage, InferRequest]:
    decoder = decoder or InferDecoder()
    incoming = decoder.parse(data)
    return incoming, decoder.request(incoming, version_of(incoming.model_version))


def refusal(data: bytes) -> Error:
    with pytest.raises(Error) as caught:
        parsed(data)
    return caught.value


@pytest.mark.parametrize(
    ("text", "version"),
    [("", -1), ("1", 1), ("0", 0), ("99", 99), ("01", 1), (" 1", 1), ("+1", 1), ("1x", 1), ("-0", 0)],
)
def test_version_as_stol_reads_it(text: str, version: int) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize("text", ["abc", "99999999999999999999", "-99999999999999999999", " ", "+", "- 1", "9" * 5000])
def test_version_that_is_not_a_number(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        version_of(text)
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


def test_version_below_zero() -> None:
    with pytest.raises(Invalid) as caught:
        version_of("-5")
    assert caught.value.message == "invalid model version specified '-5' , version should be an integral value > 0"


def test_version_with_many_zeros() -> None:
    assert version_of("0" * 30 + "7") == 7


def test_request_fields() -> None:
    data = message(tensor(), raws=(PAIR,), outputs=("OUT", "OUT2"), id="é", version="3")
    _, request = parsed(data)
    assert (request.model_name, request.version, request.id, request.outputs) == ("m", 3, "é", ("OUT", "OUT2"))
    got = request.inputs["INPUT0"]
    assert (got.name, got.datatype, got.shape) == ("INPUT0", INT32, (2,))
    assert array_of(got).tolist() == [1, 2]


def test_request_raw_contents_are_views_of_the_message() -> None:
    data = bytearray(message(tensor(), raws=(PAIR,)))
    decoder = InferDecoder()
    request = decoder.request(decoder.parse(data), -1)
    data[-4:] = struct.pack("<i", 7)
    assert array_of(request.inputs["INPUT0"]).tolist() == [1, 7]


def test_request_seen_again_differs_only_in_what_is_its_own() -> None:
    decoder = InferDecoder()
    parsed(message(tensor(), raws=(PAIR,), outputs=("OUT",), id="first", version="2"), decoder)
    data = message(
        tensor(), raws=(PAIR[::-1],), outputs=("OUT",), id="second", version="2", parameters={"a": ("int64_param", 1)}
    )
    incoming, request = parsed(data, decoder)
    assert (incoming.model_version, request.version, request.id, request.outputs) == ("2", 2, "second", ("OUT",))
    assert request.parameters == {"a": 1}
    assert bytes(request.inputs["INPUT0"].memory.host()) == PAIR[::-1]
    _, third = parsed(message(tensor(), raws=(PAIR,), outputs=("OUT",), version="2"), decoder)
    assert (third.id, third.parameters) == ("", None)


def test_request_seen_again_without_its_data() -> None:
    decoder = InferDecoder()
    parsed(message(tensor(), raws=(PAIR,)), decoder)
    with pytest.raises(Invalid, match="unable to find data for input tensor 'INPUT0' for model 'm' in request"):
        parsed(message(tensor()), decoder)


def test_request_heads_are_remembered_within_a_bound() -> None:
    decoder = InferDecoder()
    for n in range(3 * decoder.MAX_HEADS):
        _, request = parsed(message(tensor(shape=(n,)), raws=(PAIR,)), decoder)
        assert request.inputs["INPUT0"].shape == (n,)
        assert len(decoder._heads) <= decoder.MAX_HEADS


def test_request_fields_in_any_order_and_unknown_ones() -> None:
    whole = pb.ModelInferRequest.FromString(
        message(tensor(), raws=(PAIR,), id="x", parameters={"a": ("bool_param", True)})
    )
    raw = pb.ModelInferRequest(raw_input_contents=whole.raw_input_contents).SerializeToString()
    whole.ClearField("raw_input_contents")
    rest = whole.SerializeToString()
    unknown = bytes((0x80 | 0x0A, 0x7D, 1, 65)) + bytes((0x80 | 0x08, 0x7D, 5))  # a string and a number of field 2000
    for data in (raw + rest, raw + rest + unknown, unknown + rest + raw, rest + raw + b"\x1a\x01y"):
        _, request = parsed(data)
        assert bytes(request.inputs["INPUT0"].memory.host()) == PAIR
        assert request.id == ("y" if data.endswith(b"\x1a\x01y") else "x")
        assert request.parameters == {"a": True}


def test_request_with_large_contents() -> None:
    big = bytes(range(256)) * 1000
    _, request = parsed(message(tensor(shape=(64000,)), raws=(big,)))
    assert request.inputs["INPUT0"].memory.host() == big


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff",
        b"\x0a\x02\xff\xfe",  # a name that is not UTF-8
        b"\x1a\x02\xff\xfe",  # an id that is not UTF-8
        b"\x3a\x05abc",
        b"\x3a",
        b"\x3a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
        b"\x22\x01\x00",  # a parameter that ends too early
        b"\x02\x00",  # field 0
    ],
)
def test_malformed_message(data: bytes) -> None:
    with pytest.raises(Internal) as caught:
        InferDecoder().parse(data)
    assert caught.value.message == "Unable to parse request"


@pytest.mark.parametrize("group", [b"ST", b"S[\x0a\x01x\x5cT", b"S" * 100 + b"T" * 100])
def test_unknown_group_is_left_out(group: bytes) -> None:
    data = message(tensor("I", "INT32", (1,)), raws=(b"abcd",)) + b"\x08\x00" + group
    _, request = parsed(data)
    assert bytes(request.inputs["I"].memory.host()) == b"abcd"


@pytest.mark.parametrize("group", [b"S", b"T", b"S\x5c", b"S[T\x5c", b"S" * 101 + b"T" * 101])
def test_group_that_does_not_end_is_malformed(group: bytes) -> None:
    assert refusal(b"\x08\x00" + group).message == "Unable to parse request"


@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 255))
@example(b"\x08\x00ST", 1, 1)
def test_message_damaged_is_parsed_or_refused(extra: bytes, at: int, byte: int) -> None:
    data = bytearray(message(tensor(), raws=(PAIR,), outputs=("OUT",), id="x", parameters={"a": ("int64_param", 1)}))
    data[min(at, len(data) - 1)] = byte
    data += extra
    try:
        expected = pb.ModelInferRequest.FromString(bytes(data))
    except Exception:
        expected = None
    if expected is None:
        with pytest.raises(Internal):
            InferDecoder().parse(bytes(data))
    else:
        incoming = InferDecoder().parse(bytes(data))
        assert (incoming.id, incoming.model_name) == (expected.id, expected.model_name)
        assert [bytes(raw) for raw in incoming.raws] == list(expected.raw_input_contents)


def summary(data: bytes, decoder: InferDecoder) -> object:
    """Everything that a request says, or the text of its refusal."""
    try:
        incoming, request = parsed(data, decoder)
    except Error as error:
        return type(error), error.message
    settings = (request.correlation_id, request.sequence_start, request.timeout_us, incoming.empty_final)
    tensors = [(t.name, t.datatype, t.shape, bytes(t.memory.host())) for t in request.inputs.values()]
    return request.model_name, request.version, request.id, request.parameters, settings, request.outputs, tensors


EMPTY_FINAL = "triton_enable_empty_final_response"


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Similar messages, often of one length with their parts in different places."""
    names = draw(st.lists(st.sampled_from(["A", "B", "CC"]), min_size=1, max_size=2, unique=True))
    raws = draw(st.lists(st.binary(min_size=4, max_size=6), max_size=3))
    version, name = draw(st.sampled_from(["", "1"])), draw(st.text("ab\x1aé", max_size=3))
    said: dict[str, dict[str, Value]] = {
        "": {},
        "final": {EMPTY_FINAL: ("bool_param", True)},
        "sequence": {"sequence_id": ("int64_param", 3), "sequence_start": ("bool_param", True)},
        "custom": {"a": ("int64_param", 3), "timeout": ("int64_param", 1)},
        "wrong": {"timeout": ("string_param", "x")},
    }
    parameters = said[draw(st.sampled_from(sorted(said)))]
    data = message(*map(tensor, names), raws=tuple(raws), id=name, version=version, parameters=parameters)
    return data + draw(st.sampled_from([b"", b"", b"\x1a\x01y", b"\x3a\x02zz"]))


@given(st.lists(messages(), min_size=2, max_size=8), st.data())
def test_messages_are_read_alike_whatever_came_before(sent: list[bytes], data: st.DataObject) -> None:
    """What is remembered of one message must not show in another. Each comes three times, and once corrupted."""
    decoder = InferDecoder()
    for whole in sent * 3:
        damaged = bytearray(whole)
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.sampled_from([0, 1, 2, 5, 0x1A, 0x3A, 0xFF]))
        for one in (whole, bytes(damaged)):
            assert summary(one, decoder) == summary(one, InferDecoder())


def test_layouts_are_remembered_within_a_bound() -> None:
    decoder = InferDecoder()
    for n in range(3 * decoder.MAX_HEADS):
        for _ in range(3):
            _, request = parsed(message(tensor(), raws=(bytes(n),)), decoder)
            assert request.inputs["INPUT0"].memory.byte_size == n
        assert sum(len(layout.known) for layout in decoder._layouts.values()) <= decoder.MAX_HEADS


def test_parameters_are_remembered_within_a_bound() -> None:
    decoder = InferDecoder()
    for n in range(3 * decoder.MAX_HEADS):
        parameters: dict[str, Value] = {"n": ("int64_param", n), "sequence_id": ("int64_param", n + 1)}
        for _ in range(3):
            _, request = parsed(message(tensor(), raws=(PAIR,), parameters=parameters), decoder)
            assert (request.parameters, request.correlation_id) == ({"n": n}, n + 1)
        assert len(decoder._settings) <= decoder.MAX_HEADS


def test_parameters_that_are_remembered_belong_to_each_request() -> None:
    decoder = InferDecoder()
    for _ in range(4):
        incoming, request = parsed(
            message(tensor(), raws=(PAIR,), parameters={"a": ("int64_param", 1), EMPTY_FINAL: ("bool_param", True)}),
            decoder,
        )
        assert request.parameters == {"a": 1}
        assert incoming.empty_final
        request.parameters["b"] = 2
        _, plain = parsed(message(tensor(), raws=(PAIR,)), decoder)
        assert plain.parameters is None


def test_requests_with_the_same_tensors_have_equal_forms() -> None:
    decoder = InferDecoder()
    alike = [message(tensor(), raws=(PAIR,), id=str(n)) for n in range(3)]
    other = message(tensor(shape=(1, 2)), raws=(PAIR,))
    first, second, third, fourth = (parsed(data, decoder)[1].form for data in [*alike, alike[0]])
    assert first is None
    assert second is not None
    assert second == third == fourth
    parsed(other, decoder)
    assert parsed(other, decoder)[1].form not in (None, second)


def wrong_type(key: str, kinds: str) -> str:
    return f"invalid value type for '{key}' parameter, expected {kinds}."


CUSTOM = "int64_param, bool_param, or string_param"
PARAMETERS_BAD: list[tuple[str, Value, str]] = [
    ("sequence_id", ("bool_param", True), wrong_type("sequence_id", "int64_param or string_param")),
    ("sequence_id", ("uint64_param", 1), wrong_type("sequence_id", "int64_param or string_param")),
    ("sequence_start", ("int64_param", 1), wrong_type("sequence_start", "bool_param")),
    ("sequence_end", (None, None), wrong_type("sequence_end", "bool_param")),
    ("priority", ("string_param", "x"), wrong_type("priority", "int64_param or uint64_param")),
    ("priority", ("int64_param", -5), "invalid value for 'priority', expected value >= 0."),
    ("timeout", ("uint64_param", 7), wrong_type("timeout", "int64_param")),
    ("x", ("uint64_param", 7), wrong_type("x", CUSTOM)),
    ("x", (None, None), wrong_type("x", CUSTOM)),
    (EMPTY_FINAL, ("int64_param", 1), wrong_type(EMPTY_FINAL, "bool_param")),
    (
        "triton_x",
        ("bool_param", True),
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        "'triton_' are allowed: triton_enable_empty_final_response",
    ),
]


@pytest.mark.rows("G17", "G18")
@pytest.mark.parametrize(("key", "value", "text"), PARAMETERS_BAD)
def test_parameter_of_a_wrong_type(key: str, value: Value, text: str) -> None:
    error = refusal(message(tensor(), raws=(PAIR,), parameters={key: value}))
    assert (type(error), error.message) == (Invalid, text)


def test_parameters_known_and_custom() -> None:
    incoming, request = parsed(
        message(
            tensor(),
            raws=(PAIR,),
            parameters={
                "sequence_id": ("int64_param", -5),
                "sequence_start": ("bool_param", True),
                "sequence_end": ("bool_param", True),
                "priority": ("uint64_param", 7),
                "timeout": ("int64_param", 9),
                "triton_enable_empty_final_response": ("bool_param", True),
                "binary_data_output": ("bool_param", True),
                "text": ("string_param", "s"),
                "whole": ("int64_param", -5),
                "real": ("double_param", 1.5),
            },
        )
    )
    assert request.correlation_id == 2**64 - 5
    assert (request.sequence_start, request.sequence_end) == (True, True)
    assert (request.priority, request.timeout_us, incoming.empty_final) == (7, 9, True)
    assert request.parameters == {"binary_data_output": True, "text": "s", "whole": -5, "real": 1.5}


def test_parameter_sequence_id_as_text() -> None:
    _, request = parsed(message(tensor(), raws=(PAIR,), parameters={"sequence_id": ("string_param", "s")}))
    assert request.correlation_id == "s"
    error = refusal(message(tensor(), raws=(PAIR,), parameters={"sequence_id": ("string_param", "s" * 129)}))
    assert type(error) is Unsupported


KINDS: list[tuple[str, str, list[Any], bytes]] = [
    ("BOOL", "bool_contents", [True, False, True], b"\1\0\1"),
    ("INT8", "int_contents", [300, -129, -1, 127], struct.pack("<4b", 44, 127, -1, 127)),
    ("INT16", "int_contents", [70000, -40000, -1], struct.pack("<3h", 4464, 25536, -1)),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1], struct.pack("<2i", -(2**31), 2**31 - 1)),
    ("INT64", "int64_contents", [-(2**63), 5], struct.pack("<2q", -(2**63), 5)),
    ("UINT8", "uint_contents", [300, 256, 255], bytes((44, 0, 255))),
    ("UINT16", "uint_contents", [70000, 65536], struct.pack("<2H", 4464, 0)),
    ("UINT32", "uint_contents", [2**32 - 1], struct.pack("<I", 2**32 - 1)),
    ("UINT64", "uint64_contents", [2**64 - 1], struct.pack("<Q", 2**64 - 1)),
    ("FP32", "fp32_contents", [1.5, float("inf")], struct.pack("<2f", 1.5, float("inf"))),
    ("FP64", "fp64_contents", [0.1], struct.pack("<d", 0.1)),
    ("BYTES", "bytes_contents", [b"ab", b""], b"\2\0\0\0ab\0\0\0\0"),
]


@pytest.mark.rows("G21")
@pytest.mark.parametrize(("datatype", "field", "values", "data"), KINDS)
def test_contents_typed(datatype: str, field: str, values: list[Any], data: bytes) -> None:
    _, request = parsed(message(tensor(datatype=datatype, shape=(len(values),), contents={field: values})))
    got = request.inputs["INPUT0"]
    assert (got.datatype.name, bytes(got.memory.host())) == (datatype, data)


def test_contents_present_and_empty_are_no_bytes() -> None:
    _, request = parsed(message(tensor(shape=(0,), contents={})))
    assert request.inputs["INPUT0"].memory.byte_size == 0


WHERE = "unexpected explicit tensor data for input tensor 'INPUT0' for model 'm'"


@pytest.mark.rows("G21")
@pytest.mark.parametrize(
    ("datatype", "contents", "text"),
    [
        ("INT32", {"fp32_contents": [1]}, f"{WHERE} of type 'FP32', expected datatype 'INT32'"),
        ("FP16", {"fp32_contents": [1]}, f"{WHERE} of type 'FP32', expected datatype 'FP16'"),
        ("BF16", {"fp32_contents": [1]}, f"{WHERE} of type 'FP32', expected datatype 'BF16'"),
        ("INT8", {"uint_contents": [1]}, f"{WHERE} of type 'UINT32', expected datatype 'INT8'"),
        ("UINT8", {"int_contents": [1]}, f"{WHERE} of type 'INT32', expected datatype 'UINT8'"),
        ("FP32", {"bytes_contents": [b"x"]}, f"{WHERE} of type 'BYTES', expected datatype 'FP32'"),
        ("XYZ", {"int_contents": [1]}, f"{WHERE} of type 'INT32', expected datatype '<invalid>'"),
        ("INT32", {"int_contents": [1], "fp32_contents": [1]}, f"{WHERE}, binary data was already supplied."),
        ("FP32", {"bytes_contents": [b"x"], "fp32_contents": [1]}, f"{WHERE}, binary data was already supplied."),
        (
            "INT32",
            {"bool_contents": [True], "fp32_contents": [1]},
            f"{WHERE} of type 'BOOL', expected datatype 'INT32'",
        ),
    ],
)
def test_contents_of_a_wrong_kind(datatype: str, contents: dict[str, list[Any]], text: str) -> None:
    error = refusal(message(tensor(datatype=datatype, contents=contents)))
    assert (type(error), error.message) == (Invalid, text)


NO_DATA = "unable to find data for input tensor '{}' for model 'm' in request."
BOTH = "contents field must not be specified when using raw_input_contents for '{}' for model 'm'"
OTHER = tensor("INPUT1", "FP32", (1,))


@pytest.mark.rows("G20")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (message(tensor()), NO_DATA.format("INPUT0")),
        (message(tensor(shape=(0,))), NO_DATA.format("INPUT0")),
        (message(tensor(), OTHER, raws=(PAIR,)), NO_DATA.format("INPUT1")),
        (message(tensor(contents={"int_contents": [1]}), raws=(PAIR,)), BOTH.format("INPUT0")),
        (message(tensor(), tensor("INPUT1", contents={"int_contents": [1]}), raws=(PAIR,)), BOTH.format("INPUT1")),
    ],
)
def test_input_data_from_no_or_two_places(data: bytes, text: str) -> None:
    error = refusal(data)
    assert (type(error), error.message) == (Invalid, text)


def test_input_raw_contents_too_many_are_ignored() -> None:
    decoder = InferDecoder()
    for _ in range(2):
        _, request = parsed(message(tensor(), raws=(PAIR, b"more")), decoder)
        assert bytes(request.inputs["INPUT0"].memory.host()) == PAIR


@pytest.mark.rows("H48")
@pytest.mark.parametrize(("id", "shown"), [("", "<id_unknown>"), ("7", "7")])
def test_input_twice(id: str, shown: str) -> None:
    error = refusal(message(tensor(), tensor(contents={"fp32_contents": [1]}), raws=(PAIR,), id=id))
    assert error.message == f"[request id: {shown}] input 'INPUT0' already exists in request"


@pytest.mark.rows("H48")
def test_output_twice() -> None:
    """It is refused before the data of the inputs are looked at."""
    for raws in ((PAIR,), ()):
        error = refusal(message(tensor(), raws=raws, outputs=("OUT", "OUT"), id="7"))
        assert type(error) is Invalid
        assert error.message == "[request id: 7] output 'OUT' already exists in request"


def test_input_of_an_unknown_datatype_is_left_to_the_core() -> None:
    _, request = parsed(message(tensor(datatype="int32"), raws=(PAIR,)))
    assert request.inputs["INPUT0"].datatype.name == "<invalid>"


def test_parameters_are_checked_before_tensors() -> None:
    error = refusal(message(tensor(), tensor(), parameters={"timeout": ("bool_param", True)}))
    assert error.message == "invalid value type for 'timeout' parameter, expected int64_param."


@pytest.mark.parametrize(
    ("parameters", "kind", "text"),
    [
        (
            {"classification": ("string_param", "2")},
            Invalid,
            "invalid value type for 'classification' parameter, expected int64_param",
        ),
        (
            {"classification": ("int64_param", 0)},
            Invalid,
            "invalid value for 'classification' parameter, expected >= 0",
        ),
        (
            {"classification": ("int64_param", 2), **SHM},
            Invalid,
            "output can't set both 'shared_memory_region' and 'classification'",
        ),
    ],
)
def test_output_parameters_wrong(parameters: dict[str, Value], kind: type[Error], text: str) -> None:
    error = refusal(message(tensor(), raws=(PAIR,), outputs=("OUT",), output_parameters=parameters))
    assert (type(error), error.message) == (kind, text)


def test_unknown_tensor_parameters_are_ignored() -> None:
    other: dict[str, Value] = {"foo": ("int64_param", 1)}
    _, request = parsed(message(tensor(parameters=other), raws=(PAIR,), outputs=("OUT",), output_parameters=other))
    assert request.outputs == ("OUT",)


def response(*outputs: Tensor, id: str = "", **parameters: Any) -> InferResponse:
    return InferResponse(id, "m", 3, list(outputs), parameters or None)


def numbers(name: str = "OUT", count: int = 2) -> Tensor:
    return Tensor(name, FP32, (1, count), HostMemory(np.arange(count, dtype="<f4").tobytes()))


@pytest.mark.parametrize("count", [0, 2, 31, 32, 5000, 100_000])
def test_response_is_what_protobuf_writes(count: int) -> None:
    text = Tensor("TEXT", BYTES, (1,), HostMemory(b"\2\0\0\0ab"))
    outputs = [numbers(count=count), text]
    expected = pb.ModelInferResponse(
        model_name="m",
        model_version="3",
        id="é" * 100,
        outputs=[
            pb.ModelInferResponse.InferOutputTensor(name="OUT", datatype="FP32", shape=[1, count]),
            pb.ModelInferResponse.InferOutputTensor(name="TEXT", datatype="BYTES", shape=[1]),
        ],
        raw_output_contents=[bytes(t.memory.host()) for t in outputs],
    ).SerializeToString()
    encoder = InferEncoder()
    for _ in range(2):
        assert b"".join(encoder.response(response(*outputs, id="é" * 100))) == expected


def test_response_bytes_are_tritons() -> None:
    out = Tensor("OUTPUT0", INT32, (2,), HostMemory(PAIR))
    encoder = InferEncoder()
    answer = InferResponse("a", "int32", 1, [out])
    assert b"".join(encoder.response(answer)) == (
        b"\n\x05int32\x12\x011\x1a\x01a*\x13\n\x07OUTPUT0\x12\x05INT32\x1a\x01\x022\x08\x01\0\0\0\x02\0\0\0"
    )
    assert b"".join(encoder.stream_response(answer, final=True)) == (
        b'\x12I\n\x05int32\x12\x011\x1a\x01a"\x1b\n\x15triton_final_response\x12\x02\x08\x01'
        b"*\x13\n\x07OUTPUT0\x12\x05INT32\x1a\x01\x022\x08\x01\0\0\0\x02\0\0\0"
    )


def test_response_hands_large_tensors_on_without_a_copy() -> None:
    memory = HostMemory(bytearray(100_000))
    buffers = InferEncoder().response(response(Tensor("OUT", FP32, (25_000,), memory)))
    assert any(isinstance(b, memoryview) and b.obj is memory.owner for b in buffers)


def test_ensemble_without_a_sequence_is_written_as_any_parameters() -> None:
    answers = [InferResponse("", "e", 1, [], each) for each in (NO_SEQUENCE, dict(NO_SEQUENCE))]
    known, other = (b"".join(InferEncoder().response(answer)) for answer in answers)
    assert known == other
    assert set(pb.ModelInferResponse.FromString(known).parameters) == set(NO_SEQUENCE)


def test_response_parameters() -> None:
    buffers = InferEncoder().response(response(flag=True, whole=-1, real=0.5, text="t"))
    got = pb.ModelInferResponse.FromString(b"".join(buffers)).parameters
    kinds = {
        key: (p.WhichOneof("parameter_choice"), getattr(p, p.WhichOneof("parameter_choice"))) for key, p in got.items()
    }
    assert kinds == {
        "flag": ("bool_param", True),
        "whole": ("int64_param", -1),
        "real": ("double_param", 0.5),
        "text": ("string_param", "t"),
    }


@pytest.mark.parametrize("final", [False, True])
def test_stream_response_says_whether_it_is_final(final: bool) -> None:
    encoder = InferEncoder()
    for count in (2, 5000):
        got = pb.ModelStreamInferResponse.FromString(
            b"".join(encoder.stream_response(response(numbers(count=count), id="x", own="p"), final))
        )
        assert got.error_message == ""
        inner = got.infer_response
        assert inner.parameters["triton_final_response"].bool_param is final
        assert (inner.parameters["own"].string_param, inner.id, inner.model_version) == ("p", "x", "3")
        assert inner.raw_output_contents[0] == bytes(numbers(count=count).memory.host())


@pytest.mark.rows("G15")
def test_response_over_the_size_limit() -> None:
    with mmap.mmap(-1, 2**31) as pages:
        huge = response(Tensor("OUT", DATATYPES["UINT8"], (2**31,), HostMemory(memoryview(pages))))
        with pytest.raises(
            Invalid, match=r"^Response has byte size \d+ which exceeds gRPC's byte size limit 2147483647.$"
        ):
            InferEncoder().response(huge)
        del huge


def test_stream_errors_are_tritons() -> None:
    incoming, _ = parsed(message(tensor(), raws=(PAIR,), id="q2", version="1"))
    assert b"".join(stream_refusal(incoming, "no")) == b"\n\x02no\x12\x04\x1a\x02q2"
    assert b"".join(stream_failure(incoming, "no", final=True)) == (
        b'\n\x02no\x12\x27\n\x01m\x12\x011\x1a\x02q2"\x1b\n\x15triton_final_response\x12\x02\x08\x01'
    )
    assert b"".join(stream_empty_final(incoming)) == (
        b'\x12\x27\n\x01m\x12\x011\x1a\x02q2"\x1b\n\x15triton_final_response\x12\x02\x08\x01'
    )
