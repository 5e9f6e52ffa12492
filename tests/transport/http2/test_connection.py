"""The preface, and the frames that concern a whole connection (RFC 9113, sections 3.4, 4.1, 4.2, 6.5, 6.7, 6.8, 7)."""

import struct

import pytest

from tests.transport.http2_peer import Bench
from tests.transport.http2_wire import (
    ACK,
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    PREFACE,
    Code,
    Setting,
    Type,
    continuation,
    data,
    frame,
    goaway,
    headers,
    message,
    ping,
    priority,
    rst_stream,
    settings,
    window_update,
)

MAX_FRAME_SIZE = 1 << 20
PREFACE_SECONDS = 20


def test_preface_of_the_server_comes_at_once() -> None:
    peer = Bench().connect()
    first, window = peer.frames
    assert first.settings == {
        Setting.MAX_CONCURRENT_STREAMS: 1024,
        Setting.INITIAL_WINDOW_SIZE: 4 << 20,
        Setting.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
        Setting.MAX_HEADER_LIST_SIZE: 16 << 10,
    }
    assert (window.type, window.stream, window.number) == (Type.WINDOW_UPDATE, 0, (64 << 20) - DEFAULT_WINDOW)


def test_preface_in_single_bytes() -> None:
    peer = Bench().connect()
    peer.send(PREFACE, settings(), settings(ack=True), size=1)
    assert [(frame.type, frame.flags) for frame in peer.frames[2:]] == [(Type.SETTINGS, ACK)]
    peer.echo()


def test_preface_settings_and_a_call_in_one_read() -> None:
    peer = Bench().connect()
    stream = peer.new_stream()
    block = peer.block([(":method", "POST"), (":scheme", "http"), (":path", "/t/Echo"), ("te", "trailers")])
    kind = peer.block([("content-type", "application/grpc")])
    peer.send(PREFACE, settings(), headers(stream, block + kind), data(stream, message(b"x"), end=True))
    assert peer.answers[stream].messages == [b"<x>"]


BAD_PREFACES = {
    "http1": b"POST /v2/models HTTP/1.1\r\nHost: x\r\n\r\n",
    "a request line alone": b"GET / HTTP/1.1\r\n\r\n" + bytes(30),
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    "last byte wrong": PREFACE[:-1] + b"\r" + settings(),
    "frames without a preface": settings() + ping() + window_update(0, 1),
    "zeros": bytes(100),
}


@pytest.mark.parametrize("raw", BAD_PREFACES.values(), ids=list(BAD_PREFACES))
@pytest.mark.parametrize("size", [None, 1])
def test_preface_bad(raw: bytes, size: int | None) -> None:
    bench = Bench()
    peer = bench.connect()
    peer.send_raw(raw, size)
    assert peer.closed_by is Code.PROTOCOL_ERROR
    bench.others_work()


@pytest.mark.parametrize(
    "first",
    [ping(), window_update(0, 1), headers(1, b""), data(1), priority(1), rst_stream(1), goaway(), frame(0xFF)],
    ids=["ping", "window update", "headers", "data", "priority", "rst", "goaway", "unknown"],
)
def test_preface_without_settings_after_it(first: bytes) -> None:
    bench = Bench()
    peer = bench.connect()
    peer.send_raw(PREFACE + first)
    assert peer.closed_by is Code.PROTOCOL_ERROR
    bench.others_work()


def test_preface_followed_by_an_ack_only() -> None:
    """The client's preface is SETTINGS, and an ACK carries none (3.4)."""
    peer = Bench().connect()
    peer.send_raw(PREFACE + settings(ack=True))
    assert peer.closed_by is Code.PROTOCOL_ERROR


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE, PREFACE + settings()[:5]], ids=len)
def test_preface_that_never_comes_whole(sent: bytes) -> None:
    bench = Bench()
    peer = bench.connect()
    peer.send_raw(sent)
    peer.wait(PREFACE_SECONDS - 0.5)
    assert not peer.transport.closing
    peer.wait(1)
    assert peer.transport.closing
    assert peer.transport.lost
    bench.others_work()


def test_preface_that_came_lets_the_client_idle() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.wait(PREFACE_SECONDS * 3)
    assert not peer.transport.closing
    peer.echo()


# SETTINGS


def test_settings_are_acknowledged_in_order() -> None:
    peer = Bench().peer()
    peer.send(settings((Setting.MAX_FRAME_SIZE, 20_000)), ping(), settings())
    assert [(frame.type, frame.flags) for frame in peer.fresh()] == [
        (Type.SETTINGS, ACK),
        (Type.PING, ACK),
        (Type.SETTINGS, ACK),
    ]


def test_settings_unknown_are_ignored() -> None:
    peer = Bench().peer()
    peer.send(settings((0x99, 1), (0, 2**32 - 1), (0xFFFF, 7)))
    assert [frame.flags for frame in peer.fresh()] == [ACK]
    peer.echo()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (Setting.HEADER_TABLE_SIZE, 0),
        (Setting.HEADER_TABLE_SIZE, 2**32 - 1),
        (Setting.ENABLE_PUSH, 0),
        (Setting.ENABLE_PUSH, 1),
        (Setting.MAX_CONCURRENT_STREAMS, 0),
        (Setting.INITIAL_WINDOW_SIZE, LARGEST_WINDOW),
        (Setting.MAX_FRAME_SIZE, 2**14),
        (Setting.MAX_FRAME_SIZE, 2**24 - 1),
        (Setting.MAX_HEADER_LIST_SIZE, 0),
    ],
)
def test_settings_at_their_bounds(setting: Setting, value: int) -> None:
    peer = Bench().peer((setting, value))
    if setting == Setting.HEADER_TABLE_SIZE:
        peer.decoder.max_allowed_table_size = min(value, 1 << 16)
    peer.echo()
    peer.echo()


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        (Setting.ENABLE_PUSH, 2, Code.PROTOCOL_ERROR),
        (Setting.INITIAL_WINDOW_SIZE, LARGEST_WINDOW + 1, Code.FLOW_CONTROL_ERROR),
        (Setting.MAX_FRAME_SIZE, 2**14 - 1, Code.PROTOCOL_ERROR),
        (Setting.MAX_FRAME_SIZE, 2**24, Code.PROTOCOL_ERROR),
    ],
)
def test_settings_out_of_bounds(setting: Setting, value: int, code: Code) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.send_raw(settings((setting, value)))
    assert peer.closed_by is code
    bench.others_work()


def test_settings_table_size_is_announced_before_the_next_block() -> None:
    """A smaller table is announced by a dynamic table size update (RFC 7541, 4.2): the strict decoder of `hpack`
    raises without it."""
    peer = Bench().peer()
    peer.echo()
    for size in (0, 4096, 100, 5000):
        peer.send(settings((Setting.HEADER_TABLE_SIZE, size)))
        peer.decoder.max_allowed_table_size = size
        peer.echo()
        peer.echo()


def test_settings_table_size_lowered_and_raised_before_a_block() -> None:
    peer = Bench().peer()
    peer.echo()
    peer.send(settings((Setting.HEADER_TABLE_SIZE, 0), (Setting.HEADER_TABLE_SIZE, 4096)))
    peer.echo()
    peer.echo()


def test_unexpected_settings_ack() -> None:
    peer = Bench().peer()
    peer.send(settings(ack=True), settings(ack=True))
    assert peer.fresh() == []
    peer.echo()


# PING


def test_ping_is_answered_with_its_data() -> None:
    peer = Bench().peer()
    peer.send(ping(b"abcdefgh"), ping(b"01234567"))
    assert [(frame.flags, frame.payload) for frame in peer.fresh_of(Type.PING)] == [
        (ACK, b"abcdefgh"),
        (ACK, b"01234567"),
    ]


def test_ping_with_other_flags_is_answered() -> None:
    peer = Bench().peer()
    peer.send(frame(Type.PING, 0xFE, 0, bytes(8)))
    assert [frame.flags for frame in peer.fresh_of(Type.PING)] == [ACK]


def test_unexpected_ping_ack_is_not_answered() -> None:
    peer = Bench().peer()
    peer.send(ping(b"........", ack=True))
    assert peer.fresh() == []
    peer.echo()


# GOAWAY from the client


@pytest.mark.parametrize("code", [*Code, 0x1234])
def test_goaway_of_the_client_lets_its_calls_finish(code: int) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Wait", b"x")
    peer.send(goaway(0, code, b"why"))
    bench.service.last.call.send([b"y"])
    bench.service.last.call.finish()
    peer.look()
    assert peer.answers[stream].messages == [b"y"]
    assert bench.service.last.cancels == 0


def test_goaway_twice_with_a_larger_last_stream() -> None:
    peer = Bench().peer()
    peer.send(goaway(1), goaway(3))
    assert not peer.goaway or peer.goaway.code == Code.NO_ERROR


# Sizes and places of frames

WRONG_SIZES = {
    "ping of 7": frame(Type.PING, 0, 0, bytes(7)),
    "ping of 9": frame(Type.PING, 0, 0, bytes(9)),
    "ping of 0": frame(Type.PING, 0, 0),
    "ping ack of 7": frame(Type.PING, ACK, 0, bytes(7)),
    "settings of 5": frame(Type.SETTINGS, 0, 0, bytes(5)),
    "settings of 7": frame(Type.SETTINGS, 0, 0, bytes(7)),
    "settings ack of 6": frame(Type.SETTINGS, ACK, 0, struct.pack(">HI", 4, 1)),
    "goaway of 7": frame(Type.GOAWAY, 0, 0, bytes(7)),
    "window update of 3": frame(Type.WINDOW_UPDATE, 0, 0, bytes(3)),
    "window update of 5": frame(Type.WINDOW_UPDATE, 0, 0, bytes(4) + b"\1"),
    "window update of 3 on a stream": frame(Type.WINDOW_UPDATE, 0, 1, bytes(3)),
    "rst of 3": frame(Type.RST_STREAM, 0, 1, bytes(3)),
    "rst of 5": frame(Type.RST_STREAM, 0, 1, bytes(5)),
    "data of a padded stream without its length": frame(Type.DATA, 0x8, 1),
    "headers, padded, without its length": frame(Type.HEADERS, 0xC, 3),
    "headers with half a priority": frame(Type.HEADERS, 0x24, 3, bytes(4)),
}


@pytest.mark.parametrize("raw", WRONG_SIZES.values(), ids=list(WRONG_SIZES))
def test_frame_of_a_wrong_size(raw: bytes) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Wait", end=False)
    peer.send_raw(raw)
    assert peer.closed_by is Code.FRAME_SIZE_ERROR
    bench.others_work()


@pytest.mark.parametrize("size", [4, 6, 0])
def test_priority_of_a_wrong_size_is_an_error_of_its_stream(size: int) -> None:
    peer = Bench().peer()
    stream = peer.call("/t/Keep", end=False)
    peer.send_raw(frame(Type.PRIORITY, 0, stream, bytes(size)))
    assert peer.reset(stream) is Code.FRAME_SIZE_ERROR
    peer.echo()


@pytest.mark.parametrize("type", [*Type, 0xEE])
@pytest.mark.parametrize("stream", [0, 1])
def test_frame_larger_than_the_limit(type: int, stream: int) -> None:
    """The head of the frame is enough for the error (section 4.2): the server does not wait for 16 MB."""
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Wait", end=False)
    peer.send_raw((MAX_FRAME_SIZE + 1).to_bytes(3, "big") + struct.pack(">BBI", type, 0, stream))
    assert peer.closed_by is Code.FRAME_SIZE_ERROR
    bench.others_work()


def test_frame_of_exactly_the_limit() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.open(end=False)
    payload = bytes(MAX_FRAME_SIZE - 5)
    peer.send(data(stream, message(payload), end=True))
    assert bench.service.last.messages == [payload]
    peer.send(window_update(0, 2 * MAX_FRAME_SIZE), window_update(stream, 2 * MAX_FRAME_SIZE))
    assert peer.answers[stream].messages == [b"<" + payload + b">"]


WRONG_PLACES = {
    "data on the connection": data(0, b"x"),
    "headers on the connection": headers(0, b"\x83"),
    "continuation on the connection": continuation(0, b"", last=True),
    "priority on the connection": priority(0),
    "rst on the connection": rst_stream(0),
    "settings on a stream": frame(Type.SETTINGS, 0, 1),
    "settings ack on a stream": frame(Type.SETTINGS, ACK, 1),
    "ping on a stream": frame(Type.PING, 0, 1, bytes(8)),
    "goaway on a stream": frame(Type.GOAWAY, 0, 1, bytes(8)),
    "push promise on a stream": frame(Type.PUSH_PROMISE, 4, 1, struct.pack(">I", 2) + b"\x82"),
    "push promise on the connection": frame(Type.PUSH_PROMISE, 4, 0, struct.pack(">I", 2) + b"\x82"),
    "continuation of nothing": continuation(1, b"\x82", last=True),
    "continuation of nothing on a new stream": continuation(3, b"\x82", last=True),
}


@pytest.mark.parametrize("raw", WRONG_PLACES.values(), ids=list(WRONG_PLACES))
def test_frame_in_a_wrong_place(raw: bytes) -> None:
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Wait", end=False)
    peer.send_raw(raw)
    assert peer.closed_by is Code.PROTOCOL_ERROR
    bench.others_work()


@pytest.mark.parametrize("stream", [0, 1, 2, 77])
def test_frame_of_an_unknown_type_is_ignored(stream: int) -> None:
    peer = Bench().peer()
    peer.send(frame(0x0A, 0xFF, stream, b"origin"), frame(0xFE, 0x1, stream, bytes(2000)), frame(0x42, 0, stream))
    assert peer.fresh() == []
    peer.echo()


def test_frame_flags_without_a_meaning_are_ignored() -> None:
    peer = Bench().peer()
    stream = peer.new_stream()
    block = peer.block([(":method", "POST"), (":scheme", "http"), (":path", "/t/Echo"), ("te", "trailers")])
    block += peer.block([("content-type", "application/grpc")])
    peer.send(
        frame(Type.SETTINGS, 0xFE, 0),
        frame(Type.HEADERS, 0x04 | 0xD2, stream, block),
        frame(Type.WINDOW_UPDATE, 0xFF, 0, struct.pack(">I", 1)),
        frame(Type.DATA, 0x01 | 0xF6, stream, message(b"x")),
    )
    assert peer.answers[stream].messages == [b"<x>"]


def test_frame_with_the_reserved_bit_set() -> None:
    peer = Bench().peer()
    stream = peer.new_stream()
    block = peer.block([(":method", "POST"), (":scheme", "http"), (":path", "/t/Echo"), ("te", "trailers")])
    block += peer.block([("content-type", "application/grpc")])
    top = 1 << 31
    peer.send(
        frame(Type.PING, 0, top, bytes(8)),
        frame(Type.HEADERS, 0x4, stream | top, block),
        frame(Type.WINDOW_UPDATE, 0, top, struct.pack(">I", 1 | top)),
        frame(Type.DATA, 0x1, stream | top, message(b"x")),
    )
    assert peer.answers[stream].messages == [b"<x>"]


def test_goaway_names_the_last_stream_that_was_taken() -> None:
    bench = Bench()
    peer = bench.peer()
    streams = [peer.call("/t/Wait", b"x") for _ in range(3)]
    peer.send_raw(window_update(0, 0))
    assert peer.closed_by is Code.PROTOCOL_ERROR
    assert peer.goaway is not None
    assert peer.goaway.number == streams[-1]
    assert [opened.cancels for opened in bench.service.opened] == [1, 1, 1]


def test_goaway_ends_all_calls_and_nothing_after_it_is_read() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Keep", b"one", end=False)
    block = peer.block([(":method", "POST")])
    peer.send_raw(window_update(0, 0) + data(1, message(b"two")) + headers(3, block) + ping())
    (opened,) = bench.service.opened
    assert (opened.messages, opened.cancels) == ([b"one"], 1)
    assert [frame.type for frame in peer.fresh()][-1] == Type.GOAWAY
