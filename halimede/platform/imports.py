"""Faster imports of a large program. Main thread, before other threads exist."""

import gc
import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

_SETTING = "OPENBLAS_THREAD_TIMEOUT"
_SHORT = "20"
"""2^20 ticks of the processor's clock. OpenBLAS's default is 2^26."""


@contextmanager
def quick_imports(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """For a program that was not imported before, and its libraries.

    The garbage collector rests, since what is imported stays: looking through it took a tenth of the time. And the
    threads of the library behind numpy, one for each further core, look out for work for 0.4 ms before they sleep, not
    for 25 ms: when they begin, and after everything that they compute. The library reads that once, so that processes
    which this one starts do not inherit it. What the operator has set stays."""
    collected, set_here = gc.isenabled(), _SETTING not in environment
    gc.disable()
    if set_here:
        environment[_SETTING] = _SHORT
    try:
        yield
    finally:
        if set_here:
            environment.pop(_SETTING, None)
        if collected:
            gc.enable()
