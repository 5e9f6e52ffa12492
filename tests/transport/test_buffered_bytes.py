"""The count of bytes that the server holds for clients."""

import numpy as np

from halimede.transport.buffered_bytes import (
    MIN_RETURNED_BYTES,
    RETURN_SECONDS,
    BufferedBytes,
    BufferedShare,
    ConnectionBytes,
    FreedBytes,
)
from halimede.transport.buffers import MIN_REUSED_BYTES, Buffers


def test_limit_is_reached_and_left() -> None:
    buffered = BufferedBytes(100)
    buffered.take(99)
    assert not buffered.full
    buffered.take(1)
    assert buffered.full
    buffered.give(1)
    assert buffered.full, "it is found out when it matters"
    assert not buffered.is_full()
    assert not buffered.full


def test_bytes_that_were_given_back_count_before_the_limit_is_reached() -> None:
    buffered = BufferedBytes(100)
    buffered.take(60)
    buffered.give(60)
    buffered.take(60)
    assert not buffered.full
    assert buffered.held == 60


def test_share_takes_and_gives_the_difference() -> None:
    buffered = BufferedBytes(100)
    share = BufferedShare(buffered)
    for size in (10, 40, 40, 5, 0):
        share.set(size)
        assert buffered.held == share.size == size


def test_bytes_of_a_lent_buffer_count_as_they_arrive_until_its_last_view_is_freed() -> None:
    buffered = BufferedBytes()
    buffers = Buffers(buffered)
    view = buffers.aligned(10 * MIN_REUSED_BYTES, 0)
    assert buffered.held == 0
    account = ConnectionBytes(buffered)
    buffers.arrived(view, 1000, account)
    buffers.arrived(view[1000:], 500, account)
    assert (buffered.held, account.held) == (1500, 1500)
    kept = view[:10]
    del view
    assert (buffered.held, account.held) == (1500, 1500)
    del kept
    assert (buffered.held, account.held) == (0, 0)


def test_bytes_that_were_made_from_a_request_count_until_their_last_view_is_freed() -> None:
    buffers = Buffers()
    account = ConnectionBytes(buffers.buffered)
    made = buffers.counted(bytes(10 * MIN_REUSED_BYTES), account)
    kept = np.frombuffer(made, np.uint8)[5:]
    del made
    assert buffers.buffered.held == account.held == 10 * MIN_REUSED_BYTES
    del kept
    assert buffers.buffered.held == account.held == 0
    assert buffers.counted(b"few", account) == b"few"
    assert account.held == 0


def test_connection_has_a_share_and_counts_for_the_server() -> None:
    buffered = BufferedBytes(100, share=60)
    first, second = ConnectionBytes(buffered), ConnectionBytes(buffered)
    first.take(60)
    assert (first.is_full(), second.is_full(), buffered.is_full()) == (True, False, False)
    assert first.complaint != second.complaint
    second.take(40)
    assert (second.full, second.is_full(), buffered.full) == (False, True, True)
    first.give(1)
    assert not first.is_full()
    assert not second.is_full()
    assert "--max-connection-bytes (60)" in first.too_large(61)
    assert "--max-buffered-bytes (100)" in first.too_large(101)
    assert first.too_large(60) == ""


def test_small_buffer_does_not_count() -> None:
    buffers = Buffers()
    buffers.arrived(buffers.aligned(MIN_REUSED_BYTES - 1, 0), 1000, ConnectionBytes(buffers.buffered))
    assert buffers.buffered.held == 0


def test_memory_is_returned_after_many_bytes_were_freed() -> None:
    buffered, returned = BufferedBytes(), list[float]()
    freed = FreedBytes(buffered, lambda: returned.append(buffered.held))
    freed.look(0)
    buffered.take(MIN_RETURNED_BYTES + 5)
    freed.look(1)
    assert returned == []
    buffered.give(MIN_RETURNED_BYTES)
    freed.look(2)
    freed.look(3)
    assert returned == [5]
    buffered.take(MIN_RETURNED_BYTES)
    buffered.give(MIN_RETURNED_BYTES)
    freed.look(4)
    assert returned == [5]
    freed.look(2 + RETURN_SECONDS)
    assert returned == [5, 5]
