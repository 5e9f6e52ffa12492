"""The count of the bytes of an answer while it is made."""

from collections.abc import Callable

import pytest

from halimede.errors import Cancelled, Error, Unavailable
from halimede.front.http.made_bytes import MadeBytes, make_offloaded
from halimede.transport.buffered_bytes import FULL, BufferedBytes
from tests.front.http_fakes import FakeExchange, HeldOffload


def make(offload: HeldOffload, exchange: FakeExchange, sizes: list[int]) -> list[int | Error]:
    """Makes an answer of pieces of these sizes, which is expected to have 100 bytes. Returns what `done` gets."""
    results: list[int | Error] = []

    def work(made: Callable[[int], None]) -> int:
        for size in sizes:
            made(size)
        return sum(sizes)

    make_offloaded(offload, exchange, work, results.append, size=1, expected=100)
    return results


def exchange_with(limit: int) -> FakeExchange:
    exchange = FakeExchange("POST", "/")
    exchange.buffered = BufferedBytes(limit)
    return exchange


def test_answer_counts_from_its_beginning_until_it_is_written() -> None:
    offload, exchange = HeldOffload(), exchange_with(1000)
    results = make(offload, exchange, [40, 60])
    assert exchange.buffered.held == 100
    offload.run()
    assert results == [100]
    assert exchange.buffered.held == 0


def test_answer_that_finds_no_room_is_refused() -> None:
    offload, exchange = HeldOffload(), exchange_with(100)
    first, second = make(offload, exchange, [100]), make(offload, exchange, [100])
    offload.run()
    offload.run()
    assert first == [100], "what was expected has its room"
    (refused,) = second
    assert isinstance(refused, Unavailable)
    assert refused.message == FULL
    assert not exchange.buffered.is_full()


def test_answer_that_becomes_larger_counts_as_it_grows() -> None:
    buffered = BufferedBytes(1000)
    made = MadeBytes(buffered, 100)
    for size, held in ((60, 100), (60, 120), (500, 620)):
        made.add(size)
        assert buffered.held == held
    made.end()
    assert buffered.held == 0


def test_answer_that_becomes_larger_finds_no_room() -> None:
    buffered = BufferedBytes(1000)
    made = MadeBytes(buffered, 100)
    buffered.take(900)
    made.add(100)
    with pytest.raises(Unavailable, match="try again later"):
        made.add(1)
    made.end()
    assert buffered.held == 900


def test_client_that_leaves_takes_no_room() -> None:
    offload, exchange = HeldOffload(), exchange_with(1000)
    results = make(offload, exchange, [100])
    exchange.leave()
    offload.run()
    assert isinstance(results[0], Cancelled)
    assert exchange.buffered.held == 0
