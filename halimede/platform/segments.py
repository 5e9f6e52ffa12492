"""Shared-memory segments of other processes: a POSIX segment is a file in one folder of memory.

Knows nothing of regions, requests or error texts: what the system refuses is an OSError. Nothing here blocks, since the
folder is memory; any thread.
"""

import errno
import mmap
import os
import stat
from pathlib import Path

FOLDER = Path("/dev/shm")
"""Where Linux keeps POSIX segments. A system without it has none that can be opened here."""

_NAME_BYTES = 255
_LARGE_BYTES = 1 << 20
"""A larger copy has a mapping of its own."""


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
    """An open segment that is not mapped yet. Call `close`, or give it to `SharedBytes`, which closes it."""

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


class SharedBytes:
    """A part of a segment, to be read and written.

    The segment belongs to another process, which may shrink it or free its pages at any time. Touching a page that is
    gone would end this process (SIGBUS), so Python code never sees the mapping: every access is a system call, which
    fails instead. Its only cost is the copy. A page that was never written reads as zeros and stays unallocated; a
    write for which no memory is left fails.
    """

    __slots__ = ("_fd", "_mapping", "_offset", "byte_size")

    def __init__(self, segment: Segment, offset: int, byte_size: int) -> None:
        """Closes the segment's descriptor at the end, also if this fails. Raises OSError: the offset is not on a page,
        there are no bytes, no address space is left."""
        self._fd = segment.fd
        self._offset = offset
        self.byte_size = byte_size
        if not byte_size:  # mmap would take 0 for all of the segment
            raise _invalid()
        try:
            self._mapping = memoryview(mmap.mmap(self._fd, byte_size, offset=offset))
        except ValueError as error:  # the segment has become shorter since its size was read
            raise _invalid() from error

    def __del__(self) -> None:
        os.close(self._fd)

    def check(self, stop: int) -> None:
        """Raises OSError if the segment ends before `stop` now."""
        if os.fstat(self._fd).st_size < self._offset + stop:
            raise _shrunk()

    def read(self, start: int, stop: int) -> memoryview:
        """A copy of the bytes, read-only. Raises OSError if the segment has become too short."""
        # To clear a large bytearray, Python would hold the interpreter. The pages of a mapping are cleared as they are
        # filled, when it does not.
        size = stop - start
        copied = memoryview(mmap.mmap(-1, size) if size > _LARGE_BYTES else bytearray(size))
        self._read_into(copied, start)
        return copied.toreadonly()

    def write(self, start: int, source: memoryview) -> None:
        """Copies `source` into the segment. Raises OSError if the segment has become too short, or no memory is
        left."""
        self.check(start + source.nbytes)  # or pwrite would make the segment longer
        at = self._offset + start
        while source:
            written = os.pwrite(self._fd, source, at)
            at += written
            source = source[written:]

    def copy_from(self, start: int, source: "SharedBytes", source_start: int, size: int) -> None:
        """Copies from another segment, in one step: the kernel writes into the mapping of this one. Raises OSError."""
        source._read_into(self._mapping[start : start + size], source_start)

    def _read_into(self, into: memoryview, start: int) -> None:
        at = self._offset + start
        while into:
            count = os.preadv(self._fd, [into], at)
            if not count:
                raise _shrunk()
            at += count
            into = into[count:]


def _invalid() -> OSError:
    return OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _shrunk() -> OSError:
    return OSError(errno.EFAULT, "the segment has become shorter")
