"""Memory that is free, and that the C library keeps, is given back to the system. Any thread; takes milliseconds."""

import ctypes
import os
from collections.abc import Callable, Mapping

_ARENAS = -8
"""The parameter of `mallopt`, by the library's own number."""
_SETTINGS = ("MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "GLIBC_TUNABLES")


def share_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """From now on all threads take memory from one place. For the start of a process, before it has threads; whether
    that could be set. Not where the operator has set something of it.

    Left alone the GNU library has places for each thread. Of those beside the first it gives back what is free between
    things, and not what is free at the end, which after models with large weights is up to 64 MiB of each (contract
    D7). Four threads that run a session took as much time with one place as with many."""
    if any(name in environment for name in _SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_ARENAS, 1))


def _find_trim() -> Callable[[int], object] | None:
    """The GNU library's `malloc_trim`; other libraries keep little, and have no such call."""
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda pad: found(pad)


_trim = _find_trim()


def give_memory_back() -> None:
    """Without it what a model had in many small pieces stays with the process, for the next model (D7)."""
    if _trim is not None:
        _trim(0)
