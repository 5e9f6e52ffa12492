"""Folders in the system's temporary folder that end with the process that made them, and the place of those that stay.

A folder is locked while its owner lives, however the owner ends. So a later process recognizes and removes what a
killed process left. Any thread; blocks. `tempfile` and `shutil` are imported when they are needed: they import
compressors, and most servers make no folder.
"""

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_TRIES = 8


class Scratch:
    """A new empty folder in `parent`, for its user only, whose name begins with `prefix`. By default the parent is
    TMPDIR or the system's temporary folder. Raises OSError."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        import tempfile

        for _ in range(_TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
            lock = _lock(self.path)
            if lock is not None:  # else another process took it for a leftover in between
                self._lock = lock
                return
            with suppress(OSError):  # removed already, or this file system has no locks
                self.path.rmdir()
        raise OSError(f"no folder can be locked in '{self.path.parent}'")

    def remove(self) -> None:
        """Removes the folder with its content. What cannot be removed becomes a leftover."""
        remove_tree(self.path)
        os.close(self._lock)


def remove_leftovers(prefix: str, parent: Path | None = None) -> list[Path]:
    """Removes the folders of this user whose names begin with `prefix` and whose owners have ended. Returns their
    paths."""
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
    """Removes as much as possible. Tries again if a process that is being killed still writes there."""
    import shutil

    for _ in range(_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            break


def user_cache(environment: Mapping[str, str]) -> Path:
    """The folder for what later processes find again: in XDG_CACHE_HOME, or in `.cache` of the user's home, or for a
    user without a home in the temporary folder. It may not exist."""
    named, home = environment.get("XDG_CACHE_HOME", ""), environment.get("HOME", "")
    if Path(named).is_absolute():
        return Path(named) / "halimede"
    if Path(home).is_absolute():
        return Path(home) / ".cache" / "halimede"
    import tempfile

    return Path(tempfile.gettempdir()) / f"halimede-{os.geteuid()}"


def _lock(path: Path) -> int | None:
    """The descriptor that holds the lock; None if the folder is not ours, is in use, or is gone."""
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
