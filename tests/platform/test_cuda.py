"""The calls to the CUDA driver, against one that is made of Python: its devices are numbers, its memory a bytearray."""

import ctypes
from typing import Any

import pytest

from halimede.platform.cuda import HANDLE_BYTES, CudaError, Driver, load_driver

INVALID_VALUE, INVALID_DEVICE = 1, 101
BASE = 0x7000_0000
HANDLE = b"\7" * HANDLE_BYTES


class FakeLibrary:
    """libcuda with one device and one allocation of 100 bytes, of which `HANDLE` names all but the first 10."""

    def __init__(self) -> None:
        self.memory = bytearray(range(100))
        self.current: list[Any] = []
        self.retained: list[int] = []
        self.opened: list[int] = []
        self.fail: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        entry = getattr(type(self), "_" + name.removesuffix("_v2"))

        def call(*arguments: Any) -> int:
            return self.fail.get(name) or int(entry(self, *arguments) or 0)

        return call

    def _cuInit(self, flags: ctypes.c_uint) -> None:  # noqa: N802 # the library's own names, here and below
        assert flags.value == 0

    def _cuGetErrorName(self, status: ctypes.c_int, text: Any) -> int:  # noqa: N802
        names = {INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE", INVALID_DEVICE: b"CUDA_ERROR_INVALID_DEVICE"}
        if status.value not in names:
            return INVALID_VALUE
        text._obj.value = names[status.value]
        return 0

    def _cuDeviceGet(self, device: Any, number: ctypes.c_int) -> int:  # noqa: N802
        device._obj.value = number.value
        return 0 if number.value == 0 else INVALID_DEVICE

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> None:  # noqa: N802
        self.retained.append(device.value)
        context._obj.value = 1000 + device.value

    def _cuCtxPushCurrent(self, context: ctypes.c_void_p) -> None:  # noqa: N802
        self.current.append(context.value)

    def _cuCtxPopCurrent(self, context: Any) -> None:  # noqa: N802
        context._obj.value = self.current.pop()

    def _cuIpcOpenMemHandle(self, pointer: Any, handle: Any, flags: ctypes.c_uint) -> int:  # noqa: N802
        assert self.current == [1000]
        assert flags.value == 1
        if bytes(handle.bytes) != HANDLE:
            return INVALID_VALUE
        pointer._obj.value = BASE + 10
        self.opened.append(BASE + 10)
        return 0

    def _cuIpcCloseMemHandle(self, pointer: ctypes.c_uint64) -> int:  # noqa: N802
        assert self.current
        if pointer.value not in self.opened:
            return INVALID_VALUE
        self.opened.remove(pointer.value)
        return 0

    def _cuMemGetAddressRange(self, base: Any, size: Any, pointer: ctypes.c_uint64) -> None:  # noqa: N802
        base._obj.value, size._obj.value = BASE, len(self.memory)

    def _cuMemcpyDtoH(self, target: Any, pointer: ctypes.c_uint64, size: ctypes.c_size_t) -> None:  # noqa: N802
        assert self.current
        at = pointer.value - BASE
        ctypes.memmove(target, bytes(self.memory[at : at + size.value]), size.value)

    def _cuMemcpyHtoD(self, pointer: ctypes.c_uint64, source: bytes, size: ctypes.c_size_t) -> None:  # noqa: N802
        assert self.current
        at = pointer.value - BASE
        self.memory[at : at + size.value] = source[: size.value]


def test_memory_is_read_and_written() -> None:
    library = FakeLibrary()
    memory = Driver(library).open(HANDLE, 0)
    assert (memory.device_id, memory.byte_size) == (0, 90)
    assert memory.read(0, 3) == bytes([10, 11, 12])
    memory.write(1, memoryview(b"xy"))
    assert memory.read(0, 4) == b"\nxy\r"
    assert memory.read(5, 5) == b""
    memory.write(5, memoryview(b""))
    memory.close()
    assert (library.opened, library.current) == ([], [])


def test_context_of_a_device_is_asked_for_once() -> None:
    library = FakeLibrary()
    driver = Driver(library)
    for _ in range(3):
        driver.open(HANDLE, 0).close()
    assert library.retained == [0]


@pytest.mark.parametrize(
    ("handle", "device", "word"),
    [
        (b"\0" * HANDLE_BYTES, 0, "CUDA_ERROR_INVALID_VALUE"),
        (b"short", 0, "CUDA_ERROR_INVALID_VALUE"),
        (HANDLE, 1, "CUDA_ERROR_INVALID_DEVICE"),
        (HANDLE, -1, "CUDA_ERROR_INVALID_DEVICE"),
    ],
)
def test_handle_that_cannot_be_opened(handle: bytes, device: int, word: str) -> None:
    library = FakeLibrary()
    with pytest.raises(CudaError, match=word):
        Driver(library).open(handle, device)
    assert library.current == []


def test_handle_of_unknown_size_is_closed_again() -> None:
    library = FakeLibrary()
    library.fail["cuMemGetAddressRange_v2"] = INVALID_VALUE
    with pytest.raises(CudaError):
        Driver(library).open(HANDLE, 0)
    assert (library.opened, library.current) == ([], [])


def test_error_without_a_name() -> None:
    library = FakeLibrary()
    library.fail["cuMemcpyDtoH_v2"] = 999
    memory = Driver(library).open(HANDLE, 0)
    with pytest.raises(CudaError, match="CUDA error 999"):
        memory.read(0, 1)
    assert library.current == []


def test_driver_without_a_device() -> None:
    library = FakeLibrary()
    library.fail["cuInit"] = INVALID_DEVICE
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_DEVICE"):
        Driver(library)


def test_driver_that_is_not_installed() -> None:
    with pytest.raises(CudaError, match=r"libno-such-cuda\.so cannot be loaded"):
        load_driver("libno-such-cuda.so")
