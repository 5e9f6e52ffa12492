"""Clients that have ended their side while an answer is due. One that reads gets it, and one that is gone is
noticed."""

import asyncio
from collections.abc import Callable

import pytest

from halimede.transport.http1.exchange import Http1Exchange
from halimede.transport.http1.half_closed import ANSWER_START
from halimede.transport.lingering import STALLED_SECONDS
from tests.transport.http1.test_ending import LIMIT, LOOPS, over_sockets
from tests.transport.http1_fakes import Client, echo, request

LONG = 60.0
"""Seconds by the hand-moved clock after which no letter is sent any more."""
WAYS = pytest.mark.parametrize("seconds", [0.0, 0.06, 0.2, LONG])
BODY = b"y" * 100_000


def half_closed(*requests: bytes) -> Client:
    client = Client().send(b"".join(requests))
    client.end()
    return client


@WAYS
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("body", [b"x", BODY], ids=["joined", "in parts"])
def test_answer_is_the_same_whenever_it_comes(seconds: float, version: str, body: bytes) -> None:
    whole = Client().send(request("POST", "/", body, version=version))
    echo(whole.exchanges[0])
    client = half_closed(request("POST", "/", body, version=version))
    client.clock.advance(seconds)
    echo(client.exchanges[0])
    assert client.answers[0].body == whole.answers[0].body
    assert client.transport.written == whole.transport.written
    assert client.transport.closed
    assert not client.clock.waiting


def test_quick_answer_comes_in_one_piece() -> None:
    client = half_closed(request())
    client.clock.advance(0.04)
    echo(client.exchanges[0])
    assert len(client.transport.calls) == 1


def test_probes_are_sent_one_by_one_up_to_the_common_start_of_answers() -> None:
    client = half_closed(request())
    client.clock.advance(0.06)
    assert client.transport.written == ANSWER_START[:1]
    client.clock.advance(LONG)
    assert client.transport.written == ANSWER_START
    assert max(len(call[0]) for call in client.transport.calls) == 1


def test_pipelined_answers_are_whole() -> None:
    client = half_closed(request("GET", "/a"), request("GET", "/b"))
    client.clock.advance(0.06)
    echo(client.exchanges[0])
    client.clock.advance(LONG)
    echo(client.exchanges[1])
    assert [answer.body for answer in client.answers] == [b"GET /a\n", b"GET /b\n"]
    assert client.transport.closed


def test_waiting_request_is_probed_for_in_its_turn() -> None:
    client = half_closed(request("GET", "/a"), request("GET", "/b"))
    echo(client.exchanges[0])
    before = client.transport.written
    client.clock.advance(LONG)
    assert client.transport.written == before + ANSWER_START
    echo(client.exchanges[1])
    assert [answer.body for answer in client.answers] == [b"GET /a\n", b"GET /b\n"]


def test_request_behind_a_stream_is_probed_for_in_its_turn() -> None:
    client = Client().send(request("GET", "/a"))
    stream = client.exchanges[0].begin(200, b"")
    stream.send([b"part"])
    client.send(request("GET", "/b"))
    client.end()
    client.clock.advance(LONG)
    stream.send([], last=True)
    before = client.transport.written
    client.clock.advance(LONG)
    assert client.transport.written == before + ANSWER_START
    echo(client.exchanges[1])
    assert client.transport.closed


def test_slow_reader_is_probed_for_once_only() -> None:
    client = half_closed(request("GET", "/a"))
    client.connection.pause_writing()
    client.connection.resume_writing()
    client.clock.advance(LONG)
    assert client.transport.written == ANSWER_START
    echo(client.exchanges[0])
    assert [answer.body for answer in client.answers] == [b"GET /a\n"]


def test_client_that_never_reads_its_answer_is_dropped() -> None:
    client = half_closed(request())
    client.transport.unread = 5
    echo(client.exchanges[0])
    client.clock.advance(STALLED_SECONDS * 0.9)
    assert client.transport.closed
    assert not client.transport.aborted
    client.clock.advance(STALLED_SECONDS * 0.2)
    assert client.transport.aborted


def test_stream_that_has_not_begun_is_whole() -> None:
    client = Client().send(request())
    stream = client.exchanges[0].begin(200, b"Content-Type: text/event-stream\r\n")
    client.end()
    client.clock.advance(0.06)
    stream.send([b"part"])
    client.clock.advance(LONG)
    stream.send([], last=True)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert client.transport.written == head + b"4\r\npart\r\n0\r\n\r\n"
    assert client.transport.closed


def test_begun_stream_is_not_probed() -> None:
    client = Client().send(request())
    stream = client.exchanges[0].begin(200, b"")
    stream.send([b"part"])
    before = client.transport.written
    client.end()
    client.clock.advance(LONG)
    assert client.transport.written == before
    stream.send([], last=True)
    assert client.transport.written == before + b"0\r\n\r\n"


def test_stream_that_has_begun_closes_its_connection_at_once() -> None:
    """The client has ended its side already, so there is nothing to wait for."""
    client = Client().send(request())
    stream = client.exchanges[0].begin(200, b"")
    stream.send([b"part"])
    client.transport.half_closes = True
    client.end()
    stream.send([], last=True)
    assert client.transport.closed
    assert not client.clock.waiting


def test_lost_connection_is_not_probed() -> None:
    client = half_closed(request())
    client.transport.abort()
    client.lose(ConnectionResetError())
    client.clock.advance(LONG)
    assert client.transport.misused == []
    assert client.transport.written == b""


@LOOPS
@pytest.mark.parametrize("pipelined", [1, 3])
def test_client_that_closed_is_noticed_over_a_socket(
    new_loop: Callable[[], asyncio.AbstractEventLoop], pipelined: int
) -> None:
    """The client has read all that was sent, so its kernel reports only the end of its side."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request() * pipelined)
        taken = await arrived.get()
        taken.on_gone = gone.set
        writer.close()
        await asyncio.wait_for(gone.wait(), LIMIT)
        assert taken.gone

    arrived: asyncio.Queue[Http1Exchange] = asyncio.Queue()
    gone = asyncio.Event()
    over_sockets(new_loop, arrived.put_nowait, talk)


@LOOPS
def test_client_that_closed_behind_an_answer_is_noticed_over_a_socket(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The second request is in flight when the client has gone."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request("GET", "/a") + request("GET", "/b"))
        first = await arrived.get()
        writer.close()
        await writer.wait_closed()
        echo(first)
        second = await arrived.get()
        second.on_gone = gone.set
        await asyncio.wait_for(gone.wait(), LIMIT)

    arrived: asyncio.Queue[Http1Exchange] = asyncio.Queue()
    gone = asyncio.Event()
    over_sockets(new_loop, arrived.put_nowait, talk)


@LOOPS
def test_half_closed_client_is_answered_late_over_a_socket(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request("GET", "/a"))
        writer.write_eof()
        taken = await arrived.get()
        assert await reader.readexactly(2) == ANSWER_START[:2]
        echo(taken)
        rest = await reader.read()
        assert rest.startswith(b"TP/1.1 200 OK\r\n")
        assert rest.endswith(b"\r\n\r\nGET /a\n")
        assert not taken.gone

    arrived: asyncio.Queue[Http1Exchange] = asyncio.Queue()
    over_sockets(new_loop, arrived.put_nowait, talk)
