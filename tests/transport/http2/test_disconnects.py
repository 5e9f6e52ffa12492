"""The client goes at every point of a call. Nothing raises, and the service is told of exactly the calls that
it had."""

from collections.abc import Callable

import pytest

from halimede.transport.message_budget import MAX_MESSAGES_PER_TURN
from tests.transport.http2_peer import Bench, Peer, request
from tests.transport.http2_wire import (
    DEFAULT_WINDOW,
    END_HEADERS,
    PREFACE,
    Setting,
    Type,
    continuation,
    data,
    frame,
    headers,
    message,
    priority_fields,
    rst_stream,
    settings,
    window_update,
)


def unary(peer: Peer) -> bytes:
    return headers(1, peer.block(request("/t/Wait"))) + data(1, message(b"hello"), end=True)


def unary_with_everything(peer: Peer) -> bytes:
    """Padding, priority, CONTINUATION, a message in pieces, trailers."""
    block = peer.block(request("/t/Wait", ("key", "value")))
    raw = message(b"hello")
    return b"".join(
        [
            headers(1, block[:20], last=False, padding=5, fields=priority_fields()),
            continuation(1, block[20:30]),
            continuation(1, block[30:], last=True),
            data(1, raw[:3], padding=4),
            window_update(1, 10),
            data(1, raw[3:]),
            data(1),
            headers(1, peer.block([("trailer", "1")]), end=True),
        ]
    )


def stream_with_answers(peer: Peer) -> bytes:
    """Messages both ways."""
    block = peer.block(request("/t/Chat"))
    return headers(1, block) + data(1, message(b"a") + message(b"b")) + data(1, message(b"c"), end=True)


def stream_that_waits(peer: Peer) -> bytes:
    return headers(1, peer.block(request("/t/Keep"))) + data(1, message(b"a")) + data(1, message(b"b"))


def stream_that_is_reset(peer: Peer) -> bytes:
    return stream_that_waits(peer) + rst_stream(1)


def two_calls(peer: Peer) -> bytes:
    first = headers(1, peer.block(request("/t/Keep"))) + data(1, message(b"a"))
    second = headers(3, peer.block(request("/t/Wait"))) + data(3, message(b"b"), end=True)
    return first + second + data(1, end=True)


CALLS: dict[str, Callable[[Peer], bytes]] = {
    each.__name__: each
    for each in (unary, unary_with_everything, stream_with_answers, stream_that_waits, stream_that_is_reset, two_calls)
}


def prepared(window: int) -> tuple[Bench, Peer]:
    bench = Bench()
    peer = bench.connect()
    for stream in (1, 3):
        peer.conduct.windows[stream] = peer.conduct.initial_window = window
    return bench, peer


@pytest.mark.parametrize("way", ["lost", "reset by the peer", "eof"])
@pytest.mark.parametrize("window", [DEFAULT_WINDOW, 2], ids=["taken", "not taken"])
@pytest.mark.parametrize("name", CALLS)
def test_client_gone_at_every_byte(name: str, window: int, way: str) -> None:
    """`window`: whether the client takes the answers or leaves them."""
    greeting = PREFACE + settings((Setting.INITIAL_WINDOW_SIZE, window)) + settings(ack=True)
    whole = greeting + CALLS[name](prepared(window)[1])
    for end in range(len(whole) + 1):
        bench, peer = prepared(window)
        peer.send_raw(whole[:end])
        before = [opened.cancels for opened in bench.service.opened]
        open_calls = [
            at for at, opened in enumerate(bench.service.opened) if not finished(peer, 2 * at + 1, opened.path)
        ]
        if way == "eof":
            peer.eof()
        else:
            peer.lose(ConnectionResetError() if way != "lost" else None)
        assert peer.transport.lost
        for at, opened in enumerate(bench.service.opened):
            told = opened.cancels - before[at]
            assert told == (at in open_calls and not before[at]), f"after {end} bytes: told {told} times"
            opened.call.send([b"late"])
            opened.call.on_writable(lambda: None)
            opened.call.finish()
        bench.clock.advance(60)
        assert bench.clock.waiting == 1, "of the neighbour"
    bench.others_work()


def finished(peer: Peer, stream: int, path: str) -> bool:
    """Whether the client has all of the answer of a call."""
    answer = peer.answers.get(stream)
    return answer is not None and answer.ended


@pytest.mark.parametrize("name", CALLS)
def test_cut_at_every_byte_is_the_same_call(name: str) -> None:
    """In two reads, wherever they part."""
    first = None
    for at in range(len(CALLS[name](prepared(DEFAULT_WINDOW)[1]))):
        bench, peer = prepared(DEFAULT_WINDOW)
        peer.greet()
        raw = CALLS[name](peer)
        peer.send_raw(raw[:at])
        peer.send_raw(raw[at:])
        seen = [(opened.path, opened.messages, opened.half_closes, opened.cancels) for opened in bench.service.opened]
        first = first or seen
        assert seen == first
        assert seen


def test_client_gone_within_a_large_message() -> None:
    """While it is received into its own buffer."""
    bench = Bench()
    payload = bytes(300_000)
    for end in (1, 5, 14, 100, 16_000, 200_000, len(payload), len(payload) + 14):
        peer = bench.peer()
        raw = headers(1, peer.block(request("/t/Keep"))) + data(1, message(payload), end=True)
        peer.send_raw(raw[: -len(payload) - 14] + raw[-len(payload) - 14 :][:end])
        opened = bench.service.last
        assert opened.messages == [payload] * (end == len(payload) + 14)
        peer.lose()
        assert opened.cancels == 1
    bench.others_work()


def test_client_gone_with_many_calls_in_every_state() -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 3))
    streams = [
        peer.call(path, b"x", end=end) for path in ("/t/Keep", "/t/Chat") for end in (False, True) for _ in range(5)
    ]
    half = peer.open(request("/t/Wait"))
    peer.send(data(half, message(b"x", size=1000)), rst_stream(streams[0]))
    peer.lose()
    assert [opened.cancels for opened in bench.service.opened] == [1] * 20
    bench.others_work()


@pytest.mark.parametrize("how", ["gone", "breaks a rule"])
def test_many_calls_end_in_several_turns(how: str) -> None:
    bench = Bench()
    peers = [bench.peer() for _ in range(2)]
    for peer in peers:
        for _ in range(MAX_MESSAGES_PER_TURN):
            peer.call("/t/Keep", b"x", end=False)
    for peer in peers:
        if how == "gone":
            peer.protocol.connection_lost(None)
        else:
            raw = frame(Type.PUSH_PROMISE, END_HEADERS, 1, bytes(4))
            peer.protocol.get_buffer(-1)[: len(raw)] = raw
            peer.protocol.buffer_updated(len(raw))
    cancels = [opened.cancels for opened in bench.service.opened]
    assert 0 < sum(cancels) <= MAX_MESSAGES_PER_TURN
    bench.clock.run()
    assert [opened.cancels for opened in bench.service.opened] == [1] * len(cancels)


def test_service_answers_after_the_client_has_gone() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Keep", b"x")
    peer.call("/t/Wait", b"x")
    peer.lose()
    written = len(peer.transport.arrived)
    for opened in bench.service.opened:
        resumed: list[int] = []
        for _ in range(30):
            opened.call.send([bytes(1 << 17)])
        opened.call.on_writable(lambda resumed=resumed: resumed.append(1))  # type: ignore[misc]  # a bound argument
        opened.call.finish(13, "late")
        opened.call.finish()
        assert len(resumed) <= 1
    bench.clock.run()
    assert len(peer.transport.arrived) == written
