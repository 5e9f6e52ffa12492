"""Reads small files of a model whole, and tells what lies at a path. Any thread; blocks on the file system."""

import os
import stat
from errno import EBADF, EFBIG, EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR
from pathlib import Path

_NOTHING_THERE = frozenset({ENOENT, ENOTDIR, EBADF, ELOOP})
"""Error numbers that mean that there is nothing at a path, as in `pathlib`."""


MAX_CONFIG_BYTES = 4 << 20
"""Bytes of a `config.pbtxt`. Beyond: the load fails."""
MAX_FILE_BYTES = 2 << 30
"""Bytes of another file of a model that is read whole, such as the data of a warm-up sample. Beyond: the load fails."""


def read_whole(file: Path, most: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file. Raises OSError, also for a pipe or device, because reading these may never end, and
    for a file of more than `most` bytes."""
    # Without O_NONBLOCK, `open` blocks for a pipe until another process opens the other end.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(file))
        if not stat.S_ISREG(mode):
            raise OSError(EINVAL, "it is not a regular file", str(file))
        if status.st_size > most:
            raise OSError(EFBIG, f"it has {status.st_size} bytes, and {most} are allowed", str(file))
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return opened.read()
    finally:
        os.close(descriptor)


def status_of(path: str) -> os.stat_result | None:
    """The status of a file or directory, links followed; None if there is nothing. Raises OSError if the file system
    does not tell.
    """
    # `pathlib` takes twice as long, which counts for a thousand models.
    try:
        return os.stat(path)  # noqa: PTH116
    except ValueError:  # a null byte in the path
        return None
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise
        return None


def mode_of(path: str) -> int:
    """The mode of a file or directory, links followed; 0 if there is nothing. Raises OSError."""
    status = status_of(path)
    return 0 if status is None else status.st_mode


def entries_of(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a directory; none if there is no directory. Raises OSError if the file system does not tell."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise
        return []


def leads_to_directory(entry: os.DirEntry[str]) -> bool | None:
    """Whether an entry is a directory or a link to one; None for a link to nothing. Raises OSError."""
    # The kind of an entry came with the listing: only a link costs another look at the disk.
    if not entry.is_symlink():
        return entry.is_dir(follow_symlinks=False)
    mode = mode_of(entry.path)
    return stat.S_ISDIR(mode) if mode else None


def is_directory(path: str) -> bool:
    return stat.S_ISDIR(mode_of(path))


def is_file(path: str) -> bool:
    return stat.S_ISREG(mode_of(path))
