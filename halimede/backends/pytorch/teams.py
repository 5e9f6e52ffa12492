"""Teams of threads of OpenMP, with which torch computes on a CPU.

GNU's OpenMP library keeps a team of helper threads for each thread that has run torch. If all teams together have more
threads than there are cores, helpers sleep at once when they wait for each other, and all models become slower: MiniLM
on two cores took 1.4 times as long beside an idle team. So a thread that has nothing to compute gives up its team. A
new one costs 0.3 ms.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")

IDLE_SECONDS = 0.05
"""After this time without a batch, the thread of an instance gives up its team."""

_HARD = 2
"""`omp_pause_hard` of OpenMP 5.0."""


def end_team() -> None:
    """Ends the helper threads of the calling thread. Its next computation gets new ones."""
    pause = _pause()
    if pause is not None:
        pause(_HARD)


def and_end_team(call: Callable[[], T]) -> T:
    """The result of a call, or its exception. Leaves no helper threads behind."""
    try:
        return call()
    finally:
        end_team()


@cache
def _pause() -> Callable[[int], int] | None:
    """None if torch computes with another library: LLVM's would end the teams of all threads, even busy ones."""
    try:
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        pause: Callable[[int], int] = library.omp_pause_resource_all
    except (OSError, AttributeError):
        return None
    return pause
