"""Shared memory for the tensors of large frames: memfd segments that one side writes and the other side maps.

Each direction of a connection has a `SegmentWriter` on its sending side and a `SegmentReader` on its receiving side.
The descriptor of a new segment travels on a socket of its own (`SCM_RIGHTS`), before the first frame that names it. The
socket of the frames carries no tensor bytes then. Both processes use this module; it knows frames only as buffers.

Life of a segment:

| state | what ends it |
|---|---|
| free, at its writer | `take`: the writer fills it and names it in a frame |
| in use | the last view of it goes at its reader, who then sends RELEASE |
| released | the writer sees RELEASE; the segment is free again, or forgotten if there are enough |
| forgotten | the writer sends FORGET; the reader closes its mapping |

RELEASE and FORGET wait in `notes` and go before the next frame: neither is worth a system call of its own.
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import struct
import weakref
from collections import deque
from functools import partial
from typing import Any

import numpy as np

LEAST_BYTES = 1 << 18
"""Smaller tensors go through the socket: a mapping costs more than the copy (measured on one machine with two
cores)."""
FREE_SEGMENTS = 4
"""Segments that a writer keeps although nobody uses them."""
MOST_BYTES = 1 << 30
"""Bytes of segments in use beyond which frames carry their tensors themselves, as they do without shared memory."""
MOST_SEGMENTS = 64
MAX_SEGMENT_BYTES = 1 << 24
"""Larger frames carry their tensors themselves. A released segment stays mapped on both sides until the next frame, so
the size of what an idle worker keeps must have a bound."""
WASTE = 4
"""A free segment is used if it is at most this many times as large as needed."""

_ANNOUNCEMENT = struct.Struct("<Q")
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4
_SEALS = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW
_PAGE = mmap.PAGESIZE
_RECEIVE_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class SegmentError(Exception):
    """The other side named a segment that it did not send, or that could be made shorter while it is mapped."""


class Segment:
    """A mapping of a memfd. `size` is what was mapped, in whole pages."""

    __slots__ = ("map", "number", "size")

    def __init__(self, number: int, descriptor: int, size: int) -> None:
        """Closes the descriptor: the mapping keeps the memory. Raises OSError."""
        self.number = number
        self.size = size
        try:
            self.map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)


class SegmentWriter:
    """The sending side. `sock` is where descriptors go. Used by one thread at a time, `released` by any."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._numbers = 0
        self._free: deque[Segment] = deque()
        self._used: dict[int, Segment] = {}
        self.forgotten: deque[int] = deque()
        """Numbers for FORGET."""

    def take(self, size: int) -> Segment | None:
        """A segment of at least `size` bytes that nobody reads. None if that is too large, the system has none, or too
        many are in use: then the frame carries its tensors itself."""
        if size > MAX_SEGMENT_BYTES:
            return None
        for segment in self._free:
            if size <= segment.size <= WASTE * max(size, _PAGE):
                self._free.remove(segment)
                self._used[segment.number] = segment
                return segment
        if len(self._used) >= MOST_SEGMENTS or sum([each.size for each in self._used.values()]) + size > MOST_BYTES:
            return None
        return self._new(-(-size // _PAGE) * _PAGE)

    def _new(self, size: int) -> Segment | None:
        if not hasattr(os, "memfd_create"):  # another system than Linux, or a Python built for an old one
            return None
        self._numbers += 1
        try:
            descriptor = os.memfd_create("halimede", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return None
        try:
            # All pages at once: if there is no memory, this call says so. A write to the mapping would end the process.
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)
            rights = array.array("i", [descriptor])
            self._socket.sendmsg(
                [_ANNOUNCEMENT.pack(self._numbers)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
                socket.MSG_DONTWAIT,
            )
        except OSError:
            os.close(descriptor)
            return None
        try:
            segment = Segment(self._numbers, descriptor, size)
        except OSError:
            return None
        self._used[segment.number] = segment
        return segment

    def released(self, number: int) -> None:
        """The reader has no view of it any more. An unknown number is ignored: it only costs the other side memory."""
        segment = self._used.pop(number, None)
        if segment is None:
            return
        self._free.append(segment)
        while len(self._free) > FREE_SEGMENTS:
            self.forgotten.append(self._free.popleft().number)

    def close(self) -> None:
        """Unmaps the segments, except those that a frame still refers to. Without this they stay until the next garbage
        collection, because the objects of an ended process refer to each other."""
        self._socket.close()
        self._free.clear()
        self._used.clear()


class SegmentReader:
    """The receiving side. `sock` is where descriptors come from. Used by one thread at a time; views may go
    anywhere."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._known: dict[int, Segment] = {}
        self._watched: dict[int, weakref.ref[Any]] = {}
        self.unused: deque[int] = deque()
        """Numbers for RELEASE. Finalizers append to it, on any thread."""

    def view(self, number: int) -> memoryview:
        """The bytes of a segment that a frame has named. When the last view of them goes, the number is in `unused`.
        Raises SegmentError."""
        segment = self._known.get(number)
        while segment is None:
            self._receive()
            segment = self._known.get(number)
        # An array of its own for each use: views keep it alive, and its end is the end of the use.
        array = np.frombuffer(segment.map, np.uint8)
        self._watched[number] = weakref.ref(array, partial(self._gone, number))
        return array.data

    def _gone(self, number: int, _: object) -> None:
        self._watched.pop(number, None)
        self.unused.append(number)

    def forget(self, number: int) -> None:
        self._known.pop(number, None)

    def _receive(self) -> None:
        """Maps the next segment. Its announcement was sent before the frame that names it, so it is here already."""
        if len(self._known) > 2 * MOST_SEGMENTS:
            raise SegmentError("too many segments")
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _ANNOUNCEMENT.size, socket.CMSG_SPACE(struct.calcsize("i")), _RECEIVE_FLAGS
            )
        except OSError as error:
            raise SegmentError(f"a frame names an unknown segment: {error}") from None
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        if len(data) != _ANNOUNCEMENT.size or len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            raise SegmentError("an announcement of a segment makes no sense")
        (number,) = _ANNOUNCEMENT.unpack(data)
        self._known[number] = _checked(number, descriptors[0])

    def close(self) -> None:
        """Unmaps the segments without a view. The others go with their last view."""
        self._socket.close()
        self._known.clear()


def _checked(number: int, descriptor: int) -> Segment:
    """Maps a segment of the other side. It must be sealed: a segment that its owner makes shorter later would end this
    process at the next look at it (SIGBUS)."""
    try:
        if fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK == 0:
            raise OSError("it may be made shorter")
        size = os.fstat(descriptor).st_size
    except OSError as error:
        os.close(descriptor)
        raise SegmentError(f"a segment cannot be mapped: {error}") from None
    try:
        return Segment(number, descriptor, size)
    except (OSError, ValueError) as error:
        raise SegmentError(f"a segment cannot be mapped: {error}") from None
