"""Buffers to receive large messages in, aligned for the tensors within, and used again once nobody looks at them.

A fresh buffer of some hundred kilobytes costs as much as the bytes that go into it: the system has to find its pages
and to clear them. Knows nothing of messages. `Buffers` belongs to one event-loop thread, its views to anybody.
"""

import weakref
from functools import partial
from typing import Any

import numpy as np

ALIGNMENT_BYTES = 64
MIN_REUSED_BYTES = 1 << 16
"""What is smaller is not worth keeping."""
MAX_KEPT_BYTES = 1 << 26
MAX_KEPT_BUFFERS = 16
MAX_WASTE_DIVISOR = 4
"""A buffer that is kept may be larger than asked for by one part in so many."""


class _Storage(np.ndarray[Any, np.dtype[np.uint8]]):
    """A buffer, to be kept. A view of a view is a view of the farthest array of its own type, for numpy: if there were
    one type only, it would keep the buffer and not the part that was lent, and nobody would know that it still looks.
    """


class _LentPart(np.ndarray[Any, np.dtype[np.uint8]]):
    """What is lent of it: a third type, since views of it may be of this one too."""


def _new_storage(size: int) -> _Storage:
    return np.empty(size, np.uint8).view(_Storage)


def aligned(size: int, offset: int) -> memoryview:
    """A buffer of `size` bytes in which the byte at `offset` lies on a 64-byte boundary. Not zeroed: the memory is only
    touched as data arrives. Raises MemoryError."""
    room = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -(room.ctypes.data + offset) % ALIGNMENT_BYTES
    return room[start : start + size].data


class Buffers:
    """Lends buffers, and keeps a few of those that came back last: sizes that nobody asks for any more make room.

    A buffer comes back when the last view of it is gone, wherever that was: on whatever thread, or out of the garbage
    collector in the middle of anything that is done here. Nobody has to say so.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, _Storage]] = {}
        """By address, and with it, the one that came back last at the end."""
        self._lent: dict[int, tuple[weakref.ref[Any], _Storage]] = {}

    def aligned(self, size: int, offset: int) -> memoryview:
        """As the function `aligned`, but a small buffer lies anywhere, and what is in a large one is left from its last
        use. Loop thread only."""
        if size < MIN_REUSED_BYTES:
            return memoryview(bytearray(size))
        address, room = self._take(size + ALIGNMENT_BYTES)
        start = -(address + offset) % ALIGNMENT_BYTES
        part = _LentPart((size,), np.uint8, room, start)
        self._lent[address] = weakref.ref(part, partial(self._came_back, address)), room
        return part.data

    def _take(self, size: int) -> tuple[int, _Storage]:
        """The buffer that came back last of those that fit, or a fresh one; its address first."""
        for address, room in reversed(self._resting()):
            if size <= room.nbytes <= size + size // MAX_WASTE_DIVISOR and self._kept.pop(address, None) is not None:
                return address, room
        room = _new_storage(size)
        return room.ctypes.data, room

    def _came_back(self, address: int, gone: object) -> None:
        """Anywhere, while others do the same: at worst one too many is let go of."""
        _, room = self._lent.pop(address)
        if room.nbytes > MAX_KEPT_BYTES:
            return
        self._kept[address] = address, room
        resting = self._resting()
        size = sum([room.nbytes for _, room in resting])
        for i, (oldest, other) in enumerate(resting):
            if len(resting) - i <= MAX_KEPT_BUFFERS and size <= MAX_KEPT_BYTES:
                return
            self._kept.pop(oldest, None)
            size -= other.nbytes

    def _resting(self) -> list[tuple[int, _Storage]]:
        """Those that are kept at this moment. Where one comes or goes while they are listed, they are listed again."""
        while True:
            try:
                return list(self._kept.values())
            except RuntimeError:
                continue
