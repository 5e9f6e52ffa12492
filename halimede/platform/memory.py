"""Returns free memory that the C library keeps to the system. Any thread; takes milliseconds."""

import ctypes
import os
from collections.abc import Callable, Mapping

_ARENAS = -8
"""The parameter of `mallopt`, by the library's own number."""
_SETTINGS = ("MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "GLIBC_TUNABLES")


def share_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Makes all threads allocate from one malloc arena. Must be called before the process has threads. Returns whether
    it was set; if the operator has set a malloc variable, it is not.

    By default glibc has an arena per thread. It does not return the free end of any but the first one: after models
    with large weights that is up to 64 MiB per arena (D7). Four threads that ran a session took as long with one arena
    as with many."""
    if any(name in environment for name in _SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_ARENAS, 1))


def _find_trim() -> Callable[[int], object] | None:
    """glibc's `malloc_trim`. Other C libraries keep little memory and do not have it."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda pad: found(pad)


_trim = _find_trim()


def give_memory_back() -> None:
    """Returns free memory. Without it, what a model had allocated in small pieces stays with the process (D7)."""
    if _trim is not None:
        _trim(0)
