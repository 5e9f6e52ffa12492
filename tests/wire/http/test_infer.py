"""Bodies of the HTTP protocol, both ways and byte by byte; the bodies are those of Triton."""

import random
import struct
from math import prod
from time import process_time
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.errors import Error, Invalid, Unsupported
from halimede.requests import NO_SEQUENCE, InferRequest, InferResponse, Parameters
from halimede.tensors import (
    BF16,
    BYTES,
    DATATYPES,
    FP16,
    FP32,
    INT32,
    Buffer,
    DataType,
    HostMemory,
    Shape,
    Tensor,
    array_of,
    tensor_of,
)
from halimede.wire.http.infer import (
    ResponseForm,
    decode_infer,
    encode_error,
    encode_infer,
    parse_header_length,
    parse_version,
)

ITEM: dict[str, Any] = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [1]}
BINARY_ITEM: dict[str, Any] = {
    "name": "INPUT0",
    "shape": [3],
    "datatype": "INT32",
    "parameters": {"binary_data_size": 12},
}
THREE = struct.pack("<3i", 1, 2, 3)
JSON_FORM = ResponseForm(False, {})
LIMIT = 1 << 26


def item(**changes: Any) -> dict[str, Any]:
    """The usual input with some members changed, and those given as ... removed."""
    return {key: value for key, value in {**ITEM, **changes}.items() if value is not ...}


def decode(document: object, tail: bytes = b"", model: str = "int32") -> tuple[InferRequest, ResponseForm]:
    head = document if isinstance(document, bytes) else orjson.dumps(document)
    return decode_infer(model, -1, memoryview(head + tail), len(head), LIMIT)


HINT = "Use --http-max-input-size to increase the limit."


def refused_by_limit(body: bytes, header_length: int | None, limit: int) -> str:
    with pytest.raises(Invalid) as caught:
        decode_infer("int32", -1, memoryview(body), header_length, limit)
    return caught.value.message


def refused(document: object, tail: bytes = b"") -> Error:
    with pytest.raises(Error) as caught:
        decode(document, tail)
    return caught.value


def raw(tensor: Tensor) -> bytes:
    return bytes(tensor.memory.host())


def answer(
    outputs: list[Tensor], request_id: str = "", model: str = "int32", parameters: Parameters | None = None
) -> InferResponse:
    return InferResponse(request_id, model, 1, outputs, parameters)


def output(datatype: DataType, shape: Shape, data: bytes, name: str = "OUTPUT0") -> Tensor:
    return Tensor(name, datatype, shape, HostMemory(data))


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(map(bytes, buffers))


# Path and headers.


@pytest.mark.parametrize(
    ("text", "version"), [("", -1), ("0", 0), ("1", 1), ("01", 1), ("0" * 5000 + "7", 7), (str(2**63 - 1), 2**63 - 1)]
)
def test_version_of_a_path(text: str, version: int) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["99999999999999999999", str(2**63), "9" * 5000])
def test_version_too_large(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_version(text)
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize(
    ("text", "length"), [("0", 0), ("80", 80), ("+50", 50), (" 50", 50), ("-0", 0), ("0080", 80), ("0" * 5000 + "7", 7)]
)
def test_header_length(text: str, length: int) -> None:
    assert parse_header_length(text.encode("latin-1"), 80) == length


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "Unable to parse Inference-Header-Content-Length, got: x"),
        ("", "Unable to parse Inference-Header-Content-Length, got: "),
        ("1.5", "Unable to parse Inference-Header-Content-Length, got: 1.5"),
        ("0x10", "Unable to parse Inference-Header-Content-Length, got: 0x10"),
        ("50abc", "Unable to parse Inference-Header-Content-Length, got: 50abc"),
        ("\xb2", "Unable to parse Inference-Header-Content-Length, got: \xb2"),
        (
            "99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            "got: 99999999999",
        ),
        (
            "9" * 5000,
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            "got: " + "9" * 5000,
        ),
        ("-1", "inference header size should be in range (0, 80), got: -1"),
        ("81", "inference header size should be in range (0, 80), got: 81"),
    ],
)
def test_header_length_refused(text: str, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_header_length(text.encode("latin-1"), 80)
    assert caught.value.message == words


def test_header_length_of_many_digits_is_refused_quickly() -> None:
    """A header line may have 16 kB, and it is parsed on the event loop. A naive pattern took 20 s of CPU time."""
    start = process_time()
    for size in range(15_000, 15_010):
        with pytest.raises(Invalid, match=r"^Unable to parse"):
            parse_header_length(b"0" * size + b"x", 80)
    assert process_time() - start < 5


# Requests that are understood.


def test_request_of_json() -> None:
    text = b'{"x":1,"outputs":[{"name":"OUTPUT0"}],"inputs":[{"data":[1],"datatype":"INT32","shape":[1],"name":"I"}]}'
    request, form = decode_infer("int32", 2, memoryview(text), None, LIMIT)
    assert (request.model_name, request.version, request.id) == ("int32", 2, "")
    assert list(request.inputs) == ["I"]
    assert (request.inputs["I"].datatype, request.inputs["I"].shape) == (INT32, (1,))
    assert raw(request.inputs["I"]) == struct.pack("<i", 1)
    assert request.outputs == ("OUTPUT0",)
    assert (form.binary, form.listed) == (False, {"OUTPUT0": False})
    assert request.parameters is None


def test_request_with_binary_input_views_the_body() -> None:
    document = {"id": "a", "inputs": [BINARY_ITEM], "outputs": [{"name": "O", "parameters": {"binary_data": True}}]}
    head = orjson.dumps(document)
    body = bytearray(head + THREE)
    for _ in range(2):
        request, form = decode_infer("int32", -1, memoryview(body), len(head), LIMIT)
        view = request.inputs["INPUT0"].memory.host()
        assert view.obj is body
        assert bytes(view) == THREE
        assert (request.id, request.outputs, form.listed) == ("a", ("O",), {"O": True})


def json_request(request_id: str, name: str, shape: list[int], *outputs: str) -> object:
    """The form of a request whose data stands in its JSON."""
    data = list(range(prod(shape)))
    document: dict[str, object] = {"inputs": [{"name": name, "datatype": "INT32", "shape": shape, "data": data}]}
    if request_id:
        document["id"] = request_id
    if outputs:
        document["outputs"] = [{"name": output} for output in outputs]
    return decode(document)[0].form


def test_requests_with_the_same_tensors_and_outputs_have_equal_forms() -> None:
    form = json_request("", "A", [2, 1], "X")
    assert form == json_request("7", "A", [2, 1], "X")
    others = [
        json_request("", "B", [2, 1], "X"),
        json_request("", "A", [1, 2], "X"),
        json_request("", "A", [2, 1], "Y"),
        json_request("", "A", [2, 1], "X", "Y"),
        json_request("", "A", [2, 1]),
    ]
    assert form not in others
    assert len(set(others)) == len(others)
    for request_id in ("", "1"):  # it makes no difference where the data is
        request, _ = decode({"id": request_id, "inputs": [BINARY_ITEM]}, THREE)
        assert request.form == json_request("", "INPUT0", BINARY_ITEM["shape"])


def test_requests_that_begin_alike_share_nothing_that_changes() -> None:
    document = {"inputs": [BINARY_ITEM], "parameters": {"x": 1, "priority": 2}}
    first, _ = decode(document, THREE)
    assert first.parameters is not None
    first.parameters["y"] = 2
    first.inputs.clear()
    second, _ = decode(document, bytes(12))
    assert second.parameters == {"x": 1}
    assert second.priority == 2
    assert raw(second.inputs["INPUT0"]) == bytes(12)


def test_inputs_of_both_kinds_in_order() -> None:
    document = {
        "inputs": [
            {**BINARY_ITEM, "name": "A"},
            item(name="B"),
            {**BINARY_ITEM, "name": "C", "shape": [0], "parameters": {"binary_data_size": 0}},
            {
                "name": "D",
                "shape": [1],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": 6, "other": 1},
                "z": {},
            },
        ]
    }
    request, _ = decode(document, THREE + b"\2\0\0\0hi")
    assert [(name, raw(tensor)) for name, tensor in request.inputs.items()] == [
        ("A", THREE),
        ("B", struct.pack("<i", 1)),
        ("C", b""),
        ("D", b"\2\0\0\0hi"),
    ]


def test_same_head_before_too_much_too_little_and_enough() -> None:
    document = {"inputs": [BINARY_ITEM]}
    assert refused(document, THREE[:-1]).message.startswith(
        "unexpected size for input 'INPUT0', expecting 1 additional"
    )
    assert refused(document, THREE + b"x").message == "unexpected additional input data for model 'int32'"
    assert raw(decode(document, THREE)[0].inputs["INPUT0"]) == THREE


@pytest.mark.parametrize(("body", "header_length"), [(b"", None), (b"", 0), (b"hello", 0)])
def test_raw_request(body: bytes, header_length: int | None) -> None:
    request, form = decode_infer("int32", -1, memoryview(body), header_length, LIMIT)
    assert request.raw is not None
    assert bytes(request.raw.host()) == body
    assert (request.inputs, form.binary, form.listed) == ({}, True, {})


def test_json_past_the_limit_is_not_read() -> None:
    """The JSON is malformed, which the error does not mention (H17)."""
    error = refused_by_limit(b"{" * 101, None, 100)
    assert error == f"request JSON size of 101 bytes exceeds the maximum allowed input size of 100 bytes. {HINT}"


def test_remembered_head_is_not_let_past_the_limit() -> None:
    head = orjson.dumps({"inputs": [BINARY_ITEM]})
    body, size = head + THREE, len(head)
    for _ in range(2):
        assert decode_infer("int32", -1, memoryview(body), size, size)[0].inputs
        error = refused_by_limit(body, size, size - 1)
        assert error.startswith(
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {size - 1} "
        )


def test_binary_input_has_no_limit() -> None:
    document = {
        "inputs": [{"name": "A", "shape": [1000], "datatype": "INT8", "parameters": {"binary_data_size": 1000}}]
    }
    head = orjson.dumps(document)
    request, _ = decode_infer("int32", -1, memoryview(head + bytes(1000)), len(head), len(head))
    assert len(raw(request.inputs["A"])) == 1000


def test_json_input_past_the_limit() -> None:
    document = orjson.dumps({"inputs": [item(shape=[99], datatype="FP64")]})
    error = refused_by_limit(document, None, 100)
    assert error == (
        f"JSON input 'INPUT0' has a byte_size (792 bytes) that exceeds the maximum allowed value of 100 bytes. {HINT}"
    )


def test_raw_request_past_the_limit() -> None:
    assert decode_infer("int32", -1, memoryview(bytes(100)), 0, 100)[0].raw is not None
    error = refused_by_limit(bytes(101), 0, 100)
    assert error == f"Raw input has a byte_size (101 bytes) that exceeds the maximum allowed value of 100 bytes. {HINT}"


def test_outputs_and_their_form() -> None:
    binary = {"binary_data": True}
    outputs = [
        {"name": "A"},
        {"name": "B", "parameters": binary},
        {"name": "C", "parameters": []},
        {"name": "D", "parameters": {"binary_data": False, "x": 1}},
        {"name": "E", "parameters": {**binary, "classification": 0}},
    ]
    request, form = decode({"inputs": [], "outputs": outputs, "parameters": {"binary_data_output": True}})
    assert request.outputs == ("A", "B", "C", "D", "E")
    assert form.listed == {"A": False, "B": True, "C": False, "D": False, "E": True}
    assert form.binary is True
    request, form = decode({"inputs": [], "outputs": [], "parameters": {"binary_data_output": True}})
    assert (request.outputs, form.binary, form.listed) == ((), True, {})


def test_parameters_of_a_request() -> None:
    own = {"s": "x", "i": 5, "n": -7, "b": True, "d": 1.5, "headers": "h", "": 1, "big": 2**64 - 1}
    reserved = {
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 2,
        "timeout": 2**64 - 1,
        "binary_data_output": False,
    }
    request, form = decode({"inputs": [], "parameters": {**own, **reserved}})
    assert request.parameters == {**own, "big": 1.8446744073709552e19}
    assert type(request.parameters["big"]) is float
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == (7, True, True)
    assert (request.priority, request.timeout_us, form.binary) == (2, 2**64 - 1, False)
    assert decode({"inputs": [], "parameters": {"sequence_id": "abc"}})[0].correlation_id == "abc"


def test_id_of_bytes_that_are_not_text() -> None:
    request, _ = decode(b'{"id":"\xff\\u00e9","inputs":[]}')
    assert encode_error(Invalid(request.log_prefix)) == b'{"error":"[request id: \xff\xc3\xa9] "}'


def test_datatype_that_does_not_exist_is_left_to_the_core() -> None:
    request, _ = decode({"inputs": [{**BINARY_ITEM, "datatype": "INT33"}]}, THREE)
    assert str(request.inputs["INPUT0"].datatype) == "<invalid>"
    request, _ = decode({"inputs": [item(datatype="INT33", shape=[0])]})
    assert str(request.inputs["INPUT0"].datatype) == "<invalid>"


def test_dimension_beyond_64_signed_bits() -> None:
    request, _ = decode({"inputs": [{**BINARY_ITEM, "shape": [2**63, 1]}]}, THREE)
    assert request.inputs["INPUT0"].shape == (-(2**63), 1)


# Responses.


@pytest.mark.parametrize(
    ("response", "form", "body", "header_length"),
    [
        (
            answer([output(INT32, (3,), THREE)], "a"),
            JSON_FORM,
            b'{"id":"a","model_name":"int32","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32",'
            b'"shape":[3],"data":[1,2,3]}]}',
            None,
        ),
        (
            answer([output(FP32, (2, 2), struct.pack("<4f", 1, 2, 3, 4.5))], model="unbatched_fixed"),
            JSON_FORM,
            b'{"model_name":"unbatched_fixed","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32",'
            b'"shape":[2,2],"data":[1.0,2.0,3.0,4.5]}]}',
            None,
        ),
        (
            answer([output(INT32, (3,), THREE)]),
            ResponseForm(True, {}),
            b'{"model_name":"int32","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[3],'
            b'"parameters":{"binary_data_size":12}}]}' + THREE,
            141,
        ),
        (
            answer([output(INT32, (3,), THREE)]),
            ResponseForm(True, {"OUTPUT0": False}),
            b'{"model_name":"int32","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[3],'
            b'"data":[1,2,3]}]}',
            None,
        ),
        (
            answer([output(INT32, (0,), b"")]),
            ResponseForm(True, {}),
            b'{"model_name":"int32","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[0],'
            b'"parameters":{"binary_data_size":0}}]}',
            None,
        ),
        (
            answer([output(INT32, (0,), b"")]),
            JSON_FORM,
            b'{"model_name":"int32","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[0],'
            b'"data":[]}]}',
            None,
        ),
        (
            answer(
                [
                    output(INT32, (1, 2), struct.pack("<2i", 7, 8)),
                    output(FP32, (1, 3), struct.pack("<3f", 0.5, 1, 2), "OUTPUT1"),
                ],
                model="pair",
            ),
            ResponseForm(False, {"OUTPUT1": True}),
            b'{"model_name":"pair","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],'
            b'"data":[7,8]},{"name":"OUTPUT1","datatype":"FP32","shape":[1,3],"parameters":{"binary_data_size":12}}]}'
            b"\x00\x00\x00?\x00\x00\x80?\x00\x00\x00@",
            206,
        ),
        (
            answer([output(BYTES, (3,), b'\2\0\0\0\xff\x1f\0\0\0\0\1\0\0\0"')], 'a"b/\x01é', model="bytes"),
            JSON_FORM,
            b'{"id":"a\\"b/\\u0001\xc3\xa9","model_name":"bytes","model_version":"1","outputs":[{"name":"OUTPUT0",'
            b'"datatype":"BYTES","shape":[3],"data":["\xff\\u001F","","\\""]}]}',
            None,
        ),
        (
            answer([], parameters={"b": True, "i": -5, "s": 'x"', "d": 1e-7}),
            JSON_FORM,
            b'{"model_name":"int32","model_version":"1","parameters":{"b":true,"i":-5,"s":"x\\"","d":1e-7},'
            b'"outputs":[]}',
            None,
        ),
    ],
)
def test_response_bytes(response: InferResponse, form: ResponseForm, body: bytes, header_length: int | None) -> None:
    buffers, length = encode_infer(response, form)
    assert joined(buffers) == body
    assert length == header_length


@pytest.mark.parametrize("count", [0, 1, 3, 16, 17])
def test_response_that_was_written_before_is_written_alike(count: int) -> None:
    """Binary outputs: their JSON is remembered, and their bytes are not."""
    form = ResponseForm(True, {})
    for data in (b"\1\0\0\0", b"\2\0\0\0"):
        outputs = [output(INT32, (1,), data, f"O{i}") for i in range(count)]
        first, length = encode_infer(answer(outputs), form)
        named, named_length = encode_infer(answer(outputs, 'a"b'), form)
        whole = orjson.loads(first[0])
        assert [item["name"] for item in whole["outputs"]] == [f"O{i}" for i in range(count)]
        assert orjson.loads(named[0]) == {"id": 'a"b', **whole}
        assert [bytes(view) for view in first[1:]] == [bytes(view) for view in named[1:]] == [data] * count
        assert (length, named_length) == ((len(first[0]), len(named[0])) if count else (None, None))


def test_ensemble_without_a_sequence_is_written_as_any_parameters() -> None:
    known, other = (encode_infer(answer([], parameters=each), JSON_FORM) for each in (NO_SEQUENCE, dict(NO_SEQUENCE)))
    assert known == other
    assert b'"parameters":{"sequence_id":0,"sequence_start":false,"sequence_end":false}' in known[0][0]


def test_binary_output_is_not_copied() -> None:
    data = bytearray(THREE)
    response = answer([Tensor("OUTPUT0", INT32, (3,), HostMemory(data))])
    buffers, _ = encode_infer(response, ResponseForm(True, {}))
    view = buffers[1]
    assert isinstance(view, memoryview)
    assert view.obj is data


@pytest.mark.parametrize("datatype", [FP16, BF16])
def test_half_precision_goes_binary_only(datatype: DataType) -> None:
    response = answer([output(datatype, (1,), b"\0<")])
    buffers, length = encode_infer(response, ResponseForm(True, {}))
    assert joined(buffers)[length:] == b"\0<"
    with pytest.raises(Invalid, match=f"^sending {datatype} data via JSON is not supported"):
        encode_infer(response, JSON_FORM)


def test_response_parameter_without_a_json_type() -> None:
    parameters: Any = {"x": b"bytes"}
    with pytest.raises(Unsupported) as caught:
        encode_infer(answer([], parameters=parameters), JSON_FORM)
    assert caught.value.message == (
        "Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported"
    )


def test_error_body() -> None:
    assert encode_error(Invalid('a "b"\n\x1f/é\'')) == b'{"error":"a \\"b\\"\\n\\u001F/\xc3\xa9\'"}'


# Both ways.

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from(list(DATATYPES.values())))
    shape = draw(shapes)
    count = int(np.prod(shape, dtype=int))
    if datatype is BYTES:
        elements = np.empty(count, dtype=object)
        elements[:] = draw(st.lists(st.binary(max_size=6), min_size=count, max_size=count))
        return tensor_of("T", datatype, elements.reshape(shape))
    data = draw(st.binary(min_size=count * datatype.size, max_size=count * datatype.size))
    if datatype.name == "BOOL":
        data = bytes(byte & 1 for byte in data)
    return Tensor("T", datatype, shape, HostMemory(data))


def as_request(body: bytes, header_length: int | None) -> tuple[InferRequest, ResponseForm]:
    """A response read as a request: its outputs become inputs."""
    end = len(body) if header_length is None else header_length
    head = body[:end].replace(b'"outputs":[', b'"inputs":[', 1)
    return decode_infer("m", 1, memoryview(head + body[end:]), None if header_length is None else len(head), LIMIT)


@given(tensors(), st.text(st.characters(codec="utf-8")))
def test_tensor_travels_binary(tensor: Tensor, request_id: str) -> None:
    buffers, length = encode_infer(answer([tensor], request_id), ResponseForm(True, {}))
    request, _ = as_request(joined(buffers), length)
    found = request.inputs["T"]
    assert (found.datatype, found.shape, raw(found), request.id) == (
        tensor.datatype,
        tensor.shape,
        raw(tensor),
        request_id,
    )


@given(tensors())
def test_tensor_travels_as_json(tensor: Tensor) -> None:
    if tensor.datatype in (FP16, BF16):
        with pytest.raises(Invalid):
            encode_infer(answer([tensor]), JSON_FORM)
        return
    buffers, length = encode_infer(answer([tensor]), JSON_FORM)
    assert length is None
    found = as_request(joined(buffers), None)[0].inputs["T"]
    assert (found.datatype, found.shape) == (tensor.datatype, tensor.shape)
    # A number that is not one arrives as one of its many.
    assert np.array_equal(array_of(found), array_of(tensor), equal_nan=tensor.datatype.numpy.kind == "f")


VALID: list[tuple[bytes, int]] = []
for _document, _tail in (
    ({"id": "a", "inputs": [BINARY_ITEM], "outputs": [{"name": "O", "parameters": {"binary_data": True}}]}, THREE),
    ({"inputs": [item(datatype="FP32", shape=[2, 2], data=[[1, 2.5], [3e-7, -4]])]}, b""),
    ({"inputs": [item(datatype="BYTES", shape=[2], data=["a\n", "é"])], "parameters": {"timeout": 5, "x": "y"}}, b""),
    ({"inputs": [item(name="A", datatype="BOOL", data=[True]), BINARY_ITEM], "outputs": [{"name": "O"}]}, THREE),
):
    _head = orjson.dumps(_document)
    VALID.append((_head + _tail, len(_head)))


@settings(max_examples=1000)
@given(st.integers(0, len(VALID) - 1), st.integers(0, 2**32), st.integers(1, 4))
def test_corrupted_request_is_read_or_refused(which: int, seed: int, changes: int) -> None:
    chance = random.Random(seed)
    text, length = VALID[which]
    body = bytearray(text)
    for _ in range(changes):
        at = chance.randrange(len(body))
        match chance.randrange(4):
            case 0:
                body[at] = chance.randrange(256)
            case 1:
                del body[at : at + chance.randrange(1, 9)]
            case 2:
                body[at:at] = bytes(chance.choices(b'{}[]",:0123456789eE.-ntf\\ \x00\xff', k=chance.randrange(1, 5)))
            case _:
                start = chance.randrange(len(body))
                body[at:at] = body[start : start + chance.randrange(1, 20)]
        body = body or bytearray(b"{")
    header_length = chance.choice([None, min(length, len(body)), chance.randrange(len(body) + 1)])
    try:
        request, form = decode_infer("m", 1, memoryview(body), header_length, LIMIT)
    except Error as error:
        refusal = encode_error(error).decode("utf-8", "replace")
    else:
        refusal = ""
    if refusal:
        assert orjson.loads(refusal)["error"]
        return
    outputs = [tensor for tensor in request.inputs.values() if tensor.datatype.size]
    try:
        buffers, _ = encode_infer(InferResponse(request.id, "m", 1, outputs), form)
    except Error:
        return
    assert joined(buffers).startswith(b"{")
