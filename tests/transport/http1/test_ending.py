"""How a connection ends: the client goes or half-closes, the server drains or aborts."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from halimede.transport.http1.connection import MAX_PIPELINED_REQUESTS, Http1Connection
from halimede.transport.http1.exchange import Http1Exchange
from halimede.transport.http1.listener import Http1Listener
from tests.transport.http1_fakes import Client, chunked, echo, request

LIMIT = 10.0


def counting(client: Client) -> list[bytes]:
    """The targets of the requests whose clients were reported gone."""
    gone: list[bytes] = []
    for exchange in client.exchanges:
        exchange.on_gone = lambda target=exchange.target: gone.append(target)  # type: ignore[misc]  # a bound default
    return gone


# The client goes.


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
def test_client_gone_while_waiting_is_reported_once(error: Exception | None) -> None:
    client = Client().send(request("GET", "/a"))
    gone = counting(client)
    client.lose(error)
    assert gone == [b"/a"]
    assert not client.listener.connections


def test_client_gone_after_its_answer_is_not_reported() -> None:
    client = Client().send(request("GET", "/a"))
    gone = counting(client)
    echo(client.exchanges[0])
    client.lose()
    assert gone == []


def test_client_gone_with_requests_waiting_drops_them() -> None:
    client = Client().send(request("GET", "/a") + request("GET", "/b"))
    gone = counting(client)
    client.lose()
    echo(client.exchanges[0])
    assert gone == [b"/a"]
    assert [one.target for one in client.exchanges] == [b"/a"]


@pytest.mark.parametrize("begun", [False, True])
def test_error_in_on_gone_is_only_logged(begun: bool, caplog: pytest.LogCaptureFixture) -> None:
    def report() -> None:
        raise ValueError("a defect of ours")

    client = Client().send(request("GET", "/a"))
    (exchange,) = client.exchanges
    exchange.on_gone = report
    if begun:
        exchange.begin(200, b"")
    client.lose()
    assert exchange.gone
    assert "a defect of ours" in caplog.text


def test_malformed_bytes_behind_a_request_in_flight_are_discarded() -> None:
    """Otherwise a client that goes would go unnoticed."""
    client = Client().send(request("GET", "/a") + b"\x00nonsense\r\n\r\n")
    for _ in range(40):
        client.send(b"more nonsense" * 4000)
    client.send(request("GET", "/b"))
    assert client.transport.reading
    assert not client.transport.ended
    echo(client.exchanges[0])
    assert [answer.status for answer in client.answers] == [200, 400]
    assert len(client.exchanges) == 1
    assert client.transport.closed


def test_reading_goes_on_while_some_requests_still_wait() -> None:
    """Otherwise a client that goes would go unnoticed."""
    client = Client().send(request("GET", "/") * (MAX_PIPELINED_REQUESTS + 1))
    assert not client.transport.reading
    answered = 0
    while not client.transport.reading:
        echo(client.exchanges[answered])
        answered += 1
    assert answered <= MAX_PIPELINED_REQUESTS // 2 + 1


def test_answer_after_the_client_went_is_ignored() -> None:
    client = Client().send(request("GET", "/a"))
    client.lose()
    client.transport.close()  # from here on the transport refuses to be written to
    echo(client.exchanges[0])
    assert client.transport.written == b""


def test_answer_made_in_on_gone_is_ignored() -> None:
    """A cancelled request is answered too, at once."""
    client = Client().send(request("GET", "/a"))
    client.exchanges[0].on_gone = lambda: echo(client.exchanges[0])
    client.lose()
    assert client.transport.written == b""


def test_client_gone_in_the_middle_of_a_body_leaves_nothing() -> None:
    client = Client().send(request("POST", "/a", b"x" * 1_000_000)[:-5])
    client.lose(ConnectionResetError())
    assert not client.exchanges
    assert not client.listener.connections


# Half-close.


def test_half_close_after_a_whole_request_is_answered_then_closed() -> None:
    client = Client().send(request("POST", "/a", b"abc"))
    client.end()
    assert not client.transport.ended
    echo(client.exchanges[0])
    assert [answer.body for answer in client.answers] == [b"POST /a\nabc"]
    assert client.transport.closed


def test_half_close_after_pipelined_requests_answers_all_of_them() -> None:
    client = Client().send(b"".join(request("GET", f"/{i}") for i in range(3)))
    client.end()
    for number in range(3):
        assert not client.transport.ended
        echo(client.exchanges[number])
    assert len(client.answers) == 3
    assert client.transport.closed


def test_half_close_of_an_idle_connection_closes_it() -> None:
    client = Client(echo).send(request("GET", "/a"))
    client.end()
    assert client.transport.closed


# Drain and abort.


def test_drain_closes_idle_connections() -> None:
    listener = Http1Listener(echo)
    fresh, used = Client(listener=listener), Client(listener=listener)
    used.send(request("GET", "/a"))
    listener.drain()
    assert fresh.transport.closed
    assert used.transport.closed


def test_drain_answers_the_request_in_flight_and_closes() -> None:
    client = Client().send(request("GET", "/a"))
    client.listener.drain()
    assert not client.transport.ended
    echo(client.exchanges[0])
    assert client.answers[0].status == 200
    assert client.answers[0].field("Connection") == "close"
    assert client.transport.closed


def test_announced_end_closes_after_the_next_answer_only() -> None:
    idle = Client(echo).send(request("GET", "/a"))
    used = Client(listener=idle.listener).send(request("GET", "/b"))
    idle.listener.announce_end()
    late = Client(listener=idle.listener).send(request("GET", "/c"))
    used.send(request("GET", "/d"))
    assert [answer.field("Connection") for answer in used.answers] == [None, "close"]
    assert [answer.field("Connection") for answer in late.answers] == ["close"]
    assert used.transport.closed
    assert late.transport.closed
    idle.clock.advance(600)
    assert not idle.transport.ended


def test_drain_serves_a_kept_connection_until_the_idle_time_is_over() -> None:
    idle = Client(echo).send(request("GET", "/a"))
    used = Client(listener=idle.listener).send(request("GET", "/b"))
    idle.listener.drain(5.0)
    late = Client(listener=idle.listener)
    assert not any(client.transport.ended for client in (idle, used, late))
    idle.clock.advance(4.9)
    used.send(request("GET", "/c"))
    assert [(answer.body, answer.field("Connection")) for answer in used.answers] == [
        (b"GET /b\n", None),
        (b"GET /c\n", "close"),
    ]
    assert used.transport.closed
    idle.clock.advance(0.2)
    assert idle.transport.closed
    assert late.transport.closed
    assert Client(listener=idle.listener).transport.closed


@pytest.mark.parametrize("sent", [20, 60, 70], ids=["head", "whole head", "body"])
def test_drain_answers_a_request_that_is_arriving(sent: int) -> None:
    whole = request("POST", "/a", b"x" * 100)
    client = Client(echo).send(whole[:sent])
    client.listener.drain()
    assert not client.transport.ended
    client.send(whole[sent:])
    assert [answer.field("Connection") for answer in client.answers] == ["close"]
    assert client.transport.closed


@pytest.mark.parametrize(
    "whole",
    [request("POST", "/a", b"x" * 100), chunked("/a", [b"x" * 50, b"y" * 50])],
    ids=["sized", "chunked"],
)
def test_drain_refuses_a_request_that_stops_arriving(whole: bytes) -> None:
    for cut in range(1, len(whole) - 1):
        client = Client(echo).send(whole[:cut])
        client.listener.drain()
        client.send(whole[cut : cut + 1])
        client.clock.advance(1.5)
        assert not client.transport.ended, f"refused when cut at {cut}"
        client.clock.advance(1.0)
        (answer,) = client.answers
        assert (answer.status, answer.body) == (503, b'{"error":"Server exiting"}')
        assert client.transport.closed


def test_drain_closes_a_connection_that_was_accepted_just_then() -> None:
    """The kernel may have accepted the connection before the listening socket was closed."""
    listener = Http1Listener(echo)
    listener.drain()
    late = Client(listener=listener)
    assert late.transport.ended


def test_abort_ends_connections_that_still_wait() -> None:
    client = Client().send(request("GET", "/a"))
    client.listener.abort()
    assert client.transport.aborted


def test_closed_waits_for_the_last_connection() -> None:
    async def check() -> None:
        client = Client().send(request("GET", "/a"))
        client.listener.drain()
        waiting = asyncio.ensure_future(client.listener.wait_closed(LIMIT))
        await turns()
        assert not waiting.done()
        echo(client.exchanges[0])
        client.lose()
        await asyncio.wait_for(waiting, LIMIT)

    asyncio.run(check())


def test_closed_returns_at_once_without_connections_and_after_the_timeout_with_them() -> None:
    async def check() -> None:
        await asyncio.wait_for(Http1Listener(echo).wait_closed(LIMIT), LIMIT)
        client = Client().send(request("GET", "/a"))
        await asyncio.wait_for(client.listener.wait_closed(0.01), LIMIT)
        assert client.listener.connections

    asyncio.run(check())


def test_connection_that_comes_after_the_last_went_is_waited_for() -> None:
    """The kernel may have accepted the connection before the listening socket was closed."""

    async def check() -> None:
        listener = Http1Listener(lambda exchange: None)
        first = Client(listener=listener)
        told: list[int] = []
        waiting = asyncio.ensure_future(listener.wait_closed(LIMIT, lambda left, count: told.append(count)))
        await turns()
        first.lose()
        late = Client(listener=listener)
        await turns(200)
        assert not waiting.done()
        assert len(told) <= 2, "it did not wait, but asked again and again"
        late.lose()
        await asyncio.wait_for(waiting, LIMIT)

    asyncio.run(check())


async def turns(count: int = 5) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def step(left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(step, left - 1)
        else:
            future.set_result(None)

    step(count)
    await future


# The same on the two loops, over real sockets.

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def over_sockets(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    handler: Callable[[Http1Exchange], None],
    talk: Talk,
) -> None:
    """Serves on a free port of 127.0.0.1 and lets `talk` be its client."""

    async def run() -> None:
        listener = Http1Listener(handler)
        made: list[Http1Connection] = []

        def connect() -> Http1Connection:
            made.append(Http1Connection(listener))
            return made[-1]

        server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            await asyncio.wait_for(talk(reader, writer), LIMIT)
        finally:
            writer.close()
            server.close()
            listener.abort()
            await listener.wait_closed(LIMIT)
        assert not listener.connections

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@LOOPS
def test_large_bodies_both_ways_over_a_socket_are_whole(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    body = bytes(range(256)) * 12_000

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(request("POST", "/a", body))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readexactly(len(b"POST /a\n") + len(body)) == b"POST /a\n" + body

    over_sockets(new_loop, echo, talk)


@LOOPS
def test_reset_by_the_client_is_reported_over_a_socket(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request("GET", "/a"))
        taken = await arrived.get()
        taken.on_gone = gone.set
        client: socket.socket = writer.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing sends a reset
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), LIMIT)

    arrived: asyncio.Queue[Http1Exchange] = asyncio.Queue()
    gone = asyncio.Event()
    over_sockets(new_loop, arrived.put_nowait, talk)


@LOOPS
def test_half_close_over_a_socket_is_answered_later(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request("GET", "/a"))
        writer.write_eof()
        taken = await arrived.get()
        await turns()
        echo(taken)
        assert (await reader.read()).endswith(b"\r\n\r\nGET /a\n")

    arrived: asyncio.Queue[Http1Exchange] = asyncio.Queue()
    over_sockets(new_loop, arrived.put_nowait, talk)


@LOOPS
def test_refusal_of_too_many_chunks_reaches_the_client_over_a_socket(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Bytes that the client sent after the request must not reset the connection before the answer is read."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request("POST", "/a", None, "Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 200_000)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 Bad Request\r\n")

    over_sockets(new_loop, echo, talk)
