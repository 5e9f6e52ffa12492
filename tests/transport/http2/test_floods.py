"""Clients that ask much and give little: each flood ends with ENHANCE_YOUR_CALM, and other clients notice nothing (RFC
9113, section 10.5)."""

from collections.abc import Callable

import pytest

from halimede.transport.grpc.server import GrpcServerOptions
from halimede.transport.http2.limits import Keepalive
from tests.transport.http2_peer import Bench, Peer, request
from tests.transport.http2_wire import (
    ACK,
    Code,
    Setting,
    Type,
    data,
    frame,
    headers,
    message,
    ping,
    priority,
    rst_stream,
    settings,
    window_update,
)

ANY_PINGS = GrpcServerOptions(keepalive=Keepalive(max_ping_strikes=0))


def calm(bench: Bench, peer: Peer) -> None:
    """What must hold after a flood."""
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    assert {opened.cancels for opened in bench.service.opened if not opened.echoes} <= {1}
    bench.others_work()


# Each flood: its frames, how many of them are no flood yet, and how many a second.


def in_pieces(peer: Peer, make: Callable[[int], bytes], count: int) -> None:
    peer.send_raw(b"".join(map(make, range(count))))


def on_a_call(peer: Peer) -> int:
    return peer.call("/t/Keep", end=False)


FLOODS: dict[str, tuple[Callable[[Peer], bytes], int, float]] = {
    "settings": (lambda _: settings(), 100, 10),
    "settings with values": (lambda _: settings((Setting.MAX_CONCURRENT_STREAMS, 7)), 100, 10),
    "empty data": (lambda peer: data(on_a_call(peer)), 1000, 100),
    "padding alone": (lambda peer: data(on_a_call(peer), padding=3), 1000, 100),
    "priority": (lambda _: priority(1), 1000, 100),
    "unknown frames": (lambda _: frame(0xB0, 0, 0), 1000, 100),
    "ping acks": (lambda _: ping(ack=True), 1000, 100),
    "settings acks": (lambda _: settings(ack=True), 100, 10),
    "window updates of the connection": (lambda _: window_update(0, 1), 10_000, 0),
    "window updates of a stream": (lambda peer: window_update(on_a_call(peer), 1), 10_000, 0),
    "window updates of no stream": (lambda peer: window_update(gone(peer), 1), 10_000, 0),
    "data for no stream": (lambda peer: data(ignored(peer), b""), 1000, 100),
}


def gone(peer: Peer) -> int:
    return peer.call("/t/Echo", b"x")


def ignored(peer: Peer) -> int:
    stream = peer.open([*request(), ("connection", "close")])
    assert peer.reset(stream) is Code.PROTOCOL_ERROR
    return stream


@pytest.mark.parametrize("name", FLOODS)
def test_flood(name: str) -> None:
    make, burst, _ = FLOODS[name]
    bench = Bench()
    peer = bench.peer()
    one = make(peer)
    peer.send_raw(one * (burst - 5))
    assert not peer.transport.closing, "a burst is no flood"
    peer.send_raw(one * (burst // 5 + 10))
    calm(bench, peer)


@pytest.mark.parametrize("name", [name for name, (_, _, rate) in FLOODS.items() if rate])
def test_frames_at_the_permitted_rate_are_no_flood(name: str) -> None:
    make, burst, rate = FLOODS[name]
    bench = Bench()
    peer = bench.peer()
    one = make(peer)
    for _ in range(3):
        peer.send_raw(one * (burst - 10))
        peer.wait(burst / rate)
    assert not peer.transport.closing
    peer.echo()


def test_flood_window_updates_that_answer_data_are_none() -> None:
    """gRPC's own clients send three or more window updates per answer, at any rate."""
    bench = Bench()
    peer = bench.peer()
    for _ in range(4000):
        stream = peer.call("/t/Echo", b"x")
        peer.send_raw(window_update(0, 1) * 5)
        peer.send_raw(window_update(stream, 1))
    assert not peer.transport.closing
    peer.echo()


def test_flood_window_updates_of_calls_that_fail_are_none() -> None:
    """Calls that are answered without data widen the windows all the same."""
    bench = Bench()
    peer = bench.peer()
    for _ in range(2500):
        peer.open(request("/t/Nowhere"), end=True)
        peer.send_raw(window_update(0, 1) * 6)
    assert not peer.transport.closing
    peer.echo()


def test_flood_of_cancelled_calls_with_large_answers_keeps_none_of_them() -> None:
    """Answers cannot be sent if the window is never widened. If their calls are cancelled, the answers are dropped."""
    bench = Bench()
    peer = bench.peer()
    for _ in range(200):
        stream = peer.call("/t/Echo", bytes(30_000))
        peer.send_raw(rst_stream(stream))
    assert not peer.transport.closing
    assert len(peer.protocol.out._turns) == 0
    assert peer.protocol.out.pending == 0


def test_flood_of_rapid_resets() -> None:
    """A call that is cancelled at once costs the client nothing, and the server the work of its service
    (CVE-2023-44487)."""
    bench = Bench()
    peer = bench.peer()
    first = peer.call("/t/Wait", b"x")
    peer.send(rst_stream(first))
    block = peer.block(request("/t/Wait"))

    def one(_: int) -> bytes:
        stream = peer.new_stream()
        return headers(stream, block) + data(stream, message(b"x"), end=True) + rst_stream(stream)

    in_pieces(peer, one, 9900)
    assert not peer.transport.closing
    assert all(opened.cancels == 1 for opened in bench.service.opened)
    in_pieces(peer, one, 200)
    assert len(bench.service.opened) <= 10_001
    calm(bench, peer)


def test_flood_of_resets_of_answered_calls_is_none() -> None:
    """A reset after the whole answer cancels nothing."""
    bench = Bench()
    peer = bench.peer()
    for _ in range(2200):
        stream = peer.call("/t/Chat", b"x", end=True)
        peer.send_raw(rst_stream(stream))
    assert not peer.transport.closing


def test_flood_of_resets_that_the_server_is_brought_to() -> None:
    """Malformed frames make the server reset calls that it has begun (CVE-2025-8671)."""
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Wait", b"x")
    block = peer.block(request("/t/Wait"))

    def one(_: int) -> bytes:
        stream = peer.new_stream()
        return headers(stream, block) + data(stream, message(b"x"), end=True) + window_update(stream, 0)

    in_pieces(peer, one, 2400)
    assert all(opened.cancels == 1 for opened in bench.service.opened[1:])
    calm(bench, peer)


def test_flood_of_malformed_requests() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.open([("connection", "close")])
    block = peer.block([("connection", "close")])
    in_pieces(peer, lambda _: headers(peer.new_stream(), block), 2400)
    assert bench.service.opened == []
    calm(bench, peer)


@pytest.mark.parametrize("fields", [request("/t/Nowhere"), request(method="GET")], ids=["unknown path", "no POST"])
def test_flood_of_calls_that_are_not_begun(fields: list[tuple[str, str]]) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.open(fields)
    block = peer.block(fields)
    peer.send(*(headers(peer.new_stream(), block, end=True) for _ in range(9900)))
    assert not peer.transport.closing
    peer.send(*(headers(peer.new_stream(), block, end=True) for _ in range(200)))
    calm(bench, peer)


def test_flood_of_refused_streams() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.open(request("/t/Wait"))
    block = peer.block(request("/t/Wait"))
    in_pieces(peer, lambda _: headers(peer.new_stream(), block), 1024 + 2400)
    calm(bench, peer)


def test_flood_of_settings_within_one_frame() -> None:
    """Each change of the initial window is work for every open stream, and one frame can hold thousands of them."""
    bench = Bench()
    peer = bench.peer()
    block = peer.block(request("/t/Wait"))
    again = peer.block(request("/t/Wait"))
    peer.send(headers(peer.new_stream(), block), *(headers(peer.new_stream(), again) for _ in range(1000)))
    peer.send(settings(*[(Setting.INITIAL_WINDOW_SIZE, n) for n in range(20)]))
    assert not peer.transport.closing
    peer.send_raw(settings(*[(Setting.INITIAL_WINDOW_SIZE, n % 1000) for n in range(10_000)]))
    calm(bench, peer)


# Pings, by gRPC's rule


def test_flood_of_pings() -> None:
    """More than two pings that come too soon, with nothing sent between them, get `too_many_pings` (G38)."""
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Keep", end=False)
    peer.send(ping(), ping(), ping())
    assert not peer.transport.closing
    peer.send(ping())
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM
    assert peer.goaway is not None
    assert peer.goaway.payload[8:] == b"too_many_pings"
    bench.others_work()


@pytest.mark.parametrize(("calls", "seconds"), [(1, 300.0), (0, 7200.0)])
def test_flood_of_pings_no_sooner_than_allowed_is_none(calls: int, seconds: float) -> None:
    bench = Bench(GrpcServerOptions(keepalive=Keepalive(time=1e9)))
    peer = bench.peer()
    if calls:
        peer.call("/t/Keep", end=False)
    peer.fresh()
    for _ in range(10):
        peer.send(ping())
        peer.wait(seconds + 0.001)
    assert [frame.flags for frame in peer.fresh_of(Type.PING)] == [ACK] * 10
    for _ in range(4):
        peer.wait(seconds * 0.9)
        peer.send(ping())
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM


def test_flood_of_pings_without_calls_where_that_is_permitted() -> None:
    bench = Bench(GrpcServerOptions(keepalive=Keepalive(time=1e9, permit_without_calls=True, min_ping_interval=10)))
    peer = bench.peer()
    for _ in range(10):
        peer.send(ping())
        peer.wait(10.001)
    assert not peer.transport.closing
    peer.send(*[ping()] * 5)
    assert peer.closed_by is Code.ENHANCE_YOUR_CALM


def test_flood_of_pings_between_answers_is_none() -> None:
    """A client that measures the way while data come (BDP probes) is not struck."""
    peer = Bench().peer()
    for _ in range(50):
        peer.send(ping(), ping())
        peer.echo()
    assert not peer.transport.closing


def test_flood_of_pings_where_any_number_is_allowed() -> None:
    peer = Bench(ANY_PINGS).peer()
    peer.send(*[ping()] * 500)
    assert len(peer.fresh_of(Type.PING)) == 500


# Floods of clients that do not read

HELD = 2 << 20
"""Bytes that the server may hold for a client that does not read, besides the answers of its open calls."""


def unread(peer: Peer, make: Callable[[], bytes]) -> None:
    """Sends without reading until the server has had enough: it stops reading too, or ends the connection in time."""
    peer.transport.client_reads = False
    for _ in range(800):
        peer.send_raw(b"".join(make() for _ in range(200)))
        if peer.transport.closing or not peer.transport.reading:
            break
    else:
        raise AssertionError("the server goes on reading")
    assert peer.transport.most_waiting <= HELD
    if peer.transport.closing:
        peer.wait(10)
        assert peer.transport.lost


@pytest.mark.parametrize("one", [ping(), settings()], ids=["pings", "settings"])
def test_flood_of_a_client_that_does_not_read(one: bytes) -> None:
    bench = Bench(ANY_PINGS)
    peer = bench.peer()
    unread(peer, lambda: one)
    bench.others_work()


@pytest.mark.parametrize(
    "fields",
    [
        request("/t/Nothing", ("key", "v" * 50)),
        request(method="GET"),
        [*request(), ("connection", "close")],
        request("/t/Echo", ("grpc-encoding", "other" * 20)),
    ],
    ids=["unknown path", "no POST", "malformed", "unknown encoding"],
)
@pytest.mark.parametrize("end", [False, True])
def test_flood_of_refused_calls_of_a_client_that_does_not_read(fields: list[tuple[str, str]], end: bool) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.open(fields)
    block = peer.block(fields)
    unread(peer, lambda: headers(peer.new_stream(), block, end))
    bench.others_work()


def test_flood_of_calls_of_a_client_that_does_not_read() -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 2**31 - 1))
    peer.send(window_update(0, 2**31 - 1 - 65_535))
    peer.echo(bytes(1000))
    block = peer.block(request())

    def one() -> bytes:
        stream = peer.new_stream()
        peer.conduct.windows[stream] = peer.conduct.initial_window
        return headers(stream, block) + data(stream, message(bytes(1000)), end=True)

    unread(peer, one)
    calls = len(bench.service.opened)
    bench.others_work()
    if not peer.transport.closing:
        peer.transport.client_reads = True
        peer.read()
        assert sum(answer.ended for answer in peer.answers.values()) >= calls
