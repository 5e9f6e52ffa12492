"""The parts of a ModelInferRequest message, parsed with Triton's checks and texts (G17 to G23).

Takes protobuf's messages, and returns names, parameters and the memory of tensors. Pure. Knows no models. Raises
Invalid with the text for the client.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from halimede.errors import Invalid
from halimede.requests import InferRequest, Parameters, check_correlation_id, refuse_large_parameters
from halimede.tensors import (
    BOOL,
    BYTES,
    FP32,
    FP64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    Buffer,
    DataType,
    HostMemory,
    RegionReference,
    datatype_named,
    join_bytes,
)
from halimede.wire.grpc.large import TypedContents

_UINT32_MASK = 2**32 - 1
_UINT64_MASK = 2**64 - 1

_RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
    "'triton_' are allowed: triton_enable_empty_final_response"
)


def read_parameters(request: InferRequest, parameters: Any) -> bool:
    """Adds the parameters to the request. Returns whether an empty final response is wanted (G31)."""
    empty_final = False
    custom: Parameters = {}
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        value: Any = None if kind is None else getattr(parameter, kind)
        if (take := _KNOWN_PARAMETERS.get(key)) is not None:
            take(request, kind, value)
        elif key == "triton_enable_empty_final_response":
            empty_final = _expect(key, kind, value, "bool_param")
        # Triton reserves the prefix, also for keys that it does not know.
        elif key.startswith("triton_"):
            raise Invalid(_RESERVED)
        # Triton's core has no type for unsigned 64-bit parameters.
        elif kind is None or kind == "uint64_param":
            raise Invalid(
                f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param."
            )
        else:
            custom[key] = value
    if custom:
        refuse_large_parameters(custom)
    request.parameters = custom or None
    return empty_final


class RememberedParameters:
    """What the parameters of a request meant, to be applied to others with the same parameters."""

    NAMES = ("correlation_id", "sequence_start", "sequence_end", "priority", "timeout_us")

    __slots__ = ("_custom", "_fields", "empty_final")

    def __init__(self, request: InferRequest, empty_final: bool) -> None:
        """Reads the values from `request`, which has these parameters and was changed by nothing else."""
        plain = InferRequest(request.model_name)
        said = ((name, getattr(request, name)) for name in self.NAMES)
        self._fields = tuple((name, value) for name, value in said if value != getattr(plain, name))
        self._custom = dict(request.parameters) if request.parameters else None
        self.empty_final = empty_final

    def apply(self, request: InferRequest) -> bool:
        """Adds the parameters to a request. Returns whether an empty final response is wanted (G31)."""
        for name, value in self._fields:
            setattr(request, name, value)
        if self._custom is not None:
            # Each request may change its own.
            request.parameters = self._custom.copy()
        return self.empty_final


def _expect(key: str, kind: str | None, value: Any, *kinds: str) -> Any:
    if kind not in kinds:
        raise Invalid(f"invalid value type for '{key}' parameter, expected {' or '.join(kinds)}.")
    return value


def _sequence_id(request: InferRequest, kind: str | None, value: Any) -> None:
    value = _expect("sequence_id", kind, value, "int64_param", "string_param")
    # Triton's core has unsigned 64-bit correlation ids and timeouts, so negative values wrap.
    request.correlation_id = check_correlation_id(value) if isinstance(value, str) else value & _UINT64_MASK


def _sequence_start(request: InferRequest, kind: str | None, value: Any) -> None:
    request.sequence_start = _expect("sequence_start", kind, value, "bool_param")


def _sequence_end(request: InferRequest, kind: str | None, value: Any) -> None:
    request.sequence_end = _expect("sequence_end", kind, value, "bool_param")


def _priority(request: InferRequest, kind: str | None, value: Any) -> None:
    request.priority = _expect("priority", kind, value, "int64_param", "uint64_param")
    if request.priority < 0:
        raise Invalid("invalid value for 'priority', expected value >= 0.")


def _timeout(request: InferRequest, kind: str | None, value: Any) -> None:
    request.timeout_us = _expect("timeout", kind, value, "int64_param") & _UINT64_MASK


_KNOWN_PARAMETERS: dict[str, Callable[[InferRequest, str | None, Any], None]] = {
    "sequence_id": _sequence_id,
    "sequence_start": _sequence_start,
    "sequence_end": _sequence_end,
    "priority": _priority,
    "timeout": _timeout,
}


def refuse_duplicates(request: InferRequest, kind: str, items: Iterable[Any]) -> None:
    """Raises Invalid if two of the inputs or outputs have one name (H48). `kind` is the word for them."""
    seen = set()
    for item in items:
        if item.name in seen:
            raise Invalid(f"{request.log_prefix}{kind} '{item.name}' already exists in request")
        seen.add(item.name)


def input_memory(
    item: Any, model: str, raw_used: bool, raws: Iterator[Buffer], typed: TypedContents | None = None
) -> HostMemory | RegionReference:
    """Returns the data of an input from the one of three places that has it (G20). `typed` are typed contents that are
    not in `item`."""
    # An empty `contents` counts as given.
    given = item.HasField("contents")
    if (reference := _reference(item)) is not None:
        if given:
            raise Invalid(
                f"unexpected 'content' provided when using shared memory for input tensor '{item.name}' "
                f"for model '{model}'"
            )
        return reference
    if given:
        if raw_used:
            raise Invalid(
                f"contents field must not be specified when using raw_input_contents for '{item.name}' "
                f"for model '{model}'"
            )
        return HostMemory(_typed_contents(item, model, typed))
    if (raw := next(raws, None)) is None:
        no_data(item.name, model)
    return HostMemory(raw)


def no_data(name: str, model: str) -> NoReturn:
    raise Invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")


def read_outputs(request: InferRequest, outputs: Iterable[Any]) -> None:
    """Adds the requested outputs to the request: which go to shared memory, and which become classes (H80). Their names
    differ."""
    destinations: dict[str, RegionReference] = {}
    wanted: dict[str, int] = {}
    for item in outputs:
        reference, classes = _reference(item), _classes(item)
        if reference is not None and classes:
            raise Invalid("output can't set both 'shared_memory_region' and 'classification'")
        if reference is not None:
            destinations[item.name] = reference
        if classes:
            # Triton stores the number in 32 bits. The result may be zero.
            wanted[item.name] = classes & _UINT32_MASK
    request.outputs = tuple([item.name for item in outputs])
    if destinations:
        request.destinations = destinations
        request.in_regions = True
    if wanted:
        request.classes = wanted


SHARED_MEMORY = {
    "shared_memory_region": "string_param",
    "shared_memory_offset": "int64_param",
    "shared_memory_byte_size": "int64_param",
}
"""The parameters of a tensor in shared memory, and their types."""
CLASSIFICATION = "classification"
"""The parameter of an output of which only the largest values are wanted."""


def _reference(item: Any) -> RegionReference | None:
    """Returns where a tensor lies in shared memory, or None (G23). Negative numbers wrap, as in Triton."""
    parameters = item.parameters
    if not parameters:
        return None
    # Offset or size alone are errors.
    if "shared_memory_region" not in parameters:
        for key in ("shared_memory_offset", "shared_memory_byte_size"):
            if key in parameters:
                raise Invalid(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{item.name}'"
                )
        return None
    for key, kind in SHARED_MEMORY.items():
        if key in parameters and parameters[key].WhichOneof("parameter_choice") != kind:
            raise Invalid(f"invalid value type for '{key}' parameter for tensor '{item.name}', expected {kind}.")
    if "shared_memory_byte_size" not in parameters:
        raise Invalid(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter "
            f"for tensor '{item.name}'"
        )
    offset = parameters["shared_memory_offset"].int64_param if "shared_memory_offset" in parameters else 0
    byte_size = parameters["shared_memory_byte_size"].int64_param
    region = parameters["shared_memory_region"].string_param
    return RegionReference(region, offset & _UINT64_MASK, byte_size & _UINT64_MASK)


def _classes(item: Any) -> int:
    """Returns how many classes an output asks for, 0 for the tensor itself."""
    if not item.parameters or CLASSIFICATION not in item.parameters:
        return 0
    parameter = item.parameters[CLASSIFICATION]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise Invalid("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise Invalid("invalid value for 'classification' parameter, expected >= 0")
    return int(parameter.int64_param)


_CONTENTS: tuple[tuple[str, str, str, tuple[DataType, ...]], ...] = (
    ("bool_contents", "BOOL", "?", (BOOL,)),
    ("int_contents", "INT32", "<i4", (INT8, INT16, INT32)),
    ("int64_contents", "INT64", "<i8", (INT64,)),
    ("uint_contents", "UINT32", "<u4", (UINT8, UINT16, UINT32)),
    ("uint64_contents", "UINT64", "<u8", (UINT64,)),
    ("fp32_contents", "FP32", "<f4", (FP32,)),
    ("fp64_contents", "FP64", "<f8", (FP64,)),
    ("bytes_contents", "BYTES", "", (BYTES,)),
)
"""The kinds of typed contents in the order of the checks: field, its word, its numpy code, and its datatypes."""


def _typed_contents(item: Any, model: str, typed: TypedContents | None) -> Buffer:
    """Returns typed contents as bytes of the input's datatype (G21). Narrow integers are truncated, as by a C cast."""
    data: Buffer | None = None
    datatype = datatype_named(item.datatype)
    where = f"unexpected explicit tensor data for input tensor '{item.name}' for model '{model}'"
    for field, word, code, served in _CONTENTS:
        values: Any = getattr(item.contents, field) if typed is None else typed.values(field)
        if not values:
            continue
        # Two kinds of contents in one input.
        if data is not None:
            raise Invalid(f"{where}, binary data was already supplied.")
        if datatype not in served:
            raise Invalid(f"{where} of type '{word}', expected datatype '{datatype}'")
        # Large contents are not in protobuf's form.
        if typed is not None:
            data = values if datatype is BYTES else values.converted(code, datatype.numpy)
        elif datatype is BYTES:
            data = join_bytes(values)
        else:
            # INT8 and INT16 travel as 32-bit integers. `astype` keeps their low bits.
            data = np.fromiter(values, code, len(values)).astype(datatype.numpy).tobytes()
    return b"" if data is None else data
