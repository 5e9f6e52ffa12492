"""Small text files of a model, read whole; and what lies at a path. Any thread."""

import os
import stat
from errno import EBADF, EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR
from pathlib import Path

_NOTHING = frozenset({ENOENT, ENOTDIR, EBADF, ELOOP})


def read_whole(file: Path) -> bytes:
    """The bytes of a regular file. Raises OSError, also for what is none: a pipe would hold whoever reads it for as
    long as nobody writes, and a device may never end."""
    # Without O_NONBLOCK a pipe already holds whoever opens it.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(file))
        if not stat.S_ISREG(mode):
            raise OSError(EINVAL, "it is not a regular file", str(file))
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return opened.read()
    finally:
        os.close(descriptor)


def status_of(path: str) -> os.stat_result | None:
    """As `os.stat` has it, links followed; None where there is nothing. Raises OSError where that cannot be seen.

    `pathlib` takes twice as long, which counts where a thousand models are looked at."""
    try:
        return os.stat(path)  # noqa: PTH116
    except ValueError:  # no path at all, by a null byte
        return None
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
        return None


def mode_of(path: str) -> int:
    """The mode of the same, 0 where there is nothing."""
    status = status_of(path)
    return 0 if status is None else status.st_mode


def entries_of(folder: str) -> list[os.DirEntry[str]]:
    """What is in a directory; nothing where there is none. Raises OSError where that cannot be seen."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
        return []


def leads_to_directory(entry: os.DirEntry[str]) -> bool | None:
    """Whether an entry is a directory or a link to one, None for a link to nothing. What is no link is not looked at
    again. Raises OSError."""
    if not entry.is_symlink():
        return entry.is_dir(follow_symlinks=False)
    mode = mode_of(entry.path)
    return stat.S_ISDIR(mode) if mode else None


def is_directory(path: str) -> bool:
    return stat.S_ISDIR(mode_of(path))


def is_file(path: str) -> bool:
    return stat.S_ISREG(mode_of(path))
