"""CUDA devices as the server uses them (`halimede.devices.Device`), by torch: a stream, pinned memory, copies, events.

One `TorchDevice` per instance. Its copies and the instance's kernels run on its stream, in the order of the calls. A
thread of the device waits for the events, one after the other, as a stream reaches them in that order. Any thread.
"""

import ctypes
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any

import numpy as np
import torch

from halimede.backends.pytorch.values import DTYPES
from halimede.devices import DEVICE_FAILED, CopyCounter, DeviceArray, HostArray, Place
from halimede.errors import Internal
from halimede.platform.wakeable_thread import WakeableThread
from halimede.tensors import DataType, MemoryKind, Shape

log = logging.getLogger(__name__)

Done = Callable[[Exception | None], None]


class TorchDevice:
    """The GPU `number` for one instance. `cuda` is `torch.cuda`, or what stands for it in a test without a GPU.

    `broken` is set after an error that leaves the process's context of the GPU unusable, such as an access to wrong
    memory: no later work succeeds.
    """

    def __init__(self, number: int, copies: CopyCounter, cuda: Any = torch.cuda, kind: str = "cuda") -> None:
        """Raises OSError or RuntimeError if there is no thread, no GPU or no memory for its context."""
        self.place = Place(MemoryKind.DEVICE, number)
        self.copies = copies
        self.broken = False
        self.device = torch.device(kind, number) if kind == "cuda" else torch.device(kind)
        self._cuda = cuda
        self._stream = cuda.Stream(self.device)
        self._watch = WakeableThread(f"torch, GPU {number}")
        self._keeping = Lock()
        self._kept: list[object] = []
        """What copies since the last event read or write."""

    def on_stream(self) -> AbstractContextManager[object]:
        """Makes the GPU and the stream those of the calling thread."""
        return self._cuda.stream(self._stream)  # type: ignore[no-any-return]

    def empty(self, shape: Shape, datatype: DataType) -> DeviceArray:
        with self.on_stream():  # torch gives the memory to this stream again
            return torch.empty(shape, dtype=DTYPES[datatype], device=self.device)  # type: ignore[no-any-return]

    def pinned(self, byte_size: int) -> HostArray:
        # torch keeps pinned memory for later, and does not give it out while a copy that it started needs it.
        return self._pinned(byte_size).numpy()  # type: ignore[no-any-return]

    def _pinned(self, byte_size: int) -> Any:
        return torch.empty(byte_size, dtype=torch.uint8, pin_memory=True)

    def rows(self, array: DeviceArray, start: int, stop: int) -> DeviceArray:
        return self._tensor(array)[start:stop]  # type: ignore[no-any-return]

    def copy(self, into: DeviceArray | HostArray, source: DeviceArray | HostArray) -> None:
        with self.on_stream(), torch.inference_mode():
            target, origin = self._bytes(into), self._bytes(source)
            target.copy_(origin, non_blocking=True)
            if origin.is_cuda:
                # The memory may come from the stream of another instance, which must not use it before this copy.
                origin.record_stream(self._stream)
        with self._keeping:
            self._kept += (into, source, target, origin)

    def ready(self, done: Done) -> None:
        with self.on_stream():
            event = self._cuda.Event(blocking=True)  # the thread sleeps; a busy one would take a core from the server
            event.record(self._stream)
        with self._keeping:
            kept, self._kept = self._kept, []
        self._watch.submit(lambda: self._wait(event, kept, done))

    def _wait(self, event: Any, kept: list[object], done: Done) -> None:
        failure: Exception | None = None
        try:
            event.synchronize()
        except Exception as error:
            failure = self._break(error)
            _never_free(kept)
        else:
            kept.clear()
        done(failure)

    def failure(self) -> Exception | None:
        """The failure of the GPU, if it cannot be used any more. Asks it, and does not wait; for use after an error."""
        try:
            self._stream.query()
        except Exception as error:  # CUDA repeats an error that cannot be undone
            return self._break(error)
        return None

    def _break(self, error: Exception) -> Exception:
        if not self.broken:
            self.broken = True
            log.error("GPU %d: %s: %s", self.place.device_id, DEVICE_FAILED, error)
        with self._keeping:
            kept, self._kept = self._kept, []
        _never_free(kept)
        # The other lines are advice for who wrote the kernel.
        return Internal(f"{DEVICE_FAILED}: {next(iter(str(error).splitlines()), type(error).__name__)}")

    def close(self) -> None:
        """After the last answer."""
        self._watch.stop()

    def _tensor(self, array: DeviceArray | HostArray) -> Any:
        if isinstance(array, np.ndarray):
            return torch.from_numpy(array)
        return array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)

    def _bytes(self, array: DeviceArray | HostArray) -> Any:
        """The elements as uint8: one of two arrays may be only the bytes of the other."""
        return self._tensor(array).contiguous().reshape(-1).view(torch.uint8)


def _never_free(kept: list[object]) -> None:
    """Keeps memory that streams have used until the process is gone, also while the interpreter ends. To free it torch
    records an event, which fails on a broken GPU, and torch ends a process that fails there."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
