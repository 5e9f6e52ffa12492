"""Counts the bytes that the server holds for its clients.

These are large requests, from their arrival until they are freed, and answers: large ones while they are written as
JSON or compressed, and those that clients do not read.

| bytes held | what happens |
| --- | --- |
| below the limit | nothing |
| the limit or more | connections that receive large requests wait; after `MAX_WAIT_SECONDS` those are refused |
| the limit or more | new requests are refused, except small ones that ask and change nothing |
| the limit or more | large answers are not written as JSON, nor compressed: their clients are refused too |

A connection has a limit too, its share. At this limit the connection waits, and its new large requests are refused.

Requests and answers of less than 64 KiB are not counted while they are handled. While they arrive or wait, each
connection counts them once a second, and HTTP/2 also after each 4 MiB that it receives. Event-loop thread, except
`give`.
"""

from collections.abc import Callable

MIN_RETURNED_BYTES = 1 << 26
"""Freed bytes after which the C library is asked to return memory."""
RETURN_SECONDS = 10.0
"""Least time between two such requests, each of which takes some milliseconds of another thread."""
UNLIMITED = 1 << 70
MAX_WAIT_SECONDS = 10.0
"""Time that a connection waits for other clients' bytes to be freed, before its request is refused."""
FULL = "the server holds too many bytes of requests and answers (--max-buffered-bytes); try again later"
"""What refused clients are told, with status 503 or UNAVAILABLE."""


CONNECTION_FULL = "the connection holds too many bytes of requests and answers (--max-connection-bytes)"
"""What a client is told that has used up its share, with the same status."""


class BufferedBytes:
    """The bytes held by all connections of a server, and their limit (`--max-buffered-bytes`)."""

    __slots__ = ("_given", "_held", "full", "limit", "most", "share")

    def __init__(self, limit: int = UNLIMITED, share: int | None = None) -> None:
        self.limit = limit
        self.share = limit if share is None else min(share, limit)
        """The limit of one connection (`--max-connection-bytes`)."""
        self.full = False
        """Whether the limit was reached when this was last found out."""
        self.most = 0
        """The most bytes that were held since `FreedBytes` last asked for memory to be returned."""
        self._held = 0
        self._given: list[int] = []

    @property
    def held(self) -> int:
        given = self._given
        while given:
            self._held -= given.pop()
        self.full = self._held >= self.limit
        return self._held

    def take(self, count: int) -> None:
        """Counts more bytes."""
        self._held += count
        self.most = max(self.most, self._held)
        if self._held >= self.limit:
            # Some may have been given back.
            self.full = self.held >= self.limit

    def give(self, count: int) -> None:
        """The bytes are freed. Any thread. A negative count takes bytes; `full` tells it when `held` was asked for."""
        self._given.append(count)

    def is_full(self) -> bool:
        """Whether the limit is reached now."""
        return self.held >= self.limit


class ConnectionBytes(BufferedBytes):
    """The bytes held by one connection. They count for the server too."""

    __slots__ = ("of",)

    def __init__(self, of: BufferedBytes) -> None:
        super().__init__(of.share)
        self.of = of

    def take(self, count: int) -> None:
        self.of.take(count)
        super().take(count)

    def give(self, count: int) -> None:
        super().give(count)
        self.of.give(count)

    def is_full(self) -> bool:
        """Whether the limit of the connection, or that of the server, is reached now."""
        return super().is_full() or self.of.is_full()

    @property
    def seems_full(self) -> bool:
        """Whether one of the limits was reached when this was last found out."""
        return self.full or self.of.full

    @property
    def complaint(self) -> str:
        """What a refused client is told."""
        return CONNECTION_FULL if self.full and not self.of.full else FULL

    def too_large(self, size: int) -> str:
        """Returns what the client of a request that could never be received is told; empty if it could."""
        if size > self.of.limit:
            return f"a request of {size} bytes is larger than --max-buffered-bytes ({self.of.limit})"
        return f"a request of {size} bytes is larger than --max-connection-bytes ({self.limit})" * (size > self.limit)


class FreedBytes:
    """Returns free memory to the system after many bytes of clients were freed. The C library may keep what lay between
    smaller pieces. `give_back` must not block."""

    def __init__(self, buffered: BufferedBytes, give_back: Callable[[], object]) -> None:
        self._buffered = buffered
        self._give_back = give_back
        self._earliest = 0.0

    def look(self, now: float) -> None:
        """Called once a second."""
        held = self._buffered.held
        if self._buffered.most - held >= MIN_RETURNED_BYTES and now >= self._earliest:
            self._earliest = now + RETURN_SECONDS
            self._buffered.most = held
            self._give_back()


class BufferedShare:
    """The bytes that one purpose of one connection holds."""

    __slots__ = ("_of", "size")

    def __init__(self, of: BufferedBytes) -> None:
        self._of = of
        self.size = 0

    def set(self, size: int) -> None:
        if size > self.size:
            self._of.take(size - self.size)
        elif size < self.size:
            self._of.give(self.size - size)
        self.size = size
