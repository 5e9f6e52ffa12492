"""The bodies of the generate extension: a flat JSON object to an inference request, a response to a flat JSON object
(contract H131 to H134).

Knows of the model only the inputs that its metadata names. Pure: no sockets, no headers, no engine; any thread.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from halimede.engine_port import TensorInfo
from halimede.errors import Error, Internal, Invalid, Unsupported
from halimede.requests import InferRequest, InferResponse
from halimede.tensors import BF16, BYTES, FP16, Buffer, HostMemory, Shape, Tensor
from halimede.wire.http import json
from halimede.wire.http.admin import check_size
from halimede.wire.http.json_data import INT64_MAX, pack_data, write_data

NESTED: Final = "parameters"
"""The one key whose members are mapped as if they stood beside it."""

NOT_ONE: Final = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates '
    b'various number of responses"}'
)
"""What a client gets that asked for one response and whose model made none or several (H135)."""

_Inputs = Mapping[str, TensorInfo]

# Requests.


def decode_generate(
    model: str, version: int, inputs: Sequence[TensorInfo], body: Buffer, max_input_size: int
) -> InferRequest:
    """The inference that `body` asks of a model with these inputs (shapes with the batch dimension, as its metadata has
    them). Keys are taken in their order, `id` before them.

    Neither the body nor one tensor may have more than `max_input_size` bytes (H17). Raises Error: Internal where JSON
    is malformed or of a wrong type (H19), else Invalid.
    """
    check_size(body, max_input_size)
    document = json.read(body)
    if type(document) is not dict:
        raise Internal("attempt to get members for non-object")
    request = InferRequest(model, version)
    request.decoupled_ok = True
    request.parameters = {}
    if "id" in document:
        if type(document["id"]) is not str:
            raise Internal("Unable to parse 'id': attempt to access JSON non-string as string")
        request.id = document["id"]
    known = {info.name: info for info in inputs}
    for key, value in document.items():
        if key == NESTED:
            _map_nested(request, known, value, max_input_size)
        else:
            _map(request, known, key, value, max_input_size)
    return request


def _map_nested(request: InferRequest, known: _Inputs, members: Any, limit: int) -> None:
    if NESTED in known:
        raise Invalid(f"Keyword '{NESTED}' for nested schema also given as input tensor name")
    if type(members) is not dict:
        raise Internal(f"Expected JSON object for keyword: '{NESTED}': attempt to access JSON non-object as object")
    try:
        for key, value in members.items():
            _map(request, known, key, value, limit)
    except Error as error:
        raise error.prefixed(f"Converting keyword: '{NESTED}': ") from None


def _map(request: InferRequest, known: _Inputs, key: str, value: Any, limit: int) -> None:
    """Makes a tensor of a key that names an input, and a parameter of any other: none of them means anything to the
    server (H133)."""
    if key in known:
        tensor = _tensor(known[key], value, limit)
        if key in request.inputs:
            raise Invalid(f"{request.log_prefix}input '{key}' already exists in request")
        request.inputs[key] = tensor
    elif type(value) in (str, bool, int, float):
        assert request.parameters is not None
        # An integer beyond 64 signed bits is read as a double.
        request.parameters[key] = float(value) if type(value) is int and value > INT64_MAX else value
    else:
        raise Invalid(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _tensor(info: TensorInfo, value: Any, limit: int) -> Tensor:
    """A single value or a list; what is nested in the list counts as one element when the shape is found."""
    elements = value if type(value) is list else [value]
    datatype, count = info.datatype, len(elements)
    # The types of strings are checked before the shape is found, those of numbers after.
    if datatype is BYTES:
        data = pack_data(info.name, datatype, (count,), elements, limit)
        return Tensor(info.name, datatype, _shape(info, count), HostMemory(data))
    shape = _shape(info, count)
    # Those that JSON has no words for are refused even where there is no element.
    packed = max(count, 1) if datatype in (FP16, BF16) else count
    return Tensor(info.name, datatype, shape, HostMemory(pack_data(info.name, datatype, (packed,), elements, limit)))


def _shape(info: TensorInfo, count: int) -> Shape:
    """The shape that so many elements have: the innermost variable dimension takes what the fixed ones leave, other
    variable ones are 1 (H132). Raises Invalid where there is none."""
    dims = info.shape
    fixed = prod([dim for dim in dims if dim != -1])
    rest, left_over = divmod(count, fixed) if fixed else (0, count)
    wild = max((at for at, dim in enumerate(dims) if dim == -1), default=None)
    if left_over or (wild is None and rest != 1):
        raise Invalid(f"The schema can not convert input '{info.name}' to tensor with proper shape")
    return tuple([dim if dim != -1 else rest if at == wild else 1 for at, dim in enumerate(dims)])


# Responses.


def encode_generate(response: InferResponse) -> bytes:
    """A flat object whose keys are sorted by their bytes. Of equal names the first in the order below counts (H134).
    Raises Error as for the JSON of an inference (H39)."""
    members: dict[str, bytes] = {"id": _quoted(response.id)} if response.id else {}
    members["model_name"] = _quoted(response.model_name)
    members["model_version"] = b'"%d"' % response.model_version
    for name, value in (response.parameters or {}).items():
        if type(value) not in (bool, int, str, float):
            raise Unsupported(
                f"Response parameter '{name}' has type 'TRITONSERVER_PARAMETER_BYTES' which is not currently supported"
            )
        members.setdefault(name, json.encode(json.write(value)))
    for tensor in response.outputs:
        members.setdefault(tensor.name, _data(tensor))
    return b"{%b}" % b",".join([b"%b:%b" % (_quoted(name), members[name]) for name in sorted(members, key=json.encode)])


def _data(tensor: Tensor) -> bytes:
    """The elements as a flat array, a single one as it is."""
    data = write_data(tensor)
    return data[1:-1] if prod(tensor.shape) == 1 else data


def _quoted(text: str) -> bytes:
    return json.encode(json.quote(text))


def data_bytes(response: InferResponse) -> int:
    """How many bytes of tensors become JSON: what decides where it is encoded."""
    return sum(tensor.memory.byte_size for tensor in response.outputs)


def event(body: Buffer) -> tuple[Buffer, ...]:
    """JSON without line ends as a server-sent event (H136)."""
    return b"data: ", body, b"\n\n"
