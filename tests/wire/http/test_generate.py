"""The bodies of the generate extension. The texts and shapes are what Triton 2.51 answers."""

import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from halimede.engine_port import TensorInfo
from halimede.errors import Error, Internal, Invalid, Unsupported
from halimede.requests import InferRequest, InferResponse, Parameters
from halimede.tensors import (
    BF16,
    BOOL,
    BYTES,
    FP16,
    FP32,
    INT8,
    INT32,
    UINT64,
    DataType,
    HostMemory,
    Shape,
    Tensor,
    join_bytes,
)
from halimede.wire.http import json as json_text
from halimede.wire.http.generate import data_bytes, decode_generate, encode_generate, event

LIMIT = 1 << 20
WRONG_TYPE = "parameter '{}' has invalid type. It should be either 'int', 'bool', or 'string'."
INPUTS = (
    TensorInfo("I", INT32, (-1,)),
    TensorInfo("S", BYTES, (-1,)),
    TensorInfo("TWO", BYTES, (2,)),
    TensorInfo("HALF", FP16, (2,)),
    TensorInfo("ANY", BF16, (-1,)),
)


def decoded(body: Any, inputs: Sequence[TensorInfo] = INPUTS, limit: int = LIMIT) -> InferRequest:
    """`body` is JSON text or what becomes JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    return decode_generate("m", 3, inputs, memoryview(text.encode()), limit)


def refused(body: Any, inputs: Sequence[TensorInfo] = INPUTS, limit: int = LIMIT) -> tuple[type[Error], str]:
    with pytest.raises(Error) as caught:
        decoded(body, inputs, limit)
    return type(caught.value), caught.value.message


def one(datatype: DataType, shape: Shape, value: Any) -> Tensor:
    return decoded({"X": value}, [TensorInfo("X", datatype, shape)]).inputs["X"]


# Requests.


@pytest.mark.rows("H48", "H131")
@pytest.mark.parametrize(
    "body",
    ['{"I":1,"I":2}', '{"I" :1,"I"\n:1}', r'{"I":1,"\u0049":2}', '{"parameters":{"I":1,"I":2}}', '{"I":1,"I":"x"}'],
)
def test_input_given_twice_is_refused(body: str) -> None:
    prefix = "Converting keyword: 'parameters': " if "parameters" in body else ""
    assert refused(body) == (Invalid, f"{prefix}[request id: <id_unknown>] input 'I' already exists in request")


def test_value_nested_too_deep_beside_equal_keys_is_refused() -> None:
    assert refused('{"p":1,"p":2,"I":' + "[" * 990 + "]" * 990 + "}") == (Invalid, json_text.NESTING_TEXT)


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        ('{"p":1,"p":2}', {"p": 1}),
        ('{"p":1,"p":[]}', {"p": 1}),
        ('{"p":1,"p":[[1],[{"a":[1]}]]}', {"p": 1}),
        ('{"p":1,"p":2,"n":9223372036854775808}', {"p": 1, "n": 9223372036854775808.0}),
        ('{"parameters":{"p":1,"q":"é"},"parameters":{"p":2}}', {"p": 1, "q": "é"}),
        ('{"parameters":{"p":1,"p":2}}', {"p": 1}),
        ('{"p":1,"parameters":{"p":2}}', {"p": 2}),
        (r'{"q":"\"p\":1","p":1,"p":2}', {"q": '"p":1', "p": 1}),
    ],
)
def test_parameter_given_twice_has_its_first_value(body: str, parameters: Parameters) -> None:
    assert decoded(body).parameters == parameters


def test_request_has_the_model_and_takes_any_number_of_responses() -> None:
    request = decoded({"id": "a", "I": [1, 2], "S": "text"})
    assert (request.model_name, request.version, request.id) == ("m", 3, "a")
    assert request.decoupled_ok
    assert list(request.inputs) == ["I", "S"]
    assert bytes(request.inputs["I"].memory.host()) == struct.pack("<2i", 1, 2)
    assert bytes(request.inputs["S"].memory.host()) == join_bytes([b"text"])
    assert request.parameters == {"id": "a"}
    assert request.outputs == ()


def test_id_that_is_an_input_is_both() -> None:
    request = decoded({"id": "a"}, [TensorInfo("id", BYTES, (-1, 1))])
    assert request.id == "a"
    assert request.inputs["id"].shape == (1, 1)
    assert request.parameters == {}


def test_keys_that_name_no_input_are_parameters() -> None:
    values: Parameters = {"s": "x", "b": True, "i": -1, "f": 1.5, "": 0}
    assert decoded(values).parameters == values


def test_no_key_means_anything_to_the_server() -> None:
    values: Parameters = {
        "sequence_id": 3,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 2,
        "timeout": 7,
        "binary_data_output": True,
        "triton_x": 1,
        "headers": "h",
    }
    request = decoded(values)
    assert request.parameters == values
    assert (request.correlation_id, request.priority, request.timeout_us) == (0, 0, 0)
    assert not request.sequence_start
    assert not request.sequence_end


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", float(2**63)),
        ("18446744073709551616", float(2**64)),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_parameter_beyond_64_bits_is_a_double(text: str, value: float) -> None:
    parameters = decoded(f'{{"p":{text}}}').parameters
    assert parameters == {"p": value}
    assert type((parameters or {})["p"]) is type(value)


def test_members_of_parameters_are_mapped_as_if_they_stood_beside_it() -> None:
    request = decoded({"parameters": {"I": [1], "p": 1, "id": "no", "parameters": 5}, "q": 2})
    assert request.id == ""
    assert list(request.inputs) == ["I"]
    assert request.parameters == {"p": 1, "id": "no", "parameters": 5, "q": 2}


def test_of_a_parameter_given_inside_and_outside_the_later_counts() -> None:
    assert decoded({"parameters": {"p": 1}, "p": 2}).parameters == {"p": 2}
    assert decoded({"p": 2, "parameters": {"p": 1}}).parameters == {"p": 1}


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("", Internal, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ("{", Internal, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (
            '{"p":1e400}',
            Internal,
            "failed to parse the request JSON buffer: Number too big to be stored in double. at 5",
        ),
        ("[]", Internal, "attempt to get members for non-object"),
        ("null", Internal, "attempt to get members for non-object"),
        ('{"id":1}', Internal, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ('{"I":"x","id":1}', Internal, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ('{"p":null,"I":"x"}', Invalid, WRONG_TYPE.format("p")),
        ('{"z":[],"a":{}}', Invalid, WRONG_TYPE.format("z")),
        (
            '{"I":"x","p":null}',
            Internal,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        (
            '{"parameters":[]}',
            Internal,
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            '{"parameters":{"parameters":{}}}',
            Invalid,
            "Converting keyword: 'parameters': " + WRONG_TYPE.format("parameters"),
        ),
        (
            '{"parameters":{"I":"x"}}',
            Internal,
            "Converting keyword: 'parameters': "
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        (
            '{"I":1,"parameters":{"I":1}}',
            Invalid,
            "Converting keyword: 'parameters': [request id: <id_unknown>] input 'I' already exists in request",
        ),
        (
            '{"id":"7","parameters":{"I":1},"I":1}',
            Invalid,
            "[request id: 7] input 'I' already exists in request",
        ),
    ],
)  # fmt: skip
def test_wrong_body_is_refused_in_the_order_of_its_keys(body: str, kind: type[Error], text: str) -> None:
    assert refused(body) == (kind, text)


@pytest.mark.parametrize("value", [1, {"a": 1}, [1, 2]])
def test_model_with_an_input_named_parameters_takes_no_such_key(value: Any) -> None:
    inputs = [TensorInfo("parameters", INT32, (-1,))]
    text = "Keyword 'parameters' for nested schema also given as input tensor name"
    assert refused({"parameters": value}, inputs) == (Invalid, text)


def test_large_bodies_and_tensors_are_refused() -> None:
    text = "exceeds the maximum allowed"
    assert text in refused({"p": "x" * 100}, limit=100)[1]
    kind, message = refused('{"X":[1,1,1,1,1,1,1,1]}', [TensorInfo("X", UINT64, (-1,))], limit=50)
    assert (kind, text in message) == (Invalid, True)
    assert message.startswith("JSON input 'X' has a byte_size (64 bytes)")


def test_deep_nesting_is_refused() -> None:
    deep = "[" * 5000 + "]" * 5000
    assert refused(f'{{"I":{deep}}}')[0] is Invalid
    assert refused(f'{{"p":{deep}}}')[0] is Invalid


# Tensors.


@pytest.mark.parametrize(
    ("dims", "count", "shape"),
    [
        ((-1,), 3, (3,)),
        ((-1,), 0, (0,)),
        ((1,), 1, (1,)),
        ((), 1, ()),
        ((2, 3), 6, (2, 3)),
        ((-1, 3), 3, (1, 3)),
        ((-1, 3), 6, (2, 3)),
        ((-1, 3), 0, (0, 3)),
        ((-1, -1), 6, (1, 6)),
        ((-1, -1), 0, (1, 0)),
        ((-1, 3, -1), 6, (1, 3, 2)),
        ((-1, 3, -1), 0, (1, 3, 0)),
        ((-1, -1, 2), 4, (1, 2, 2)),
    ],
)
def test_shape_that_the_elements_have(dims: Shape, count: int, shape: Shape) -> None:
    tensor = one(INT32, dims, list(range(count)))
    assert tensor.shape == shape
    assert bytes(tensor.memory.host()) == struct.pack(f"<{count}i", *range(count))


@pytest.mark.parametrize(
    ("dims", "count"),
    [
        *[((1,), 0), ((1,), 2), ((2, 3), 0), ((2, 3), 1), ((2, 3), 7), ((2, 3), 12)],
        *[((-1, 3), 2), ((-1, 3, -1), 7), ((0,), 1)],
    ],
)
def test_elements_that_have_no_shape_are_refused(dims: Shape, count: int) -> None:
    text = "The schema can not convert input 'X' to tensor with proper shape"
    assert refused({"X": [1] * count}, [TensorInfo("X", INT32, dims)]) == (Invalid, text)


@pytest.mark.parametrize("value", [1, [1], [[1]], [[[1]]]])
def test_one_value_may_stand_in_any_number_of_lists(value: Any) -> None:
    tensor = one(INT8, (-1,), value)
    assert (tensor.shape, bytes(tensor.memory.host())) == ((1,), b"\1")


def test_nested_lists_count_as_elements_of_the_outermost() -> None:
    assert one(INT8, (-1,), [[1], [2], 3]).shape == (3,)
    facts = [TensorInfo("X", INT8, (-1,))]
    text = "Unable to parse 'data': Shape does not match true shape of 'data' field"
    assert refused({"X": [[1, 2], [3]]}, facts) == (Internal, text)
    strings = one(BYTES, (-1,), [["a", "b"], "c"])  # whether they fill the shape is the core's to say
    assert (strings.shape, bytes(strings.memory.host())) == ((2,), join_bytes([b"a", b"b", b"c"]))


def test_numbers_lose_their_high_bits() -> None:
    assert bytes(one(INT8, (-1,), [300, 2147483648, -1]).memory.host()) == b"\x2c\0\xff"


@pytest.mark.parametrize(
    ("datatype", "value", "text"),
    [
        (BOOL, 1, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        (INT32, 1.5, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (INT32, 2**64, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (UINT64, -1, "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (FP32, "x", "Unable to parse 'data': attempt to access JSON non-number as double"),
        (FP32, True, "Unable to parse 'data': attempt to access JSON non-number as double"),
        (INT32, None, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (INT32, {}, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (BYTES, 1, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        (BYTES, ["a", None], "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
    ],
)
def test_element_of_a_wrong_type_is_refused(datatype: DataType, value: Any, text: str) -> None:
    assert refused({"X": value}, [TensorInfo("X", datatype, (-1,))]) == (Internal, text)


@pytest.mark.parametrize("value", [1, [], [1, 2], ["x"]])
def test_half_precision_is_refused_also_where_it_is_empty(value: Any) -> None:
    text = "receiving BF16 data via JSON is not supported. Please use the binary data format for input ANY"
    assert refused({"ANY": value}) == (Invalid, text)


def test_shape_is_checked_before_types_of_numbers_and_after_types_of_strings() -> None:
    text = "The schema can not convert input '{}' to tensor with proper shape"
    assert refused({"HALF": 1}) == (Invalid, text.format("HALF"))
    assert refused({"TWO": "x"}) == (Invalid, text.format("TWO"))
    assert refused({"TWO": 1})[1].startswith("Unable to parse JSON bytes array")


# Responses.


def tensor(name: str, *values: int, shape: Shape | None = None) -> Tensor:
    return Tensor(name, INT32, shape or (len(values),), HostMemory(struct.pack(f"<{len(values)}i", *values)))


def response(*outputs: Tensor, id: str = "", parameters: Parameters | None = None) -> InferResponse:
    return InferResponse(id, "m", 2, list(outputs), parameters)


def test_keys_of_a_response_are_sorted_by_their_bytes() -> None:
    text = encode_generate(response(tensor("zz", 1), tensor("é", 2), tensor("B", 3), tensor("b", 4), id="x"))
    assert text.decode() == '{"B":3,"b":4,"id":"x","model_name":"m","model_version":"2","zz":1,"é":2}'


def test_response_without_anything_names_its_model() -> None:
    assert encode_generate(response()) == b'{"model_name":"m","model_version":"2"}'


def test_response_parameter_without_a_json_type_is_named() -> None:
    parameters: Any = {"x": b"bytes"}
    with pytest.raises(Unsupported) as caught:
        encode_generate(response(parameters=parameters))
    assert caught.value.message == (
        "Response parameter 'x' has type 'TRITONSERVER_PARAMETER_BYTES' which is not currently supported"
    )


def test_single_element_is_bare_and_others_are_flat() -> None:
    text = encode_generate(
        response(
            tensor("one", 7, shape=(1, 1)),
            tensor("scalar", 8, shape=()),
            tensor("none", shape=(0, 2)),
            tensor("more", 1, 2, 3, 4, shape=(2, 2)),
            Tensor("text", BYTES, (1,), HostMemory(join_bytes([b'[1]"']))),
            Tensor("texts", BYTES, (2,), HostMemory(join_bytes([b"a\n\n", b""]))),
            Tensor("real", FP32, (1,), HostMemory(struct.pack("<f", float("nan")))),
        )
    )
    assert text == (
        b'{"model_name":"m","model_version":"2","more":[1,2,3,4],"none":[],"one":7,"real":NaN,"scalar":8,'
        b'"text":"[1]\\"","texts":["a\\n\\n",""]}'
    )


def test_parameters_of_a_response_stand_beside_its_outputs() -> None:
    text = encode_generate(response(tensor("O", 1), parameters={"p": 1.5, "a": "x", "b": True, "n": -1}))
    assert text == b'{"O":1,"a":"x","b":true,"model_name":"m","model_version":"2","n":-1,"p":1.5}'


def test_of_equal_names_the_first_counts() -> None:
    parameters: Parameters = {"id": "p", "model_name": "p", "a": "p"}
    outputs = [tensor(name, 1) for name in ("id", "model_version", "a", "b")] + [tensor("b", 2)]
    text = encode_generate(response(*outputs, id="x", parameters=parameters))
    assert text == b'{"a":"p","b":1,"id":"x","model_name":"m","model_version":"2"}'
    assert encode_generate(response(tensor("id", 5))) == b'{"id":5,"model_name":"m","model_version":"2"}'


def test_types_without_a_json_form_are_refused() -> None:
    half = Tensor("h", FP16, (1,), HostMemory(b"ab"))
    with pytest.raises(Invalid, match="sending FP16 data via JSON is not supported"):
        encode_generate(response(half))
    with pytest.raises(Unsupported, match="TRITONSERVER_PARAMETER_BYTES"):
        encode_generate(response(parameters={"p": b"raw"}))  # type: ignore[dict-item]  # what a model may send
    with pytest.raises(Internal, match="output tensor shape does not match size of output for 'O'"):
        encode_generate(response(tensor("O", 1, shape=(2,))))


def test_event_is_one_line_and_a_blank_one() -> None:
    body = encode_generate(response(Tensor("t", BYTES, (1,), HostMemory(join_bytes([b"a\r\n\n"])))))
    sent = b"".join(event(body))
    assert sent.startswith(b"data: {")
    assert sent.endswith(b"}\n\n")
    assert sent.count(b"\n") == 2
    assert b"\r" not in sent


def test_bytes_of_a_response() -> None:
    assert data_bytes(response(tensor("a", 1, 2), tensor("b", 3))) == 12
