"""The cores of this process. A thread inherits those of the thread that starts it, and so do threads and processes that
libraries start on it: threads that the loop starts begin with `use_all_cores`, so that what is started while the event
loop keeps to one core is not kept there with it."""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache

ALL: frozenset[int] = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
"""The cores of the process as it began; none where the system cannot tell."""


def use_all_cores() -> None:
    """The calling thread, which was begun on one core alone, may use all where the process had more. Not for threads
    that begin under a host policy. Does not raise: who took the cores away meanwhile shall not end the thread too."""
    if len(ALL) > 1:
        with suppress(OSError):
            if len(os.sched_getaffinity(0)) == 1:
                os.sched_setaffinity(0, ALL)


def current_core() -> int:
    """Where the calling thread runs; -1 where there is no choice, or the system cannot tell."""
    find = _finder()
    return find() if find is not None and len(ALL) > 1 else -1


@cache
def _finder() -> Callable[[], int] | None:
    try:
        found: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None
    return found
