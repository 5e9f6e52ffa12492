"""Folders in the system's temporary folder that go with the process that made them.

A folder is locked for as long as its owner lives, however that ends; so whoever looks later can tell what a killed
process left behind, and remove it. Any thread; blocks. Python's own modules for this are imported where they are
used: they bring compressors, and most servers make no folder.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

_TRIES = 8


class Scratch:
    """A new empty folder, for its user only, whose name begins with `prefix`. `parent` is where it lies: TMPDIR, or
    what the system has for it. Raises OSError."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        import tempfile

        for _ in range(_TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
            lock = _lock(self.path)
            if lock is not None:  # else somebody took it for a leftover in between
                self._lock = lock
                return
            with suppress(OSError):  # gone already; or nothing can be locked in that file system
                self.path.rmdir()
        raise OSError(f"no folder can be locked in '{self.path.parent}'")

    def remove(self) -> None:
        """With all that is in it; what cannot be removed is a leftover from then on."""
        remove_tree(self.path)
        os.close(self._lock)


def remove_leftovers(prefix: str, parent: Path | None = None) -> list[Path]:
    """Removes the folders of this user that `prefix` begins and whose owners live no more, and says which."""
    import tempfile

    removed = []
    for path in sorted((parent or Path(tempfile.gettempdir())).glob(f"{prefix}*")):
        lock = _lock(path)
        if lock is not None:
            remove_tree(path)
            os.close(lock)
            removed.append(path)
    return removed


def remove_tree(path: Path) -> None:
    """As much of it as can be removed, also where a process that is being killed still writes there."""
    import shutil

    for _ in range(_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            break


def _lock(path: Path) -> int | None:
    """The descriptor that holds the lock, None if the folder is not ours, is in use, or is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False)):
                return descriptor
    os.close(descriptor)
    return None
