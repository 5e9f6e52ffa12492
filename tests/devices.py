"""A device whose stream is moved by hand, and whose memory refuses the host, so that hidden copies are found."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from halimede.devices import CopyCounter, DeviceArray, HostArray, Place
from halimede.tensors import DataType, MemoryKind, Shape

CUDA = 2
"""The number of a device in DLPack."""


class FakeArray:
    """An array on a fake device. Whoever looks at its elements from the host fails."""

    def __init__(self, elements: HostArray, device_id: int) -> None:
        self.elements = elements
        self.device_id = device_id

    @property
    def shape(self) -> Sequence[int]:
        return self.elements.shape

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device_id

    def __dlpack__(self, **options: Any) -> NoReturn:
        raise AssertionError("a hidden copy: somebody exports memory of the device")

    def __array__(self, *args: Any, **options: Any) -> NoReturn:
        raise AssertionError("a hidden copy: the host looks at memory of the device")

    __getitem__ = __iter__ = __len__ = __array__


class FakeDevice:
    """Work waits in a stream until `run`, or is done at once if `eager`. `begun` is what was asked for, in order.
    `kick` is called when there is something to do."""

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
        self._stream: deque[Callable[[], None]] = deque()
        self._reached = 0
        self._marks = 0

    # What the server asks for.

    def empty(self, shape: Shape, datatype: DataType) -> FakeArray:
        return FakeArray(np.zeros(shape, datatype.numpy), self.place.device_id)

    def pinned(self, byte_size: int) -> HostArray:
        return np.full(byte_size, 0xEE, np.uint8)  # what nobody has written yet is seen

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

    def event(self) -> int:
        self._marks += 1
        number = self._marks
        self.do(lambda: self._reach(number))
        return number

    def ready(self, event: object, done: Callable[[Exception | None], None]) -> None:
        assert isinstance(event, int)
        if self._reached >= event:
            done(self.failure)
        else:
            self.do(lambda: done(self.failure))

    # What a fake runtime and the test do.

    def do(self, work: Callable[[], None]) -> None:
        """Has the stream do something."""
        self._stream.append(work)
        if self._kick is not None:
            self._kick()

    def run(self) -> None:
        """Lets the stream do what it has."""
        while self._stream:
            self._stream.popleft()()

    def _reach(self, number: int) -> None:
        self._reached = number

    def _elements(self, array: DeviceArray | HostArray) -> HostArray:
        if isinstance(array, np.ndarray):
            return array
        assert isinstance(array, FakeArray)
        assert array.device_id == self.place.device_id, "memory of another device"
        return array.elements
