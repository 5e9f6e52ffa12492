"""The calls of CUDA that a plan needs: memory, copies, streams and graphs, by the driver's own library (libcuda).

A device's primary context is made current in each thread that calls, as TensorRT expects. Calls of the driver release
the interpreter lock. What the driver refuses is Internal."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

from halimede.errors import Cause, Internal, Unavailable

_LIBRARY = "libcuda.so.1"
_NON_BLOCKING = 1
_RELAXED = 2
"""The mode of a capture in which other threads may use the GPU."""


class Cuda(Protocol):
    """One GPU. Pointers and handles are numbers."""

    def current(self) -> Any: ...
    def allocate(self, size: int) -> int: ...
    def free(self, pointer: int) -> None: ...
    def allocate_pinned(self, size: int) -> int: ...
    def free_pinned(self, pointer: int) -> None: ...
    def copy(self, into: int, source: int, size: int, stream: int) -> None: ...
    def stream(self, priority: int) -> int: ...
    def end_stream(self, stream: int) -> None: ...
    def wait(self, stream: int) -> None: ...
    def record(self, stream: int) -> Any: ...
    def launch(self, graph: int, stream: int) -> None: ...
    def end_graph(self, graph: int) -> None: ...


class Driver:
    """A `Cuda` by libcuda. Raises Unavailable without a driver."""

    def __init__(self, device: int) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise Unavailable(f"CUDA's driver cannot be loaded: {error}").blaming(Cause.MACHINE) from error
        self._call("cuInit", ctypes.c_uint(0))
        self._context = ctypes.c_void_p()
        number = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)

    @contextmanager
    def current(self) -> Iterator[None]:
        """The GPU of the calling thread, inside."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        return pointer.value

    def free(self, pointer: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def allocate_pinned(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        self._call("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        return pointer.value or 0

    def free_pinned(self, pointer: int) -> None:
        self._call("cuMemFreeHost", ctypes.c_void_p(pointer))

    def copy(self, into: int, source: int, size: int, stream: int) -> None:
        """Starts a copy between host and device; the driver knows which pointer is where."""
        arguments = (ctypes.c_uint64(into), ctypes.c_uint64(source), ctypes.c_size_t(size), ctypes.c_void_p(stream))
        self._call("cuMemcpyAsync", *arguments)

    def stream(self, priority: int) -> int:
        """A stream. A smaller number has precedence; the driver limits it to what the GPU has."""
        handle = ctypes.c_void_p()
        arguments = (ctypes.byref(handle), ctypes.c_uint(_NON_BLOCKING), ctypes.c_int(priority))
        self._call("cuStreamCreateWithPriority", *arguments)
        return handle.value or 0

    def end_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def wait(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    @contextmanager
    def record(self, stream: int) -> Iterator[list[int]]:
        """Records what is started inside instead of running it. The list has the graph afterwards."""
        graph, executable, made = ctypes.c_void_p(), ctypes.c_void_p(), list[int]()
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_RELAXED))
        try:
            yield made
        except BaseException:
            # Whatever this says: the recording ends, and the exception in it is the reason.
            self._library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
            if graph:
                self._library.cuGraphDestroy(graph)
            raise
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        self._call("cuGraphDestroy", graph)
        made.append(executable.value or 0)

    def launch(self, graph: int, stream: int) -> None:
        self._call("cuGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(stream))

    def end_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", ctypes.c_void_p(graph))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            raise Internal(f"CUDA: {name}: {(text.value or b'unknown error').decode()}")


@cache
def cuda_on(device: int) -> Cuda:
    """The GPU with this number, once per process."""
    return Driver(device)
