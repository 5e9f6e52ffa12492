"""The interface of a response cache, and what it needs of the event loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

OnFound = Callable[[bytes | None], None]
"""Called with the entry of a key, or None if there is none."""


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """The figures of a local cache (M17b): `size` and `used` in bytes, durations in nanoseconds."""

    size: int = 1
    used: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


class Cache(Protocol):
    """Keeps entries by key. Event-loop thread only; no method blocks or raises."""

    @property
    def shared(self) -> bool:
        """Whether other servers use the cache too. A key must then mean the same to all of them."""
        ...

    @property
    def counts(self) -> CacheCounts | None:
        """The figures; None for a cache that keeps them elsewhere."""
        ...

    def lookup(self, key: bytes, on_found: OnFound) -> None:
        """Calls `on_found` once, possibly before this returns. The wait is bounded: a cache that is slow or gone counts
        as empty."""
        ...

    def room_for(self, byte_size: int) -> bool:
        """Whether the cache would keep an entry of this size, so that it is worth encoding."""
        ...

    def insert(self, key: bytes, entry: bytes) -> bool:
        """Keeps the entry if it can. Returns False if the key has one already."""
        ...

    def close(self) -> None:
        """Ends the cache. No other method may be called afterwards."""
        ...


class EventLoop(Protocol):
    """What a cache needs of the event loop. Times are monotonic nanoseconds."""

    def call_soon_threadsafe(self, callback: Callable[..., None], /, *args: object) -> object: ...
    def call_at(self, when: int, callback: Callable[[], None]) -> None: ...
