"""Tensors on a device. The server uses a device only through the Protocol `Device`, which a backend implements.

With it, the server gathers inputs and splits outputs on the device. It copies an output to the host once, if a reader
needs it there. Arrays on a device are objects that implement DLPack. Knows nothing of requests, models or runtimes.
Any thread.
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
    """The location of the bytes of a tensor."""

    kind: MemoryKind
    device_id: int = 0


HOST = Place(MemoryKind.HOST)

DEVICE_FAILED = "the GPU has failed, and this process cannot use it any more"
"""The text of requests after an error of a GPU that cannot be undone, such as an access to wrong memory."""

_KINDS = {1: MemoryKind.HOST, 3: MemoryKind.PINNED, 11: MemoryKind.PINNED}
"""By the device type of DLPack: the CPU, memory pinned for CUDA, memory pinned for ROCm. Any other is a device."""


class DeviceArray(Protocol):
    """A contiguous array that implements DLPack."""

    @property
    def shape(self) -> Sequence[int]: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


def place_of(array: DeviceArray) -> Place:
    """The place of an array, from its DLPack device."""
    kind, number = array.__dlpack_device__()
    place = _KINDS.get(int(kind), MemoryKind.DEVICE)
    return Place(place, number if place is MemoryKind.DEVICE else 0)


class CopyCounter:
    """How many tensors of a model were copied from a device to the host (`halimede_device_copies_total`)."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = Lock()

    def add(self) -> None:
        with self._lock:  # instances count on threads of their own
            self.value += 1


class Device(Protocol):
    """A device for one instance of a model, or for one of its batches in flight, usually with a stream of its own.

    Copies run in the order of the calls. A backend implements this Protocol with the library of its runtime.
    """

    @property
    def place(self) -> Place: ...
    @property
    def copies(self) -> CopyCounter:
        """The counter of the model. The server adds to it."""
        ...

    def empty(self, shape: Shape, datatype: DataType) -> DeviceArray:
        """Returns memory on the device, uninitialised."""
        ...

    def pinned(self, byte_size: int) -> HostArray:
        """Returns host memory, as uint8, that the device copies to and from asynchronously."""
        ...

    def rows(self, array: DeviceArray, start: int, stop: int) -> DeviceArray:
        """Returns a view of the rows from `start` to `stop` (exclusive) of an array on the device."""
        ...

    def copy(self, into: DeviceArray | HostArray, source: DeviceArray | HostArray) -> None:
        """Starts to copy all elements and returns. At least one of the arrays is on the device. The device keeps both
        alive until the copy has ended."""
        ...

    def ready(self, done: Callable[[Exception | None], None]) -> None:
        """Calls `done` once, on any thread, when all work that was started so far has ended: with None, or with the
        exception of this work. Must not block. It should not start a thread for each batch."""
        ...


class DeviceMemory:
    """The rows of an output on a device, as the memory of a tensor.

    `host` copies them once and waits. Readers that are known to need the bytes get a copy that was started earlier
    (`scheduling.device_batch`).
    """

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

            self.device.ready(done)
            over.wait()
            if failures:
                raise as_error(failures[0])
            self._copy = copied.data.cast("B")
        return self._copy

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMemory, (bytes(self.host()),)  # another process cannot use the device memory of this one


def begin_copy(array: DeviceArray, byte_size: int, device: Device) -> HostArray:
    """Starts to copy an array to the host, and counts the copy. Returns the bytes that will hold it."""
    copied = device.pinned(byte_size)
    device.copy(copied, array)
    device.copies.add()
    return copied


def as_error(failure: Exception) -> Error:
    """The error for clients after a failure of a device."""
    return failure if isinstance(failure, Error) else Internal(f"{type(failure).__name__}: {failure}")


def is_host(array: object) -> bool:
    """Whether an output is a numpy array, and not on a device."""
    return isinstance(array, np.ndarray)
