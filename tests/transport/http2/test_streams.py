"""The states of a stream and the frames on it (RFC 9113, sections 5.1, 6.1 to 6.4, 6.6, 6.10)."""

import pytest

from tests.transport.http2_peer import Bench, Peer, request
from tests.transport.http2_wire import (
    END_HEADERS,
    END_STREAM,
    Code,
    Setting,
    Type,
    continuation,
    data,
    frame,
    headers,
    message,
    ping,
    priority,
    priority_fields,
    rst_stream,
    settings,
    window_update,
)

MAX_CONCURRENT_STREAMS = 1024


# Padding, priority, continuation


@pytest.mark.parametrize("padding", [0, 1, 255])
def test_data_padded(padding: int) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(end=False)
    first, second = message(b"hello")[:3], message(b"hello")[3:]
    peer.send(data(stream, first, padding=padding), data(stream, second, end=True, padding=padding))
    assert peer.answers[stream].messages == [b"<hello>"]


def test_data_of_padding_only() -> None:
    peer = Bench().peer()
    stream = peer.open(end=False)
    peer.send(data(stream, padding=200), data(stream, message(b"x"), end=True, padding=0))
    assert peer.answers[stream].messages == [b"<x>"]


@pytest.mark.parametrize("payload", [b"\x01", b"\x05abcd", b"\xff" + bytes(254)], ids=len)
def test_data_padded_longer_than_the_frame(payload: bytes) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", end=False)
    peer.send_raw(frame(Type.DATA, 0x8, stream, payload))
    assert peer.closed_by is Code.PROTOCOL_ERROR
    assert bench.service.last.cancels == 1
    bench.others_work()


@pytest.mark.parametrize("flags", [0x8, 0x28], ids=["padded", "padded with priority"])
def test_headers_padded_longer_than_the_frame(flags: int) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.send_raw(frame(Type.HEADERS, END_HEADERS | flags, 1, bytes([20]) + priority_fields() + bytes(14)))
    assert peer.closed_by is Code.PROTOCOL_ERROR
    bench.others_work()


@pytest.mark.parametrize("padding", [None, 0, 255])
@pytest.mark.parametrize("fields", [None, priority_fields(), priority_fields(7, 255, exclusive=True)])
def test_headers_with_padding_and_priority(padding: int | None, fields: bytes | None) -> None:
    peer = Bench().peer()
    stream = peer.new_stream()
    peer.send(headers(stream, peer.block(request()), padding=padding, fields=fields))
    peer.send(data(stream, message(b"x"), end=True))
    assert peer.answers[stream].messages == [b"<x>"]


@pytest.mark.parametrize("padding", [None, 10])
def test_headers_continued(padding: int | None) -> None:
    peer = Bench().peer()
    stream = peer.new_stream()
    block = peer.block(request())
    peer.send(
        headers(stream, block[:1], last=False, padding=padding, fields=priority_fields()),
        continuation(stream),
        *(continuation(stream, block[at : at + 1]) for at in range(1, len(block))),
        continuation(stream, last=True),
        data(stream, message(b"x"), end=True),
        size=7,
    )
    assert peer.answers[stream].messages == [b"<x>"]


def test_headers_continued_keep_their_end_of_stream() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.new_stream()
    block = peer.block(request("/t/Keep"))
    peer.send(headers(stream, block[:5], end=True, last=False), continuation(stream, block[5:], last=True))
    assert bench.service.last.half_closes == 1


WITHIN_A_BLOCK = {
    "data": data(1, b""),
    "headers": headers(1, b"", last=True),
    "headers of another stream": headers(3, b"", last=True),
    "continuation of another stream": continuation(3, b"", last=True),
    "ping": ping(),
    "settings": settings(),
    "settings ack": settings(ack=True),
    "priority": priority(1),
    "rst": rst_stream(1),
    "window update": window_update(0, 1),
    "unknown": frame(0xEE, 0, 1, b"x"),
    "unknown on the connection": frame(0xEE, 0, 0, b"x"),
}


@pytest.mark.parametrize("raw", WITHIN_A_BLOCK.values(), ids=list(WITHIN_A_BLOCK))
def test_frame_within_a_header_block(raw: bytes) -> None:
    bench = Bench()
    peer = bench.peer()
    block = peer.block(request("/t/Keep"))
    peer.send_raw(headers(1, block[:5], last=False) + raw + continuation(1, block[5:], last=True))
    assert peer.closed_by is Code.PROTOCOL_ERROR
    assert bench.service.opened == []
    bench.others_work()


def test_priority_of_any_stream_is_ignored() -> None:
    peer = Bench().peer()
    peer.send(priority(1), priority(9, 1, 255, exclusive=True), priority(2))
    peer.echo()
    peer.send(priority(1, 3))
    assert peer.fresh_of(Type.RST_STREAM) == []
    peer.echo()


def test_priority_of_a_stream_on_itself() -> None:
    """An error of the stream in RFC 7540, without a meaning in RFC 9113: either way the connection goes on."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", end=False)
    peer.send_raw(priority(stream, stream))
    assert peer.reset(stream) in (None, Code.PROTOCOL_ERROR)
    peer.echo()


# Ids


@pytest.mark.parametrize("stream", [2, 4, 2**31 - 2])
def test_stream_of_an_even_id(stream: int) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.send_raw(headers(stream, peer.block(request())))
    assert peer.closed_by is Code.PROTOCOL_ERROR
    bench.others_work()


def test_stream_of_an_id_that_does_not_rise() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.send(headers(5, peer.block(request("/t/Wait"))))
    peer.send_raw(headers(3, peer.block(request("/t/Wait"))))
    assert peer.closed_by in (Code.PROTOCOL_ERROR, Code.STREAM_CLOSED)
    bench.others_work()


def test_stream_ids_may_leave_gaps_up_to_the_largest() -> None:
    peer = Bench().peer()
    for stream in (1, 7, 1001, 2**31 - 1):
        peer.send(headers(stream, peer.block(request())), data(stream, message(b"x"), end=True))
        assert peer.answers[stream].messages == [b"<x>"]


def test_streams_more_than_allowed_are_refused() -> None:
    bench = Bench()
    peer = bench.peer()
    block = peer.block(request("/t/Wait"))
    again = peer.block(request("/t/Wait"))
    streams = [peer.new_stream() for _ in range(MAX_CONCURRENT_STREAMS + 2)]
    peer.send(headers(streams[0], block), *(headers(stream, again) for stream in streams[1:]))
    assert [peer.reset(stream) for stream in streams[:-2]] == [None] * MAX_CONCURRENT_STREAMS
    assert [peer.reset(stream) for stream in streams[-2:]] == [Code.REFUSED_STREAM] * 2
    assert not peer.transport.closing
    peer.send(rst_stream(streams[0]))
    peer.echo()
    bench.others_work()


# Idle


IDLE = {
    "data": data(5, b"x"),
    "empty data": data(5, end=True),
    "window update": window_update(5, 1),
    "data on an even stream": data(2, b"x"),
    "window update on an even stream": window_update(2, 1),
    "rst on an even stream": rst_stream(2),
}


def test_idle_stream_may_be_reset() -> None:
    """gRPC's C++ core does so when a call is taken back before its head was sent; other calls must not suffer."""
    bench = Bench()
    peer = bench.peer()
    peer.send_raw(rst_stream(5))
    peer.echo()
    assert peer.closed_by is None


@pytest.mark.parametrize("raw", IDLE.values(), ids=list(IDLE))
def test_idle_stream(raw: bytes) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.echo()
    peer.send_raw(raw)
    assert peer.closed_by is Code.PROTOCOL_ERROR
    bench.others_work()


# Half-closed (remote)


def half_closed(peer: Peer) -> int:
    """A stream that the client has ended and that the service keeps open."""
    return peer.call("/t/Keep", b"x")


def test_half_closed_stream_and_data() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = half_closed(peer)
    peer.send_raw(data(stream, message(b"y")))
    assert peer.reset(stream) is Code.STREAM_CLOSED
    assert (bench.service.last.messages, bench.service.last.cancels) == ([b"x"], 1)
    peer.echo()


def test_half_closed_stream_and_headers() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = half_closed(peer)
    peer.send_raw(headers(stream, peer.block([("late", "1")]), end=True))
    assert peer.reset(stream) is Code.STREAM_CLOSED or peer.closed_by is Code.STREAM_CLOSED
    assert bench.service.last.cancels == 1
    bench.others_work()


def test_half_closed_stream_takes_window_updates_priority_and_reset() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = half_closed(peer)
    peer.send(window_update(stream, 10), priority(stream))
    assert peer.reset(stream) is None
    assert bench.service.last.cancels == 0
    peer.send(rst_stream(stream))
    assert bench.service.last.cancels == 1
    peer.echo()


# Closed


def test_closed_stream_by_both_and_data() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Echo", b"x")
    peer.send_raw(data(stream, message(b"y")))
    assert peer.closed_by is Code.STREAM_CLOSED
    bench.others_work()


def test_closed_stream_by_both_and_headers() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Echo", b"x")
    peer.send_raw(headers(stream, peer.block([("late", "1")]), end=True))
    assert peer.closed_by in (Code.STREAM_CLOSED, Code.PROTOCOL_ERROR)
    bench.others_work()


def test_closed_stream_long_ago_and_data() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Echo", b"x")
    for _ in range(300):
        peer.echo()
    peer.send_raw(data(stream, message(b"y")))
    assert peer.closed_by is Code.STREAM_CLOSED
    bench.others_work()


def test_closed_stream_that_was_never_used_and_data() -> None:
    """Opening a stream closes those of lower ids that were idle (5.1.1)."""
    bench = Bench()
    peer = bench.peer()
    peer.send(headers(9, peer.block(request()), end=False))
    peer.send_raw(data(3, message(b"y")))
    assert peer.closed_by is Code.STREAM_CLOSED
    bench.others_work()


def test_closed_stream_takes_late_window_updates_priority_and_reset() -> None:
    """They may have been on their way (5.1)."""
    peer = Bench().peer()
    stream = peer.call("/t/Echo", b"x")
    peer.send(window_update(stream, 10), priority(stream), rst_stream(stream))
    assert peer.fresh_of(Type.RST_STREAM) == []
    peer.echo()


def test_closed_stream_by_the_clients_reset_and_data() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x", end=False)
    peer.send(rst_stream(stream))
    peer.send_raw(data(stream, message(b"y")))
    assert peer.closed_by is Code.STREAM_CLOSED or peer.reset(stream) is Code.STREAM_CLOSED
    assert (bench.service.last.messages, bench.service.last.cancels) == ([b"x"], 1)
    bench.others_work()


def test_closed_stream_by_our_reset_ignores_what_was_on_its_way() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open([*request("/t/Keep"), ("connection", "close")])
    assert peer.reset(stream) is Code.PROTOCOL_ERROR
    peer.fresh()
    late = [
        data(stream, message(b"late")),
        window_update(stream, 5),
        headers(stream, peer.block([("table", "entry")]), end=True),
        rst_stream(stream),
    ]
    for raw in late:
        peer.send_raw(raw)
    assert [frame.type for frame in peer.fresh() if frame.stream] == []
    assert bench.service.opened == []
    peer.call("/t/Keep", end=False, more=[("table", "entry")])
    assert ("table", "entry") in bench.service.last.metadata, "the block that was ignored filled the header table"


def test_call_ended_by_the_server_before_the_client() -> None:
    """Trailers and then RST_STREAM NO_ERROR (8.1): the rest of the request is not read."""
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x", end=False)
    peer.fresh()
    bench.service.last.call.finish(9, "enough")
    assert [(frame.type, frame.ends_stream) for frame in peer.fresh()] == [
        (Type.HEADERS, True),
        (Type.RST_STREAM, False),
    ]
    assert (peer.answers[stream].status, peer.reset(stream)) == (9, Code.NO_ERROR)
    peer.send_raw(data(stream, message(b"late")) + data(stream, end=True))
    assert [frame.type for frame in peer.fresh() if frame.stream] == []
    assert (bench.service.last.messages, bench.service.last.half_closes) == ([b"x"], 0)
    peer.echo()


# Reset


@pytest.mark.parametrize("code", [Code.NO_ERROR, Code.CANCEL, Code.REFUSED_STREAM, 0xFFFFFFFF])
@pytest.mark.parametrize(("path", "end"), [("/t/Keep", False), ("/t/Keep", True), ("/t/Wait", True)])
def test_reset_by_the_client_cancels(path: str, end: bool, code: int) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call(path, b"x", end=end)
    other = peer.call("/t/Keep", b"y")
    peer.send(rst_stream(stream, code))
    assert [opened.cancels for opened in bench.service.opened] == [1, 0]
    call = bench.service.opened[0].call
    call.send([b"late"])
    call.finish()
    peer.look()
    assert not peer.answers.get(stream) or not peer.answers[stream].heads
    bench.service.last.call.finish()
    peer.look()
    assert peer.answers[other].status == 0


def test_reset_of_a_unary_call_before_its_message() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(request("/t/Wait"))
    peer.send(data(stream, message(b"half", size=100)), rst_stream(stream))
    assert bench.service.opened == [], "the handler is called with a whole message only"
    peer.echo()


# Trailers of the client


def test_trailers_of_the_client_end_the_stream() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x", end=False)
    peer.send(headers(stream, peer.block([("checksum", "1")]), end=True))
    assert (bench.service.last.half_closes, peer.reset(stream)) == (1, None)
    bench.service.last.call.finish()
    peer.look()
    assert peer.answers[stream].status == 0


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ([("checksum", "1")], END_HEADERS),
        ([(":path", "/t/Echo")], END_HEADERS | END_STREAM),
        ([(":status", "200")], END_HEADERS | END_STREAM),
        ([("Checksum", "1")], END_HEADERS | END_STREAM),
        ([("connection", "close")], END_HEADERS | END_STREAM),
    ],
    ids=["no end of stream", "pseudo-header", "status", "upper case", "connection-specific"],
)
def test_trailers_of_the_client_malformed(fields: list[tuple[str, str]], flags: int) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x", end=False)
    peer.send_raw(frame(Type.HEADERS, flags, stream, peer.block(fields)))
    assert peer.reset(stream) is Code.PROTOCOL_ERROR
    assert (bench.service.last.half_closes, bench.service.last.cancels) == (0, 1)
    peer.echo()


# Settings that change a stream's life


def test_stream_limit_of_the_client_is_not_ours() -> None:
    """A server opens no stream: MAX_CONCURRENT_STREAMS of 0 and ENABLE_PUSH of 0 change nothing."""
    peer = Bench().peer((Setting.MAX_CONCURRENT_STREAMS, 0), (Setting.ENABLE_PUSH, 0))
    peer.echo()
    assert [frame for frame in peer.frames if frame.type == Type.PUSH_PROMISE] == []
