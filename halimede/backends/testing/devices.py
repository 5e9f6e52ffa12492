"""A device without hardware, for tests of backends with tensors on a device.

Its memory refuses the host, so a test finds each hidden copy. Its stream does its work when `run` is called: by the
test, or by a thread of the backend under test. Needs no test framework.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from halimede.devices import CopyCounter, DeviceArray, HostArray, Place
from halimede.tensors import DataType, MemoryKind, Shape

CUDA = 2
"""The number of a device in DLPack."""


class FakeArray:
    """An array on a fake device. `elements` is for the fake runtime; the server cannot read them."""

    def __init__(self, elements: HostArray, device_id: int) -> None:
        self.elements = elements
        self.device_id = device_id

    @property
    def shape(self) -> Sequence[int]:
        return self.elements.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device_id

    def __dlpack__(self, **options: Any) -> NoReturn:
        raise AssertionError("a hidden copy: memory of the device is exported")

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise AssertionError("a hidden copy: the host reads memory of the device")

    __getitem__ = __iter__ = __len__ = __array__


class FakeDevice:
    """A `Device`. Its work waits in a stream for `run`, or is done at once if `eager`.

    `begun` has the copies that were asked for, in order. `kick` is called whenever there is something to do. `failure`
    is the exception that `ready` passes on until it is None again.
    """

    def __init__(
        self,
        device_id: int = 0,
        eager: bool = False,
        copies: CopyCounter | None = None,
        kick: Callable[[], None] | None = None,
    ) -> None:
        self.place = Place(MemoryKind.DEVICE, device_id)
        self.copies = copies or CopyCounter()
        self.begun: list[str] = []
        self.failure: Exception | None = None
        self._kick = self.run if eager else kick
        self._stream: deque[Callable[[], object]] = deque()

    # What the server calls.

    def empty(self, shape: Shape, datatype: DataType) -> FakeArray:
        return FakeArray(np.zeros(shape, datatype.numpy), self.place.device_id)

    def pinned(self, byte_size: int) -> HostArray:
        return np.full(byte_size, 0xEE, np.uint8)  # a test sees bytes that were never written

    def rows(self, array: DeviceArray, start: int, stop: int) -> FakeArray:
        assert isinstance(array, FakeArray)
        return FakeArray(array.elements[start:stop], array.device_id)

    def copy(self, into: DeviceArray | HostArray, source: DeviceArray | HostArray) -> None:
        names = ["host" if isinstance(each, np.ndarray) else "device" for each in (source, into)]
        self.begun.append(f"{names[0]} to {names[1]}")
        target, origin = self._elements(into), self._elements(source)
        assert target.nbytes == origin.nbytes

        def copy() -> None:
            target.reshape(-1).view(np.uint8)[:] = np.ascontiguousarray(origin).reshape(-1).view(np.uint8)

        self.do(copy)

    def ready(self, done: Callable[[Exception | None], None]) -> None:
        self.do(lambda: done(self.failure))

    # What a fake runtime and the test call.

    def do(self, work: Callable[[], object]) -> None:
        """Appends work to the stream."""
        self._stream.append(work)
        if self._kick is not None:
            self._kick()

    def run(self) -> None:
        """Does the work in the stream."""
        while self._stream:
            self._stream.popleft()()

    def _elements(self, array: DeviceArray | HostArray) -> HostArray:
        if isinstance(array, np.ndarray):
            return array
        assert isinstance(array, FakeArray)
        assert array.device_id == self.place.device_id, "memory of another device"
        return array.elements
