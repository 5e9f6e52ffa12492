"""Teams of threads of OpenMP, with which torch computes on a CPU.

GNU's OpenMP library keeps a team of helper threads for each thread that has run torch. If all teams together have more
threads than there are cores, helpers sleep at once when they wait for each other, and all models become slower: MiniLM
on two cores took 1.4 times as long beside an idle team. So a thread that has nothing to compute gives up its team. A
new one costs 0.3 ms. The event loop, on which quick models run, never has one.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")

IDLE_SECONDS = 0.05
"""After this time without a batch, the thread of an instance gives up its team."""

_HARD = 2
"""`omp_pause_hard` of OpenMP 5.0."""


def end_team() -> None:
    """Ends the helper threads of the calling thread. Its next computation gets new ones."""
    library = _library()
    if library is not None:
        library.omp_pause_resource_all(_HARD)


def stay_without_team() -> None:
    """Lets torch compute on the calling thread without helper threads from now on. Call it on the event loop, which
    would wait whenever the system runs something else instead of a helper."""
    openmp = _library()
    if openmp is None:
        return
    torch.get_num_threads()  # torch sets the number of the process on each thread once; not after the next lines
    openmp.omp_set_num_threads(1)
    # MKL, which torch contains on x86, has a number of its own. The name with capitals is the one for C.
    mkl = _loaded("libtorch_cpu.so", "MKL_Set_Num_Threads_Local")
    if mkl is not None:
        mkl.MKL_Set_Num_Threads_Local(1)


def and_end_team(call: Callable[[], T]) -> T:
    """The result of a call, or its exception. Leaves no helper threads behind."""
    try:
        return call()
    finally:
        end_team()


def _library() -> ctypes.CDLL | None:
    """None if torch computes with another library: LLVM's would end the teams of all threads, even busy ones."""
    return _loaded("libgomp.so.1", "omp_pause_resource_all")


@cache
def _loaded(name: str, function: str) -> ctypes.CDLL | None:
    """A library of the process; None if it is not there, or lacks the function."""
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    return library if hasattr(library, function) else None
