"""What a connection holds goes when it goes, without the garbage collector."""

import gc
from collections.abc import Callable, Iterator

import pytest

from halimede.transport.http1.connection import Http1Connection
from halimede.transport.http2.connection import Http2Connection
from tests.transport.http1_fakes import Client, chunked, echo, request
from tests.transport.http2_peer import Bench, Peer
from tests.transport.http2_peer import request as call_fields
from tests.transport.http2_wire import Setting, data, headers, message

LARGE = 1 << 20


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


HTTP1: dict[str, Callable[[Client], object]] = {
    "idle": lambda client: client,
    "in a head": lambda client: client.send(b"GET / HTTP/1.1\r\nHost: x\r\n"),
    "in a body": lambda client: client.send(request("POST", "/a", bytes(LARGE))[:-1]),
    "in a body of a known head": lambda client: client.send(request("POST", "/a", bytes(LARGE)) * 2).send(
        request("POST", "/a", bytes(LARGE))[:-1]
    ),
    "in chunks": lambda client: client.send(chunked("/a", [bytes(LARGE)])[:-9]),
    "waiting for its answer": lambda client: client.send(request("POST", "/wait", bytes(LARGE))),
    "pipelining": lambda client: client.send(request("POST", "/wait", bytes(LARGE)) * 2),
    "streaming": lambda client: client.send(request("POST", "/stream", bytes(LARGE))),
}


@pytest.mark.parametrize("ends", [False, True], ids=["lost", "ended"])
@pytest.mark.parametrize("state", HTTP1)
def test_http1_connection_is_freed(state: str, ends: bool) -> None:
    def handle(exchange: object) -> None:
        assert hasattr(exchange, "target")
        if exchange.target == b"/stream":
            exchange.begin(200, b"").send([b"x"])  # type: ignore[attr-defined]  # an exchange
        elif exchange.target != b"/wait":
            echo(exchange)  # type: ignore[arg-type]  # an exchange

    before = alive(Http1Connection)
    client = Client(handle)
    listener = client.listener
    HTTP1[state](client)
    if ends:
        client.end()
    client.lose(ConnectionResetError())
    client.clock.advance(10)
    del client
    assert alive(Http1Connection) == before
    assert listener.buffers.buffered.held == 0
    assert not listener.connections


def test_http1_upload_is_freed_at_the_end_of_the_client_s_side() -> None:
    """The connection may live on, because an earlier answer is due."""
    client = Client().send(request("GET", "/wait") + request("POST", "/a", bytes(LARGE))[:-1])
    assert client.listener.buffers.buffered.held == LARGE - 1
    client.end()
    assert client.listener.buffers.buffered.held == 0
    assert not client.transport.ended


def half_message(peer: Peer, path: str) -> None:
    peer.send(headers(1, peer.block(call_fields(path))), data(1, message(bytes(1 << 19), size=LARGE)))


HTTP2: dict[str, Callable[[Peer], object]] = {
    "idle": lambda peer: peer,
    "half a frame": lambda peer: peer.send_raw(headers(1, peer.block(call_fields()))[:-1]),
    "half a message": lambda peer: half_message(peer, "/t/Wait"),
    "half a message of a stream": lambda peer: half_message(peer, "/t/Keep"),
    "waiting for its answer": lambda peer: peer.call("/t/Wait", bytes(1 << 16)),
    "an open stream": lambda peer: peer.call("/t/Keep", bytes(1 << 16), end=False),
    "an answer that is not read": lambda peer: peer.call("/t/Echo", bytes(1 << 19)),
}


@pytest.mark.parametrize("state", HTTP2)
def test_http2_connection_is_freed(state: str) -> None:
    bench = Bench()
    before = alive(Http2Connection)
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 1000))
    HTTP2[state](peer)
    peer.lose(ConnectionResetError())
    bench.clock.advance(10)
    del peer
    bench.service.opened.clear()
    assert alive(Http2Connection) == before
    assert bench.server.buffers.buffered.held == 0
