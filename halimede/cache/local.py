"""The cache in the server's own memory: one budget of bytes for all models, least recently used entries out first (K7).

Event-loop thread only.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic_ns

from halimede.cache.api import CacheCounts, OnFound
from halimede.errors import Internal, Invalid

OVERHEAD = 256
"""Bytes that an entry costs besides its own: the key, its place in the dict, and two objects."""
MAX_EVICTED = 2000
"""Entries that one insertion evicts, which takes a millisecond. A cache of a gigabyte may have millions of them."""
MIN_SIZE = 192
"""The smallest size that Triton takes, in bytes: what the header of its pool needs. Such a cache keeps nothing."""
MAX_SIZE = 1 << 47
"""The largest cache, in bytes: what a process can address."""

_NUMBER = re.compile(r"\s*([+-]?\d+)")


class LocalCache:
    """`size` is the budget in bytes, the overhead of entries included."""

    shared = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._used = self._hits = self._misses = self._evictions = 0
        self._lookup_ns = self._insertion_ns = 0

    @property
    def counts(self) -> CacheCounts:
        return CacheCounts(
            size=self._size,
            used=self._used,
            entries=len(self._entries),
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            lookup_ns=self._lookup_ns,
            insertion_ns=self._insertion_ns,
        )

    def lookup(self, key: bytes, on_found: OnFound) -> None:
        began = monotonic_ns()
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
            self._entries.move_to_end(key)
        self._lookup_ns += monotonic_ns() - began
        on_found(entry)

    def room_for(self, byte_size: int) -> bool:
        return byte_size + OVERHEAD <= self._size

    def insert(self, key: bytes, entry: bytes) -> bool:
        began = monotonic_ns()
        if key in self._entries:
            return False
        cost = len(entry) + OVERHEAD
        # An entry larger than the cache is not kept, and evicts nothing.
        if cost <= self._size and self._make_room(cost):
            self._entries[key] = entry
            self._used += cost
        self._insertion_ns += monotonic_ns() - began
        return True

    def _make_room(self, cost: int) -> bool:
        """Evicts the oldest entries. Returns whether an entry of this cost fits now. If it takes the place of more than
        `MAX_EVICTED`, it is not kept, and one that comes later finds their room."""
        for _ in range(MAX_EVICTED):
            if self._used + cost <= self._size:
                break
            _, oldest = self._entries.popitem(last=False)
            self._used -= len(oldest) + OVERHEAD
            self._evictions += 1
        return self._used + cost <= self._size

    def close(self) -> None:
        self._entries.clear()
        self._used = 0


def open_local(settings: Mapping[str, str]) -> LocalCache:
    """A cache with the configured size. Raises Invalid without a size, Internal for one out of range. The texts begin
    with Triton's."""
    failed = "Failed to initialize LocalCache: "
    text = settings.get("size")
    if text is None:
        raise Invalid(f"{failed}config didn't contain a valid 'size' field.")
    number = _NUMBER.match(text)
    if number is None:
        raise Internal(f"{failed}stoull: 'size' must be a number of bytes, got '{text}'")
    size = int(number[1])
    if not 0 <= size <= MAX_SIZE:
        raise Internal(f"{failed}failed to allocate buffer: 'size' must be at most {MAX_SIZE} bytes, got '{text}'")
    if size < MIN_SIZE:
        raise Internal(
            f"{failed}Could not initialize buffer in basic_managed_external_buffer constructor: "
            f"'size' must be at least {MIN_SIZE} bytes, got '{text}'"
        )
    return LocalCache(size)
