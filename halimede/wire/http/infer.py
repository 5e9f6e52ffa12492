"""The HTTP protocol's bodies: bytes to inference requests and responses to bytes (contract H13, H33-H49).

Pure functions: no sockets, no headers but their values, no engine. Callable on any thread. Clients send the same JSON
head with every request of a kind, so the last few hundred short ones are remembered as they were understood.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from halimede.errors import Error, Invalid, Unsupported
from halimede.requests import NO_SEQUENCE, InferRequest, InferResponse, Parameters
from halimede.tensors import Buffer, DataType, HostMemory, Memory, RegionReference, Shape, Tensor, shape_text
from halimede.wire.http import json
from halimede.wire.http.head import InferHead, ResponseForm, read_head
from halimede.wire.http.json_data import INT64_MAX, write_data
from halimede.wire.http.metadata import encode_model_metadata, encode_server_metadata, encode_statistics

__all__ = [
    "ResponseForm",
    "decode_infer",
    "encode_error",
    "encode_infer",
    "encode_model_metadata",
    "encode_server_metadata",
    "encode_statistics",
    "json_bytes",
    "parse_header_length",
    "parse_version",
]

# What stands in the path and the headers.


def parse_version(text: str) -> int:
    """The version in a path, -1 for an empty one. Raises Invalid past 64 bits (contract H13)."""
    if not text:
        return -1
    digits = text.lstrip("0") or "0"
    if len(digits) > 19 or not digits.isdecimal() or int(digits) > INT64_MAX:
        raise Invalid(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    return int(digits)


_INTEGER = re.compile(r"\s*([+-]?)([0-9]+)\s*", re.ASCII)
_HEADER: Final = "Unable to parse Inference-Header-Content-Length"


@lru_cache(maxsize=1024)
def parse_header_length(value: bytes | None, content_length: int) -> int | None:
    """The bytes of JSON that begin a body of `content_length` bytes, by the value of the header that says so; None
    without one. Raises Invalid (contract H33)."""
    if value is None:
        return None
    text = value.decode("latin-1")
    found = _INTEGER.fullmatch(text)
    if found is None:
        raise Invalid(f"{_HEADER}, got: {text}")
    length = int(found[1] + (found[2].lstrip("0")[:20] or "0"))
    if not -(2**31) <= length < 2**31:
        raise Invalid(f"{_HEADER}, value is out of range [ {-(2**31)}, {2**31 - 1} ], got: {text}")
    if not 0 <= length <= content_length:
        raise Invalid(f"inference header size should be in range (0, {content_length}), got: {text}")
    return length


# Requests.

_MAX_KNOWN_HEADS: Final = 256
_MAX_KNOWN_HEAD_BYTES: Final = 1024
"""Bytes of a head that is remembered."""
_RAW_FORM: Final = ResponseForm(True, {})


def decode_infer(
    model: str, version: int, body: memoryview, header_length: int | None, max_input_size: int
) -> tuple[InferRequest, ResponseForm]:
    """The inference that `body` asks of a model.

    `header_length` is how much of the body is JSON, None for all of it; a body without JSON is raw input (H34, D45).
    Binary inputs are views of `body`, JSON inputs new bytes. Neither the JSON, nor an input in it, nor raw input may
    have more than `max_input_size` bytes (H17). Raises Error: Internal where JSON is malformed or of a wrong type
    (H19), else Invalid or Unsupported.
    """
    request = InferRequest(model, version)
    end = len(body)
    at = end if header_length is None else header_length
    if at == 0:
        if end > max_input_size:
            raise Invalid(
                f"Raw input has a byte_size ({end} bytes) that exceeds the maximum allowed value of {max_input_size} "
                "bytes. Use --http-max-input-size to increase the limit."
            )
        request.raw = HostMemory(body)
        return request, _RAW_FORM
    if at > max_input_size:
        raise Invalid(
            f"request JSON size of {at} bytes exceeds the maximum allowed input size of {max_input_size} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    head = None
    text: Buffer = body
    if at < end:
        text = body[:at]
    if at <= _MAX_KNOWN_HEAD_BYTES:
        text = bytes(text)
        if at < end or b'"data"' not in text:  # with data in it, it hardly comes again
            head = _remembered(text)
    if head is None or head.binary_size != end - at:
        head = read_head(text, model, end - at, max_input_size)
    request.form = head.tensors
    request.id = head.id
    request.outputs = head.outputs
    if head.fields:
        for field, value in head.fields.items():
            setattr(request, field, value)
    if head.parameters:
        request.parameters = head.parameters.copy()
    inputs = request.inputs
    if head.in_regions:
        request.in_regions = True
        request.destinations = head.destinations
    memory: Memory
    for name, datatype, shape, size, data in head.inputs:
        if data is None:
            memory = HostMemory(body[at : at + size])
            at += size
        else:
            memory = data if isinstance(data, RegionReference) else HostMemory(data)
        inputs[name] = Tensor(name, datatype, shape, memory)
    return request, head.form


@lru_cache(maxsize=_MAX_KNOWN_HEADS)
def _remembered(text: bytes) -> InferHead | None:
    """The head whatever follows it; None if something is wrong with it or it carries data itself (which is also what
    the limit of the server concerns)."""
    try:
        head = read_head(text, "", None)
    except Error:
        return None
    return None if any(isinstance(data, bytes) for *_, data in head.inputs) else head


# Responses.

_MAX_KNOWN_OUTPUTS: Final = 16
"""Of a response whose JSON is remembered: 1,024 of a thousand outputs each would take 214 MiB, of so many 4."""


def encode_infer(response: InferResponse, form: ResponseForm) -> tuple[list[Buffer], int | None]:
    """The body as buffers (the JSON, then the binary outputs where they are), and the value of the header
    Inference-Header-Content-Length, None without binary bytes (contract H43-H45). Raises Error (H39)."""
    if response.parameters or len(response.outputs) > _MAX_KNOWN_OUTPUTS:
        return _encode_mixed(response, form)
    listed, binary = form.listed, form.binary
    buffers: list[Buffer] = [b""]
    said: tuple[tuple[str, DataType, Shape, int], ...] = ()
    for tensor in response.outputs:
        if not listed.get(tensor.name, binary):
            return _encode_mixed(response, form)
        memory = tensor.memory
        size = memory.byte_size
        said += ((tensor.name, tensor.datatype, tensor.shape, size),)
        if size:
            buffers.append(memory.host())
    head = _binary_head(response.model_name, response.model_version, said)
    if response.id:
        head = b"{%b%b" % (_identity(response.id), head[1:])
    buffers[0] = head
    return buffers, len(head) if len(buffers) > 1 else None


@lru_cache(maxsize=1024)
def _binary_head(model_name: str, model_version: int, outputs: Sequence[tuple[str, DataType, Shape, int]]) -> bytes:
    """The JSON of a response without id and parameters whose outputs all go binary: it comes again and again."""
    written = [
        b'%b"parameters":{"binary_data_size":%d}}' % (_output_head(name, datatype, shape), size)
        for name, datatype, shape, size in outputs
    ]
    return b'{%b"outputs":[%b]}' % (_response_head(model_name, model_version), b",".join(written))


def _encode_mixed(response: InferResponse, form: ResponseForm) -> tuple[list[Buffer], int | None]:
    """The same of any response."""
    listed, binary = form.listed, form.binary
    outputs: list[bytes] = []
    buffers: list[Buffer] = [b""]
    for tensor in response.outputs:
        memory = tensor.memory
        head = _output_head(tensor.name, tensor.datatype, tensor.shape)
        wanted = listed.get(tensor.name, binary)
        if wanted:
            size = memory.byte_size
            outputs.append(b'%b"parameters":{"binary_data_size":%d}}' % (head, size))
            if size:
                buffers.append(memory.host())
        elif wanted is None:
            outputs.append(head[:-1] + b"}")
        else:
            outputs.append(b'%b"data":%b}' % (head, write_data(tensor)))
    head = _response_head(response.model_name, response.model_version)
    if response.parameters:
        head = b'%b"parameters":%b,' % (head, _parameters(response.parameters))
    head = b'{%b%b"outputs":[%b]}' % (_identity(response.id), head, b",".join(outputs))
    buffers[0] = head
    return buffers, len(head) if len(buffers) > 1 else None


def _identity(request_id: str) -> bytes:
    return b'"id":%b,' % json.encode(json.quote(request_id)) if request_id else b""


def json_bytes(response: InferResponse, form: ResponseForm) -> int:
    """How many bytes of tensors this form of the response turns into JSON: what decides where it is encoded."""
    listed, binary, size = form.listed, form.binary, 0
    for tensor in response.outputs:
        if not listed.get(tensor.name, binary):
            size += tensor.memory.byte_size
    return size


@lru_cache(maxsize=1024)
def _output_head(name: str, datatype: DataType, shape: Shape) -> bytes:
    """The beginning of an output; the same ones come again and again."""
    return json.encode(f'{{"name":{json.quote(name)},"datatype":"{datatype}","shape":{shape_text(shape)},')


@lru_cache(maxsize=256)
def _response_head(model_name: str, model_version: int) -> bytes:
    return json.encode(f'"model_name":{json.quote(model_name)},"model_version":"{model_version}",')


def _parameters(parameters: Parameters) -> bytes:
    return _NO_SEQUENCE if parameters is NO_SEQUENCE else _written(parameters)


def _written(parameters: Mapping[str, object]) -> bytes:
    for value in parameters.values():
        if type(value) not in (bool, int, str, float):
            raise Unsupported("Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported")
    return json.encode(json.write(parameters))


_NO_SEQUENCE = _written(NO_SEQUENCE)


def encode_error(error: Error) -> bytes:
    """The body of every error."""
    return json.encode(f'{{"error":{json.quote(error.message)}}}')
