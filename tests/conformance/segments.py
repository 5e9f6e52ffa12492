"""The shared-memory segments of the cases: the test process makes and removes them, and both servers see them.

The first half of `DATA` has the numbers 0, 1, 2, ... as INT32, except for two strings. The second half is for results.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from tests.segments import segment

DATA = f"/halimede_conformance_{os.getpid()}"
DATA_BYTES = 8192
RESULTS_AT = 4096
STRINGS = b"\2\0\0\0ab\0\0\0\0"
STRINGS_AT = 2048


@contextmanager
def made() -> Iterator[None]:
    """Makes the segments, and removes them after the body."""
    with segment(DATA_BYTES, DATA) as (_, memory):
        assert memory.buf is not None
        struct.pack_into("<1024i", memory.buf, 0, *range(1024))
        memory.buf[STRINGS_AT : STRINGS_AT + len(STRINGS)] = STRINGS
        yield
