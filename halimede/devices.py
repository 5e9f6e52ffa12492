"""Tensors on a device, for the server that knows no device itself: what a backend brings so that its inputs are
gathered and its outputs are split where they are, and copied to the host once if somebody reads them there.

Arrays on a device are objects that speak DLPack. Knows nothing of requests, models or runtimes. Any thread.
"""

from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from halimede.errors import Error, Internal
from halimede.tensors import DataType, HostMemory, MemoryKind, Shape

HostArray = npt.NDArray[Any]


class Place(NamedTuple):
    """Where the bytes of a tensor are."""

    kind: MemoryKind
    device_id: int = 0


HOST = Place(MemoryKind.HOST)

_KINDS = {1: MemoryKind.HOST, 3: MemoryKind.PINNED, 11: MemoryKind.PINNED}
"""By the number of DLPack: the CPU, memory pinned for CUDA, memory pinned for ROCm. Any other is a device."""


class DeviceArray(Protocol):
    """A contiguous array that speaks DLPack."""

    @property
    def shape(self) -> Sequence[int]: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


def place_of(array: DeviceArray) -> Place:
    """Where an array is, by what it says of itself."""
    kind, number = array.__dlpack_device__()
    place = _KINDS.get(int(kind), MemoryKind.DEVICE)
    return Place(place, number if place is MemoryKind.DEVICE else 0)


class CopyCounter:
    """How many tensors of a model were copied from a device to the host (`halimede_device_copies_total`)."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = Lock()

    def add(self) -> None:
        with self._lock:  # batches of several instances end on threads of their own
            self.value += 1


class Device(Protocol):
    """One device as one instance of a model uses it, usually with a stream of its own: what is begun by `copy` is done
    in order. Brought by the backend, which knows the runtime."""

    @property
    def place(self) -> Place: ...
    @property
    def copies(self) -> CopyCounter:
        """That of the model; the server counts."""
        ...

    def empty(self, shape: Shape, datatype: DataType) -> DeviceArray:
        """Memory on the device."""
        ...

    def pinned(self, byte_size: int) -> HostArray:
        """Memory of the host, as bytes (uint8), that the device copies to and from without waiting."""
        ...

    def rows(self, array: DeviceArray, start: int, stop: int) -> DeviceArray:
        """A view of these rows of an array on the device."""
        ...

    def copy(self, into: DeviceArray | HostArray, source: DeviceArray | HostArray) -> None:
        """Begins to copy all elements. At least one of the two is on the device. Both stay alive and unchanged until an
        event after it is reached: the device sees to that."""
        ...

    def event(self) -> object:
        """A mark behind everything that was begun so far."""
        ...

    def ready(self, event: object, done: Callable[[Exception | None], None]) -> None:
        """Calls `done` once, on any thread, when the mark is reached, or with what went wrong before it. Does not wait,
        and needs no thread per batch."""
        ...


class DeviceMemory:
    """The rows of an output on a device, as the memory of a tensor. `host` copies them, once, and waits for that: it is
    for readers that could not say beforehand that they want the bytes."""

    __slots__ = ("_copy", "array", "byte_size", "device")
    kind = MemoryKind.DEVICE

    def __init__(self, array: DeviceArray, byte_size: int, device: Device) -> None:
        self.array = array
        self.byte_size = byte_size
        self.device = device
        self._copy: memoryview | None = None

    @property
    def device_id(self) -> int:
        return self.device.place.device_id

    @property
    def owner(self) -> object:
        return self.array

    def host(self) -> memoryview:
        """Raises Internal if the device fails."""
        if self._copy is None:
            copied = begin_copy(self.array, self.byte_size, self.device)
            over, failures = Event(), list[Exception]()

            def done(failure: Exception | None) -> None:
                if failure is not None:
                    failures.append(failure)
                over.set()

            self.device.ready(self.device.event(), done)
            over.wait()
            if failures:
                raise as_error(failures[0])
            self._copy = copied.data.cast("B")
        return self._copy

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMemory, (bytes(self.host()),)  # another process has no part in this one's device memory


def begin_copy(array: DeviceArray, byte_size: int, device: Device) -> HostArray:
    """Begins the copy of an array to the host, and counts it; the bytes that will hold it."""
    copied = device.pinned(byte_size)
    device.copy(copied, array)
    device.copies.add()
    return copied


def as_error(failure: Exception) -> Error:
    """A failure of a device as clients read it."""
    return failure if isinstance(failure, Error) else Internal(f"{type(failure).__name__}: {failure}")


def is_host(array: object) -> bool:
    """Whether an output is an array of numpy's, which host backends give."""
    return isinstance(array, np.ndarray)
