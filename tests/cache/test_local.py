"""The cache in memory: it never exceeds its size, and evicts the least recently used entries first (K7)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.cache.local import MAX_EVICTED, MAX_SIZE, MIN_SIZE, OVERHEAD, LocalCache, open_local
from halimede.errors import Error, Internal, Invalid


def look(cache: LocalCache, key: bytes) -> bytes | None:
    found: list[bytes | None] = []
    cache.lookup(key, found.append)
    assert len(found) == 1
    return found[0]


def test_inserted_entry_is_found() -> None:
    cache = LocalCache(4096)
    assert look(cache, b"a") is None
    assert cache.insert(b"a", b"entry")
    assert look(cache, b"a") == b"entry"
    counts = cache.counts
    assert (counts.hits, counts.misses, counts.entries, counts.evictions) == (1, 1, 1, 0)
    assert (counts.size, counts.used) == (4096, len(b"entry") + OVERHEAD)
    assert counts.lookup_ns > 0
    assert counts.insertion_ns > 0


def test_first_entry_of_a_key_stays() -> None:
    cache = LocalCache(4096)
    assert cache.insert(b"a", b"first")
    assert not cache.insert(b"a", b"second")
    assert look(cache, b"a") == b"first"


def test_least_recently_used_entry_is_evicted_first() -> None:
    cache = LocalCache(3 * (OVERHEAD + 10))
    for key in (b"a", b"b", b"c"):
        cache.insert(key, bytes(10))
    look(cache, b"a")
    cache.insert(b"d", bytes(10))
    assert [look(cache, key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert cache.counts.evictions == 1


def test_entry_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache = LocalCache(1000)
    cache.insert(b"a", bytes(10))
    assert cache.room_for(1000 - OVERHEAD)
    assert not cache.room_for(1001 - OVERHEAD)
    cache.insert(b"b", bytes(1001 - OVERHEAD))
    assert look(cache, b"b") is None
    assert look(cache, b"a") is not None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 900)), max_size=60))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_histories_keep_to_the_size_and_to_the_order_of_use(steps: list[tuple[bool, int, int]]) -> None:
    """Compares the cache with a model: the keys in the order of their last use."""
    cache, size = LocalCache(2000), 2000
    order: dict[int, int] = {}
    for inserts, key, length in steps:
        name, cost = str(key).encode(), length + OVERHEAD
        if not inserts:
            found = look(cache, name)
            assert (found is not None) == (key in order)
            if key in order:
                assert found == bytes(order[key])
                order[key] = order.pop(key)
        elif cache.insert(name, bytes(length)) and cost <= size:
            while sum(each + OVERHEAD for each in order.values()) + cost > size:
                order.pop(next(iter(order)))
            order[key] = length
        assert cache.counts.used == sum(each + OVERHEAD for each in order.values()) <= size
        assert cache.counts.entries == len(order)


@pytest.mark.parametrize(
    ("size", "kind", "text"),
    [
        ("abc", Internal, "stoull: 'size' must be a number of bytes, got 'abc'"),
        ("", Internal, "stoull: 'size' must be a number of bytes, got ''"),
        ("-1", Internal, f"failed to allocate buffer: 'size' must be at most {MAX_SIZE} bytes, got '-1'"),
        (
            str(MAX_SIZE + 1),
            Internal,
            f"failed to allocate buffer: 'size' must be at most {MAX_SIZE} bytes, got '{MAX_SIZE + 1}'",
        ),
        (
            "191",
            Internal,
            "Could not initialize buffer in basic_managed_external_buffer constructor: "
            f"'size' must be at least {MIN_SIZE} bytes, got '191'",
        ),
    ],
)
def test_bad_size_is_refused(size: str, kind: type[Error], text: str) -> None:
    with pytest.raises(kind) as caught:
        open_local({"size": size})
    assert str(caught.value) == f"Failed to initialize LocalCache: {text}"


def test_size_is_required_and_text_after_its_number_is_ignored() -> None:
    with pytest.raises(Invalid) as caught:
        open_local({"foo": "1"})
    assert str(caught.value) == "Failed to initialize LocalCache: config didn't contain a valid 'size' field."
    assert open_local({"size": "4096x", "foo": "1"}).counts.size == 4096


@pytest.mark.rows("K7")
def test_size_without_room_for_an_entry_keeps_nothing() -> None:
    cache = open_local({"size": "192"})
    assert not cache.room_for(0)
    cache.insert(b"a", b"")
    assert look(cache, b"a") is None
    assert cache.counts.evictions == 0


def test_one_insertion_evicts_a_bounded_number_of_entries() -> None:
    small = OVERHEAD + 8
    cache = LocalCache(2 * MAX_EVICTED * small)
    for number in range(2 * MAX_EVICTED):
        cache.insert(number.to_bytes(4, "little"), bytes(8))
    large = bytes(MAX_EVICTED * small - OVERHEAD + 1)
    assert cache.insert(b"large", large)
    assert look(cache, b"large") is None
    assert cache.counts.evictions == MAX_EVICTED
    assert cache.insert(b"large", large)
    assert look(cache, b"large") == large
    assert cache.counts.evictions == MAX_EVICTED + 1
