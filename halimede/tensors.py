"""Datatypes, shapes, the framing of BYTES, and the two values everything else passes around: Tensor and Memory.

Knows nothing of requests, models or protocols. Pure values, usable on any thread. `Memory.host()` is the only way to
the bytes of a tensor, so that a tensor on a device is never copied by accident.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from halimede.errors import Internal, Invalid


@dataclass(frozen=True, slots=True, eq=False)
class DataType:
    """One element type of the protocol (H36, R49).

    `name` is the word on the wire ("FP32"), `config_name` the one in a model configuration ("TYPE_FP32"), `number` its
    protobuf enum value, `size` the bytes of one element (0 for BYTES, whose elements are framed) and `numpy` the dtype
    of its arrays: BF16 is handled as its 16 bits (uint16), BYTES as an object array of `bytes`.
    """

    name: str
    config_name: str
    number: int
    size: int
    numpy: np.dtype[Any]

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return datatype_named, (self.name,)


def _table() -> dict[str, DataType]:
    rows: list[tuple[str, int, str]] = [
        ("BOOL", 1, "?"),
        ("UINT8", 2, "u1"),
        ("UINT16", 3, "<u2"),
        ("UINT32", 4, "<u4"),
        ("UINT64", 5, "<u8"),
        ("INT8", 6, "i1"),
        ("INT16", 7, "<i2"),
        ("INT32", 8, "<i4"),
        ("INT64", 9, "<i8"),
        ("FP16", 10, "<f2"),
        ("FP32", 11, "<f4"),
        ("FP64", 12, "<f8"),
        ("BYTES", 13, "O"),
        ("BF16", 14, "<u2"),
    ]
    table = {}
    for name, number, code in rows:
        dtype: np.dtype[Any] = np.dtype(code)
        size = 0 if name == "BYTES" else dtype.itemsize
        table[name] = DataType(name, "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}", number, size, dtype)
    return table


DATATYPES = _table()
"""By the name on the wire."""


def datatype_named(name: str) -> DataType:
    """The datatype of that name, an unknown one included (what the core says of it stands in contract H66)."""
    return DATATYPES.get(name, UNKNOWN_DATATYPE)


UNKNOWN_DATATYPE = DataType("<invalid>", "TYPE_INVALID", 0, 0, np.dtype("O"))
"""What a request with a datatype that does not exist carries until the model's check refuses it."""

BY_NUMBER = {d.number: d for d in DATATYPES.values()}

BOOL, UINT8, UINT16, UINT32, UINT64 = (DATATYPES[n] for n in ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64"))
INT8, INT16, INT32, INT64 = (DATATYPES[n] for n in ("INT8", "INT16", "INT32", "INT64"))
FP16, FP32, FP64, BYTES, BF16 = (DATATYPES[n] for n in ("FP16", "FP32", "FP64", "BYTES", "BF16"))

Buffer = bytes | bytearray | memoryview
Shape = tuple[int, ...]


def shape_text(shape: Iterable[int]) -> str:
    """A shape as the protocol's error texts write it: `[1,16]`."""
    return "[" + ",".join(map(str, shape)) + "]"


class MemoryKind(Enum):
    """Where the bytes of a tensor are."""

    HOST = "host"
    PINNED = "pinned"
    SHARED = "shared"
    DEVICE = "device"


class Memory(Protocol):
    """A run of bytes somewhere.

    `device_id` counts within its kind; `owner` is whatever must stay alive while the bytes are used: memory goes back
    when its owner is finalised, never "after the reply".
    """

    @property
    def kind(self) -> MemoryKind: ...
    @property
    def device_id(self) -> int: ...
    @property
    def byte_size(self) -> int: ...
    @property
    def owner(self) -> object: ...

    def host(self) -> memoryview:
        """The bytes as a flat view (format 'B'). Raises Unsupported if the host cannot reach them."""
        ...


class Destination(Protocol):
    """A run of bytes somewhere that a result is written to; any thread."""

    @property
    def byte_size(self) -> int: ...

    def write(self, source: Memory) -> None:
        """Copies all of `source` to the beginning. Raises Error if that cannot be; the caller sees to the size."""
        ...


class HostMemory:
    """Bytes in ordinary memory: a view that keeps its owner alive, no copy."""

    __slots__ = ("byte_size", "view")
    kind: ClassVar[MemoryKind] = MemoryKind.HOST
    device_id: ClassVar[int] = 0

    def __init__(self, buffer: Buffer) -> None:
        self.view = view = memoryview(buffer)
        self.byte_size = view.nbytes

    @property
    def owner(self) -> object:
        return self.view.obj

    def host(self) -> memoryview:
        return self.view

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMemory, (bytes(self.view),)


class RegionReference(NamedTuple):
    """Memory in a client's shared-memory region, by the region's name. This crosses the engine's port; the engine makes
    memory of it that can be reached (H97). `offset` and `byte_size` are below 2**64, otherwise unchecked."""

    region: str
    offset: int
    byte_size: int

    @property
    def kind(self) -> MemoryKind:
        return MemoryKind.SHARED

    @property
    def device_id(self) -> int:
        return 0

    @property
    def owner(self) -> object:
        return None

    def host(self) -> memoryview:
        raise Internal(f"shared memory region '{self.region}' was not looked up")


class Tensor:
    """A named array on its way: `shape` is full (with the batch dimension), `memory` holds its elements row-major,
    little-endian; BYTES elements each as a 4-byte length and the bytes (H41)."""

    __slots__ = ("datatype", "memory", "name", "shape")

    def __init__(self, name: str, datatype: DataType, shape: Shape, memory: Memory) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.memory = memory

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor, (self.name, self.datatype, self.shape, self.memory)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, {shape_text(self.shape)}, {self.memory.byte_size} bytes)"


SMALL_BYTES = 1 << 10
"""Up to here a copy costs less than what numpy does to show memory to others without one."""


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """The tensor as an array of `tensor.shape`: a view of host memory, or for BYTES a new object array of `bytes`.

    Raises Invalid if the memory does not hold exactly the elements of the shape.
    """
    return _array_in(tensor, tensor.memory.host())


def aligned_array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """As `array_of`, but a copy if the tensor is small or lies across the boundaries of its elements.

    Off them an array is read slowly, and summed in another order: a request must not get another answer because its id
    is a letter longer. Transports lay large tensors out, so only small ones are copied."""
    view = tensor.memory.host()
    if view.nbytes <= SMALL_BYTES:
        return _array_in(tensor, view if tensor.datatype is BYTES else memoryview(bytearray(view)))
    array = _array_in(tensor, view)
    return array if array.flags.aligned else array.copy()


def _array_in(tensor: Tensor, view: memoryview) -> npt.NDArray[Any]:
    if tensor.datatype is BYTES:
        elements = np.empty(prod(tensor.shape), dtype=object)
        elements[:] = split_bytes(view, len(elements))
        return elements.reshape(tensor.shape)
    if view.nbytes != prod(tensor.shape) * tensor.datatype.size:
        raise Invalid(f"tensor '{tensor.name}' has {view.nbytes} bytes, which do not fill {shape_text(tensor.shape)}")
    return np.ndarray(tensor.shape, tensor.datatype.numpy, view)


def tensor_of(name: str, datatype: DataType, array: npt.NDArray[Any]) -> Tensor:
    """The array as a tensor, without a copy if it is contiguous and not small. BYTES takes an object array of
    `bytes` (or `str`).

    Raises Internal if the array's dtype is not `datatype.numpy`, or if an element of BYTES is of another type.
    """
    if array.dtype is not datatype.numpy and array.dtype != datatype.numpy:
        raise Internal(f"tensor '{name}' of type {datatype} needs an array of {datatype.numpy}, got {array.dtype}")
    if datatype is BYTES:
        try:
            joined = join_bytes(array.reshape(-1).tolist())
        except TypeError:
            raise Internal(f"tensor '{name}' of type BYTES has an element that is neither bytes nor str") from None
        return Tensor(name, datatype, array.shape, HostMemory(joined))
    if array.nbytes <= SMALL_BYTES:
        return Tensor(name, datatype, array.shape, HostMemory(array.tobytes()))
    return Tensor(name, datatype, array.shape, HostMemory(np.ascontiguousarray(array).data.cast("B")))


_LENGTH = struct.Struct("<I")
_SHORT = 64
"""Bytes of an element, its length included, on an average: of few long ones the lengths are sooner read."""


def join_bytes(elements: Sequence[bytes | str]) -> bytes:
    """Elements framed for the wire: each as its length in 4 bytes, little-endian, and its bytes (`str` as UTF-8)."""
    parts: list[bytes] = []
    for element in elements:
        raw = element.encode() if isinstance(element, str) else element
        parts += (_LENGTH.pack(len(raw)), raw)
    return b"".join(parts)


def are_short_strings(view: Buffer, count: int) -> bool:
    """Whether these are the framed elements of so many strings, found in a quarter of the time that one after the other
    takes: where each has less than 256 bytes and none an end of three zeros, as text has, whatever looks like a length
    is one. False for others too."""
    if not 4 * count < len(view) <= _SHORT * count:
        return False
    raw = np.frombuffer(view, np.uint8)
    zero = raw == 0
    starts = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    if len(starts) != count or starts[0]:
        return False
    ends = starts + raw[starts] + 4
    return bool(ends[-1] == len(raw) and (ends[:-1] == starts[1:]).all())


def split_bytes(view: Buffer, expected: int) -> list[bytes]:
    """The framed elements of `view`. Raises Invalid unless there are exactly `expected`, ending where the view ends."""
    elements, at, end, length_at = [], 0, len(view), _LENGTH.unpack_from
    while at < end:
        start = at + 4
        if start > end:
            raise Invalid(f"incomplete string length indicator: {end - at} bytes left")
        at = start + length_at(view, at)[0]
        if at > end:
            raise Invalid(f"incomplete string: {end - start} of {at - start} bytes")
        elements.append(bytes(view[start:at]))
    if len(elements) != expected:
        raise Invalid(f"{len(elements)} strings where {expected} are expected")
    return elements
