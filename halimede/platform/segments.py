"""Shared-memory segments of other processes, mapped: a POSIX segment is a file in one folder of memory.

Knows nothing of regions, requests or error texts: what the system refuses is an OSError. Opening and mapping do not
block, since the folder is memory; any thread.
"""

import errno
import mmap
import os
import stat
from pathlib import Path

FOLDER = Path("/dev/shm")
"""Where Linux keeps POSIX segments. A system without it has none that can be opened here."""

_NAME_BYTES = 255
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system
_HOLDING_BYTES = 4 << 20  # copied in memory no other Python thread runs meanwhile: 0.4 ms


def segment_name(key: str) -> str | None:
    """The file name for a key of `shm_open`: the key without its leading slashes. None for a key that names no segment:
    a path, a semaphore, bytes that a file name cannot have."""
    name = key.lstrip("/")
    if not name or name in (".", "..") or "/" in name or "\0" in name or name.startswith("sem."):
        return None
    try:
        return name if len(os.fsencode(name)) <= _NAME_BYTES else None
    except UnicodeEncodeError:
        return None


class Segment:
    """An open segment that is not mapped yet. Call `close`, or give it to `Mapping`, which closes it."""

    __slots__ = ("byte_size", "fd")

    def __init__(self, key: str, folder: Path = FOLDER) -> None:
        """Raises OSError if there is no such segment, if it is no regular file, or if this process may not write to
        it."""
        name = segment_name(key)
        if name is None:
            raise _invalid()
        # The flags of shm_open, and O_NONBLOCK: the open must not wait for the other end of a pipe.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        self.fd = os.open(folder / name, flags)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise _invalid()
        self.byte_size = status.st_size

    def close(self) -> None:
        os.close(self.fd)


class Mapping:
    """A part of a segment, mapped until its last view is gone.

    The segment belongs to another process, which may shrink it or free its pages at any time. To touch a missing page
    would end this process (SIGBUS). So `read` and `write` check first; a segment that shrinks while a view is in use is
    not caught. A page that was never written is allocated when it is touched, which ends this process if no memory is
    left.
    """

    __slots__ = ("_fd", "_offset", "_readable", "_writable", "byte_size")

    def __init__(self, segment: Segment, offset: int, byte_size: int) -> None:
        """Closes the segment's descriptor at the end, also if this fails. Raises OSError: the offset is not on a page,
        there are no bytes, no address space is left."""
        self._fd = segment.fd
        self._offset = offset
        self.byte_size = byte_size
        if not byte_size:  # mmap would take 0 for all of the segment
            raise _invalid()
        try:
            self._writable = memoryview(mmap.mmap(self._fd, byte_size, offset=offset))
        except ValueError as error:  # the segment has become shorter since its size was read
            raise _invalid() from error
        self._readable = self._writable.toreadonly()

    def __del__(self) -> None:
        os.close(self._fd)

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes, read-only: a view of the mapping, or a copy if some of them were never written.

        Raises OSError if the segment has become too short."""
        at, end = self._offset + start, self._offset + stop
        status = os.fstat(self._fd)
        if status.st_size < end:
            raise _shrunk()
        if status.st_blocks * _BLOCK_BYTES >= status.st_size or at == end or self._hole(at) >= end:
            return self._readable[start:stop]
        return self._copy(at, stop - start)

    def _hole(self, at: int) -> int:
        """The offset of the first page from `at` on that was never written, or the end of the segment."""
        return os.lseek(self._fd, at, os.SEEK_HOLE)

    def _copy(self, at: int, size: int) -> memoryview:
        """A copy of bytes of a segment. Pages that were never written read as zeros, and stay unallocated."""
        copied = memoryview(bytearray(size))
        done = 0
        while done < size:
            count = os.preadv(self._fd, [copied[done:]], at + done)
            if not count:
                raise _shrunk()
            done += count
        return copied.toreadonly()

    def write(self, start: int, source: memoryview) -> None:
        """Copies `source` into the segment. Raises OSError if the segment has become too short, or no memory is
        left."""
        stop = start + source.nbytes
        status = os.fstat(self._fd)
        if status.st_size < self._offset + stop:
            raise _shrunk()
        if source.nbytes <= _HOLDING_BYTES and status.st_blocks * _BLOCK_BYTES >= status.st_size:
            self._writable[start:stop] = source
        else:
            self._fill(start, source)

    def _fill(self, start: int, source: memoryview) -> None:
        """Copies by `pwrite`, for segments without all their pages, and for large copies. If no memory is left, pwrite
        raises; touching the mapping would end the process. Other threads run meanwhile. It takes two to three times as
        long as a copy into the mapping."""
        at = self._offset + start
        while source:
            written = os.pwrite(self._fd, source, at)
            at += written
            source = source[written:]


def _invalid() -> OSError:
    return OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _shrunk() -> OSError:
    return OSError(errno.EFAULT, "the segment has become shorter")
