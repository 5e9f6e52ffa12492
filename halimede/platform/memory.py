"""Memory that is free, and that the C library keeps, is given back to the system. Any thread; takes milliseconds."""

import ctypes
from collections.abc import Callable


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
    """Without it what a model had in many small pieces stays with the process, for the next model (contract D7)."""
    if _trim is not None:
        _trim(0)
