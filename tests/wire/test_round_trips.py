"""Any tensor of any datatype and shape comes out of the codecs of both protocols as it went in.

What one side has written is made a request by changing nothing but the names of its fields; it is read several times,
since what was read once is remembered.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from halimede.requests import InferRequest, InferResponse
from halimede.tensors import DATATYPES, DataType, array_of, tensor_of
from halimede.wire.grpc.infer import InferDecoder, InferEncoder
from halimede.wire.http.infer import ResponseForm, decode_infer, encode_infer
from tests.arrays import ALL_DATATYPES, EXACT_ONLY, TEXT_DATATYPES, Array, arrays, raw, same

LIMIT = 1 << 26
TIMES = 3

Given = tuple[DataType, Array]
any_tensor = ALL_DATATYPES.flatmap(lambda datatype: st.tuples(st.just(datatype), arrays(datatype)))
text_tensor = TEXT_DATATYPES.flatmap(lambda datatype: st.tuples(st.just(datatype), arrays(datatype)))
utf8_tensor = TEXT_DATATYPES.flatmap(lambda datatype: st.tuples(st.just(datatype), arrays(datatype, text=True)))


def check(request: InferRequest, tensors: Sequence[Given], exact: Sequence[bool]) -> None:
    assert list(request.inputs) == [f"T{at}" for at in range(len(tensors))]
    for came, (datatype, array), exactly in zip(request.inputs.values(), tensors, exact, strict=True):
        assert came.datatype is datatype
        assert came.shape == array.shape
        assert same(array_of(came), array, exactly), (array_of(came), array)


def response_of(tensors: Sequence[Given]) -> InferResponse:
    outputs = [tensor_of(f"T{at}", datatype, array) for at, (datatype, array) in enumerate(tensors)]
    return InferResponse("an id", "m", 1, outputs)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(any_tensor, st.booleans()), min_size=1, max_size=3))
def test_http_mixed(chosen: list[tuple[Given, bool]]) -> None:
    """JSON and binary beside each other, as the client wants each."""
    tensors = [tensor for tensor, _ in chosen]
    binary = [wanted or tensor[0].name in EXACT_ONLY for tensor, wanted in chosen]
    form = ResponseForm(False, {f"T{at}": wanted for at, wanted in enumerate(binary)})
    buffers, head_length = encode_infer(response_of(tensors), form)
    body = b"".join(bytes(buffer) for buffer in buffers)
    size = len(body) if head_length is None else head_length
    head = body[:size].replace(b'"outputs":[', b'"inputs":[', 1)
    for _ in range(TIMES):
        whole = memoryview(head + body[size:])
        request, _ = decode_infer("m", -1, whole, len(head), LIMIT)
        assert request.id == "an id"
        check(request, tensors, binary)


@settings(max_examples=120, deadline=None)
@given(any_tensor)
def test_http_binary_of_a_client(tensor: Given) -> None:
    datatype, array = tensor
    data = raw(array)
    item = {
        "name": "T0",
        "datatype": datatype.name,
        "shape": array.shape,
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [item]}).encode()
    for _ in range(TIMES):
        request, _ = decode_infer("m", -1, memoryview(head + data), len(head), LIMIT)
        check(request, [tensor], [True])


@settings(max_examples=120, deadline=None)
@given(utf8_tensor, st.booleans())
def test_http_json_of_a_client(tensor: Given, flat: bool) -> None:
    """Nested as the shape says, or flat."""
    datatype, array = tensor
    values = array.reshape(-1) if flat else array
    if datatype.name == "BYTES":
        values = np.vectorize(bytes.decode, otypes=[object])(values) if values.size else values
    data: Any = values.tolist() if values.shape else [values.item()]
    item = {"name": "T0", "datatype": datatype.name, "shape": array.shape, "data": data}
    text = json.dumps({"inputs": [item]}).encode()
    request, _ = decode_infer("m", -1, memoryview(text), None, LIMIT)
    check(request, [tensor], [False])


def grpc_request(tensors: Sequence[Given]) -> Any:
    message = pb.ModelInferRequest(model_name="m", id="an id")
    for at, (datatype, array) in enumerate(tensors):
        message.inputs.add(name=f"T{at}", datatype=datatype.name, shape=array.shape)
    return message


@settings(max_examples=120, deadline=None)
@given(st.lists(any_tensor, min_size=1, max_size=3))
def test_grpc_raw_contents(tensors: list[Given]) -> None:
    """A response made by us, whose outputs go back as the inputs of a request."""
    written = b"".join(bytes(buffer) for buffer in InferEncoder().response(response_of(tensors)))
    response = pb.ModelInferResponse.FromString(written)
    assert list(response.raw_output_contents) == [raw(array) for _, array in tensors]
    message = grpc_request(tensors)
    for item, output in zip(message.inputs, response.outputs, strict=True):
        assert (item.name, item.datatype, item.shape) == (output.name, output.datatype, output.shape)
    message.raw_input_contents.extend(response.raw_output_contents)
    decoder, sent = InferDecoder(), message.SerializeToString()
    for _ in range(TIMES):
        check(decoder.request(decoder.parse(sent), -1), tensors, [True] * len(tensors))


CONTENTS = {
    **{f"INT{width}": "int_contents" for width in (8, 16, 32)},
    **{f"UINT{width}": "uint_contents" for width in (8, 16, 32)},
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def test_every_datatype_has_contents_or_has_none() -> None:
    assert CONTENTS.keys() | EXACT_ONLY == DATATYPES.keys()


@settings(max_examples=120, deadline=None)
@given(st.lists(text_tensor, min_size=1, max_size=3))
def test_grpc_typed_contents(tensors: list[Given]) -> None:
    message = grpc_request(tensors)
    for item, (datatype, array) in zip(message.inputs, tensors, strict=True):
        item.contents.SetInParent()
        getattr(item.contents, CONTENTS[datatype.name]).extend(array.reshape(-1).tolist())
    decoder, sent = InferDecoder(), message.SerializeToString()
    for _ in range(TIMES):
        check(decoder.request(decoder.parse(sent), -1), tensors, [False] * len(tensors))
