"""What a load process is told to do, and what it tells. Plain values.

Not compiled: they are pickled, and a compiled frozen class cannot be unpickled.
"""

import struct
from dataclasses import dataclass

FRAME = struct.Struct("<cI")
COLUMNS = 8
"""Integers of a record: due, start, sent, first, end, flags, sequence id, number of the request."""
FAILED, SEQUENCE_END, NULL_LAST = 1, 2, 4
RESPONSES_SHIFT = 8
"""The flags of a record; above them is the number of responses."""
FLUSH = struct.Struct("<qqqq")
"""What a flush begins with: the time until which everything is told, idle nanoseconds, requests sent, and in flight."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one process does from now on.

    Closed loop keeps `concurrency` requests in flight. Open loop sends at the times of `schedule`, nanoseconds after
    `begin`. `limit` ends the load after so many requests; 0 for none. With `grow_by`, each request is sent once, and so
    many more are sent each time when the last ones have had `grow_after` responses.
    """

    concurrency: int = 0
    limit: int = 0
    begin: int = 0
    is_open: bool = False
    schedule: tuple[object, ...] = ()
    sequences: int = 0
    is_serial: bool = False
    grow_by: int = 0
    grow_after: int = 0


@dataclass(frozen=True, slots=True)
class Detail:
    """What `--profile-export-file` writes of a request, besides its record."""

    number: int
    stream: int
    step: int
    stamps: tuple[int, ...]
    bodies: tuple[bytes, ...]
