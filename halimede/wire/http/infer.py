"""The HTTP bodies of inference: bytes to requests, and responses to bytes (H13, H33 to H49).

Pure functions. Any thread. Clients send the same JSON head with every request of a kind, so the last few hundred short
heads are remembered in parsed form.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from halimede.errors import Error, Invalid, Unsupported, shortened
from halimede.requests import NO_SEQUENCE, InferRequest, InferResponse, Parameters
from halimede.tensors import (
    Buffer,
    DataType,
    HostMemory,
    Memory,
    RegionReference,
    Shape,
    Tensor,
    frame_strings,
    has_many_strings,
    shape_text,
)
from halimede.wire.http import json
from halimede.wire.http.head import InferHead, ResponseForm, read_head
from halimede.wire.http.json_data import INT64_MAX, text_bytes_of, uncounted, write_data, write_slices

__all__ = [
    "ResponseForm",
    "check_strings",
    "decode_infer",
    "decode_large",
    "encode_error",
    "encode_infer",
    "has_many_strings_in",
    "json_bytes",
    "parse_header_length",
    "parse_version",
    "text_bytes",
]

# Path and headers.


def parse_version(text: str) -> int:
    """Returns the version in a path, -1 for an empty one. Raises Invalid beyond 64 bits (H13)."""
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


_MAX_KNOWN_VALUE_BYTES: Final = 32
"""Length of a value of the header that is remembered. A client may send longer ones: a number after many zeros."""


def parse_header_length(value: bytes | None, content_length: int) -> int | None:
    """Returns how many bytes of JSON begin a body of `content_length` bytes, by the value of the header, or None
    without a header. Raises Invalid (H33)."""
    if value is None:
        return None
    known = len(value) <= _MAX_KNOWN_VALUE_BYTES
    return _known_header_length(value, content_length) if known else _header_length(value, content_length)


def _header_length(value: bytes, content_length: int) -> int:
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


_known_header_length = lru_cache(maxsize=1024)(_header_length)


# Requests.

_MAX_KNOWN_HEADS: Final = 256
"""Number of heads that are remembered."""
_MAX_KNOWN_HEAD_BYTES: Final = 1024
"""Length of a head that is remembered."""
_RAW_FORM: Final = ResponseForm(True, {})


def decode_infer(
    model: str, version: int, body: memoryview, header_length: int | None, max_input_size: int
) -> tuple[InferRequest, ResponseForm]:
    """Returns the inference that `body` asks of a model.

    `header_length` is the number of bytes of JSON, None for all. A body without JSON is raw input (H34, D45). Binary
    inputs are views of `body`, and JSON inputs are new bytes. Neither the JSON, nor an input in it, nor raw input may
    have more than `max_input_size` bytes (H17). Raises Internal if JSON is malformed or has a wrong type (H19), else
    Invalid or Unsupported.
    """
    request = InferRequest(model, version)
    end = len(body)
    at = end if header_length is None else header_length
    # No JSON: the whole body is the only input of the model.
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
        # A head with data in it is rarely repeated.
        if at < end or b'"data"' not in text:
            head = _remembered(text)
    # A remembered head fits any body. If this body has another size, parsing the head again raises the error.
    if head is None or head.binary_size != end - at:
        head = read_head(text, model, end - at, max_input_size)
    request.form = head.tensors
    request.id = head.id
    request.outputs = head.outputs
    if head.fields:
        for field, value in head.fields.items():
            setattr(request, field, value)
    if head.parameters:
        # The head is shared. A request may change its parameters.
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
    """Returns the parsed head regardless of what follows it. Returns None if the head is wrong, or has data in it, to
    which the server's limit applies."""
    try:
        head = read_head(text, "", None)
    except Error:
        return None
    return None if any(isinstance(data, bytes) for *_, data in head.inputs) else head


def decode_large(
    model: str, version: int, body: memoryview, header_length: int | None, max_input_size: int
) -> tuple[InferRequest, ResponseForm]:
    """Does what `decode_infer` does, and checks the lengths of many strings. Lets other threads run meanwhile."""
    request, form = decode_infer(model, version, body, header_length, max_input_size)
    check_strings(request)
    return request, form


def has_many_strings_in(request: InferRequest) -> bool:
    """Whether it takes long to check the lengths of the strings of a request."""
    return any(map(has_many_strings, request.inputs.values()))


def check_strings(request: InferRequest) -> None:
    """Checks the lengths of many strings, for the check of the request. Any thread; lets others run meanwhile."""
    for tensor in request.inputs.values():
        if has_many_strings(tensor):
            frame_strings(tensor)


# Responses.

_MAX_KNOWN_OUTPUTS: Final = 16
"""Outputs of a response whose JSON is remembered. 1,024 responses with a thousand outputs each would take 214 MiB, with
16 they take 4."""


_LONG_DATA_BYTES: Final = 1 << 16
"""Size of an output whose JSON is written and sent in parts."""


def encode_infer(
    response: InferResponse, form: ResponseForm, made: Callable[[int], None] = uncounted
) -> tuple[list[Buffer], int | None]:
    """Returns the body as buffers (JSON, then binary outputs), and the value of Inference-Header-Content-Length, None
    without binary outputs (H43 to H45). Raises Error (H39). Calls `made` with the size of each piece of large JSON."""
    # Parameters differ between responses, so their JSON is not remembered.
    if response.parameters or len(response.outputs) > _MAX_KNOWN_OUTPUTS:
        return _encode_mixed(response, form, made)
    listed, binary = form.listed, form.binary
    buffers: list[Buffer] = [b""]
    outputs_key: tuple[tuple[str, DataType, Shape, int], ...] = ()
    for tensor in response.outputs:
        if not listed.get(tensor.name, binary):
            return _encode_mixed(response, form, made)
        memory = tensor.memory
        size = memory.byte_size
        outputs_key += ((tensor.name, tensor.datatype, tensor.shape, size),)
        if size:
            buffers.append(memory.host())
    head = _binary_head(response.model_name, response.model_version, outputs_key)
    if response.id:
        head = b"{%b%b" % (_identity(response.id), head[1:])
    buffers[0] = head
    return buffers, len(head) if len(buffers) > 1 else None


@lru_cache(maxsize=1024)
def _binary_head(model_name: str, model_version: int, outputs: Sequence[tuple[str, DataType, Shape, int]]) -> bytes:
    """Returns the JSON of a response without id and parameters whose outputs are all binary. It repeats."""
    written = [
        b'%b"parameters":{"binary_data_size":%d}}' % (_output_head(name, datatype, shape), size)
        for name, datatype, shape, size in outputs
    ]
    return b'{%b"outputs":[%b]}' % (_response_head(model_name, model_version), b",".join(written))


def _encode_mixed(
    response: InferResponse, form: ResponseForm, made: Callable[[int], None]
) -> tuple[list[Buffer], int | None]:
    """Encodes any response, with binary and JSON outputs. Returns what `encode_infer` returns."""
    listed, binary = form.listed, form.binary
    head = _response_head(response.model_name, response.model_version)
    if response.parameters:
        head = b'%b"parameters":%b,' % (head, _parameters(response.parameters))
    parts: list[Buffer] = [b'{%b%b"outputs":[' % (_identity(response.id), head)]
    buffers: list[Buffer] = []
    is_long = False
    comma = b""
    for tensor in response.outputs:
        memory = tensor.memory
        head = _output_head(tensor.name, tensor.datatype, tensor.shape)
        wanted = listed.get(tensor.name, binary)
        if wanted:
            size = memory.byte_size
            parts.append(b'%b%b"parameters":{"binary_data_size":%d}}' % (comma, head, size))
            if size:
                buffers.append(memory.host())
        elif wanted is None:
            parts.append(b"%b%b}" % (comma, head[:-1]))
        elif memory.byte_size > _LONG_DATA_BYTES:
            # Joining large data would copy them.
            is_long = True
            parts += (b'%b%b"data":' % (comma, head), *write_slices(tensor, made), b"}")
        else:
            parts.append(b'%b%b"data":%b}' % (comma, head, write_data(tensor)))
        comma = b","
    parts.append(b"]}")
    if not is_long:
        parts = [b"".join(parts)]
    if not buffers:
        return parts, None
    return parts + buffers, sum(map(len, parts))


def _identity(request_id: str) -> bytes:
    return b'"id":%b,' % json.encode(json.quote(request_id)) if request_id else b""


def json_bytes(response: InferResponse, form: ResponseForm) -> int:
    """Returns how many bytes of tensors become JSON in this form of the response. That decides which thread
    encodes it."""
    listed, binary, size = form.listed, form.binary, 0
    for tensor in response.outputs:
        if not listed.get(tensor.name, binary):
            size += tensor.memory.byte_size
    return size


def text_bytes(response: InferResponse, form: ResponseForm) -> int:
    """Returns about how many bytes of JSON these tensors become."""
    listed, binary = form.listed, form.binary
    return sum([text_bytes_of(tensor) for tensor in response.outputs if not listed.get(tensor.name, binary)])


@lru_cache(maxsize=1024)
def _output_head(name: str, datatype: DataType, shape: Shape) -> bytes:
    """Returns the beginning of an output, which repeats."""
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


MAX_ERROR_CHARACTERS: Final = 1 << 16
"""Characters of the text of an error over HTTP. It may repeat a value of any length that a client has sent. Beyond: the
text is cut."""


def encode_error(error: Error) -> bytes:
    """Returns the body of an error."""
    return json.encode(f'{{"error":{json.quote(shortened(error.message, MAX_ERROR_CHARACTERS))}}}')
