"""The JSON head of an HTTP inference request, parsed and checked in Triton's order (H32 to H49).

Knows of the bytes that follow only their number. Pure. Any thread.
"""

from collections.abc import Callable, Container, Hashable
from typing import Any, Final

from halimede.errors import Internal, Invalid
from halimede.requests import (
    MAX_REQUEST_ID_BYTES,
    Parameters,
    check_correlation_id,
    refuse_large_parameters,
    refuse_long_id,
)
from halimede.tensors import MAX_DIMS, Buffer, DataType, RegionReference, Shape, datatype_named, refuse_many_dims
from halimede.wire.http import json
from halimede.wire.http.json_data import INT64_MAX, UINT64_MAX, pack_data
from halimede.wire.http.json_slices import MAX_HEAD_BYTES, WHOLE_BYTES, outline

HeadInput = tuple[str, DataType, Shape, int, bytes | RegionReference | None]
"""Name, datatype, shape, size, and data. `size` is the number of bytes that follow the head. Data are None for these,
bytes if they stood in the head, or a region."""


class ResponseForm:
    """How the client wants its outputs (H42).

    `listed` has for each requested output whether it is sent binary, or None if it goes to shared memory. `binary` is
    the choice for all others. `only_binary`: no requested output is written as JSON or left out. Never changed after it
    is made.
    """

    __slots__ = ("binary", "listed", "only_binary")

    def __init__(self, binary: bool, listed: dict[str, bool | None]) -> None:
        self.binary = binary
        self.listed = listed
        self.only_binary = all(listed.values()) if listed else binary


class InferHead:
    """What a head says. Requests with the same head share this object, so it is never changed.

    `fields` are attributes of the request that differ from their defaults. `binary_size` is the number of bytes of
    inputs that follow. `tensors` is equal for heads with the same outputs and the same inputs, datatypes and shapes.
    """

    __slots__ = (
        "binary_size",
        "destinations",
        "fields",
        "form",
        "id",
        "in_regions",
        "inputs",
        "outputs",
        "parameters",
        "tensors",
    )

    def __init__(
        self,
        request_id: str,
        fields: dict[str, Any],
        parameters: Parameters,
        inputs: list[HeadInput],
        binary_size: int,
        form: ResponseForm,
        destinations: dict[str, RegionReference],
    ) -> None:
        self.id = request_id
        self.fields = fields
        self.parameters = parameters
        self.inputs = inputs
        self.binary_size = binary_size
        self.form = form
        self.outputs = tuple(form.listed)
        in_regions = bool(destinations)
        tensors: list[Hashable] = [self.outputs]
        for name, datatype, shape, _, data in inputs:
            tensors.append((name, datatype, shape))
            if isinstance(data, RegionReference):
                in_regions = True
        self.tensors: Hashable = tuple(tensors)
        self.destinations = destinations or None
        self.in_regions = in_regions


_ABSENT: Final = object()
_UINT32_MASK: Final = 2**32 - 1
_NO_PARAMETERS: Final[tuple[bool, dict[str, Any], Parameters]] = (False, {}, {})


def read_head(text: Buffer, model: str, room: int | None, limit: int = INT64_MAX) -> InferHead:
    """Parses the JSON head that is followed by `room` bytes; None means as many as it says. Raises Error, also if an
    input in the head has more than `limit` bytes (H17)."""
    document = _object(json.read(text)) if len(text) <= WHOLE_BYTES else _read_large(text)
    request_id = ""
    if "id" in document:
        request_id = _string(document, "id")
        if len(request_id) > MAX_REQUEST_ID_BYTES:
            refuse_long_id(len(request_id))
    binary, fields, parameters = _NO_PARAMETERS
    if "parameters" in document:
        binary, fields, parameters = _read_parameters(document["parameters"])
    inputs, binary_size = _read_inputs(document, request_id, model, room, limit)
    listed: dict[str, bool | None] = {}
    destinations: dict[str, RegionReference] = {}
    classes: dict[str, int] = {}
    if "outputs" in document:
        for item in _array(document, "outputs"):
            name, wanted, reference, count = _read_output(_object(item), listed, request_id)
            listed[name] = wanted
            if reference is not None:
                destinations[name] = reference
            if count:
                classes[name] = count
    if classes:
        fields = {**fields, "classes": classes}
    return InferHead(request_id, fields, parameters, inputs, binary_size, ResponseForm(binary, listed), destinations)


_DATA_DEPTH: Final = 4
"""The depth of `data`: in an input, in `inputs`, in the document."""


def _read_large(text: Buffer) -> dict[str, Any]:
    """Parses a large head. A long `data` becomes a `JsonArray`. Raises Invalid if another array is long."""
    cut = outline(text, _DATA_DEPTH, MAX_HEAD_BYTES)
    document = _object(cut.read())
    if cut.arrays:
        left = len(cut.arrays)
        inputs = document.get("inputs")
        for item in inputs if type(inputs) is list else ():
            data = item.get("data") if type(item) is dict else None
            if type(data) is str and data in cut.arrays:
                item["data"] = cut.arrays[data]
                left -= 1
        if left:
            raise Invalid("the request JSON has a long array that is not the 'data' of an input")
    return document


# Inputs.


def _read_inputs(
    document: dict[str, Any], request_id: str, model: str, room: int | None, limit: int
) -> tuple[list[HeadInput], int]:
    inputs: list[HeadInput] = []
    names: set[str] = set()
    at = 0
    for item in _array(document, "inputs"):
        read = _read_input(_object(item), names, request_id, limit)
        inputs.append(read)
        name, _, _, size, _ = read
        names.add(name)
        at += size
        if room is not None and at > room:
            raise Invalid(
                f"unexpected size for input '{name}', expecting {at - room} additional bytes for model '{model}'"
            )
    # More bytes than all inputs take.
    if room is not None and at < room:
        raise Invalid(f"unexpected additional input data for model '{model}'")
    return inputs, at


def _read_input(item: dict[str, Any], names: set[str], request_id: str, limit: int) -> HeadInput:
    # Inputs without parameters have their data in the JSON.
    if "parameters" not in item and (listed := _read_listed(item, names, limit)) is not None:
        return listed
    settings = _object(item.get("parameters"))
    source = _source(item, settings)
    name = _string(item, "name")
    datatype = datatype_named(_string(item, "datatype"))
    shape = _shape(item)
    refuse_many_dims(name, len(shape))
    if name in names:
        raise _exists("input", name, request_id)
    if source == "binary_data_size":
        return name, datatype, shape, _unsigned(settings, source), None
    if source == "data":
        return name, datatype, shape, 0, pack_data(name, datatype, shape, item[source], limit)
    return name, datatype, shape, 0, _reference(settings)


def _read_listed(item: dict[str, Any], names: set[str], limit: int) -> HeadInput | None:
    """Returns an input with its data in the head, if at most its data are wrong. This costs half of the general way,
    which has the texts of all errors. Returns None otherwise."""
    name, dims, datatype = item.get("name"), item.get("shape"), item.get("datatype")
    if type(name) is not str or type(dims) is not list or type(datatype) is not str or "data" not in item:
        return None
    for dim in dims:
        if type(dim) is not int or not 0 <= dim <= INT64_MAX:
            return None
    if name in names or len(dims) > MAX_DIMS:
        return None
    shape, known = tuple(dims), datatype_named(datatype)
    return name, known, shape, 0, pack_data(name, known, shape, item["data"], limit)


def _source(item: dict[str, Any], settings: dict[str, Any]) -> str:
    """Returns where the input has its data. Raises Invalid unless it is exactly one place (H35)."""
    data, binary, shared = "data" in item, "binary_data_size" in settings, "shared_memory_region" in settings
    if data + binary + shared == 1:
        return "data" if data else "binary_data_size" if binary else "shared_memory_region"
    found = zip((data, binary, shared), ("data", "binary_data_size", "shared_memory_region"), strict=True)
    names = [f"'{name}'" for present, name in found if present]
    raise Invalid(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {' '.join(['set', *names]) if names else 'no field is set'}"
    )


def _shape(item: dict[str, Any]) -> Shape:
    dims = _array(item, "shape")
    for dim in dims:
        if type(dim) is not int or dim < 0:
            raise _not_a("shape", "unsigned-integer")
    # Triton stores a dimension in a signed 64-bit number, so large values wrap.
    return tuple([dim if dim <= INT64_MAX else dim - 2**64 for dim in dims])


# Outputs and parameters.


def _read_output(
    item: dict[str, Any], names: Container[str], request_id: str
) -> tuple[str, bool | None, RegionReference | None, int]:
    """Returns the name of an output, whether it is wanted binary (H42), the region for it, and the number of classes, 0
    for the tensor itself (H80). Triton stores that number in 32 bits."""
    name = _string(item, "name")
    # Before the parameters, as in Triton (H48).
    if name in names:
        raise _exists("output", name, request_id)
    settings = _object(item.get("parameters"))
    # The usual case for JSON outputs.
    if len(settings) == 1 and settings.get("binary_data") is False:
        return name, False, None, 0
    if "shared_memory_region" in settings:
        _check_in_region(settings)
        return name, None, _reference(settings), 0
    classes = _unsigned(settings, "classification", "set") & _UINT32_MASK if "classification" in settings else 0
    return name, "binary_data" in settings and _boolean(settings, "binary_data"), None, classes


def _check_in_region(settings: dict[str, Any]) -> None:
    """Checks the other parameters of an output in shared memory. Raises Invalid (H84, H99)."""
    if "classification" in settings:
        raise Invalid("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in settings and _boolean(settings, "binary_data", "set"):
        raise Invalid("Output can't set both 'shared_memory_region' and 'binary_data'")


def _reference(settings: dict[str, Any]) -> RegionReference:
    """Returns where a tensor lies in shared memory (H97)."""
    region = _string(settings, "shared_memory_region")
    offset = _unsigned(settings, "shared_memory_offset") if "shared_memory_offset" in settings else 0
    byte_size = _unsigned(settings, "shared_memory_byte_size") if "shared_memory_byte_size" in settings else 0
    return RegionReference(region, offset, byte_size)


def _read_parameters(parameters: Any) -> tuple[bool, dict[str, Any], Parameters]:
    """Returns `binary_data_output`, the request attributes that are set, and the client's own parameters (H46)."""
    if type(parameters) is not dict:
        raise Internal("failed to get request params.: attempt to get members for non-object")
    binary = False
    fields: dict[str, Any] = {}
    custom: Parameters = {}
    for key, value in parameters.items():
        if key in _FIELDS:
            field, read = _FIELDS[key]
            fields[field] = read(parameters, key)
        elif key == "binary_data_output":
            binary = _boolean(parameters, key)
        elif key.startswith("triton_"):
            raise Invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        # Null, lists and objects are refused.
        elif type(value) in (str, bool, int, float):
            # Triton reads an integer beyond 64 signed bits as a double.
            custom[key] = float(value) if type(value) is int and value > INT64_MAX else value
        else:
            raise Invalid(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    if custom:
        refuse_large_parameters(custom)
    return binary, fields, custom


# Members and their types. Errors are Internal, with the texts of Triton's JSON library (H19).


def _object(value: Any) -> dict[str, Any]:
    """Returns an object. Any other value counts as an empty object, as in Triton."""
    return value if type(value) is dict else {}


def _array(members: dict[str, Any], key: str) -> list[Any]:
    value = members.get(key, _ABSENT)
    if type(value) is list:
        return value
    raise _missing(key) if value is _ABSENT else _not_a(key, "array")


def _string(members: dict[str, Any], key: str) -> str:
    value = members.get(key, _ABSENT)
    if type(value) is str:
        return value
    raise _missing(key) if value is _ABSENT else _not_a(key, "string")


def _boolean(members: dict[str, Any], key: str, verb: str = "parse") -> bool:
    value = members[key]
    if type(value) is bool:
        return value
    raise _not_a(key, "boolean", verb)


def _unsigned(members: dict[str, Any], key: str, verb: str = "parse") -> int:
    value = members[key]
    if type(value) is int and 0 <= value <= UINT64_MAX:
        return value
    raise _not_a(key, "unsigned-integer", verb)


def _correlation_id(members: dict[str, Any], key: str) -> int | str:
    value = members[key]
    return value if type(value) is int and value >= 0 else check_correlation_id(_string(members, key))


_Reader = Callable[[dict[str, Any], str], Any]
_FIELDS: dict[str, tuple[str, _Reader]] = {
    "sequence_id": ("correlation_id", _correlation_id),
    "sequence_start": ("sequence_start", _boolean),
    "sequence_end": ("sequence_end", _boolean),
    "priority": ("priority", _unsigned),
    "timeout": ("timeout_us", _unsigned),
}


def _exists(kind: str, name: str, request_id: str) -> Invalid:
    return Invalid(f"[request id: {request_id or '<id_unknown>'}] {kind} '{name}' already exists in request")


def _missing(key: str) -> Internal:
    return Internal(f"Unable to parse '{key}': attempt to access non-existing object member '{key}'")


def _not_a(key: str, kind: str, verb: str = "parse") -> Internal:
    return Internal(f"Unable to {verb} '{key}': attempt to access JSON non-{kind} as {kind}")
