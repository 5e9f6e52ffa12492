"""The values that a model makes and reads: tensors, responses, errors (P40 to P42, P45 to P47, P54, P55).

They know nothing of frames but bytes. Any thread.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from .frames import MAX_PARAMETERS
from .signatures import INT64, MISSING, MODULE, Refused, constructor, integer, items, native, refusal, text

BYTES, BF16 = 13, 14

NUMPY_TYPES = {
    1: np.bool_,
    2: np.uint8,
    3: np.uint16,
    4: np.uint32,
    5: np.uint64,
    6: np.int8,
    7: np.int16,
    8: np.int32,
    9: np.int64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    BYTES: np.object_,
}
"""Datatype number of the protocol to numpy's type (P23)."""

_DTYPES = {number: np.dtype(kind) for number, kind in NUMPY_TYPES.items()}
NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_UINT8 = np.dtype(np.uint8)
_LENGTH = struct.Struct("<I")
_COPIED = 1 << 10
"""Bytes up to which a tensor is copied into a frame: that is faster than a view."""


class TritonModelException(Exception):
    """The exception of this interface; a model may raise it too (P47)."""


class ErrorCode(enum.IntEnum):
    """The kinds of failure a model can answer with (P46)."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    __str__ = enum.Enum.__str__  # Python 3.11 changed what an IntEnum prints


ErrorCode.__name__ = "__ErrorCode"  # as in its repr
ErrorCode.__qualname__ = "TritonError.__ErrorCode"


class TritonError:
    """The failure of one request (P46)."""

    __slots__ = ("_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    @constructor(
        f"TritonError(message: str, code: {MODULE}.TritonError.__ErrorCode = <__ErrorCode.INTERNAL: 1>)",
    )
    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(code, ErrorCode):
            raise Refused
        self._message = text(message)
        self._code = code

    def code(self) -> ErrorCode:
        return self._code

    def message(self) -> str:
        return self._message


class MemoryType(enum.IntEnum):
    """Where a tensor may be (P27)."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1

    __str__ = enum.Enum.__str__


class PreferredMemory:
    """Where the outputs of a call to another model should be (P54)."""

    __slots__ = ("device_id", "memory_type")

    @constructor(
        "PreferredMemory(preferred_memory_type: triton::backend::python::PreferredMemory::MemoryType, "
        "preferred_device_id: int = 0)",
    )
    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            raise Refused
        self.memory_type = preferred_memory_type
        self.device_id = integer(preferred_device_id, INT64)


class InferenceTrace:
    """The trace that a request belongs to (P55); a request outside of any has no context."""

    __slots__ = ("_context", "_id")

    def __init__(self, context: str | None = None) -> None:
        self._context = context
        self._id = 0

    @classmethod
    def received(cls, number: int, context: str) -> InferenceTrace:
        """The trace of a request that the server traces."""
        trace = cls(context or None)
        trace._id = number
        return trace

    def get_context(self) -> str | None:
        return self._context


def serialize(elements: Iterable[Any]) -> bytes:
    """Elements in the protocol's form of BYTES: each after its 4-byte length. An element that is not `bytes` is written
    as its `str`."""
    parts = []
    for element in elements:
        raw = element if isinstance(element, bytes) else str(element).encode()
        parts += [_LENGTH.pack(len(raw)), raw]
    return b"".join(parts)


def deserialize(encoded: Any) -> list[bytes]:
    """The elements of framed BYTES. Raises struct.error if the last one is cut off."""
    elements, at, end, length_at = [], 0, len(encoded), _LENGTH.unpack_from
    view = memoryview(encoded)
    while at < end:
        start = at + 4
        at = start + length_at(view, at)[0]
        elements.append(bytes(view[start:at]))
    if at > end:
        struct.unpack_from(f"<{at - start}s", view, start)  # raises the error
    return elements


def _checked_name(name: Any, array: Any) -> str:
    """The name of a tensor, if such a tensor can be made. Raises TypeError."""
    try:
        if isinstance(array, np.ndarray):
            return text(name)
    except Refused:
        pass
    given = [value for value in (name, array) if value is not MISSING]
    raise refusal("__init__", f"{MODULE}.Tensor(arg0: str, arg1: numpy.ndarray)", given, {}) from None


class Tensor:
    """A named array (P40 to P42).

    A received tensor is a view of its frame, and becomes an array when the model asks for one. A tensor that a model
    made refers to the model's array. Neither is copied, except BYTES: their elements are serialized at once, so that an
    exception of an element is raised in the model.
    """

    __slots__ = ("__weakref__", "_array", "_name", "_number", "_shape", "_view")

    _array: np.ndarray[Any, Any] | None
    _view: Any

    def __init__(self, name: str = MISSING, array: np.ndarray[Any, Any] = MISSING, /) -> None:
        if type(name) is not str or not name.isascii() or not isinstance(array, np.ndarray):
            name = _checked_name(name, array)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        number = NUMBERS.get(array.dtype)
        if number is None:
            if array.dtype.kind not in "SU":
                raise TritonModelException("NumPy dtype is not supported.")
            number = BYTES
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        self._name = name
        self._number = number
        self._array = array
        self._shape = array.shape
        self._view = serialize(array.reshape(-1).tolist()) if number == BYTES else None

    @classmethod
    def received(cls, name: str, number: int, shape: tuple[int, ...], view: memoryview) -> Tensor:
        """A tensor of a frame."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._number = number
        tensor._array = None
        tensor._shape = shape
        tensor._view = view
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The datatype's number, as `triton_to_numpy_type` takes it."""
        return self._number

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> np.ndarray[Any, Any]:
        array = self._array
        if array is None:
            array = self._array = self._as_array()
        return array

    def _as_array(self) -> np.ndarray[Any, Any]:
        if self._number == BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        if self._number != BYTES:
            return np.ndarray(self._shape, _DTYPES[self._number], self._view)
        elements = deserialize(self._view)
        array = np.empty(len(elements), dtype=object)
        array[:] = elements
        return array.reshape(self._shape)

    def payload(self) -> Any:
        """The bytes to send: a flat buffer whose `len` is in bytes."""
        if self._view is not None:
            return self._view
        array = self.as_numpy()
        size = array.nbytes
        if size <= _COPIED:
            return array.tobytes()
        return np.ndarray((size,), _UINT8, array)

    def to_dlpack(self) -> Any:
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None) -> Any:
        if self._number == BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        from . import dlpack  # most models need none

        if self._number == BF16:
            return dlpack.bf16_capsule_of(self._view, self._shape)
        return dlpack.capsule_of(self.as_numpy())

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    @staticmethod
    @native(f"(self: str, arg0: object) -> {MODULE}.Tensor")
    def from_dlpack(name: str, tensor: Any, /) -> Tensor:
        """A copy of the memory of a DLPack capsule, or of an object that makes one. Memory on a GPU is not copied.
        Raises TritonModelException, and what the object raises."""
        name = text(name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        is_capsule = type(tensor).__name__ == "PyCapsule"
        if not is_capsule and not (hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__")):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        from . import dlpack

        capsule = tensor if is_capsule else tensor.__dlpack__()
        try:
            if dlpack.device_type(capsule) == dlpack.CUDA:
                from .device_tensors import DeviceTensor

                return DeviceTensor.taken(name, capsule)
            array, is_bf16 = dlpack.taken(capsule)
        except dlpack.NotTaken as error:
            raise TritonModelException(str(error)) from None
        if not array.flags.c_contiguous:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                "supported."
            )
        array = array.copy()  # its owner may write there again
        if is_bf16:
            return Tensor.received(name, BF16, array.shape, np.ndarray((array.nbytes,), _UINT8, array).data)
        return Tensor(name, array)


def checked_parameters(parameters: Any) -> dict[str, Any]:
    """Parameters as a model may give them (P43, P79). Raises TritonModelException."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")
    if len(parameters) > MAX_PARAMETERS:
        raise TritonModelException(f"{len(parameters)} parameters were given, and {MAX_PARAMETERS} are allowed")
    checked = {}
    for name, value in parameters.items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if type(value) not in _PLAIN:
            kind = next((kind for kind in (int, str) if isinstance(value, kind)), None)
            if kind is None:
                raise TritonModelException(
                    f"Expect parameters values to have type bool/int/str, found type {type(value)}"
                )
            value = int(value) if kind is int else str.__str__(value)
        checked[str.__str__(name)] = value
    return checked


_PLAIN = (bool, int, str)
_RESPONSE = (
    f"{MODULE}.InferenceResponse(output_tensors: List[{MODULE}.Tensor] = [], error: {MODULE}.TritonError = None, "
    "parameters: object = None)"
)


def _checked_tensors(output_tensors: Any, error: Any, parameters: Any) -> list[Tensor]:
    """The tensors of a response, of which some may be None. Raises TypeError."""
    with suppress(Refused):
        tensors = list(items(output_tensors))
        known = all(tensor is None or isinstance(tensor, Tensor) for tensor in tensors)
        if known and (error is None or isinstance(error, TritonError)):
            return tensors
    given = {"output_tensors": output_tensors, "error": error, "parameters": parameters}
    shown = {name: value for name, value in given.items() if value is not _DEFAULTS[name]}
    raise refusal("__init__", _RESPONSE, (), shown)


_NO_TENSORS: Sequence[Tensor] = ()
_DEFAULTS: dict[str, object] = {"output_tensors": _NO_TENSORS, "error": None, "parameters": None}


class InferenceResponse:
    """The answer to one request: tensors, or an error (P45)."""

    __slots__ = ("__weakref__", "_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = _NO_TENSORS,
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        if type(output_tensors) is not list or error is not None:
            output_tensors = _checked_tensors(output_tensors, error, parameters)
        tensors = [*output_tensors]
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                _checked_tensors(tensors, error, parameters)
                raise TritonModelException("Output tensor for inference response should not be empty.")
        self._tensors = tensors
        self._error = error
        self._parameters = None if parameters is None else checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """The parameters as a JSON object (P80)."""
        return json.dumps(self._parameters or {}, separators=(",", ":"), ensure_ascii=False)
