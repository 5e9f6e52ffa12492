"""Memory on NVIDIA GPUs that other processes share through CUDA IPC, by the driver's own library (libcuda).

`cudaIpcMemHandle_t` of the runtime is the driver's handle, so no other library is needed. Knows nothing of regions or
requests. Calls block while bytes are copied; any thread. What the driver refuses is a CudaError.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

HANDLE_BYTES = 64
_LAZY_ENABLE_PEER_ACCESS = 1
_LIBRARY = "libcuda.so.1"


class CudaError(Exception):
    """The driver refused; the text is its name for the error."""


class Library(Protocol):
    """The entry points of libcuda, by attribute."""

    def __getattr__(self, name: str) -> Any: ...


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * HANDLE_BYTES),)


class Driver:
    """The driver, initialised. Its devices are those that CUDA_VISIBLE_DEVICES leaves."""

    def __init__(self, library: Library) -> None:
        """Raises CudaError if there is no usable device."""
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._call("cuInit", ctypes.c_uint(0))

    def open(self, handle: bytes, device_id: int) -> "IpcMemory":
        """The memory behind another process's handle of `HANDLE_BYTES` bytes. Raises CudaError."""
        if len(handle) != HANDLE_BYTES:
            raise CudaError("CUDA_ERROR_INVALID_VALUE")
        with self._on(device_id):
            pointer = ctypes.c_uint64()
            value = _Handle.from_buffer_copy(handle)
            self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), value, ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS))
            try:
                return IpcMemory(self, device_id, pointer.value, self._room(pointer.value))
            except CudaError:
                self._call("cuIpcCloseMemHandle", pointer)
                raise

    def _room(self, pointer: int) -> int:
        """The bytes from `pointer` to the end of its allocation."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
        return base.value + size.value - pointer

    def close(self, device_id: int, pointer: int) -> None:
        with self._on(device_id):
            self._call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))

    def to_host(self, device_id: int, pointer: int, target: bytearray) -> None:
        """Fills `target` with the bytes at `pointer`."""
        if target:
            with self._on(device_id):
                there = (ctypes.c_ubyte * len(target)).from_buffer(target)
                self._call("cuMemcpyDtoH_v2", there, ctypes.c_uint64(pointer), ctypes.c_size_t(len(target)))

    def to_device(self, device_id: int, pointer: int, source: memoryview) -> None:
        """Copies `source` to `pointer`."""
        if source:
            with self._on(device_id):
                # A copy, since ctypes takes the address of nothing that is read-only but bytes.
                self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), bytes(source), ctypes.c_size_t(len(source)))

    @contextmanager
    def _on(self, device_id: int) -> Iterator[None]:
        """Makes the device's primary context the current one of this thread, as the CUDA runtime does."""
        if device_id not in self._contexts:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_id))
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device_id] = context
        self._call("cuCtxPushCurrent_v2", self._contexts[device_id])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        entry: Callable[..., int] = getattr(self._library, name)
        status = entry(*arguments)
        if status:
            raise CudaError(self._word_for(status))

    def _word_for(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text)) or text.value is None:
            return f"CUDA error {status}"
        return text.value.decode("ascii", "replace")


class IpcMemory:
    """Another process's device memory, `byte_size` bytes of it, open until `close`."""

    __slots__ = ("_driver", "_pointer", "byte_size", "device_id")

    def __init__(self, driver: Driver, device_id: int, pointer: int, byte_size: int) -> None:
        self._driver = driver
        self._pointer = pointer
        self.device_id = device_id
        self.byte_size = byte_size

    def read(self, start: int, stop: int) -> bytearray:
        """A copy on the host. Raises CudaError."""
        copy = bytearray(stop - start)
        self._driver.to_host(self.device_id, self._pointer + start, copy)
        return copy

    def write(self, start: int, source: memoryview) -> None:
        """Copies from the host. Raises CudaError."""
        self._driver.to_device(self.device_id, self._pointer + start, source)

    def close(self) -> None:
        """Nothing may be read or written afterwards. Raises CudaError."""
        self._driver.close(self.device_id, self._pointer)


def load_driver(library: str = _LIBRARY) -> Driver:
    """The driver of this machine. Raises CudaError if there is none, or no device."""
    try:
        return Driver(ctypes.CDLL(library))
    except OSError as error:
        raise CudaError(f"{library} cannot be loaded") from error
