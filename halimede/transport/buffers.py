"""Aligned buffers for large messages. A buffer is reused when nothing refers to it.

A fresh buffer of some hundred kilobytes costs as much as the bytes that go into it, because the kernel must find and
clear its pages. This module knows nothing of messages. The event-loop thread calls `Buffers`; views of a buffer may
live on any thread.
"""

import weakref
from functools import partial
from typing import Any

import numpy as np

from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import BufferedBytes, ConnectionBytes

ALIGNMENT_BYTES = 64
"""Boundary on which the first tensor lies. Vector instructions of the runtimes need it."""
MIN_REUSED_BYTES = 1 << 16
"""A smaller buffer is cheaper to allocate than to keep."""
MAX_KEPT_BYTES = 1 << 26
"""Total size of the buffers that are kept for reuse."""
MAX_KEPT_BUFFERS = 16
"""Number of buffers that are kept for reuse."""
MAX_WASTE_DIVISOR = 4
"""A kept buffer may be larger than the requested size by at most one part in this many."""


class _Storage(np.ndarray[Any, np.dtype[np.uint8]]):
    """The memory of a buffer.

    Numpy makes a view of a view refer to the farthest array of its own type. If there were one type only, a view would
    refer to the storage and skip the lent part, and the part would be freed while its bytes are still in use.
    """


class _LentPart(np.ndarray[Any, np.dtype[np.uint8]]):
    """The part of a storage that is lent. It has a type of its own because views of a part may be plain arrays."""

    address: int
    """Of the storage."""


def _new_storage(size: int) -> _Storage:
    return np.empty(size, np.uint8).view(_Storage)


def aligned(size: int, offset: int) -> memoryview:
    """Returns a buffer of `size` bytes in which the byte at `offset` lies on a 64-byte boundary. The memory is not
    zeroed, so its pages are touched only as data arrives. Raises MemoryError."""
    room = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -(room.ctypes.data + offset) % ALIGNMENT_BYTES
    return room[start : start + size].data


class Buffers:
    """Lends buffers, and keeps the few that were returned last, so that sizes that are no longer requested disappear.

    A buffer is returned when the last view of it is freed. That may happen on any thread, or in the garbage collector
    in the middle of a method of this class.
    """

    def __init__(self, buffered: BufferedBytes | None = None) -> None:
        self.buffered = buffered or BufferedBytes()
        """Counts the bytes that have arrived in the lent buffers of all connections."""
        self._kept: dict[int, tuple[int, _Storage]] = {}
        """Storages that may be lent, by address. The one returned last is at the end."""
        self._lent: dict[int, tuple[weakref.ref[Any], _Storage]] = {}
        """Storages in use, by address, with a weak reference that fires when the last view is freed."""
        self._arrived: dict[int, tuple[ConnectionBytes, list[int]]] = {}
        """By the address of the storage of a lent buffer, whose bytes arrive there, and their numbers."""

    def aligned(self, size: int, offset: int) -> memoryview:
        """Returns a buffer of `size` bytes whose byte at `offset` lies on a 64-byte boundary. It may hold old
        bytes. A small one is not aligned. Event-loop thread only. Raises MemoryError."""
        # Neither zeroed, which would touch all its pages, nor lent, because a weak reference costs more at this size.
        if size < MIN_REUSED_BYTES:
            return np.empty(size, np.uint8).data
        address, room = self._take(size + ALIGNMENT_BYTES)
        start = -(address + offset) % ALIGNMENT_BYTES
        part = _LentPart((size,), np.uint8, room, start)
        self._lent[address] = weakref.ref(part, partial(self._returned, address)), room
        part.address = address
        return part.data

    def arrived(self, buffer: memoryview, count: int, account: ConnectionBytes) -> None:
        """Counts bytes of a connection that were received into a lent buffer, until it is freed. Pages without bytes
        take no memory, so they do not count. Event-loop thread only."""
        part = buffer.obj
        # A small buffer is not counted.
        if isinstance(part, _LentPart):
            known = self._arrived.get(part.address)
            if known is None:
                known = self._arrived[part.address] = account, [0]
            known[1][0] += count
            known[0].take(count)

    def counted(self, data: Buffer, account: ConnectionBytes) -> Buffer:
        """Returns bytes that were made from a request of a connection, such as a decompressed message. Many bytes count
        until the last view of what is returned is freed. Event-loop thread only."""
        if len(data) < MIN_REUSED_BYTES:
            return data
        part = np.frombuffer(data, np.uint8).view(_LentPart)
        account.take(len(data))
        weakref.finalize(part, account.give, len(data)).atexit = False
        return part.data

    def _take(self, size: int) -> tuple[int, _Storage]:
        """Takes the fitting storage that was returned last, or makes one. Returns its address and the storage."""
        for address, room in reversed(self._kept_now()):
            # Another thread may have evicted it since the list was made: `pop` decides.
            if size <= room.nbytes <= size + size // MAX_WASTE_DIVISOR and self._kept.pop(address, None) is not None:
                return address, room
        room = _new_storage(size)
        return room.ctypes.data, room

    def _returned(self, address: int, gone: object) -> None:
        """Called on any thread, and by several at a time. A race may evict one storage too many, which is harmless."""
        _, room = self._lent.pop(address)
        arrived = self._arrived.pop(address, None)
        if arrived is not None:
            arrived[0].give(arrived[1][0])
        # It would evict all others and still be too large.
        if room.nbytes > MAX_KEPT_BYTES:
            return
        self._kept[address] = address, room
        kept = self._kept_now()
        size = sum([room.nbytes for _, room in kept])
        for i, (oldest, other) in enumerate(kept):
            if len(kept) - i <= MAX_KEPT_BUFFERS and size <= MAX_KEPT_BYTES:
                return
            self._kept.pop(oldest, None)
            size -= other.nbytes

    def _kept_now(self) -> list[tuple[int, _Storage]]:
        """Lists the kept storages. Another thread may change the dict meanwhile; then it is listed again."""
        while True:
            try:
                return list(self._kept.values())
            except RuntimeError:
                continue
