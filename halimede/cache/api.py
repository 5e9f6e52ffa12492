"""What a cache of responses must offer, and what the server tells one when it is opened."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Found = Callable[[bytes | None], None]
"""Told what lies under a key, None where nothing does."""


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What a local cache says of itself (contract M17b): `used` and `size` in bytes, durations in nanoseconds."""

    size: int = 1
    used: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


class Cache(Protocol):
    """Event-loop thread only; nothing blocks and nothing raises."""

    @property
    def shared(self) -> bool:
        """Whether other servers read it too: then a key must mean the same for all of them."""
        ...

    @property
    def counts(self) -> CacheCounts | None:
        """None for a cache that keeps its numbers elsewhere."""
        ...

    def lookup(self, key: bytes, found: Found) -> None:
        """Tells `found` once, possibly before this returns, and soon in any case: a cache that is slow or gone has
        nothing."""
        ...

    def room_for(self, byte_size: int) -> bool:
        """Whether an entry of that size is worth being made: it is not kept where it does not fit."""
        ...

    def insert(self, key: bytes, entry: bytes) -> bool:
        """Keeps it, or does not; False where something lies under the key already."""
        ...

    def close(self) -> None:
        """Takes nothing more."""
        ...


class Loop(Protocol):
    """What a cache needs of the event loop. Times in monotonic nanoseconds."""

    def call_soon_threadsafe(self, callback: Callable[..., None], /, *args: object) -> object: ...
    def call_at(self, when: int, callback: Callable[[], None]) -> None: ...
