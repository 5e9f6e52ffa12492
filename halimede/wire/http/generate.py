"""The bodies of the generate extension: a flat JSON object to an inference request, and a response to one (H131 to
H134).

Knows of the model only the inputs that its metadata name. Pure. Any thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

from halimede.engine_port import TensorInfo
from halimede.errors import Error, Internal, Invalid, Unsupported
from halimede.requests import InferRequest, InferResponse, refuse_large_parameters, refuse_long_id
from halimede.tensors import BF16, BYTES, FP16, Buffer, HostMemory, Shape, Tensor, frame_strings, has_many_strings
from halimede.wire.http import json
from halimede.wire.http.admin import check_size
from halimede.wire.http.json_data import INT64_MAX, pack_data, text_bytes_of, uncounted, write_data
from halimede.wire.http.json_slices import JsonArray, outline

NESTED: Final = "parameters"
"""The only key whose members are treated as if they stood beside it."""

NOT_ONE: Final = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates '
    b'various number of responses"}'
)
"""The answer for a client that asked for one response if the model made none or several (H135)."""

_DATA_DEPTH: Final = 2
"""The depth of a list that is a tensor: in the document."""

_Inputs = Mapping[str, TensorInfo]

# Requests.


def decode_generate(
    model: str, version: int, inputs: Sequence[TensorInfo], body: Buffer, max_input_size: int
) -> InferRequest:
    """Returns the inference that `body` asks of a model with these inputs. Their shapes include the batch dimension, as
    in the metadata. Keys are handled in order, after `id`.

    Neither the body nor a tensor may have more than `max_input_size` bytes (H17). Raises Internal if JSON is malformed
    or has a wrong type (H19), else Invalid.
    """
    check_size(body, max_input_size)
    cut = outline(body, _DATA_DEPTH)
    document = cut.read()
    if type(document) is not dict:
        raise Internal("attempt to get members for non-object")
    nested = document.get(NESTED)
    if json.may_repeat(cut.skeleton, len(document) + (len(nested) if type(nested) is dict else 0)):
        document = json.read_first(cut.skeleton)
    for key, value in document.items() if cut.arrays else ():
        if type(value) is str and value in cut.arrays:
            document[key] = cut.arrays[value]
    request = InferRequest(model, version)
    request.decoupled_ok = True
    request.parameters = {}
    if "id" in document:
        if type(document["id"]) is not str:
            raise Internal("Unable to parse 'id': attempt to access JSON non-string as string")
        request.id = document["id"]
        refuse_long_id(len(request.id))
    known = {info.name: info for info in inputs}
    for key, value in _members(document):
        if key == NESTED:
            _map_nested(request, known, value, max_input_size)
        else:
            _map(request, known, key, value, max_input_size)
    refuse_large_parameters(request.parameters)
    for tensor in request.inputs.values():
        if has_many_strings(tensor):
            frame_strings(tensor)
    return request


def _members(members: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yields the members in order. A key that is given twice comes twice, each time with its first value (observed)."""
    if isinstance(members, json.RepeatedMembers):
        return [(key, members[key]) for key in members.sent]
    return members.items()


def _map_nested(request: InferRequest, known: _Inputs, members: Any, limit: int) -> None:
    if NESTED in known:
        raise Invalid(f"Keyword '{NESTED}' for nested schema also given as input tensor name")
    if not isinstance(members, dict):
        raise Internal(f"Expected JSON object for keyword: '{NESTED}': attempt to access JSON non-object as object")
    try:
        for key, value in _members(members):
            _map(request, known, key, value, limit)
    except Error as error:
        raise error.prefixed(f"Converting keyword: '{NESTED}': ") from None


def _map(request: InferRequest, known: _Inputs, key: str, value: Any, limit: int) -> None:
    """Turns a key that names an input into a tensor, and any other into a parameter. No parameter has a meaning for the
    server (H133)."""
    if key in known:
        tensor = _tensor(known[key], value, limit)
        if key in request.inputs:
            raise Invalid(f"{request.log_prefix}input '{key}' already exists in request")
        request.inputs[key] = tensor
    elif type(value) in (str, bool, int, float):
        assert request.parameters is not None
        # Triton reads an integer beyond 64 signed bits as a double.
        request.parameters[key] = float(value) if type(value) is int and value > INT64_MAX else value
    else:
        raise Invalid(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _tensor(info: TensorInfo, value: Any, limit: int) -> Tensor:
    """Returns the tensor of a single value or a list. A list in the list counts as one element when the shape is
    computed."""
    elements = value if type(value) is list or isinstance(value, JsonArray) else [value]
    datatype, count = info.datatype, elements.length if isinstance(elements, JsonArray) else len(elements)
    # Triton checks the types of strings before the shape, and those of numbers after it.
    if datatype is BYTES:
        data = pack_data(info.name, datatype, (count,), elements, limit)
        return Tensor(info.name, datatype, _shape(info, count), HostMemory(data))
    shape = _shape(info, count)
    # FP16 and BF16 have no JSON form. They are refused even if there is no element.
    packed = max(count, 1) if datatype in (FP16, BF16) else count
    return Tensor(info.name, datatype, shape, HostMemory(pack_data(info.name, datatype, (packed,), elements, limit)))


def _shape(info: TensorInfo, count: int) -> Shape:
    """Returns the shape of `count` elements. The last variable dimension takes what the fixed ones leave, other
    variable ones are 1 (H132). Raises Invalid if no shape fits."""
    dims = info.shape
    fixed = prod([dim for dim in dims if dim != -1])
    # A fixed dimension of 0 leaves room for no element.
    rest, left_over = divmod(count, fixed) if fixed else (0, count)
    wild = max((at for at, dim in enumerate(dims) if dim == -1), default=None)
    if left_over or (wild is None and rest != 1):
        raise Invalid(f"The schema can not convert input '{info.name}' to tensor with proper shape")
    return tuple([dim if dim != -1 else rest if at == wild else 1 for at, dim in enumerate(dims)])


# Responses.


def encode_generate(response: InferResponse, made: Callable[[int], None] = uncounted) -> bytes:
    """Returns a flat object with its keys sorted by their bytes. Of equal names the first in the order of the code
    counts (H134). Raises Error as the JSON of an inference does (H39). Calls `made` as `encode_infer` does."""
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
        members.setdefault(tensor.name, _data(tensor, made))
    return b"{%b}" % b",".join([b"%b:%b" % (_quoted(name), members[name]) for name in sorted(members, key=json.encode)])


def _data(tensor: Tensor, made: Callable[[int], None]) -> bytes:
    """Returns the elements as a flat array, or a single element without an array."""
    data = write_data(tensor, made)
    return data[1:-1] if prod(tensor.shape) == 1 else data


def _quoted(text: str) -> bytes:
    return json.encode(json.quote(text))


def data_bytes(response: InferResponse) -> int:
    """Returns how many bytes of tensors become JSON. That decides which thread encodes them."""
    return sum(tensor.memory.byte_size for tensor in response.outputs)


def text_bytes(response: InferResponse) -> int:
    """Returns about how many bytes of JSON the tensors become."""
    return sum(map(text_bytes_of, response.outputs))


def event(body: Buffer) -> tuple[Buffer, ...]:
    """Returns JSON without line ends as a server-sent event (H136)."""
    return b"data: ", body, b"\n\n"
