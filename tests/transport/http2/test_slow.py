"""Clients that read slowly or not at all, that say nothing, or leave half of everything: what the server holds for them
is bounded and is let go in time.
"""

import pytest

from halimede.transport.grpc.server import GrpcServerOptions
from halimede.transport.http2.limits import Keepalive
from tests.transport.http2_bench import Opened
from tests.transport.http2_peer import Bench, Peer, request
from tests.transport.http2_wire import (
    ACK,
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    PREFACE,
    Code,
    Setting,
    Type,
    data,
    frame,
    headers,
    message,
    ping,
    rst_stream,
    settings,
    window_update,
)

FULL = 1 << 20
STREAM_WINDOW = 4 << 20
BLOCK = 10_000


def fill(opened: Opened) -> int:
    """Sends until the call takes no more; how many bytes it has taken."""
    sent = 1
    while opened.call.send([bytes(BLOCK)]):
        sent += 1
        assert sent < 10_000, "the call is never full"
    return sent * BLOCK


def wide_open(bench: Bench) -> Peer:
    """A client whose windows are no limit, so that only its reading is."""
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, LARGEST_WINDOW))
    return peer.send(window_update(0, LARGEST_WINDOW - DEFAULT_WINDOW))


# Slow readers


def test_slow_reader_by_its_windows() -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 1000))
    stream = peer.call("/t/Keep", b"x")
    sent = fill(bench.service.last)
    assert sent - 1000 <= FULL + BLOCK + 5 * (sent // BLOCK)
    resumed: list[bool] = []
    bench.service.last.call.on_writable(lambda: resumed.append(True))
    peer.send(window_update(0, 1 << 30), window_update(stream, FULL // 4))
    assert resumed == []
    peer.send(window_update(stream, FULL // 2))
    assert resumed == [True]
    assert bench.service.last.call.send([b"end"])
    bench.service.last.call.finish()
    peer.send(window_update(stream, FULL))
    assert peer.answers[stream].messages == [bytes(BLOCK)] * (sent // BLOCK) + [b"end"]
    assert (peer.answers[stream].status, resumed) == (0, [True])


def test_slow_reader_by_its_socket() -> None:
    """What the transport and the call hold together: their two limits and a message."""
    bench = Bench()
    peer = wide_open(bench)
    stream = peer.call("/t/Keep", b"x")
    peer.transport.client_reads = False
    sent = fill(bench.service.last)
    peer.clock.run()
    assert sent < 3 * FULL
    assert peer.transport.most_waiting < 2 * FULL
    resumed: list[bool] = []
    bench.service.last.call.on_writable(lambda: resumed.append(True))
    while not resumed:
        assert peer.transport.waiting, "nothing more comes, and the call was not resumed"
        peer.read(100_000)
    assert len(peer.answers[stream].data) > sent // 4
    assert bench.service.last.call.send([b"end"])
    bench.service.last.call.finish()
    peer.transport.client_reads = True
    peer.read()
    assert peer.answers[stream].messages == [bytes(BLOCK)] * (sent // BLOCK) + [b"end"]
    bench.others_work()


def test_slow_reader_of_one_large_answer() -> None:
    """It is not copied into the transport's buffer as a whole."""
    bench = Bench()
    peer = wide_open(bench)
    peer.transport.client_reads = False
    stream = peer.call("/t/Wait", b"x")
    payload = bytes(16 << 20)
    bench.service.last.call.send([payload])
    bench.service.last.call.finish()
    peer.clock.run()
    assert peer.transport.most_waiting < 3 * FULL
    for _ in range(1000):
        if peer.answers.get(stream) and peer.answers[stream].ended:
            break
        peer.read(1 << 20)
    assert peer.answers[stream].messages == [payload]


def test_slow_reader_is_not_read_from_either() -> None:
    """Messages of a call that cannot answer wait in the client: the server holds a window of them at most."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Chat", end=False)
    payload = bytes(65_531)
    left = STREAM_WINDOW
    sent = 0
    for _ in range(1000):
        if left < len(payload) + 5:
            break
        peer.send(data(stream, message(payload)))
        sent += 1
        left -= len(payload) + 5
        left += sum(frame.number for frame in peer.fresh_of(Type.WINDOW_UPDATE) if frame.stream == stream)
    else:
        raise AssertionError("the server goes on reading")
    opened = bench.service.last
    delivered = len(opened.messages)
    assert delivered * len(payload) <= FULL + 2 * DEFAULT_WINDOW
    assert sent * len(payload) <= 2 * STREAM_WINDOW
    bench.others_work()
    peer.send(window_update(0, 1 << 30), window_update(stream, 1 << 30), data(stream, end=True))
    assert peer.answers[stream].messages == [b"<" + payload + b">"] * sent
    assert (peer.answers[stream].status, opened.half_closes) == (0, 1)


@pytest.mark.parametrize("end", ["reset", "lost", "eof"])
def test_slow_reader_that_goes_is_dropped(end: str) -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 0))
    stream = peer.call("/t/Keep", b"x")
    fill(opened := bench.service.last)
    if end == "reset":
        peer.send(rst_stream(stream))
    elif end == "lost":
        peer.lose(ConnectionResetError())
    else:
        peer.eof()
    assert opened.cancels == 1
    opened.call.send([b"late"])
    opened.call.finish()
    bench.clock.run()
    bench.others_work()


def test_writable_call_resumes_at_once_and_every_waiter_is_resumed() -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 0))
    stream = peer.call("/t/Keep", b"x")
    call, resumed = bench.service.last.call, list[int]()
    call.on_writable(lambda: resumed.append(0))
    assert resumed == [0]
    fill(bench.service.last)
    for number in (1, 2, 3):
        call.on_writable(lambda number=number: resumed.append(number))  # type: ignore[misc]  # a bound argument
    assert resumed == [0]
    peer.send(window_update(0, 1 << 30), window_update(stream, 1 << 30))
    assert resumed == [0, 1, 2, 3]


# Half of everything


def test_half_a_message_holds_only_what_came() -> None:
    """2 GB announced and none sent: nothing is filled, and the call goes with its connection."""
    bench = Bench()
    peers = [bench.peer() for _ in range(20)]
    for peer in peers:
        stream = peer.open(request("/t/Wait"))
        peer.send(data(stream, message(b"x", size=2**31 - 2)))
        assert peer.reset(stream) is None
    bench.others_work()
    for peer in peers:
        peer.lose()
    assert {opened.path for opened in bench.service.opened} == {"/t/Echo"}


def test_half_a_frame_is_kept_until_the_rest_comes() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.new_stream()
    raw = headers(stream, peer.block(request())) + data(stream, message(b"x"), end=True)
    peer.conduct.windows[stream] = DEFAULT_WINDOW
    peer.send_raw(raw[:-1])
    peer.wait(100)
    bench.others_work()
    peer.send_raw(raw[-1:])
    assert peer.answers[stream].messages == [b"<x>"]


def test_half_open_connection_with_a_call_is_closed_by_keepalive() -> None:
    """The client's host has gone without a word: a ping after `time`, the end after `timeout`."""
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Keep", end=False)
    peer.fresh()
    peer.wait(7199)
    assert peer.fresh_of(Type.PING) == []
    peer.wait(2)
    assert [frame.flags for frame in peer.fresh_of(Type.PING)] == [0]
    assert not peer.transport.closing
    peer.wait(21)
    assert peer.transport.lost
    assert bench.service.last.cancels == 1
    bench.others_work()


def test_half_open_connection_that_does_not_read_is_closed_by_keepalive() -> None:
    bench = Bench(GrpcServerOptions(keepalive=Keepalive(time=10, timeout=5)))
    peer = wide_open(bench)
    peer.call("/t/Keep", b"x", end=False)
    peer.transport.client_reads = False
    fill(bench.service.last)
    peer.wait(10 + 5 + 1)
    assert peer.transport.lost
    assert bench.service.last.cancels == 1


def quick(**more: float) -> GrpcServerOptions:
    return GrpcServerOptions(keepalive=Keepalive(time=10, timeout=5, **more))  # type: ignore[arg-type]  # numbers and a flag


def test_keepalive_answered_keeps_the_connection() -> None:
    peer = Bench(quick(max_pings_without_data=0)).peer()
    peer.call("/t/Keep", end=False)
    peer.fresh()
    count = 0
    for _ in range(100):
        peer.wait(2)
        for asked in peer.fresh_of(Type.PING):
            peer.send(ping(asked.payload, ack=True))
            count += 1
    assert 8 <= count <= 20
    assert not peer.transport.closing


@pytest.mark.parametrize("before", [[], [3], [9.9], [1, 9.5, 0.2, 4]])
def test_keepalive_asks_when_the_time_has_passed_since_the_last_byte(before: list[float]) -> None:
    peer = Bench(quick()).peer()
    peer.call("/t/Keep", end=False)
    peer.fresh()
    for seconds in before:
        peer.wait(seconds)
        peer.send(window_update(0, 1))
    peer.wait(9.99)
    assert peer.fresh_of(Type.PING) == []
    peer.wait(0.02)
    assert len(peer.fresh_of(Type.PING)) == 1
    peer.wait(4.9)
    assert not peer.transport.lost
    peer.wait(0.2)
    assert peer.transport.lost


def test_keepalive_sees_any_byte_as_life() -> None:
    peer = Bench(quick()).peer()
    peer.call("/t/Keep", end=False)
    peer.fresh()
    for _ in range(10):
        peer.wait(9)
        peer.send(window_update(0, 1))
    assert peer.fresh_of(Type.PING) == []
    while not peer.fresh_of(Type.PING):
        peer.wait(1)
    peer.send(window_update(0, 1))
    peer.wait(6)
    assert not peer.transport.closing, "a byte came within the timeout"


@pytest.mark.parametrize("permitted", [False, True])
def test_keepalive_without_calls(permitted: bool) -> None:
    peer = Bench(quick(permit_without_calls=permitted)).peer()
    peer.wait(30)
    assert bool(peer.fresh_of(Type.PING)) == permitted
    assert peer.transport.lost == permitted


def test_keepalive_pings_without_data_are_counted() -> None:
    bench = Bench(quick(max_pings_without_data=2))
    peer = bench.peer()
    peer.call("/t/Keep", end=False)
    peer.fresh()

    def pings(seconds: int) -> int:
        count = 0
        for _ in range(seconds):
            peer.wait(1)
            for asked in peer.fresh_of(Type.PING):
                count += 1
                peer.send(ping(asked.payload, ack=True))
        return count

    assert pings(100) == 2
    bench.service.last.call.send([b"x"])
    assert pings(100) == 2
    assert not peer.transport.closing


# Idle connections


def test_idle_connections_are_kept_and_hold_no_more_than_a_timer() -> None:
    bench = Bench()
    before = bench.clock.waiting
    peers = [bench.peer() for _ in range(500)]
    bench.clock.advance(30)
    assert bench.clock.waiting - before <= 500
    assert not any(peer.transport.closing for peer in peers)
    peers[250].echo()
    for peer in peers:
        peer.lose()
    bench.clock.advance(60)
    assert bench.clock.waiting <= before


def test_connections_that_open_and_close_leave_nothing() -> None:
    bench = Bench()
    bench.clock.advance(60)
    before = bench.clock.waiting
    for n in range(1000):
        peer = bench.connect()
        if n % 3:
            peer.send(PREFACE, settings())
        if n % 3 == 2:
            peer.call("/t/Keep", b"x", end=False)
        peer.lose()
    assert sum(opened.cancels for opened in bench.service.opened) == 333
    bench.clock.advance(60)
    assert bench.clock.waiting <= before
    bench.others_work()


# Age


def test_age_asks_the_client_to_go_and_lets_its_calls_finish() -> None:
    bench = Bench(GrpcServerOptions(keepalive=Keepalive(max_age=100, max_age_grace=50)))
    peer = bench.peer()
    stream = peer.call("/t/Keep", end=False)
    peer.wait(89)
    assert peer.goaway is None
    peer.wait(22)
    assert peer.goaway is not None
    assert (peer.goaway.code, peer.transport.closing) == (Code.NO_ERROR, False)
    bench.service.last.call.finish()
    peer.send(data(stream, end=True))
    for asked in peer.fresh_of(Type.PING):
        peer.send(ping(asked.payload, ack=True))
    peer.clock.run()
    assert peer.answers[stream].status == 0
    assert peer.transport.closing
    assert bench.service.last.cancels == 0
    bench.peer().echo()


def test_age_and_no_more_grace() -> None:
    bench = Bench(GrpcServerOptions(keepalive=Keepalive(max_age=100, max_age_grace=50)))
    peer = bench.peer()
    peer.call("/t/Keep", end=False)
    while peer.goaway is None:
        peer.wait(0.5)
    peer.wait(49)
    assert not peer.transport.closing
    peer.wait(3)
    assert peer.transport.lost
    assert bench.service.last.cancels == 1


# The end


@pytest.mark.parametrize("how", ["eof", "reset by the peer", "gone"])
def test_client_that_goes_cancels_its_calls_once(how: str) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Keep", b"x", end=False)
    peer.call("/t/Wait", b"x")
    peer.call("/t/Echo", b"x")
    if how == "eof":
        peer.eof()
    else:
        peer.lose(ConnectionResetError() if how == "reset by the peer" else None)
    assert [opened.cancels for opened in bench.service.opened] == [1, 1, 0]
    bench.others_work()


def test_graceful_goaway_accepts_calls_that_were_on_their_way() -> None:
    """GOAWAY of the largest id and a ping first; of the last id that was taken when that is answered (6.8)."""
    bench = Bench(GrpcServerOptions(keepalive=Keepalive(max_age=100)))
    peer = bench.peer()
    peer.call("/t/Keep", end=False)
    peer.fresh()
    while peer.goaway is None:
        peer.wait(0.5)
    first, asked = peer.fresh()
    assert (first.type, first.number, first.code) == (Type.GOAWAY, LARGEST_WINDOW, Code.NO_ERROR)
    assert (asked.type, asked.flags) == (Type.PING, 0)
    stream = peer.call("/t/Wait", b"late")
    peer.fresh()
    peer.send(ping(asked.payload, ack=True))
    (second,) = peer.fresh()
    assert (second.type, second.number, second.flags & ACK) == (Type.GOAWAY, stream, 0)
    refused = peer.new_stream()
    peer.send_raw(headers(refused, peer.block(request("/t/Wait"))) + data(refused, message(b"x"), end=True))
    assert len(bench.service.opened) == 2, "later calls are ignored"
    bench.service.last.call.send([b"y"])
    bench.service.last.call.finish()
    peer.look()
    assert peer.answers[stream].messages == [b"y"]


def test_graceful_end_in_the_middle_of_a_read() -> None:
    """The last call goes, the connection closes, and what stands behind it in the same read is not looked at."""
    bench = Bench(GrpcServerOptions(keepalive=Keepalive(max_age=100)))
    peer = bench.peer()
    stream = peer.call("/t/Keep", end=False)
    while peer.goaway is None:
        peer.wait(0.5)
    (asked,) = peer.fresh_of(Type.PING)
    peer.send(ping(asked.payload, ack=True))
    peer.fresh()
    late = headers(stream + 2, peer.block(request("/t/Wait"))) + data(stream + 2, message(b"x"), end=True)
    peer.send_raw(rst_stream(stream) + ping() + settings() + late + window_update(0, 0))
    assert peer.transport.lost
    assert len(bench.service.opened) == 1
    assert [frame.type for frame in peer.fresh() if frame.stream] == []
    bench.peer().echo()


# What is left of a connection that is closed


def closing(bench: Bench, size: int) -> tuple[Peer, int]:
    """A client that has said that it goes, and is sent a large last answer, of which it reads nothing by itself."""
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, LARGEST_WINDOW), (Setting.MAX_FRAME_SIZE, (1 << 24) - 1))
    peer.send(window_update(0, LARGEST_WINDOW - DEFAULT_WINDOW))
    stream = peer.call("/t/Wait", b"x")
    peer.send(frame(Type.GOAWAY, 0, 0, bytes(8)))
    peer.transport.client_reads = False
    bench.service.last.call.send([bytes(size)])
    bench.service.last.call.finish()
    return peer, stream


def test_closing_connection_stays_as_long_as_its_client_reads() -> None:
    bench = Bench()
    peer, stream = closing(bench, 12_000_000)
    peer.clock.run()
    assert peer.transport.closing
    for _ in range(40):
        assert not peer.transport.lost
        peer.read(300_001)
        peer.wait(1)
    peer.read()
    assert peer.answers[stream].messages == [bytes(12_000_000)]
    assert (peer.answers[stream].status, peer.transport.lost) == (0, True)


def test_closing_connection_is_dropped_if_its_client_stops_reading() -> None:
    bench = Bench()
    peer, _ = closing(bench, 12_000_000)
    peer.wait(4)
    peer.read(1_000_000)
    peer.wait(5)
    assert not peer.transport.lost
    peer.wait(5)
    assert peer.transport.lost
    bench.others_work()


def test_closing_connection_that_is_drained_too_is_dropped() -> None:
    """It has one timer, and is not asked to go once more."""
    bench = Bench()
    left: list[int] = []
    for drained in (False, True):
        before = bench.clock.waiting
        peer = bench.peer()
        peer.transport.client_reads = False
        peer.send_raw(ping() + headers(2, b""))
        assert peer.transport.closing
        if drained:
            peer.protocol.drain()
        peer.lose()
        left.append(bench.clock.waiting - before)
    assert left[0] == left[1]
